// SPDX-License-Identifier: Apache-2.0
// The ordered list of kernels for gradients, and the choice among them.
#include "plan/gradient.hpp"

#include "cpu/gradient.hpp"
#include "cpu/run.hpp"
#include "reference/gradient.hpp"

namespace heed::inline v0_2 {
namespace {

Reason refusal_of(const GradientKernel& kernel, const GradientProblem& problem) {
  Reason reason = kernel.unavailable();
  return reason ? reason : kernel.refuses(problem);
}

// The forced kernel, or the first that takes the problem.
const GradientKernel& choose(const GradientProblem& problem) {
  const std::string& name = problem.forward.options.kernel;
  for (const GradientKernel& kernel : gradient_kernels()) {
    if (!name.empty() && kernel.name != name) continue;
    const Reason reason = refusal_of(kernel, problem);
    if (!reason) return kernel;
    if (!name.empty())
      throw refusal(Error::unsupported, "options.kernel: \"", name, "\" refuses: ", reason());
  }
  throw refusal(Error::unsupported, "options.kernel: \"", name, "\" is not a kernel for gradients");
}

}  // namespace

const std::vector<GradientKernel>& gradient_kernels() {
  static const std::vector<GradientKernel> all = [] {
    std::vector<GradientKernel> list;
    for (const cpu::Target* target : cpu::targets())
      list.push_back({std::string("cpu.backward.") + target->name,
                      [target] { return cpu::unavailable(*target); },
                      [target](const GradientProblem& g) { return cpu::gradient_refuses(*target, g); },
                      [target](const GradientProblem& g) { reference::complete(g, cpu::gradient(*target, g)); }});
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

std::string explain(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                    const Options& options) {
  const GradientProblem problem = make_gradient_problem(inputs, saved, gradients, options);
  const GradientKernel& chosen = choose(problem);
  std::string lines;
  for (const GradientKernel& kernel : gradient_kernels()) {
    const Reason reason = refusal_of(kernel, problem);
    lines += kernel.name + ": " +
             (&kernel == &chosen ? "taken"
              : reason           ? "refused: " + reason()
                                 : "not needed") +
             '\n';
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
