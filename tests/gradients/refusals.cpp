// SPDX-License-Identifier: Apache-2.0
// What attention_backward() refuses, with which sentence; nothing is written then.
#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/listed.hpp"
#include "heed/cache.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

// Everything that a call has, for one thing to be wrong in it.
struct Whole {
  Tensor q = Tensor::random({2, 4, 3, 8}, 1), k = Tensor::random({2, 2, 5, 8}, 2),
         v = Tensor::random({2, 2, 5, 6}, 3), out = Tensor::random({2, 4, 3, 6}, 4),
         lse = Tensor::random({2, 4, 3, 1}, 5), of_out = Tensor::random({2, 4, 3, 6}, 6),
         bias = Tensor::random({1, 4, 1, 5}, 7), sink = Tensor::random({1, 4, 1, 1}, 8), of_q{q.shape()},
         of_k{k.shape()}, of_v{v.shape()}, of_bias{bias.shape()}, of_sink{sink.shape()};
  Inputs inputs{.q = q.view(), .k = k.view(), .v = v.view()};
  Saved saved{out.view(), lse.view()};
  Gradients gradients{.out = of_out.view(),
                      .q = of_q.mutable_view(),
                      .k = of_k.mutable_view(),
                      .v = of_v.mutable_view(),
                      .bias = of_bias.mutable_view(),
                      .sink = of_sink.mutable_view()};
  Options options{.bias = bias.view(), .sink = sink.view()};
};

struct BadGradient {
  const char* claim;
  Error::Code code;
  const char* sentence;
  void (*spoil)(Whole&);
};

const std::string no_such_kernel =
    "options.kernel: \"cpu.prefill.scalar\" is not a kernel for gradients; there are " +
    listed(backward_kernel_names());

const BadGradient bad_gradients[] = {
    {"a_saved_out_of_other_extents", Error::shape,
     "saved.out.shape: (2, 4, 2, 6) is not (batch, heads, queries, value_dim): (2, 4, 3, 6)",
     [](Whole& c) { c.saved.out.shape.length = 2; }},
    {"no_saved_log_sum_exp", Error::value, "saved.log_sum_exp: not given",
     [](Whole& c) { c.saved.log_sum_exp = {}; }},
    {"a_saved_log_sum_exp_of_16_bits", Error::dtype, "saved.log_sum_exp.dtype: bf16 is not f32",
     [](Whole& c) { c.saved.log_sum_exp.dtype = DType::bf16; }},
    {"a_gradient_of_out_with_other_extents", Error::shape,
     "gradients.out.shape: (2, 4, 3, 5) is not (batch, heads, queries, value_dim): (2, 4, 3, 6)",
     [](Whole& c) { c.gradients.out.shape.dim = 5; }},
    {"no_gradient_of_out", Error::value, "gradients.out.data: null, but the shape is (2, 4, 3, 6)",
     [](Whole& c) { c.gradients.out.data = nullptr; }},
    {"a_gradient_by_k_of_other_extents", Error::shape,
     "gradients.k.shape: (2, 1, 5, 8) is not k.shape: (2, 2, 5, 8)",
     [](Whole& c) { c.gradients.k->shape.heads = 1; }},
    {"a_gradient_by_the_bias_of_the_scores_extents", Error::shape,
     "gradients.bias.shape: (1, 4, 1, 4) is not options.bias.shape: (1, 4, 1, 5)",
     [](Whole& c) { c.gradients.bias->shape.dim = 4; }},
    {"a_gradient_by_a_bias_that_is_not_there", Error::value, "gradients.bias: given, but options.bias is not",
     [](Whole& c) { c.options.bias.reset(); }},
    {"a_gradient_by_a_sink_that_is_not_there", Error::value, "gradients.sink: given, but options.sink is not",
     [](Whole& c) { c.options.sink.reset(); }},
    {"a_gradient_of_another_16_bit_type", Error::dtype,
     "gradients.q.dtype: f16 is neither q.dtype: f32 nor f32",
     [](Whole& c) { c.gradients.q->dtype = DType::f16; }},
    {"writing_over_the_gradient_of_out", Error::overlap, "gradients.q: shares memory with gradients.out",
     [](Whole& c) { c.gradients.q->data = const_cast<void*>(c.gradients.out.data); }},
    {"writing_over_what_was_saved", Error::overlap, "gradients.sink: shares memory with saved.log_sum_exp",
     [](Whole& c) { c.gradients.sink->data = const_cast<void*>(c.saved.log_sum_exp.data); }},
    {"writing_two_gradients_in_one_place", Error::overlap, "gradients.k: shares memory with gradients.q",
     [](Whole& c) { c.gradients.k->data = c.gradients.q->data; }},
    {"a_kernel_for_attention", Error::unsupported, no_such_kernel.c_str(),
     [](Whole& c) { c.options.kernel = "cpu.prefill.scalar"; }},
    {"queries_and_keys_of_different_widths", Error::shape, "k.dim: 7 is not q.dim: 8",
     [](Whole& c) { c.inputs.k.shape.dim = 7; }},
};

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
