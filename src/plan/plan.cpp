// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.hpp"

#include "heed/cache.hpp"
#include "lowering/make_problem.hpp"
#include "plan/backends.hpp"
#include "plan/choice.hpp"
#include "plan/gathered_cache.hpp"
#include "plan/poison.hpp"
#include "reference/row.hpp"
#include "threads/throwing.hpp"

namespace heed::planning {
namespace {

const Kernel& reference_kernel() {
  static const Kernel& only =
      *new Kernel{"reference", Device::cpu, [] { return Reason(); }, [](const Problem&) { return Reason(); },
                  [](const Problem& p) {
                    const GatheredCache plain(p, backend_of("q", Device::cpu));
                    reference::run(plain.problem);
                    return false;
                  }};  // never destroyed: see backends()
  return only;
}

const Kind<Kernel>& kind() {
  static const Kind<Kernel> only{&Backend::kernels, reference_kernel(), "is not a kernel of this build"};
  return only;
}

// Rows that a kernel left; what it has finished keeps its bits.
void complete(const Problem& problem) {
  std::vector<reference::UnfinishedRow> left = reference::unfinished_rows(problem);
  settle_poisoned(problem, left);
  if (left.empty()) return;
  const GatheredCache plain(problem, backend_of("q", Device::cpu));
  const reference::Numbers numbers(plain.problem);
  threads::throwing_parallel_for(
      left.size(), [&](std::size_t n) { reference::complete(plain.problem, numbers, left[n]); });
}

}  // namespace

const Kernel& choose(const Problem& problem) { return kind().choose(problem, problem.options.kernel); }

std::string in_lines(const std::vector<Verdict>& verdicts) {
  std::string lines;
  for (const Verdict& verdict : verdicts) {
    lines += verdict.kernel + ": " + name_of(verdict.choice);
    if (!verdict.reason.empty()) lines += ": " + verdict.reason;
    lines += '\n';
  }
  return lines;
}

void run(const Kernel& kernel, const Problem& problem) {
  if (problem.batch == 0) return;  // S14
  if (problem.rotates_keys && problem.reading) {
    const GatheredCache turned(problem, backend_of("q", problem.device()));
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
  const threads::ForOneCall said(options.threads, options.executor);
  run(choose(problem), problem);
}

const char* name_of(Verdict::Choice choice) {
  return choice == Verdict::taken ? "taken" : choice == Verdict::refused ? "refused" : "not needed";
}

std::vector<Verdict> plan(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  backend_of("q", inputs.q.device);
  const Problem problem = make_problem(inputs, outputs, options);
  const threads::ForOneCall said(options.threads, options.executor);
  return kind().verdicts(problem, options.kernel);
}

std::string explain(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  return in_lines(plan(inputs, outputs, options));
}

std::vector<std::string> kernel_names() { return kind().names(); }

}  // namespace heed::inline v0_2
