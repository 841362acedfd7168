// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.hpp"

#include <utility>

#include "heed/cache.hpp"
#include "lowering/make_problem.hpp"
#include "plan/backends.hpp"
#include "reference/gathered_cache.hpp"
#include "reference/row.hpp"
#include "threads/throwing.hpp"

namespace heed::planning {
namespace {

const Kernel& reference_kernel() {
  static const Kernel only{"reference", Device::cpu, [] { return Reason(); },
                           [](const Problem&) { return Reason(); },
                           [](const Problem& p) {
                             const reference::GatheredCache plain(p, backend_of("q", Device::cpu));
                             reference::run(plain.problem);
                             return false;
                           }};
  return only;
}

// The first kernel that is(kernel), in the order they are tried; nullptr where there is none.
template <class Is>
const Kernel* find_kernel(const Is& is) {
  for (const Backend* backend : backends())
    for (const Kernel& kernel : backend->kernels())
      if (is(kernel)) return &kernel;
  return is(reference_kernel()) ? &reference_kernel() : nullptr;
}

template <class Visit>
void for_each_kernel(const Visit& visit) {
  find_kernel([&](const Kernel& kernel) { return visit(kernel), false; });
}

Reason refusal_of(const Kernel& kernel, const Problem& problem) {
  if (Reason reason = kernel.unavailable()) return reason;
  if (kernel.device != problem.device())
    return [device = kernel.device] {
      return std::string("it reads ") + (device == Device::cpu ? "the CPU's" : "CUDA's") + " memory";
    };
  return kernel.refuses(problem);
}

const Kernel& named(const std::string& name) {
  const Kernel* found = find_kernel([&](const Kernel& kernel) { return kernel.name == name; });
  if (found) return *found;
  throw refusal(Error::unsupported, "options.kernel: \"", name, "\" is not a kernel of this build");
}

// Rows that a kernel left; what it has finished keeps its bits.
void complete(const Problem& problem) {
  const std::vector<reference::LeftRow> left = reference::left_rows(problem);
  if (left.empty()) return;
  const reference::GatheredCache plain(problem, backend_of("q", Device::cpu));
  const reference::Numbers numbers(plain.problem);
  threads::throwing_parallel_for(
      left.size(), [&](std::size_t n) { reference::complete(plain.problem, numbers, left[n]); });
}

}  // namespace

const Kernel& choose(const Problem& problem) {
  const std::string& name = problem.options.kernel;
  if (!name.empty()) {
    const Kernel& forced = named(name);
    if (const Reason reason = refusal_of(forced, problem))
      throw refusal(Error::unsupported, "options.kernel: \"", name, "\" refuses: ", reason());
    return forced;
  }
  const Kernel* found = find_kernel([&](const Kernel& kernel) { return !refusal_of(kernel, problem); });
  if (found) return *found;
  throw refusal(Error::device, "q.device: ", problem.device(),
                ", where no kernel takes this call; explain() says why");
}

void run(const Kernel& kernel, const Problem& problem) {
  if (problem.turns_keys && problem.reading) {
    const reference::GatheredCache turned(problem, backend_of("q", problem.device()));
    return run(kernel, turned.problem);
  }
  if (kernel.run(problem)) complete(problem);
}

}  // namespace heed::planning

namespace heed::inline v0_2 {
using namespace planning;

void attention(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  backend_of("q", inputs.q.device);
  const Problem problem = make_problem(inputs, outputs, options);
  run(choose(problem), problem);
}

const char* name_of(Verdict::Choice choice) {
  return choice == Verdict::taken ? "taken" : choice == Verdict::refused ? "refused" : "not needed";
}

std::vector<Verdict> plan(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  backend_of("q", inputs.q.device);
  const Problem problem = make_problem(inputs, outputs, options);
  const Kernel* const forced = options.kernel.empty() ? nullptr : &named(options.kernel);
  bool is_open = true;
  std::vector<Verdict> verdicts;
  for_each_kernel([&](const Kernel& kernel) {
    const Reason reason = refusal_of(kernel, problem);
    const bool takes = !reason && (forced ? &kernel == forced : std::exchange(is_open, false));
    verdicts.push_back({kernel.name,
                        takes    ? Verdict::taken
                        : reason ? Verdict::refused
                                 : Verdict::not_needed,
                        reason ? reason() : ""});
  });
  return verdicts;
}

std::string explain(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  std::string lines;
  for (const Verdict& verdict : plan(inputs, outputs, options)) {
    lines += verdict.kernel + ": " + name_of(verdict.choice);
    if (!verdict.reason.empty()) lines += ": " + verdict.reason;
    lines += '\n';
  }
  return lines;
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for_each_kernel([&](const Kernel& kernel) {
    if (!kernel.unavailable()) names.push_back(kernel.name);
  });
  return names;
}

}  // namespace heed::inline v0_2
