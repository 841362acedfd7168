// SPDX-License-Identifier: Apache-2.0
// A checked call to attention_backward(), lowered to plain data: the forward problem it is the gradient of,
// what was saved, and the gradients. Strides are as in Problem: 0 for what broadcasts and for the batch of
// packed rows.
#pragma once
#include <cstdint>
#include <vector>

#include "heed/gradient.hpp"
#include "problem/problem.hpp"

namespace heed::problem {

struct GradientProblem {
  Problem forward{};  // its outputs are what was saved, and are never written
  View out{}, log_sum_exp{};
  View out_gradient{};
  Optional<View> log_sum_exp_gradient{};

  // As they were given, and as every (batch, heads, queries, keys) finds its element in them.
  Gradients given{};
  Optional<MutableView> q{}, k{}, v{}, bias{}, sink{};

  Device device() const { return forward.device(); }
};

// What a kernel did not write because numbers on the way to it do not fit f32, or are none (S13): rows of q,
// k and v by sequence, head and row, a sequence beginning at first_row or first_key; single elements of the
// others. 0: it was written.
struct UnfinishedGradients {
  std::vector<std::int64_t> first_row{}, first_key{};
  std::vector<unsigned char> q{}, k{}, v{}, bias{}, sink{};
};

}  // namespace heed::problem

namespace heed {
using problem::GradientProblem, problem::UnfinishedGradients;
}
