// SPDX-License-Identifier: Apache-2.0
// What a view takes from what it is made of: the type, and the packed strides unless others are said; and
// what is refused because there is less memory than the view reaches over.
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "refusal/refusal.hpp"
#include "refusals/call.hpp"

namespace heed {
namespace {

// Of the call that is given it, which can name the argument.
std::string refusal_of_view(std::size_t held, const Shape& shape, const Strides& stride) {
  const std::vector<f16> numbers(held);
  const View view(numbers, shape, stride);
  if (view.data != numbers.data()) return "looks elsewhere";
  try {
    check_argument({"q", view});
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, Error::shape);
    return error.what();
  }
}
std::string refusal_of_view(std::size_t held, const Shape& shape) {
  return refusal_of_view(held, shape, bhsd(shape));
}

TEST(Views, one_element_too_few_is_refused_and_just_enough_is_not) {
  EXPECT_EQ(refusal_of_view(6, {.length = 3, .dim = 2}), "");
  EXPECT_EQ(refusal_of_view(7, {.length = 3, .dim = 2}), "");
  EXPECT_EQ(refusal_of_view(5, {.length = 3, .dim = 2}),
            "q: shape (1, 1, 3, 2) with strides (6, 6, 2, 1) reaches over 6 elements, but there are 5");
  EXPECT_EQ(refusal_of_view(0, {}),
            "q: shape (1, 1, 1, 1) with strides (1, 1, 1, 1) reaches over 1 elements, but there are 0");
}

TEST(Views, strides_reach_further_than_the_elements_are_many) {
  const Shape shape{.batch = 2, .length = 3, .dim = 2};
  const Strides gaps{.batch = 100, .length = 10, .dim = 4};  // the last element is 100 + 20 + 4 further on
  EXPECT_EQ(refusal_of_view(125, shape, gaps), "");
  EXPECT_EQ(
      refusal_of_view(124, shape, gaps),
      "q: shape (2, 1, 3, 2) with strides (100, -1, 10, 4) reaches over 125 elements, but there are 124");
  EXPECT_EQ(refusal_of_view(2, shape, {.batch = 0, .length = 0, .dim = 1}), "") << "a broadcast";
}

TEST(Views, one_without_elements_needs_none) {
  EXPECT_EQ(refusal_of_view(0, {.length = 0, .dim = 64}), "");
  EXPECT_EQ(refusal_of_view(0, {.batch = 0, .heads = 8, .length = 100, .dim = 64}), "");
  EXPECT_EQ(refusal_of_view(0, {.length = 3, .dim = 0}, {.length = 1000, .dim = 1}), "");
}

TEST(Views, extents_too_large_to_multiply_are_refused_and_do_not_wrap) {
  constexpr std::int64_t half = std::int64_t{1} << 32;
  EXPECT_EQ(refusal_of_view(4, {.batch = half, .heads = half, .length = 2, .dim = 2}),
            "q: shape (4294967296, 4294967296, 2, 2) with strides (17179869184, 4, 2, 1) reaches beyond any "
            "memory");
  EXPECT_EQ(refusal_of_view(4, {.batch = 2, .heads = 2, .length = most, .dim = most}),
            "q: shape (2, 2, 9223372036854775807, 9223372036854775807) with strides (9223372036854775807, "
            "9223372036854775807, 9223372036854775807, 1) reaches beyond any memory");
  EXPECT_EQ(refusal_of_view(4, {.length = 3}, {.length = most}),
            "q: shape (1, 1, 3, 1) with strides (-1, -1, 9223372036854775807, -1) reaches beyond any memory");
  EXPECT_EQ((Shape{most, most, 3, most}.elements()), most);
}

TEST(Views, negative_extents_and_strides_are_what_is_refused_first) {
  EXPECT_EQ(refusal_of_view(1, {.length = -3, .dim = 2}), "q.length: -3 is negative");
  EXPECT_EQ(refusal_of_view(1, {.length = 3, .dim = 2}, {.length = -2, .dim = 1}),
            "q.stride.length: -2 is negative");
}

TEST(Views, the_one_that_reaches_too_far_is_named) {
  std::vector<float> six(6), five(5);
  const Shape shape{.length = 3, .dim = 2};
  const auto refusal = [](const Inputs& inputs, const Outputs& outputs, const Options& options = {}) {
    try {
      attention(inputs, outputs, options);
      return std::string("accepted");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const std::string reaches =
      ": shape (1, 1, 3, 2) with strides (6, 6, 2, 1) reaches over 6 elements, but there are 5";
  const View good{six, shape}, short_one{five, shape};
  std::vector<float> written(6);
  const Outputs out{.out = {written, shape}};
  EXPECT_EQ(refusal({good, good, short_one}, out), "v" + reaches);
  EXPECT_EQ(refusal({good, good, good}, {.out = {five, shape}}), "out" + reaches);
  EXPECT_EQ(refusal({good, good, good}, out, {.bias = View{five, {.length = 3, .dim = 2}}}),
            "options.bias" + reaches);
  const std::array<bool, 5> seen{};
  EXPECT_EQ(refusal({good, good, good}, out, {.masks = {Keep{{seen, {.length = 3, .dim = 2}}}}}),
            "keep mask" + reaches);
  EXPECT_EQ(refusal({.q = good, .k = good}, out), "v: not given");
  EXPECT_EQ(refusal({good, good, good}, {.out = {}}), "out: not given");
}

// Only what lies where the view was made is known.
TEST(Views, a_view_that_is_moved_elsewhere_is_not_held_to_what_it_was_made_of) {
  const std::vector<float> small(2), large(12);
  View view{small, {.dim = 2}};
  view.data = large.data();
  view.shape = {.length = 3, .dim = 2};
  view.stride = bhsd(view.shape);
  EXPECT_NO_THROW(check_argument({"q", view}));
}

TEST(Views, arrays_vectors_spans_and_pointers_give_the_same_view) {
  float plain[6]{};
  std::array<f16, 6> array{};
  std::vector<bf16> vector(6);
  const Shape shape{.length = 3, .dim = 2};
  for (const View& view : {View{plain, shape}, View{&plain[0], shape}, View{std::span(plain), shape},
                           View(MutableView{plain, shape}), View{std::span<const float>(plain), shape}}) {
    EXPECT_EQ(view.data, plain);
    EXPECT_EQ(view.shape, shape);
    EXPECT_EQ(view.stride, bhsd(shape));
    EXPECT_EQ(view.dtype, DType::f32);
    EXPECT_EQ(view.device, Device::cpu);
  }
  EXPECT_EQ((MutableView{array, shape}.dtype), DType::f16);
  EXPECT_EQ((MutableView{vector, shape}.dtype), DType::bf16);
  EXPECT_EQ((View{static_cast<const void*>(plain), shape, DType::bf16}.dtype), DType::bf16);
}

TEST(Views, bools_are_counted_like_numbers) {
  const std::array<bool, 6> seen{};
  EXPECT_EQ((BoolView{seen, {.length = 2, .dim = 3}}.data), seen.data());
  EXPECT_THROW(check_argument({"mask", BoolView{seen, {.length = 2, .dim = 4}}}), Error);
}

TEST(Views, a_view_that_need_not_be_given_takes_what_a_view_takes) {
  std::vector<float> numbers(9);
  const Shape shape{.length = 3, .dim = 3};
  const Outputs none{.out = {numbers, shape}};
  EXPECT_FALSE(none.weights || none.log_sum_exp || none.scores.into);
  const Outputs all{.out = {numbers, shape},
                    .weights = {numbers, {.length = 3, .dim = 3}},
                    .log_sum_exp = {numbers, {.length = 3}, {.length = 3}},
                    .scores = {{numbers, shape}, Stage::biased}};
  EXPECT_EQ(all.weights->shape, shape);
  EXPECT_EQ(all.log_sum_exp->stride.length, 3);
  EXPECT_EQ(all.scores.into->data, numbers.data());
  const Optional<View> one_row_too_many{numbers, {.length = 4, .dim = 3}};
  EXPECT_THROW(check_argument({"weights", *one_row_too_many}), Error);
}

TEST(Views, without_strides_the_answer_is_that_of_packed_tensors) {
  const float q[] = {4, 0, 0, 4, 4, 4}, k[] = {1, 0, 0, 1, 1, 1}, v[] = {10, 20, 30};
  const Shape wide{.length = 3, .dim = 2}, narrow{.length = 3};
  float out[3]{}, said[3]{};
  attention({.q = {q, wide}, .k = {k, wide}, .v = {v, narrow}}, {.out = {out, narrow}},
            {.masks = {Causal{}}});
  attention({.q = {q, wide, {.length = 2, .dim = 1}},
             .k = {k, wide, {.length = 2, .dim = 1}},
             .v = {v, narrow, {.length = 1}}},
            {.out = {said, narrow, {.length = 1}}}, {.masks = {Causal{}}});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(out[i], said[i]);
  EXPECT_EQ(out[0], 10);
  EXPECT_NEAR(out[1], 19.442, 5e-4);
  EXPECT_NEAR(out[2], 28.414, 5e-4);
}

}  // namespace
}  // namespace heed
