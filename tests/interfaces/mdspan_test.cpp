// SPDX-License-Identifier: Apache-2.0
// <heed/mdspan.hpp>, with the standard library's mdspan where it has one and with the stand-in where not.
#include "heed/mdspan.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <type_traits>
#include <vector>
#include <version>

#include "heed/attention.hpp"
#ifdef __cpp_lib_mdspan
#include <mdspan>
namespace md = std;
#else
#include "interfaces/stand_in_mdspan.hpp"
namespace md = stand_in;
#endif

namespace heed {
namespace {

template <std::size_t rank>
using Extents = md::dextents<std::int64_t, rank>;

std::vector<float> counted(std::size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  return numbers;
}

TEST(Mdspan, the_axes_of_rank_4_are_those_of_a_view) {
  std::vector<float> numbers(2 * 3 * 4 * 5);
  const MutableView view = view_of(md::mdspan<float, Extents<4>>(numbers.data(), 2, 3, 4, 5));
  EXPECT_EQ(view.data, numbers.data());
  EXPECT_EQ(view.shape, (Shape{2, 3, 4, 5}));
  EXPECT_EQ(view.stride, bhsd({2, 3, 4, 5}));
  EXPECT_EQ(view.dtype, DType::f32);
}

TEST(Mdspan, ranks_3_and_2_lack_the_batch_and_the_heads) {
  std::vector<bf16> numbers(3 * 4 * 5);
  const View heads = view_of(md::mdspan<const bf16, Extents<3>>(numbers.data(), 3, 4, 5));
  EXPECT_EQ(heads.shape, (Shape{1, 3, 4, 5}));
  EXPECT_EQ(heads.stride, (Strides{.heads = 20, .length = 5, .dim = 1}));
  EXPECT_EQ(heads.dtype, DType::bf16);
  const View rows = view_of(md::mdspan<const bf16, Extents<2>>(numbers.data(), 12, 5));
  EXPECT_EQ(rows.shape, (Shape{.length = 12, .dim = 5}));
  EXPECT_EQ(rows.stride, (Strides{.length = 5, .dim = 1}));
}

TEST(Mdspan, what_may_be_written_is_a_mutable_view_and_bools_are_a_mask) {
  using Written = md::mdspan<f16, Extents<2>>;
  using Read = md::mdspan<const f16, Extents<2>>;
  using Seen = md::mdspan<const bool, Extents<2>>;
  static_assert(std::is_same_v<decltype(view_of(std::declval<Written>())), MutableView>);
  static_assert(std::is_same_v<decltype(view_of(std::declval<Read>())), View>);
  static_assert(std::is_same_v<decltype(view_of(std::declval<Seen>())), BoolView>);
}

// The same numbers packed, in columns, and with gaps.
TEST(Mdspan, attention_reads_and_writes_any_strided_layout) {
  constexpr std::size_t length = 3, dim = 2;
  std::vector<float> packed = counted(length * dim), columns(length * dim), gaps(length * 7, -1000.0f);
  for (std::size_t i = 0; i < length; ++i)
    for (std::size_t d = 0; d < dim; ++d) columns[d * length + i] = gaps[i * 7 + d * 3] = packed[i * dim + d];
  std::vector<float> expected(length * dim), found(length * dim);
  const Shape shape{.length = length, .dim = dim};
  attention({.q = {packed, shape}, .k = {packed, shape}, .v = {packed, shape}}, {.out = {expected, shape}},
            {.masks = {Causal{}}});

  const std::vector<char> below{1, 0, 0, 1, 1, 0, 1, 1, 1};
  const md::mdspan<const bool, Extents<2>> seen(reinterpret_cast<const bool*>(below.data()), length, length);
  const md::layout_stride::mapping<Extents<2>> with_gaps(Extents<2>(length, dim), {7, 3});
  attention({.q = view_of(md::mdspan<const float, Extents<2>>(packed.data(), length, dim)),
             .k = view_of(md::mdspan<const float, Extents<2>, md::layout_left>(columns.data(), length, dim)),
             .v = view_of(md::mdspan<const float, Extents<2>, md::layout_stride>(gaps.data(), with_gaps))},
            {.out = view_of(md::mdspan<float, Extents<2>, md::layout_left>(found.data(), length, dim))},
            {.masks = {Keep{view_of(seen)}}});
  for (std::size_t i = 0; i < length; ++i)
    for (std::size_t d = 0; d < dim; ++d) EXPECT_EQ(found[d * length + i], expected[i * dim + d]);
}

TEST(Mdspan, one_without_elements_is_an_empty_view) {
  float* const nowhere = nullptr;
  const View view = view_of(md::mdspan<const float, Extents<3>>(nowhere, 2, 0, 4));
  EXPECT_EQ(view.shape, (Shape{1, 2, 0, 4}));
  EXPECT_EQ(view.data, nullptr);
}

// Rows from the last to the first, if `step` is -1: row i of n begins at first + i * step * dim.
struct WalkedRows {
  template <class E>
  struct mapping {
    using extents_type = E;
    using index_type = typename E::index_type;
    using rank_type = std::size_t;
    using layout_type = WalkedRows;
    E shape;
    index_type first, step;
    constexpr const E& extents() const { return shape; }
    constexpr index_type required_span_size() const { return first + shape.extent(0) * shape.extent(1); }
    constexpr index_type operator()(index_type i, index_type d) const { return first + i * stride(0) + d; }
    constexpr index_type stride(std::size_t axis) const { return axis == 0 ? step * shape.extent(1) : 1; }
    static constexpr bool is_always_unique() { return true; }
    static constexpr bool is_always_exhaustive() { return false; }
    static constexpr bool is_always_strided() { return true; }
    static constexpr bool is_unique() { return true; }
    static constexpr bool is_exhaustive() { return false; }
    static constexpr bool is_strided() { return true; }
    friend constexpr bool operator==(const mapping&, const mapping&) { return true; }
  };
};
using Walked = md::mdspan<float, Extents<2>, WalkedRows>;

TEST(Mdspan, a_view_begins_where_the_layout_has_its_first_element) {
  std::vector<float> numbers = counted(10);
  const Walked from_the_third_row(numbers.data(), WalkedRows::mapping<Extents<2>>{Extents<2>(3, 2), 4, 1});
  EXPECT_EQ(view_of(from_the_third_row).data, numbers.data() + 4);
}

TEST(Mdspan, negative_strides_are_refused_like_those_of_any_view) {
  std::vector<float> numbers = counted(6), out(6);
  const Walked backwards(numbers.data(), WalkedRows::mapping<Extents<2>>{Extents<2>(3, 2), 4, -1});
  const Shape shape{.length = 3, .dim = 2};
  try {
    attention({.q = view_of(backwards), .k = {numbers, shape}, .v = {numbers, shape}}, {.out = {out, shape}});
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "q.stride.length: -2 is negative");
  }
}

}  // namespace
}  // namespace heed
