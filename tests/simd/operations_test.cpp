// SPDX-License-Identifier: Apache-2.0
// Each operation of every vector type against the scalar one, lane by lane: special values in all
// combinations, then random bit patterns.
#include <algorithm>
#include <sstream>

#include "cases/counter_random.hpp"
#include "heed/half.hpp"
#include "simd/available.hpp"

namespace heed::simd {
namespace {

INSTANTIATE_TEST_SUITE_P(Vectors, Simd, testing::ValuesIn(compiled()), target_name);

constexpr std::uint32_t special_bits[] = {0x00000000u, 0x00000001u, 0x00400000u, 0x007fffffu, 0x00800000u,
                                          0x00800001u, 0x33800000u, 0x3effffffu, 0x3f000000u, 0x3f7fffffu,
                                          0x3f800000u, 0x3f800001u, 0x40490fdbu, 0x42fc0000u, 0x4b400000u,
                                          0x4b40007fu, 0x7effffffu, 0x7f7fffffu, 0x7f800000u, 0x7fc00000u};

struct Operands {
  std::vector<float> a, b, c;
  std::int64_t size() const { return static_cast<std::int64_t>(a.size()); }
};

void pad(Operands& x) {
  while (x.a.size() % granule != 0) x.a.push_back(1), x.b.push_back(2), x.c.push_back(3);
}

// Every triple of special values of either sign, so that each meets each in every lane.
Operands special_operands() {
  std::vector<float> values;
  for (const std::uint32_t u : special_bits)
    values.push_back(from_bits(u)), values.push_back(from_bits(u | 0x80000000u));
  Operands x;
  for (const float a : values)
    for (const float b : values)
      for (const float c : values) x.a.push_back(a), x.b.push_back(b), x.c.push_back(c);
  pad(x);
  return x;
}

Operands random_operands() {
  Operands x;
  for (std::uint64_t i = 0; i < 96000; ++i) {
    const std::uint64_t one = cases::mix(2 * i), two = cases::mix(2 * i + 1);
    x.a.push_back(from_bits(static_cast<std::uint32_t>(one)));
    x.b.push_back(from_bits(static_cast<std::uint32_t>(one >> 32)));
    x.c.push_back(from_bits(static_cast<std::uint32_t>(two)));
  }
  return x;
}

std::vector<float> apply(Apply operation, const Operands& x) {
  std::vector<float> out(x.a.size());
  operation(x.a.data(), x.b.data(), x.c.data(), out.data(), x.size());
  return out;
}

testing::AssertionResult same_lanes(const Operands& x, const std::vector<float>& got,
                                    const std::vector<float>& expected) {
  std::int64_t differ = 0;
  std::ostringstream first;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (same(got[i], expected[i]) || differ++ > 0) continue;
    first << std::hexfloat << "element " << i << " of (" << x.a[i] << ", " << x.b[i] << ", " << x.c[i]
          << ") is " << got[i] << ", scalar says " << expected[i];
  }
  if (differ == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << differ << " of " << got.size() << " differ, first " << first.str();
}

TEST_P(Simd, each_operation_gives_the_bits_of_the_scalar_one_special_values_included) {
  for (const Operands& x : {special_operands(), random_operands()})
    for (std::size_t n = 0; n < std::size(vector().exact); ++n)
      EXPECT_TRUE(
          same_lanes(x, apply(vector().exact[n].apply, x), apply(scalar_operations.exact[n].apply, x)))
          << vector().exact[n].name;
}

// (2^-127 + 2^-149) + (2^-150 - 2^-190) is just below the middle of two subnormal floats, and in the middle
// once it is rounded to a double.
TEST_P(Simd, fma_rounds_once_where_its_result_is_subnormal_too) {
  Operands x;
  for (const float sign : {1.0f, -1.0f})
    for (int n = 0; n < 8; ++n)
      x.a.push_back(sign * 0x1.00001p-75f), x.b.push_back(0x1.ffffep-76f),
          x.c.push_back(sign * 0x1.000004p-127f);
  pad(x);
  const auto* const fma = std::find_if(std::begin(vector().exact), std::end(vector().exact),
                                       [](const auto& each) { return std::string(each.name) == "fma"; });
  const std::vector<float> got = apply(fma->apply, x);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(got[i], x.c[i]);
}

// What the algorithms rely on: the second operand's NaN survives. A first operand's NaN may be dropped
// (scalar, AVX) or survive (NEON), and of two zeros either may come out.
TEST_P(Simd, max_keeps_the_nan_of_its_second_operand_and_otherwise_is_the_larger) {
  for (const Operands& x : {special_operands(), random_operands()}) {
    const std::vector<float> got = apply(vector().max, x);
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float a = x.a[i], b = x.b[i];
      bool good = same(got[i], a > b ? a : b);
      if (is_nan(b)) good = is_nan(got[i]);
      if (is_nan(a) && !is_nan(b)) good = is_nan(got[i]) || same(got[i], b);
      if (a == 0 && b == 0) good = got[i] == 0;
      if (!good && wrong++ == 0)
        ADD_FAILURE() << std::hexfloat << "max(" << a << ", " << b << ") is " << got[i];
    }
    EXPECT_EQ(wrong, 0);
  }
}

// The references are the public header's, not the scalar vector's.
TEST_P(Simd, every_16_bit_pattern_widens_to_the_float_it_stands_for) {
  std::vector<std::uint16_t> patterns(65568);
  for (std::size_t n = 0; n < patterns.size(); ++n) patterns[n] = static_cast<std::uint16_t>(n);
  std::vector<float> out(patterns.size());
  const auto n = static_cast<std::int64_t>(out.size());
  std::int64_t wrong = 0;
  vector().load_f16(patterns.data(), out.data(), n);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (!same(out[i], to_float(f16{patterns[i]})) && wrong++ == 0)
      ADD_FAILURE() << "f16 pattern " << patterns[i] << " became " << out[i];
  vector().load_bf16(patterns.data(), out.data(), n);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (!same(out[i], to_float(bf16{patterns[i]})) && wrong++ == 0)
      ADD_FAILURE() << "bf16 pattern " << patterns[i] << " became " << out[i];
  EXPECT_EQ(wrong, 0);
}

TEST_P(Simd, every_8_bit_pattern_widens_to_the_integer_it_is) {
  std::vector<std::int8_t> patterns(3 * granule);
  for (std::size_t n = 0; n < patterns.size(); ++n) patterns[n] = static_cast<std::int8_t>(n);
  std::vector<float> out(patterns.size());
  vector().load_i8(patterns.data(), out.data(), static_cast<std::int64_t>(out.size()));
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<float>(patterns[i]));
}

TEST_P(Simd, a_transposed_corner_has_rows_for_columns_and_nothing_beside_it_is_written) {
  for (const std::int64_t width : {4, 5, 8, 24, 48}) {
    float rows[4][4];
    std::vector<float> to(static_cast<std::size_t>(4 * width), -1.0f), expected = to;
    for (int r = 0; r < 4; ++r)
      for (int d = 0; d < 4; ++d) {
        rows[r][d] = static_cast<float>(10 * r + d);
        expected[static_cast<std::size_t>(d * width + r)] = rows[r][d];
      }
    const float* const from[4] = {rows[0], rows[1], rows[2], rows[3]};
    vector().transpose(from, to.data(), width);
    EXPECT_EQ(to, expected) << "width " << width;
  }
}

TEST_P(Simd, is_the_table_of_the_target_of_the_same_name) {
  EXPECT_EQ(target_of(vector())->panel_rows, vector().rows);
  EXPECT_EQ(target_of(vector())->tile_columns, vector().columns);
  const float somewhere = 1;
  vector().prefetch(&somewhere);
}

}  // namespace
}  // namespace heed::simd
