// SPDX-License-Identifier: Apache-2.0
// The gradients of attention(): of a loss by q, k, v, the bias and the sink, from what the forward call
// saved. docs/spec.md, rules G1 and on, says exactly what is computed.
#pragma once
#include <string>
#include <vector>

#include "heed/attention.hpp"
#include "heed/export.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// What attention() wrote for the same inputs and options, or what merge() made of several such results.
struct Saved {
  View out;          // (batch, heads, queries, value_dim)
  View log_sum_exp;  // (batch, heads, queries, 1), f32, or f64 as q
};

struct Gradients {
  // Read: the gradient of the loss by each result, in the result's extents and in the dtype of q or f32.
  View out;
  Optional<View> log_sum_exp{};  // f32, or f64 as q; not given: 0

  // Written, where given: the gradient by each argument, in that argument's extents (those of a bias or sink
  // that broadcasts are its own) and in its dtype or f32. Every element is written, 0 where nothing
  // contributes.
  Optional<MutableView> q{}, k{}, v{}, bias{}, sink{};

  bool accumulate = false;  // add to what is there instead
};

// Keys and values are views here: there is no gradient by a cache. Memory O(length). Throws Error before
// anything is written.
HEED_API void attention_backward(const Inputs&, const Saved&, const Gradients&, const Options& = {});
template <OneMask M>
void attention_backward(const Inputs&, const Saved&, const Gradients&, const M&) = delete;  // say {.masks}

// What becomes of every kernel for gradients when the call is planned, and the same in words.
HEED_API std::vector<Verdict> plan(const Inputs&, const Saved&, const Gradients&, const Options& = {});
HEED_API std::string explain(const Inputs&, const Saved&, const Gradients&, const Options& = {});

// Every kernel for gradients that this machine can run, in the order they are tried.
HEED_API std::vector<std::string> backward_kernel_names();

}  // namespace HEED_NAMESPACE
