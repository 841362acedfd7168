// SPDX-License-Identifier: Apache-2.0
// What attention_backward() refuses, with which sentence; nothing is written then.
#include "cases/compare.hpp"
#include "gradients/bad_gradients.hpp"
#include "heed/cache.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

TEST(BadGradients, are_refused_in_one_sentence_before_anything_is_written) {
  for (const BadGradient& bad : bad_gradients) {
    SCOPED_TRACE(bad.claim);
    Whole call;
    for (Tensor* x : {&call.of_q, &call.of_k, &call.of_v, &call.of_bias, &call.of_sink}) x->fill(0.5f);
    bad.spoil(call);
    try {
      attention_backward(call.inputs, call.saved, call.gradients, call.options);
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), bad.sentence);
      EXPECT_EQ(error.code, bad.code);
    }
    for (const Tensor* x : {&call.of_q, &call.of_k, &call.of_v, &call.of_bias, &call.of_sink})
      for_each(x->shape(), [&](auto... at) { ASSERT_EQ(x->at(at...), 0.5f); });
  }
}

TEST(BadGradients, include_those_by_a_cache) {
  Whole call;
  const KvCache cache(KvCacheConfig{.batch = 2, .kv_heads = 2, .capacity = 8, .dim = 8, .value_dim = 6});
  call.inputs = {.q = call.q.view(), .cache = &cache};
  try {
    attention_backward(call.inputs, call.saved, call.gradients, call.options);
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "inputs.cache: given, but there is no gradient by what a cache holds");
    EXPECT_EQ(error.code, Error::unsupported);
  }
}

TEST(BadGradients, include_accumulated_ones_that_are_to_be_checked) {
  Whole call;
  call.gradients.accumulate = true;
  EXPECT_THROW(check(call.inputs, call.saved, call.gradients, call.options), Error);
}

TEST(GoodGradients, may_be_of_nothing_at_all) {
  Whole call;
  call.gradients = {.out = call.of_out.view()};
  EXPECT_NO_THROW(attention_backward(call.inputs, call.saved, call.gradients, call.options));
}

TEST(GoodGradients, read_a_gradient_of_out_that_repeats_one_number) {
  Whole call;
  Tensor one({1, 1, 1, 1});
  one.fill(2.0f);
  Tensor twos(call.of_out.shape());
  twos.fill(2.0f);
  call.gradients.out = {one.view().data, twos.shape(), Strides{0, 0, 0, 0}, DType::f32};
  attention_backward(call.inputs, call.saved, call.gradients, call.options);
  Whole expected;
  expected.gradients.out = twos.view();
  attention_backward(expected.inputs, expected.saved, expected.gradients, expected.options);
  EXPECT_TRUE(same_bits(call.of_q, expected.of_q));
  EXPECT_TRUE(same_bits(call.of_k, expected.of_k));
  EXPECT_TRUE(same_bits(call.of_v, expected.of_v));
}

TEST(Explained, the_plan_of_a_gradient_names_every_kernel_once) {
  Whole call;
  const std::string lines = explain(call.inputs, call.saved, call.gradients, call.options);
  for (const std::string& name : backward_kernel_names())
    EXPECT_NE(lines.find(name + ": "), std::string::npos) << name;
  EXPECT_NE(lines.find(": taken\n"), std::string::npos);
  call.options.kernel = "reference";
  EXPECT_NE(explain(call.inputs, call.saved, call.gradients, call.options).find("reference: taken\n"),
            std::string::npos);
}

}  // namespace
}  // namespace heed::cases
