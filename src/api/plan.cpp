// SPDX-License-Identifier: Apache-2.0
// plan(), explain() and the names of kernels; the choice that they speak of.
#include "api/plan.hpp"

#include <array>
#include <utility>

#include "api/gathered_cache.hpp"
#include "backend/backend.hpp"
#include "call/make_problem.hpp"
#include "reference/gradient.hpp"
#include "reference/row.hpp"
#include "threads/pool.hpp"

namespace heed::api {
namespace {

Reason takes_everything() { return {}; }

Reason needs_all_keys(const Problem&) {
  return [] { return std::string("it needs all keys at once"); };
}

// The reference does two kinds of work, and refuses the others by name. Never destroyed: see backends().
const std::array<Kernel, 2>& references() {
  static const auto& both = *new std::array<Kernel, 2>{
      Kernel{.name = "reference",
             .device = Device::cpu,
             .unavailable = takes_everything,
             .refuses = [](const Problem&) { return Reason(); },
             .attend =
                 [](const Problem& p) {
                   const GatheredCache plain(p, backend_of("q", Device::cpu));
                   reference::run(plain.problem);
                   return false;
                 },
             .refuses_backward = [](const GradientProblem&) { return Reason(); },
             .backward =
                 [](const GradientProblem& g) {
                   reference::run(g);
                   return RepairMarks();
                 }},
      Kernel{.name = "reference",
             .device = Device::cpu,
             .unavailable = takes_everything,
             .refuses = needs_all_keys,
             .begin_stream = [](const Problem&) { return std::unique_ptr<Stream>(); },
             .begin_spread = [](const Problem&, const Spread&) { return std::unique_ptr<SpreadDecode>(); }}};
  return both;
}

const char* named_otherwise(Work work) {
  switch (work) {
    case Work::attention:
      return "is not a kernel of this build";
    case Work::backward:
      return "is not a kernel for gradients";
    case Work::stream:
      return "is not a kernel for streams";
    case Work::spread:
      return "is not a kernel for caches over ranks";
  }
  return "";
}

bool does(const Kernel& kernel, Work work) {
  return work == Work::attention  ? kernel.attend != nullptr
         : work == Work::backward ? kernel.backward != nullptr
         : work == Work::stream   ? kernel.begin_stream != nullptr
                                  : kernel.begin_spread != nullptr;
}

// The first kernel for such work that is(kernel), in the order they are tried; nullptr where there is none.
template <class Is>
const Kernel* find(Work work, const Is& is) {
  for (const Backend* backend : backends())
    for (const Kernel& kernel : backend->kernels)
      if (does(kernel, work) && is(kernel)) return &kernel;
  for (const Kernel& kernel : references())
    if (does(kernel, work) && is(kernel)) return &kernel;
  return nullptr;
}

template <class Visit>
void for_each(Work work, const Visit& visit) {
  find(work, [&](const Kernel& kernel) { return visit(kernel), false; });
}

// Those that this machine can run.
std::vector<std::string> names_of(Work work) {
  std::vector<std::string> all;
  for_each(work, [&](const Kernel& kernel) {
    if (!kernel.unavailable()) all.push_back(kernel.name);
  });
  return all;
}

const Kernel& named(Work work, const std::string& name) {
  const Kernel* found = find(work, [&](const Kernel& kernel) { return kernel.name == name; });
  if (found) return *found;
  std::string known;
  for (const std::string& one : names_of(work)) known += (known.empty() ? "" : ", ") + one;
  throw refusal(Error::unsupported, "options.kernel: \"", name, "\" ", named_otherwise(work), "; there are ",
                known);
}

Reason own_reason(const Kernel& kernel, const Problem& p) { return kernel.refuses(p); }
Reason own_reason(const Kernel& kernel, const GradientProblem& g) { return kernel.refuses_backward(g); }

template <class AnyProblem>
Reason refusal_of(const Kernel& kernel, const AnyProblem& problem) {
  if (Reason reason = kernel.unavailable()) return reason;
  if (kernel.device != problem.device())
    return [device = kernel.device] {
      return std::string("it reads ") + (device == Device::cpu ? "the CPU's" : "CUDA's") + " memory";
    };
  return own_reason(kernel, problem);
}

template <class AnyProblem>
const Kernel& choose(Work work, const AnyProblem& problem, const std::string& name) {
  if (!name.empty()) {
    const Kernel& forced = named(work, name);
    if (const Reason reason = refusal_of(forced, problem))
      throw refusal(Error::unsupported, "options.kernel: \"", name, "\" refuses: ", reason());
    return forced;
  }
  const Kernel* found = find(work, [&](const Kernel& kernel) {
    return kernel.device == problem.device() && !refusal_of(kernel, problem);
  });
  if (found) return *found;
  throw refusal(Error::device, "q.device: ", problem.device(),
                ", where no kernel takes this call; explain() says why");
}

template <class AnyProblem>
std::vector<Verdict> verdicts(Work work, const AnyProblem& problem, const Options& options) {
  const threads::ForOneCall settings(options.threads, options.executor);
  const Kernel* const forced = options.kernel.empty() ? nullptr : &named(work, options.kernel);
  bool is_open = true;
  std::vector<Verdict> all;
  for_each(work, [&](const Kernel& kernel) {
    const Reason reason = refusal_of(kernel, problem);
    const bool takes = !reason && (forced ? &kernel == forced : std::exchange(is_open, false));
    all.push_back({kernel.name,
                   takes    ? Verdict::taken
                   : reason ? Verdict::refused
                            : Verdict::not_needed,
                   reason ? reason() : ""});
  });
  return all;
}

std::string in_lines(const std::vector<Verdict>& verdicts) {
  std::string lines;
  for (const Verdict& verdict : verdicts) {
    lines += verdict.kernel + ": " + name_of(verdict.choice);
    if (!verdict.reason.empty()) lines += ": " + verdict.reason;
    lines += '\n';
  }
  return lines;
}

}  // namespace

const Kernel& choose(Work work, const Problem& problem) {
  return choose(work, problem, problem.options.kernel);
}
const Kernel& choose(const GradientProblem& problem) {
  return choose(Work::backward, problem, problem.forward.options.kernel);
}

}  // namespace heed::api

namespace HEED_NAMESPACE {
using namespace api;

const char* name_of(Verdict::Choice choice) {
  return choice == Verdict::taken ? "taken" : choice == Verdict::refused ? "refused" : "not needed";
}

std::vector<Verdict> plan(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  backend_of("q", inputs.q.device);
  return verdicts(Work::attention, make_problem(inputs, outputs, options), options);
}
std::vector<Verdict> plan(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                          const Options& options) {
  backend_of("q", inputs.q.device);
  return verdicts(Work::backward, make_gradient_problem(inputs, saved, gradients, options), options);
}
std::vector<Verdict> plan(const StreamInputs& inputs, const Outputs& outputs, const Options& options) {
  backend_of("q", inputs.q.device);
  return verdicts(Work::stream, make_stream_problem(inputs, outputs, options), options);
}

std::string explain(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  return in_lines(plan(inputs, outputs, options));
}
std::string explain(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                    const Options& options) {
  return in_lines(plan(inputs, saved, gradients, options));
}
std::string explain(const StreamInputs& inputs, const Outputs& outputs, const Options& options) {
  return in_lines(plan(inputs, outputs, options));
}

std::vector<std::string> kernel_names() { return names_of(Work::attention); }
std::vector<std::string> backward_kernel_names() { return names_of(Work::backward); }
std::vector<std::string> stream_kernel_names() { return names_of(Work::stream); }

}  // namespace HEED_NAMESPACE
