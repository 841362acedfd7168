// SPDX-License-Identifier: Apache-2.0
// Scores into weights: every vector type gives the bits of the scalar one, for any number of rows and keys.
#include <cfenv>
#include <iterator>
#include <limits>
#include <random>

#include "simd/available.hpp"

namespace heed::simd {
namespace {

class Weights : public Simd {};
INSTANTIATE_TEST_SUITE_P(Vectors, Weights, testing::ValuesIn(compiled()), target_name);

constexpr std::int64_t keys = 43;  // five eights, and some

// Of a head of 64, of 1, and of none; and a scale that many a rounding separates from what clamps its scores.
constexpr float scales[] = {0.125f * 1.44269504f, 1.44269504f, 1.0f, 0x1p-63f, 7.3e18f};

struct Stretch {
  std::int64_t rows;
  float scale;
  std::vector<float> s, max, sum;  // (keys, rows), (rows), (rows)
};

// Each row has its own maximum, and scores from there down to where weights are 0.
Stretch random_stretch(std::int64_t rows, unsigned seed) {
  std::mt19937 random(seed);
  Stretch t{rows,
            scales[seed % std::size(scales)],
            {},
            {},
            std::vector<float>(static_cast<std::size_t>(rows), 0.25f)};
  for (std::int64_t r = 0; r < rows; ++r)
    t.max.push_back((static_cast<float>(random() % 6400) * 0.01f - 32.0f) / t.scale);
  for (std::int64_t n = 0; n < keys * rows; ++n) {
    const unsigned reach = random() % 4 == 0 ? 130 * 256 : 9 * 256;
    const float below = static_cast<float>(random() % reach) / 257.0f / t.scale;
    t.s.push_back(t.max[static_cast<std::size_t>(n % rows)] - below);
    if (random() % 16 == 0) t.s.back() = -infinity;
  }
  return t;
}

Stretch weighed(Stretch t, void (*weigh)(float*, std::int64_t, const float*, float*, float)) {
  weigh(t.s.data(), keys, t.max.data(), t.sum.data(), t.scale);
  return t;
}

// Row by row through the scalar type's vector of one.
Stretch weighed_by_scalar(Stretch t) {
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const auto row = static_cast<std::size_t>(r);
    std::vector<float> column;
    for (std::size_t j = 0; j < keys; ++j) column.push_back(t.s[j * static_cast<std::size_t>(t.rows) + row]);
    scalar_operations.weigh_vector(column.data(), keys, &t.max[row], &t.sum[row], t.scale);
    for (std::size_t j = 0; j < keys; ++j) t.s[j * static_cast<std::size_t>(t.rows) + row] = column[j];
  }
  return t;
}

std::int64_t differences(const Stretch& a, const Stretch& b) {
  std::int64_t count = 0;
  for (std::size_t n = 0; n < a.s.size(); ++n) count += same(a.s[n], b.s[n]) ? 0 : 1;
  for (std::size_t r = 0; r < a.sum.size(); ++r) count += same(a.sum[r], b.sum[r]) ? 0 : 1;
  return count;
}

TEST_P(Weights, every_vector_type_gives_the_bits_of_the_scalar_one) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Stretch panel = random_stretch(vector().rows, seed), one = random_stretch(vector().lanes, seed);
    EXPECT_EQ(differences(weighed(panel, vector().weigh_panel), weighed_by_scalar(panel)), 0)
        << "seed " << seed;
    EXPECT_EQ(differences(weighed(one, vector().weigh_vector), weighed_by_scalar(one)), 0) << "seed " << seed;
  }
}

TEST_P(Weights, a_weight_is_nan_where_its_score_is_and_only_there) {
  Stretch t = random_stretch(vector().rows, 13);
  const std::size_t at = static_cast<std::size_t>(9 * t.rows + 2);
  t.s[at] = std::numeric_limits<float>::quiet_NaN();
  const Stretch result = weighed(t, vector().weigh_panel);
  for (std::size_t n = 0; n < t.s.size(); ++n) EXPECT_EQ(is_nan(result.s[n]), n == at) << n;
  for (std::size_t r = 0; r < t.sum.size(); ++r) EXPECT_EQ(is_nan(result.sum[r]), r == 2) << r;
}

// A key that is not seen, or not to be seen beside the largest, has no weight at all, however the caller
// rounds.
TEST_P(Weights, far_below_the_maximum_a_weight_is_exactly_0_in_every_rounding) {
  for (const int mode : {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO})
    for (unsigned seed = 0; seed < 200; ++seed) {
      Stretch t = random_stretch(vector().rows, seed);
      t.scale *= 1 + static_cast<float>(seed) * 0x1p-9f;
      for (std::size_t n = 0; n < t.s.size(); ++n)
        t.s[n] = n % 2 == 0 ? -infinity : t.max[n % static_cast<std::size_t>(t.rows)] - 130.0f / t.scale;
      const std::vector<float> before = t.sum;
      std::fesetround(mode);
      const Stretch result = weighed(t, vector().weigh_panel);
      std::fesetround(FE_TONEAREST);
      for (const float weight : result.s)
        ASSERT_EQ(bits(weight), 0u) << "rounding " << mode << ", seed " << seed;
      EXPECT_EQ(result.sum, before);
    }
}

}  // namespace
}  // namespace heed::simd
