// SPDX-License-Identifier: Apache-2.0
// What Array promises by itself: names, sizes, conversions.
#include <bit>
#include <cmath>
#include <limits>

#include "heed/half.hpp"
#include "sample_arrays.hpp"
#include "scratch_folder.hpp"

namespace heed::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

template <class Stored>
Array array_of(Element element, const std::vector<Stored>& values) {
  Array array{element, {static_cast<std::int64_t>(values.size())}, {}};
  array.data.resize(values.size() * sizeof(Stored));
  std::memcpy(array.data.data(), values.data(), array.data.size());
  return array;
}

TEST(arrays, every_element_has_its_name_and_size) {
  std::string found;
  for (const Element element : every_element) {
    found += std::string(name_of(element)) + ":" + std::to_string(bytes_of(element)) + " ";
  }
  EXPECT_EQ(found, "bool:1 u8:1 i8:1 u16:2 i16:2 f16:2 bf16:2 u32:4 i32:4 f32:4 u64:8 i64:8 f64:8 ");
  EXPECT_EQ(refusal([] { bytes_of(static_cast<Element>(13)); }), "dtype: element: 13 is not an element type");
}

TEST(arrays, elements_multiply_and_a_scalar_is_one) {
  EXPECT_EQ((Array{Element::f32, {}, {}}.elements()), 1);
  EXPECT_EQ((Array{Element::f32, {2, 3, 4}, {}}.elements()), 24);
  EXPECT_EQ((Array{Element::f32, {2, 0, 4}, {}}.elements()), 0);
}

TEST(arrays, shapes_that_no_memory_holds_are_refused) {
  const std::int64_t big = std::int64_t{1} << 31;
  EXPECT_EQ(refusal([&] { (void)Array{Element::f32, {big, big}, {}}.elements(); }),
            "shape: array: f32 (2147483648, 2147483648) is larger than any memory");
  EXPECT_EQ(refusal([&] { (void)Array{Element::u8, {big, 0, big, 4}, {}}.elements(); }),
            "shape: array: u8 (2147483648, 0, 2147483648, 4) is larger than any memory");
  EXPECT_EQ(refusal([&] { (void)Array{Element::u8, {2, -1}, {}}.elements(); }),
            "shape: array: shape (2, -1) has a negative extent");
}

TEST(arrays, floats_survive_every_floating_element_that_can_hold_them) {
  const std::vector<float> values{0.0f, -0.0f, 1.0f, -2.5f, 0.125f, infinity, -infinity};
  for (const Element element : {Element::f16, Element::bf16, Element::f32, Element::f64}) {
    const std::vector<float> back = Array::from_floats({7}, values, element).to_floats();
    ASSERT_EQ(back.size(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(values[i]))
          << name_of(element) << " element " << i;
    }
  }
}

TEST(arrays, nan_stays_nan_in_every_floating_element) {
  for (const Element element : {Element::f16, Element::bf16, Element::f32, Element::f64}) {
    const std::vector<float> back = Array::from_floats({}, {not_a_number}, element).to_floats();
    EXPECT_TRUE(std::isnan(back.at(0))) << name_of(element);
  }
  const auto signalling = std::bit_cast<float>(0x7f800001u);  // its payload lies below what 16 bits keep
  for (const Element element : {Element::f16, Element::bf16}) {
    EXPECT_TRUE(std::isnan(Array::from_floats({}, {signalling}, element).to_floats().at(0)));
  }
}

TEST(arrays, conversions_round_to_nearest_even) {
  const float halfway = 1.0f + 0x1p-11f, above = 1.0f + 0x1p-11f + 0x1p-20f;
  EXPECT_EQ(Array::from_floats({2}, {halfway, above}, Element::f16).to_floats(),
            (std::vector<float>{1.0f, 1.0f + 0x1p-10f}));
  EXPECT_EQ(Array::from_floats({1}, {1.0f + 0x1p-8f}, Element::bf16).to_floats(), std::vector<float>{1.0f});
  EXPECT_EQ(array_of<double>(Element::f64, {1.0 + 0x1p-24, 1e300}).to_floats(),
            (std::vector<float>{1.0f, infinity}));
}

TEST(arrays, integers_keep_their_values_and_signs) {
  using Integers = std::vector<std::int64_t>;
  EXPECT_EQ(array_of<std::uint8_t>(Element::boolean, {0, 1}).to_integers(), (Integers{0, 1}));
  EXPECT_EQ(array_of<std::uint8_t>(Element::u8, {0, 255}).to_integers(), (Integers{0, 255}));
  EXPECT_EQ(array_of<std::int8_t>(Element::i8, {-128, 127}).to_integers(), (Integers{-128, 127}));
  EXPECT_EQ(array_of<std::uint16_t>(Element::u16, {65535}).to_integers(), (Integers{65535}));
  EXPECT_EQ(array_of<std::int16_t>(Element::i16, {-32768}).to_integers(), (Integers{-32768}));
  EXPECT_EQ(array_of<std::uint32_t>(Element::u32, {4294967295u}).to_integers(), (Integers{4294967295}));
  EXPECT_EQ(array_of<std::int32_t>(Element::i32, {INT32_MIN}).to_integers(), (Integers{INT32_MIN}));
  EXPECT_EQ(array_of<std::uint64_t>(Element::u64, {INT64_MAX}).to_integers(), (Integers{INT64_MAX}));
  EXPECT_EQ(array_of<std::int64_t>(Element::i64, {INT64_MIN}).to_integers(), (Integers{INT64_MIN}));
}

TEST(arrays, conversions_refuse_what_they_cannot_hold) {
  EXPECT_EQ(refusal([] { (void)array_of<std::int32_t>(Element::i32, {1}).to_floats(); }),
            "dtype: to_floats: i32 is not a floating element");
  EXPECT_EQ(refusal([] { (void)array_of<float>(Element::f32, {1}).to_integers(); }),
            "dtype: to_integers: f32 is not an integer or boolean element");
  EXPECT_EQ(refusal([] { (void)array_of<std::uint64_t>(Element::u64, {7, 1ull << 63}).to_integers(); }),
            "value: to_integers: element 1 is 9223372036854775808, more than 9223372036854775807");
  EXPECT_EQ(refusal([] { Array::from_floats({2}, {1, 2}, Element::i64); }),
            "dtype: from_floats: i64 is not a floating element");
  EXPECT_EQ(refusal([] { Array::from_floats({2, 3}, {1, 2}); }),
            "shape: from_floats: shape (2, 3) holds 6 elements, values has 2");
}

TEST(arrays, data_that_does_not_fit_the_shape_is_refused) {
  Array array{Element::f32, {2, 3}, std::vector<std::byte>(20)};
  EXPECT_EQ(refusal([&] { (void)array.to_floats(); }),
            "shape: to_floats: f32 (2, 3) needs 24 bytes, data has 20");
  const Array booleans{Element::boolean, {2}, {std::byte{1}, std::byte{2}}};
  EXPECT_EQ(refusal([&] { (void)booleans.to_integers(); }),
            "value: to_integers: boolean 1 is stored as 2, not 0 or 1");
}

}  // namespace
}  // namespace heed::test
