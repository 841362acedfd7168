// SPDX-License-Identifier: Apache-2.0
// The 16-bit formats, exhaustively, against an integer method that shares nothing with heed/half.hpp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cases/counter_random.hpp"
#include "heed/half.hpp"

namespace heed::cases {
namespace {

struct Format {
  int exponent_bits, fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format f16_format{5, 10}, bf16_format{8, 7};

// What the bits mean, in double, where every value of both formats is exact.
double value_of(unsigned bits, Format f) {
  const int fraction = static_cast<int>(bits & ((1u << f.fraction_bits) - 1));
  const int exponent = static_cast<int>(bits >> f.fraction_bits & ((1u << f.exponent_bits) - 1));
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == (1 << f.exponent_bits) - 1)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - f.bias() - f.fraction_bits);
  return sign * std::ldexp(fraction + (1 << f.fraction_bits), exponent - f.bias() - f.fraction_bits);
}

// Nearest even by search: magnitudes of a format are ordered like their bits, and one past the largest finite
// is where the next power of two would be.
unsigned nearest(float x, Format f) {
  const unsigned sign = std::signbit(x) ? 0x8000u : 0u, infinite = ((1u << f.exponent_bits) - 1)
                                                                   << f.fraction_bits;
  const double magnitude = std::abs(static_cast<double>(x));
  auto reach = [&](unsigned bits) {
    return bits == infinite ? std::ldexp(1.0, f.bias() + 1) : value_of(bits, f);
  };
  unsigned low = 0, high = infinite;  // reach(low) <= magnitude, and the answer is low or low + 1
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (reach(middle) <= magnitude ? low : high) = middle;
  }
  if (magnitude >= reach(infinite)) return sign | infinite;
  const double below = magnitude - reach(low), above = reach(low + 1) - magnitude;
  return sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1);
}

template <class Half>
int wrong_from(float x, Format f) {
  const unsigned got = from_float<Half>(x).bits;
  if (std::isnan(x)) return std::isnan(value_of(got, f)) && (got >> 15 != 0) == std::signbit(x) ? 0 : 1;
  return got == nearest(x, f) ? 0 : 1;
}

template <class Half>
int wrong_round_trips(Format f) {
  int wrong = 0;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const float x = to_float(Half{static_cast<std::uint16_t>(bits)});
    const double expected = value_of(bits, f);
    const unsigned back = from_float<Half>(x).bits;
    if (std::isnan(expected)) {
      wrong += !std::isnan(x) || !std::isnan(value_of(back, f)) || back >> 15 != bits >> 15;
    } else {
      wrong += static_cast<double>(x) != expected || std::signbit(x) != (bits >> 15 != 0) || back != bits;
    }
  }
  return wrong;
}

// Around every value and every midpoint between neighbours: the tie itself and the floats next to it.
template <class Half>
int wrong_around_ties(Format f) {
  int wrong = 0;
  const unsigned infinite = ((1u << f.exponent_bits) - 1) << f.fraction_bits;
  for (unsigned bits = 0; bits < infinite; ++bits) {
    const double here = value_of(bits, f);
    const double next = bits + 1 == infinite ? std::ldexp(1.0, f.bias() + 1) : value_of(bits + 1, f);
    const auto tie = static_cast<float>((here + next) / 2);
    for (float x : {static_cast<float>(here), std::nextafter(tie, 0.0f), tie, std::nextafter(tie, INFINITY)})
      for (float signed_x : {x, -x}) wrong += wrong_from<Half>(signed_x, f);
  }
  return wrong;
}

TEST(Halves, all_65536_f16_values_survive_the_way_to_float_and_back) {
  EXPECT_EQ(wrong_round_trips<f16>(f16_format), 0);
}
TEST(Halves, all_65536_bf16_values_survive_the_way_to_float_and_back) {
  EXPECT_EQ(wrong_round_trips<bf16>(bf16_format), 0);
}
TEST(Halves, f16_rounds_to_nearest_even_at_every_tie_and_beside_it) {
  EXPECT_EQ(wrong_around_ties<f16>(f16_format), 0);
}
TEST(Halves, bf16_rounds_to_nearest_even_at_every_tie_and_beside_it) {
  EXPECT_EQ(wrong_around_ties<bf16>(bf16_format), 0);
}

TEST(Halves, random_floats_of_every_exponent_round_right_and_nan_stays_nan) {
  int wrong = 0;
  for (std::uint64_t n = 0; n < 200000; ++n) {
    const float x = std::bit_cast<float>(static_cast<std::uint32_t>(mix(n)));
    wrong += wrong_from<f16>(x, f16_format) + wrong_from<bf16>(x, bf16_format);
  }
  EXPECT_EQ(wrong, 0);
  for (std::uint32_t payload : {0x7f800001u, 0x7fc00000u, 0xff800001u, 0x7f801000u, 0xffffffffu}) {
    EXPECT_EQ(wrong_from<f16>(std::bit_cast<float>(payload), f16_format), 0) << payload;
    EXPECT_EQ(wrong_from<bf16>(std::bit_cast<float>(payload), bf16_format), 0) << payload;
  }
}

TEST(Halves, the_largest_finite_values_and_what_lies_beyond_them) {
  EXPECT_EQ(to_float(f16{0x7bff}), 65504.0f);
  EXPECT_EQ(from_float<f16>(65519.99f).bits, 0x7bff);
  EXPECT_EQ(from_float<f16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<f16>(-1e30f).bits, 0xfc00);
  EXPECT_EQ(from_float<bf16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(from_float<f16>(0x1p-25f).bits, 0);  // ties to the even zero
  EXPECT_EQ(from_float<f16>(0x1.8p-24f).bits, 2);
}

}  // namespace
}  // namespace heed::cases
