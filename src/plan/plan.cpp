// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.hpp"

#include <utility>

#include "cpu/run.hpp"
#include "cpu/threads/throwing.hpp"
#include "heed/cache.hpp"
#include "reference/gathered_cache.hpp"
#include "reference/row.hpp"

namespace heed::inline v0_2 {
namespace {

Reason takes_everything(const Problem&) { return {}; }

Reason refusal_of(const Kernel& kernel, const Problem& problem) {
  Reason reason = kernel.unavailable();
  return reason ? reason : kernel.refuses(problem);
}

// The one of this name: it is tried alone.
const Kernel& named(const std::string& name) {
  for (const Kernel& kernel : kernels())
    if (kernel.name == name) return kernel;
  throw refusal(Error::unsupported, "options.kernel: \"", name, "\" is not a kernel of this build");
}

void run(const Kernel& kernel, const Problem& problem) {
  if (!kernel.run(problem)) return;
  const std::vector<reference::LeftRow> left = reference::left_rows(problem);
  if (left.empty()) return;
  const reference::GatheredCache plain(problem);
  const reference::Numbers numbers(plain.problem);
  cpu::throwing_parallel_for(left.size(),
                             [&](std::size_t n) { reference::complete(plain.problem, numbers, left[n]); });
}

}  // namespace

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> list;
    for (const cpu::Target* target : cpu::targets()) {
      const auto unavailable = [target] { return cpu::unavailable(*target); };
      list.push_back({std::string("cpu.decode.") + target->name, unavailable,
                      [target](const Problem& p) { return cpu::decode_refuses(*target, p); },
                      [target](const Problem& p) { return cpu::decode(*target, p); }});
      list.push_back({std::string("cpu.prefill.") + target->name, unavailable,
                      [target](const Problem& p) { return cpu::prefill_refuses(*target, p); },
                      [target](const Problem& p) { return cpu::prefill(*target, p); }});
    }
    list.push_back({"reference", [] { return Reason(); }, takes_everything,
                    [](const Problem& p) {
                      reference::run(reference::GatheredCache(p).problem);
                      return false;
                    }});
    return list;
  }();
  return all;
}

const Kernel& choose(const Problem& problem) {
  const std::string& name = problem.options.kernel;
  if (name.empty()) {
    for (const Kernel& kernel : kernels())
      if (!refusal_of(kernel, problem)) return kernel;
  }
  const Kernel& forced = named(name);
  if (const Reason reason = refusal_of(forced, problem))
    throw refusal(Error::unsupported, "options.kernel: \"", name, "\" refuses: ", reason());
  return forced;
}

void attention(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  const Problem problem = make_problem(inputs, outputs, options);
  const Kernel& kernel = choose(problem);
  if (problem.turns_keys)
    run(kernel, reference::GatheredCache(problem).problem);
  else
    run(kernel, problem);
}

const char* name_of(Verdict::Choice choice) {
  return choice == Verdict::taken ? "taken" : choice == Verdict::refused ? "refused" : "not needed";
}

std::vector<Verdict> plan(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  const Problem problem = make_problem(inputs, outputs, options);
  const Kernel* const forced = options.kernel.empty() ? nullptr : &named(options.kernel);
  bool is_open = true;
  std::vector<Verdict> verdicts;
  for (const Kernel& kernel : kernels()) {
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
  for (const Kernel& kernel : kernels())
    if (!kernel.unavailable()) names.push_back(kernel.name);
  return names;
}

}  // namespace heed::inline v0_2
