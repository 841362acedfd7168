// SPDX-License-Identifier: Apache-2.0
// Calls to attention_backward() with one thing wrong, and the sentence each is refused with.
#pragma once
#include <string>

#include "cases/backward.hpp"
#include "cases/listed.hpp"

namespace heed::cases {

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

inline const std::string no_such_kernel =
    "options.kernel: \"cpu.prefill.scalar\" is not a kernel for gradients; there are " +
    listed(backward_kernel_names());

inline const BadGradient bad_gradients[] = {
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
    // The one is shorter than the other, so that it reaches nothing else.
    {"writing_over_the_gradient_of_out", Error::overlap, "gradients.bias: shares memory with gradients.out",
     [](Whole& c) { c.gradients.bias->data = const_cast<void*>(c.gradients.out.data); }},
    {"writing_over_what_was_saved", Error::overlap, "gradients.sink: shares memory with saved.log_sum_exp",
     [](Whole& c) { c.gradients.sink->data = const_cast<void*>(c.saved.log_sum_exp.data); }},
    {"writing_two_gradients_in_one_place", Error::overlap, "gradients.k: shares memory with gradients.q",
     [](Whole& c) { c.gradients.k->data = c.gradients.q->data; }},
    {"a_kernel_for_attention", Error::unsupported, no_such_kernel.c_str(),
     [](Whole& c) { c.options.kernel = "cpu.prefill.scalar"; }},
    {"queries_and_keys_of_different_widths", Error::shape, "k.dim: 7 is not q.dim: 8",
     [](Whole& c) { c.inputs.k.shape.dim = 7; }},
};

}  // namespace heed::cases
