// SPDX-License-Identifier: Apache-2.0
// The CUDA kernels as tests see them: over numbers in the host's memory. One implementation copies them to a
// GPU and back, the other pretends to be one.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "call/make_problem.hpp"
#include "cases/backward.hpp"
#include "cases/call.hpp"

namespace heed::cuda::test {

// How the work is cut, which no bit may depend on.
enum class Cut { by_the_plan, apart, together };

std::vector<std::string> kernel_names();
// A CPU that pretends takes a thousand times as long: it tries fewer problems.
bool is_emulated();
// Whether the kernel took the problem.
bool run(const std::string& kernel, const Problem&, Cut = Cut::by_the_plan);

inline std::optional<cases::Results> run(const std::string& kernel, const cases::Call& call,
                                         const cases::Wants& wants, Cut cut = Cut::by_the_plan) {
  cases::Results results(call, wants);
  const Problem problem = make_problem(call.inputs(), results.outputs(), call.options());
  if (!run(kernel, problem, cut)) return std::nullopt;
  return results;
}

// The kernels that have gradients; those of the exact one are the CPU's.
std::vector<std::string> backward_kernel_names();
bool run_backward(const std::string& kernel, const GradientProblem&);

inline bool differentiate(const std::string& kernel, const cases::BackwardCall& call,
                          cases::BackwardResults& into) {
  return run_backward(
      kernel, make_gradient_problem(call.call.inputs(), call.saved(), into.views(call), call.call.options()));
}
inline std::optional<cases::BackwardResults> gradients_of(const std::string& kernel,
                                                          const cases::BackwardCall& call,
                                                          std::optional<DType> dtype = {}) {
  cases::BackwardResults results(call, dtype);
  if (!differentiate(kernel, call, results)) return std::nullopt;
  return results;
}

}  // namespace heed::cuda::test
