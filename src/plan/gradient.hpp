// SPDX-License-Identifier: Apache-2.0
// The ordered list of kernels for gradients. The first that takes a problem runs it; the reference takes
// everything and is last.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "problem/gradient_problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {

struct GradientKernel {
  std::string name;                                       // backend.backward.target
  std::function<Reason()> unavailable;                    // why this machine cannot run it
  std::function<Reason(const GradientProblem&)> refuses;  // why it does not take this problem
  std::function<void(const GradientProblem&)> run;
};

const std::vector<GradientKernel>& gradient_kernels();

}  // namespace heed::inline v0_2
