// SPDX-License-Identifier: Apache-2.0
// The ordered list of kernels for gradients, and the choice among them.
#include "plan/gradient.hpp"

#include <utility>

#include "cpu/gradient.hpp"
#include "cpu/run.hpp"
#include "cpu/threads/throwing.hpp"
#include "reference/complete_gradient.hpp"
#include "reference/gradient.hpp"

namespace heed::inline v0_2 {
namespace {

Reason refusal_of(const GradientKernel& kernel, const GradientProblem& problem) {
  Reason reason = kernel.unavailable();
  return reason ? reason : kernel.refuses(problem);
}

// The one of this name: it is tried alone.
const GradientKernel& named(const std::string& name) {
  for (const GradientKernel& kernel : gradient_kernels())
    if (kernel.name == name) return kernel;
  throw refusal(Error::unsupported, "options.kernel: \"", name, "\" is not a kernel for gradients");
}

const GradientKernel& choose(const GradientProblem& problem) {
  const std::string& name = problem.forward.options.kernel;
  if (name.empty()) {
    for (const GradientKernel& kernel : gradient_kernels())
      if (!refusal_of(kernel, problem)) return kernel;
  }
  const GradientKernel& forced = named(name);
  if (const Reason reason = refusal_of(forced, problem))
    throw refusal(Error::unsupported, "options.kernel: \"", name, "\" refuses: ", reason());
  return forced;
}

void run_and_complete(const cpu::Target& target, const GradientProblem& problem) {
  const LeftGradients left = cpu::gradient(target, problem);
  reference::GradientCompletion rest(problem, left);
  cpu::throwing_parallel_for(rest.parts(), [&](std::size_t n) { rest.run(n); });
}

}  // namespace

const std::vector<GradientKernel>& gradient_kernels() {
  static const std::vector<GradientKernel> all = [] {
    std::vector<GradientKernel> list;
    for (const cpu::Target* target : cpu::targets()) {
      if (!target->gradient) continue;
      list.push_back({std::string("cpu.backward.") + target->name,
                      [target] { return cpu::unavailable(*target); },
                      cpu::gradient_refuses,
                      [target](const GradientProblem& g) { run_and_complete(*target, g); }});
    }
    list.push_back({"reference", [] { return Reason(); }, [](const GradientProblem&) { return Reason(); },
                    [](const GradientProblem& g) { reference::run(g); }});
    return list;
  }();
  return all;
}

void attention_backward(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                        const Options& options) {
  const GradientProblem problem = make_gradient_problem(inputs, saved, gradients, options);
  choose(problem).run(problem);
}

std::vector<Verdict> plan(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                          const Options& options) {
  const GradientProblem problem = make_gradient_problem(inputs, saved, gradients, options);
  const GradientKernel* const forced = options.kernel.empty() ? nullptr : &named(options.kernel);
  bool is_open = true;
  std::vector<Verdict> verdicts;
  for (const GradientKernel& kernel : gradient_kernels()) {
    const Reason reason = refusal_of(kernel, problem);
    const bool takes = !reason && (forced ? &kernel == forced : std::exchange(is_open, false));
    verdicts.push_back({kernel.name,
                        takes    ? Verdict::taken
                        : reason ? Verdict::refused
                                 : Verdict::not_needed,
                        reason ? reason() : ""});
  }
  return verdicts;
}

std::string explain(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                    const Options& options) {
  std::string lines;
  for (const Verdict& verdict : plan(inputs, saved, gradients, options)) {
    lines += verdict.kernel + ": " + name_of(verdict.choice);
    if (!verdict.reason.empty()) lines += ": " + verdict.reason;
    lines += '\n';
  }
  return lines;
}

std::vector<std::string> backward_kernel_names() {
  std::vector<std::string> names;
  for (const GradientKernel& kernel : gradient_kernels())
    if (!kernel.unavailable()) names.push_back(kernel.name);
  return names;
}

}  // namespace heed::inline v0_2
