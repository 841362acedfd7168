// SPDX-License-Identifier: Apache-2.0
// Packing and micro-kernels of BFMMLA against the instruction's definition, to the bit: it adds two products,
// then that to the sum, rounds to odd each time, and takes subnormal numbers for 0.
#include <cmath>
#include <string>

#include "simd/available.hpp"
#include "simd/bf16_operands.hpp"
#include "simd/guarded.hpp"

namespace heed::simd {

extern const Bf16Operands bfmmla_panels_of_12, bfmmla_panels_of_4;

namespace {

using Half = std::uint16_t;
constexpr double min_normal = 0x1p-126;

float widen(Half x) { return from_bits(std::uint32_t{x} << 16); }
float flushed(float x) { return std::abs(x) < min_normal ? std::copysign(0.0f, x) : x; }

Half to_nearest_even(float x) {
  const std::uint32_t u = bits(x);
  return static_cast<Half>(is_nan(x) ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

float product(Half a, Half b) {  // exact, if it is neither too large nor too small
  const double x = static_cast<double>(flushed(widen(a))) * static_cast<double>(flushed(widen(b)));
  return std::abs(x) < min_normal ? std::copysign(0.0f, static_cast<float>(x)) : static_cast<float>(x);
}

// a + b, rounded to odd: cut off, and the last bit set if anything was.
float sum_to_odd(float first, float second) {
  const double a = static_cast<double>(flushed(first)), b = static_cast<double>(flushed(second)), sum = a + b;
  if (!std::isfinite(sum) || std::abs(sum) >= 0x1p128) return static_cast<float>(sum);
  const double part = sum - a, rest = (a - (sum - part)) + (b - part);  // sum + rest is exact
  auto wide = std::bit_cast<std::uint64_t>(sum);
  if (rest != 0 && wide % 2 == 0) wide += (rest > 0) == (sum > 0) ? 1u : ~std::uint64_t{0};
  constexpr std::uint64_t beyond_f32 = (std::uint64_t{1} << 29) - 1;
  const auto cut = static_cast<float>(std::bit_cast<double>(wide & ~beyond_f32));
  if (std::abs(sum) < min_normal) return std::copysign(0.0f, cut);
  return from_bits(bits(cut) | ((wide & beyond_f32) != 0 ? 1u : 0u));
}

float two_products(float sum, Half a0, Half b0, Half a1, Half b1) {
  return sum_to_odd(sum, sum_to_odd(product(a0, b0), product(a1, b1)));
}

// Rows of random halves up to the end of memory: `step` between elements, `stride` between rows.
struct Rows {
  std::int64_t count, dim, step, stride, halves = (count - 1) * stride + (dim - 1) * step + 1;
  Guarded memory{(halves + 1) / 2};
  std::vector<cpu::Row> row{};

  explicit Rows(std::int64_t n, std::int64_t d, std::int64_t between_elements, std::int64_t between_rows,
                std::uint64_t stream)
      : count(n), dim(d), step(between_elements), stride(between_rows) {
    for (std::int64_t i = 0; i < halves; ++i)
      data()[i] = to_nearest_even(cases::uniform(stream, static_cast<std::uint64_t>(i)));
    for (std::int64_t r = 0; r < count; ++r) row.push_back({data(), r * stride, step, cpu::Type::bf16});
  }
  Half* data() { return reinterpret_cast<Half*>(memory.data()) + halves % 2; }
  Half& at(std::int64_t r, std::int64_t d) { return data()[r * stride + d * step]; }
  Half read(std::int64_t r, std::int64_t d) { return r < count && d < dim ? at(r, d) : Half{0}; }
};

enum class Layout : std::uint8_t { rows, strided, columns };

Rows make_rows(Layout layout, std::int64_t count, std::int64_t dim, std::uint64_t stream) {
  if (layout == Layout::rows) return Rows(count, dim, 1, dim, stream);
  if (layout == Layout::strided) return Rows(count, dim, 3, 3 * dim + 5, stream);
  return Rows(count, dim, count, 1, stream);
}

class Bfmmla : public testing::TestWithParam<const Bf16Operands*> {
 protected:
  void SetUp() override {
    for (const cpu::Target* target : cpu::targets())
      if (std::string(target->name) == operands().target && !target->available())
        GTEST_SKIP() << "this machine lacks " << target->requires_;
  }
  static const Bf16Operands& operands() { return *GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Panels, Bfmmla, testing::Values(&bfmmla_panels_of_12, &bfmmla_panels_of_4),
                         [](const auto& panels) { return "of_" + std::to_string(panels.param->rows); });

std::int64_t whole(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

cpu::Call call_of(std::int64_t dim, float scale) {
  cpu::Call c{};
  c.dim = c.value_dim = dim;
  c.scaling.query = scale;
  return c;
}

TEST_P(Bfmmla, a_score_is_the_instructions_chain_wherever_queries_and_keys_lie) {
  const std::int64_t rows = operands().rows, step = operands().key_step;
  std::int64_t wrong = 0;
  for (const std::int64_t dim : {1, 5, 8, 23, 64})
    for (const std::int64_t keys : {1, 8, 13, 24, 37})
      for (const Layout layout : {Layout::rows, Layout::strided, Layout::columns}) {
        const auto seed = static_cast<std::uint64_t>(1000 * dim + keys);
        Rows q = make_rows(layout, std::min(rows, keys), dim, seed),
             k = make_rows(layout, keys, dim, seed + 7);
        k.at(keys - 1, dim - 1) = 0x0001;          // subnormal
        q.at(0, 0) = 0x7f00, k.at(0, 0) = 0x7f01;  // their product is too large
        const cpu::Call c = call_of(dim, 0.7f);
        Guarded scratch(operands().scratch_floats(c)), s(whole(keys, step) * rows);
        operands().score({c, q.row.data(), k.row.data(), nullptr, q.count, keys, scratch.data()}, 0,
                         whole(keys, step), s.data());
        for (std::int64_t j = 0; j < whole(keys, step); ++j)
          for (std::int64_t r = 0; r < rows; ++r) {
            float sum = 0;
            for (std::int64_t d = 0; d < whole(dim, 8); d += 2)
              sum = two_products(sum, q.read(r, d), k.read(j, d), q.read(r, d + 1), k.read(j, d + 1));
            if (!same(s[j * rows + r], sum * 0.7f) && wrong++ == 0)
              ADD_FAILURE() << "dim " << dim << ", keys " << keys << ", layout " << static_cast<int>(layout)
                            << ", key " << j << ", row " << r << ": " << s[j * rows + r] << ", not "
                            << sum * 0.7f;
          }
      }
  EXPECT_EQ(wrong, 0);
}

TEST_P(Bfmmla, an_output_is_the_instructions_chain_over_rounded_weights_and_poison_counts_as_zero) {
  const std::int64_t rows = operands().rows, key_step = operands().key_step;
  std::int64_t wrong = 0;
  for (const std::int64_t dim : {1, 8, 13, 24, 40})
    for (const std::int64_t keys : {1, 8, 21, 56})
      for (const Layout layout : {Layout::rows, Layout::strided, Layout::columns})
        for (const bool poisoned : {false, true}) {
          const auto seed = static_cast<std::uint64_t>(1000 * dim + keys);
          Rows v = make_rows(layout, keys, dim, seed);
          if (poisoned) v.at(keys / 2, dim / 2) = keys % 2 == 0 ? 0xff80 : 0x7fc1;
          const std::int64_t first = keys > 2 * key_step ? key_step : 0,
                             count = whole(keys, key_step) - first, dims = whole(dim, operands().dim_step);
          const cpu::Call c = call_of(dim, 1);
          Guarded scratch(operands().scratch_floats(c)), s(count * rows), out(dims * rows);
          s.randomize(seed + 1), out.randomize(seed + 2);
          s[rows - 1] = NAN, s[0] = from_bits(0x3f808000u), s[1] = from_bits(0x3f818000u);  // two ties
          std::vector<float> expected;
          for (std::int64_t d = 0; d < dims; ++d)
            for (std::int64_t r = 0; r < rows; ++r) {
              float sum = out[d * rows + r];
              const auto weight = [&](std::int64_t j) { return to_nearest_even(s[j * rows + r]); };
              const auto value = [&](std::int64_t j) {
                return std::isfinite(widen(v.read(first + j, d))) ? v.read(first + j, d) : Half{0};
              };
              for (std::int64_t j = 0; j < count; j += 2)
                sum = two_products(sum, weight(j), value(j), weight(j + 1), value(j + 1));
              expected.push_back(sum);
            }
          const bool found =
              operands().add_values({c, nullptr, nullptr, v.row.data(), 0, keys, scratch.data()}, first,
                                    count, s.data(), out.data());
          EXPECT_EQ(found, poisoned);
          for (std::int64_t i = 0; i < dims * rows; ++i)
            if (!same(out[i], expected[static_cast<std::size_t>(i)]) && wrong++ == 0)
              ADD_FAILURE() << "dim " << dim << ", keys " << keys << ", layout " << static_cast<int>(layout)
                            << ", element " << i << ": " << out[i] << ", not "
                            << expected[static_cast<std::size_t>(i)];
        }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace heed::simd
