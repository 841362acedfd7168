// SPDX-License-Identifier: Apache-2.0
// attention_backward(): the choice among the kernels for gradients, and what the chosen one leaves.
#include "plan/gradient.hpp"

#include "lowering/make_problem.hpp"
#include "plan/backends.hpp"
#include "plan/choice.hpp"
#include "reference/complete_gradient.hpp"
#include "reference/gradient.hpp"
#include "threads/throwing.hpp"

namespace heed::planning {
namespace {

const GradientKernel& reference_of_gradients() {
  static const GradientKernel& only = *new GradientKernel{"reference", Device::cpu, [] { return Reason(); },
                                                          [](const GradientProblem&) { return Reason(); },
                                                          [](const GradientProblem& g) {
                                                            reference::run(g);
                                                            return UnfinishedGradients();
                                                          }};  // never destroyed: see backends()
  return only;
}

const Kind<GradientKernel>& gradient_kind() {
  static const Kind<GradientKernel> only{&Backend::gradient_kernels, reference_of_gradients(),
                                         "is not a kernel for gradients"};
  return only;
}

// Gradients that a kernel left; what it has finished keeps its bits.
void complete(const GradientProblem& problem, const UnfinishedGradients& left) {
  reference::GradientCompletion rest(problem, left);
  threads::throwing_parallel_for(rest.parts(), [&](std::size_t n) { rest.run(n); });
}

}  // namespace

void attention_backward(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                        const Options& options, const std::optional<Place>& place) {
  backend_of("q", inputs.q.device);
  GradientProblem problem = make_gradient_problem(inputs, saved, gradients, options);
  problem.forward.place = place;
  const threads::ForOneCall said(options.threads, options.executor);
  complete(problem, gradient_kind().choose(problem, options.kernel).run(problem));
}

}  // namespace heed::planning

namespace heed::inline v0_2 {
using namespace planning;

void attention_backward(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                        const Options& options) {
  planning::attention_backward(inputs, saved, gradients, options, {});
}

std::vector<Verdict> plan(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                          const Options& options) {
  backend_of("q", inputs.q.device);
  const GradientProblem problem = make_gradient_problem(inputs, saved, gradients, options);
  const threads::ForOneCall said(options.threads, options.executor);
  return gradient_kind().verdicts(problem, options.kernel);
}

std::string explain(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                    const Options& options) {
  return in_lines(plan(inputs, saved, gradients, options));
}

std::vector<std::string> backward_kernel_names() { return gradient_kind().names(); }

}  // namespace heed::inline v0_2
