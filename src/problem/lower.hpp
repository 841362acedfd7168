// SPDX-License-Identifier: Apache-2.0
// From a Problem to the KernelCall that kernels of every backend read.
#pragma once
#include <optional>

#include "problem/call.hpp"
#include "problem/problem.hpp"

namespace heed::problem {

// An axis of one entry has whatever stride it likes, and kernels multiply strides: it becomes 0, or 1 for the
// last axis.
Tensor lower(const View&);

template <class AnyView>
Tensor lower_if_given(const std::optional<AnyView>& x) {
  return x ? lower(View(*x)) : Tensor{};
}

// A KernelCall and what it points to beyond the Problem, which must outlive it.
struct LoweredProblem {
  explicit LoweredProblem(const Problem&);
  LoweredProblem(const Problem&, const softmax::Scaling&);
  LoweredProblem(const LoweredProblem&) = delete;
  LoweredProblem& operator=(const LoweredProblem&) = delete;

  Few<BoolTensor, 4> masks;
  KernelCall call;
};

}  // namespace heed::problem
