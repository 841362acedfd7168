// SPDX-License-Identifier: Apache-2.0
// exp2 and tanh: the error bound that the library states, on a subset of the floats with every one around
// each boundary (exp2_sweep.cpp visits all of them); and the same bits for every vector type.
#include <limits>

#include "cases/selection.hpp"
#include "simd/accuracy.hpp"
#include "simd/available.hpp"

namespace heed::simd {
namespace {

class Exponentials : public Simd {};
INSTANTIATE_TEST_SUITE_P(Vectors, Exponentials, testing::ValuesIn(compiled()), target_name);

void pad(std::vector<float>& x) {
  while (x.size() % granule != 0) x.push_back(x.back());
}

void around(float center, std::uint32_t reach, std::vector<float>& x) {
  for (std::uint32_t u = bits(center) - reach; u != bits(center) + reach + 1; ++u) x.push_back(from_bits(u));
}

// The strides are primes, so that no bit of the mantissa is left out.
std::vector<float> exponents() {
  std::vector<float> x;
  const std::uint32_t stride = cases::small_selection() ? 20011 : 1009;
  for (std::uint32_t n = minus_zero; n < minus_127; n += stride) x.push_back(from_bits(n));
  for (int half = 1; half < 254; ++half)
    around(static_cast<float>(half) * -0.5f, cases::small_selection() ? 50 : 500, x);
  for (std::uint32_t n = 0; n < 1000; ++n) x.push_back(from_bits(minus_127 - n));
  pad(x);
  return x;
}

std::vector<float> tangents() {
  std::vector<float> x;
  const std::uint32_t stride = cases::small_selection() ? 20011 : 2003;
  for (std::uint32_t n = 1; n < plus_16; n += stride) x.push_back(from_bits(n));
  around(0.625f, 20000, x);
  for (int n = 1; n < 32; ++n)
    around(static_cast<float>(n) * 0.34657359f, 200, x);  // exp2's argument is a half integer
  pad(x);
  return x;
}

std::vector<float> run(Apply f, const std::vector<float>& x) {
  std::vector<float> out(x.size());
  f(x.data(), x.data(), x.data(), out.data(), static_cast<std::int64_t>(x.size()));
  return out;
}

std::int64_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += same(a[i], b[i]) ? 0 : 1;
  return count;
}

TEST_P(Exponentials, exp2_stays_within_the_error_that_the_bound_assumes) {
  std::vector<float> out;
  const Accuracy worst = exp2_accuracy(vector(), exponents(), out);
  EXPECT_LE(worst.relative * u, exp2_error) << "at " << std::hexfloat << worst.worst_at;
  EXPECT_LE(worst.tail * 0x1p-126, HEED_UNDERFLOW) << "at " << std::hexfloat << worst.worst_tail_at;
  EXPECT_GT(worst.relative, 0.5) << "no float function is that good: nothing was measured";
}

TEST_P(Exponentials, tanh_stays_within_the_error_that_the_bound_assumes) {
  std::vector<float> out;
  const Accuracy worst = tanh_accuracy(vector(), tangents(), out);
  EXPECT_LE(worst.relative * u, tanh_error) << "at " << std::hexfloat << worst.worst_at;
  EXPECT_GT(worst.relative, 0.5) << "no float function is that good: nothing was measured";
}

// Of 1 - r, r has exp2's error and three roundings; what is left of those beside 1 is the less, the nearer it
// is.
TEST_P(Exponentials, tanh_near_one_is_off_by_little_more_than_its_last_rounding) {
  std::vector<float> x = tangents();
  std::erase_if(x, [](float one) { return one < 1; });
  pad(x);
  const std::vector<float> out = run(vector().tanh, x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double truth = std::tanh(static_cast<double>(x[i])), rest = 1 - truth;
    ASSERT_LE(std::abs(static_cast<double>(out[i]) - truth), u / 2 + rest * (exp2_error + 3 * u))
        << "at " << std::hexfloat << x[i];
  }
}

TEST_P(Exponentials, every_vector_type_gives_the_bits_of_the_scalar_one) {
  const std::vector<float> x = exponents(), t = tangents();
  EXPECT_EQ(differences(run(vector().exp2, x), run(scalar_operations.exp2, x)), 0);
  EXPECT_EQ(differences(run(vector().exp2_in_step, x), run(scalar_operations.exp2, x)), 0);
  EXPECT_EQ(differences(run(vector().tanh, t), run(scalar_operations.tanh, t)), 0);
}

float at(Apply f, float x) { return run(f, std::vector<float>(granule, x))[granule - 1]; }

TEST_P(Exponentials, exp2_is_exact_at_whole_numbers_and_zero_from_minus_126_and_a_half_down_and_nan_at_nan) {
  for (const Apply f : {vector().exp2, vector().exp2_in_step}) {
    EXPECT_EQ(at(f, 0.0f), 1.0f);
    EXPECT_EQ(at(f, -0.0f), 1.0f);
    for (const float x :
         {-126.5f, -127.0f, -1000.0f, -1e30f, std::numeric_limits<float>::lowest(), -infinity})
      EXPECT_EQ(bits(at(f, x)), 0u) << x;
    EXPECT_TRUE(is_nan(at(f, std::numeric_limits<float>::quiet_NaN())));
    EXPECT_GT(at(f, std::nextafterf(-126.5f, 0.0f)), 0.0f);
    for (int n = 1; n <= 126; ++n) EXPECT_EQ(at(f, static_cast<float>(-n)), std::ldexp(1.0f, -n)) << -n;
  }
}

TEST_P(Exponentials, tanh_is_odd_and_ends_at_one) {
  const std::vector<float> x = tangents();
  std::vector<float> mirrored = x, expected = run(vector().tanh, x);
  for (float& value : mirrored) value = -value;
  for (float& value : expected) value = -value;
  EXPECT_EQ(differences(run(vector().tanh, mirrored), expected), 0);
  EXPECT_EQ(at(vector().tanh, 0.0f), 0.0f);
  EXPECT_EQ(at(vector().tanh, -0.0f), 0.0f);
  for (const float big : {10.0f, 1e4f, std::numeric_limits<float>::max(), infinity}) {
    EXPECT_EQ(at(vector().tanh, big), 1.0f) << big;
    EXPECT_EQ(at(vector().tanh, -big), -1.0f) << big;
  }
  EXPECT_TRUE(is_nan(at(vector().tanh, std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace heed::simd
