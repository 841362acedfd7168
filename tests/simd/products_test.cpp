// SPDX-License-Identifier: Apache-2.0
// The micro-kernels against plain loops of fmaf, to the bit: every result is one chain over the depth.
#include <algorithm>
#include <cmath>

#include "simd/available.hpp"
#include "simd/guarded.hpp"

namespace heed::simd {
namespace {

class Products : public Simd {};
INSTANTIATE_TEST_SUITE_P(Vectors, Products, testing::ValuesIn(compiled()), target_name);

std::vector<std::int64_t> depths(std::int64_t unit) {
  std::vector<std::int64_t> made;
  for (std::int64_t depth = unit; depth <= 72; depth += unit) made.push_back(depth);
  for (const std::int64_t depth : {80, 96, 128, 132, 160, 252, 256, 260, 512, 516, 1024})
    made.push_back(depth);
  return made;
}

struct ProductCase {
  std::int64_t depth, rows, columns;
  Guarded a{depth * rows}, b{depth * columns}, c{columns * rows};

  void randomize() {
    a.randomize(static_cast<std::uint64_t>(depth));
    b.randomize(static_cast<std::uint64_t>(depth) + 5000);
    c.randomize(static_cast<std::uint64_t>(depth) + 9000);
  }
  float expected(std::int64_t n, std::int64_t r) {
    float sum = 0;
    for (std::int64_t k = 0; k < depth; ++k) sum = std::fmaf(a[k * rows + r], b[k * columns + n], sum);
    return sum;
  }
};

TEST_P(Products, a_tile_is_single_chains_over_every_depth_and_nothing_is_read_beyond_it) {
  std::int64_t wrong = 0;
  for (const std::int64_t depth : depths(2)) {
    ProductCase t{depth, vector().rows, vector().columns};
    t.randomize();
    std::vector<float> from_zero, added;
    for (std::int64_t n = 0; n < t.columns; ++n)
      for (std::int64_t r = 0; r < t.rows; ++r) {
        from_zero.push_back(t.expected(n, r));
        added.push_back(t.c[n * t.rows + r] + from_zero.back());
      }
    vector().more_product(t.a.data(), t.b.data(), depth, t.c.data());
    for (std::size_t i = 0; i < added.size(); ++i)
      if (!same(t.c[static_cast<std::int64_t>(i)], added[i]) && wrong++ == 0)
        ADD_FAILURE() << "depth " << depth << ", added to c, element " << i;
    vector().product(t.a.data(), t.b.data(), depth, t.c.data());
    for (std::size_t i = 0; i < from_zero.size(); ++i)
      if (!same(t.c[static_cast<std::int64_t>(i)], from_zero[i]) && wrong++ == 0)
        ADD_FAILURE() << "depth " << depth << ", in place of c, element " << i;
  }
  EXPECT_EQ(wrong, 0);
}

// Vectors that take part as far as `depths` says, one for each; the others stay as they are.
std::vector<float> expected_by_depths(ProductCase& t, std::int64_t lanes,
                                      const std::vector<std::int64_t>& depths) {
  std::vector<float> expected;
  for (std::int64_t n = 0; n < t.columns; ++n)
    for (std::int64_t r = 0; r < t.rows; ++r) {
      float sum = 0;
      const std::int64_t depth = depths[static_cast<std::size_t>(r / lanes)];
      for (std::int64_t k = 0; k < depth; ++k)
        sum = std::fmaf(t.a[k * t.rows + r], t.b[k * t.columns + n], sum);
      expected.push_back(t.c[n * t.rows + r] + sum);
    }
  return expected;
}

std::int64_t count_differences(ProductCase& t, const std::vector<float>& expected) {
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (!same(t.c[static_cast<std::int64_t>(i)], expected[i])) ++wrong;
  return wrong;
}

TEST_P(Products, some_vectors_of_a_tile_are_what_they_are_in_all_of_it) {
  const std::int64_t lanes = vector().lanes, vectors = vector().rows / lanes;
  for (const std::int64_t depth : depths(2))
    for (std::int64_t count = 1; count <= vectors; ++count) {
      ProductCase t{depth, vector().rows, vector().columns};
      t.randomize();
      std::vector<std::int64_t> deep(static_cast<std::size_t>(vectors), 0);
      std::fill_n(deep.begin(), count, depth);
      const auto expected = expected_by_depths(t, lanes, deep);
      vector().narrow_product(static_cast<int>(count), t.a.data(), t.b.data(), depth, t.c.data());
      EXPECT_EQ(count_differences(t, expected), 0) << "depth " << depth << ", " << count << " vectors";
    }
}

TEST_P(Products, a_vector_is_multiplied_as_deep_as_it_reaches) {
  const std::int64_t lanes = vector().lanes, vectors = vector().rows / lanes;
  for (const std::int64_t first : {0, 2, 8, 64, 240})
    for (const std::int64_t step : {0, 8, 16, 40}) {
      const std::int64_t depth = first + (vectors - 1) * step;
      if (depth == 0) continue;
      ProductCase t{depth, vector().rows, vector().columns};
      t.randomize();
      std::vector<std::int64_t> deep;
      for (std::int64_t v = 0; v < vectors; ++v) deep.push_back(first + v * step);
      const auto expected = expected_by_depths(t, lanes, deep);
      vector().stepped_product(t.a.data(), t.b.data(), deep.data(), t.c.data());
      EXPECT_EQ(count_differences(t, expected), 0) << "from " << first << " by " << step;
    }
}

// Six lines of sums with gaps between them, which stay as they are, from some rows of one panel or two.
TEST_P(Products, a_line_is_single_chains_over_the_rows_of_all_panels_and_nothing_else_is_touched) {
  constexpr std::int64_t columns = 6;
  const std::int64_t panel_rows = vector().rows, line = 4 * vector().lanes;
  std::int64_t wrong = 0;
  for (const std::int64_t panels : {1, 2})
    for (const std::int64_t rows : {panel_rows, panel_rows / 2, std::int64_t{2}})
      for (const std::int64_t gap : {0, 16, 64}) {
        const std::int64_t stride = line + gap, count = (columns - 1) * stride + line;
        const std::int64_t pair_count = (columns - 1) * panel_rows + rows;
        Guarded lines[2] = {Guarded(rows * line), Guarded(rows * line)},
                pairs[2] = {Guarded(pair_count), Guarded(pair_count)}, sums(count);
        for (std::uint64_t p = 0; p < 2; ++p) lines[p].randomize(p + 1), pairs[p].randomize(p + 5);
        sums.randomize(9);
        std::vector<float> expected;
        for (std::int64_t i = 0; i < count; ++i) {
          float sum = 0;
          for (std::int64_t n = 0; n < panels * rows && i % stride < line; ++n)
            sum = std::fmaf(lines[n / rows][n % rows * line + i % stride],
                            pairs[n / rows][i / stride * panel_rows + n % rows], sum);
          expected.push_back(sums[i] + sum);
        }
        vector().line_product({{lines[0].data(), lines[1].data()},
                               {pairs[0].data(), pairs[1].data()},
                               panels,
                               rows,
                               sums.data(),
                               stride});
        for (std::int64_t i = 0; i < count; ++i)
          if (!same(sums[i], expected[static_cast<std::size_t>(i)]) && wrong++ == 0)
            ADD_FAILURE() << panels << " panels of " << rows << " rows, gap " << gap << ", element " << i;
      }
  EXPECT_EQ(wrong, 0);
}

// Rows, keys and scores with gaps between them, as decode lays them out; upcoming keys that end where memory
// ends.
TEST_P(Products, eight_dots_are_chains_of_128_and_touch_no_memory_but_their_own) {
  constexpr std::int64_t keys = 8;
  std::int64_t wrong = 0;
  for (const bool twice : {false, true})
    for (const std::int64_t depth : depths(4))
      for (const std::int64_t gap : {0, 4, 32}) {
        const std::int64_t rows = (twice ? 2 : 1) * vector().lanes;
        const std::int64_t k_stride = depth + gap, q_stride = 2 * vector().lanes, s_stride = rows + gap;
        Guarded q(depth * q_stride + 17), k(7 * k_stride + depth), next(7 * k_stride + depth),
            s(7 * s_stride + rows);
        q.randomize(1), k.randomize(2), next.randomize(3);
        for (const bool with_next : {false, true}) {
          for (std::int64_t i = 0; i < 7 * s_stride + rows; ++i) s[i] = -7;
          EightDots dots{q.data(), q_stride, k.data(), k_stride, depth, s.data(), s_stride};
          if (with_next) dots.next = next.data();
          twice ? vector().eight_dots_twice(dots) : vector().eight_dots(dots);
          for (std::int64_t n = 0; n < keys; ++n)
            for (std::int64_t r = 0; r < (n == keys - 1 ? rows : s_stride); ++r) {
              float sum = r < rows ? 0.0f : -7.0f;
              for (std::int64_t d = 0; r < rows && d < depth;) {
                float chain = 0;
                for (const std::int64_t end = std::min(d + 128, depth); d < end; ++d)
                  chain = std::fmaf(q[d * q_stride + r], k[n * k_stride + d], chain);
                sum += chain;
              }
              if (!same(s[n * s_stride + r], sum) && wrong++ == 0)
                ADD_FAILURE() << "depth " << depth << ", gap " << gap << ", key " << n << ", row " << r;
            }
        }
      }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace heed::simd
