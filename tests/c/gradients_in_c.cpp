// SPDX-License-Identifier: Apache-2.0
// Gradients from C are those of C++: the same bits for random problems with every option, the same refusals.
#include <gtest/gtest.h>

#include "c/in_c.hpp"
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "gradients/bad_gradients.hpp"

namespace heed::cases {
namespace {

heed_status differentiate_in_c(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                               const Options& options) {
  const in_c::Choices choices(options);
  const heed_inputs in = in_c::inputs(inputs);
  const heed_saved from = in_c::saved(saved);
  const heed_gradients into = in_c::gradients(gradients);
  return heed_attention_backward(&in, &from, &into, &choices.options);
}

TEST(gradients_in_c, have_the_bits_of_cpp_for_every_option) {
  for (const std::uint64_t seed : seeds(1, 201)) {
    const Call forward = for_kernel(seed % 7 == 0 ? "cpu.f64." : "", random_call(seed, {.dropout = true}));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(forward));
    const BackwardCall call(forward, seed, forward.q.dtype() != DType::f64 && seed % 2 == 0);
    const std::string kernel = seed % 10 == 0 ? "reference" : "";
    BackwardResults wanted(call), found(call);
    for (BackwardResults* results : {&wanted, &found})
      if (seed % 3 == 0) {  // added to zeros
        results->accumulate = true;
        for (auto& gradient : results->gradients)
          if (gradient) gradient->fill_bytes(0);
      }
    differentiate(call, wanted, kernel);
    EXPECT_EQ(
        differentiate_in_c(call.call.inputs(), call.saved(), found.views(call), call.call.options(kernel)),
        HEED_OK)
        << heed_last_error();
    for (const Of of : every_gradient)
      if (wanted[of]) {
        EXPECT_TRUE(same_bits(*wanted[of], *found[of])) << name_of(of);
      }
  }
}

TEST(gradients_in_c, are_refused_with_the_same_sentence_and_nothing_is_written) {
  for (const BadGradient& bad : bad_gradients) {
    SCOPED_TRACE(bad.claim);
    Whole call;
    for (Tensor* x : {&call.of_q, &call.of_k, &call.of_v, &call.of_bias, &call.of_sink}) x->fill(0.5f);
    bad.spoil(call);
    EXPECT_EQ(differentiate_in_c(call.inputs, call.saved, call.gradients, call.options), bad.code + 1);
    EXPECT_STREQ(heed_last_error(), bad.sentence);
    for (const Tensor* x : {&call.of_q, &call.of_k, &call.of_v, &call.of_bias, &call.of_sink})
      for_each(x->shape(), [&](auto... at) { ASSERT_EQ(x->at(at...), 0.5f); });
  }
}

TEST(gradients_in_c, are_explained_in_the_same_words) {
  const Whole call;
  const in_c::Choices choices(call.options);
  const heed_inputs inputs = in_c::inputs(call.inputs);
  const heed_saved saved = in_c::saved(call.saved);
  const heed_gradients gradients = in_c::gradients(call.gradients);
  char* text = nullptr;
  ASSERT_EQ(heed_explain_backward(&inputs, &saved, &gradients, &choices.options, &text), HEED_OK)
      << heed_last_error();
  EXPECT_EQ(text, explain(call.inputs, call.saved, call.gradients, call.options));
  heed_free(text);
}

}  // namespace
}  // namespace heed::cases
