// SPDX-License-Identifier: Apache-2.0
// The choice among the kernels of one kind, those of attention or those of its gradients, of all backends.
// The first that takes a problem runs it; the reference takes everything that lies in the CPU's memory and is
// last.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/backends.hpp"

namespace heed::planning {

template <class AnyKernel>
struct Kind {
  std::span<const AnyKernel> (Backend::*kernels)() const;
  const AnyKernel& reference;
  const char* named_otherwise;  // "is not a kernel of this build"

  // The first kernel that is(kernel), in the order they are tried; nullptr where there is none.
  template <class Is>
  const AnyKernel* find(const Is& is) const {
    for (const Backend* backend : backends())
      for (const AnyKernel& kernel : (backend->*kernels)())
        if (is(kernel)) return &kernel;
    return is(reference) ? &reference : nullptr;
  }

  template <class Visit>
  void for_each(const Visit& visit) const {
    find([&](const AnyKernel& kernel) { return visit(kernel), false; });
  }

  const AnyKernel& named(const std::string& name) const {
    const AnyKernel* found = find([&](const AnyKernel& kernel) { return kernel.name == name; });
    if (found) return *found;
    std::string known;
    for (const std::string& one : names()) {
      if (!known.empty()) known += ", ";
      known += one;
    }
    throw refusal(Error::unsupported, "options.kernel: \"", name, "\" ", named_otherwise, "; there are ",
                  known);
  }

  template <class AnyProblem>
  static Reason refusal_of(const AnyKernel& kernel, const AnyProblem& problem) {
    if (Reason reason = kernel.unavailable()) return reason;
    if (kernel.device != problem.device())
      return [device = kernel.device] {
        return std::string("it reads ") + (device == Device::cpu ? "the CPU's" : "CUDA's") + " memory";
      };
    return kernel.refuses(problem);
  }

  // The kernel of that name, or the first that takes the problem where there is none.
  template <class AnyProblem>
  const AnyKernel& choose(const AnyProblem& problem, const std::string& name) const {
    if (!name.empty()) {
      const AnyKernel& forced = named(name);
      if (const Reason reason = refusal_of(forced, problem))
        throw refusal(Error::unsupported, "options.kernel: \"", name, "\" refuses: ", reason());
      return forced;
    }
    const AnyKernel* found = find([&](const AnyKernel& kernel) { return !refusal_of(kernel, problem); });
    if (found) return *found;
    throw refusal(Error::device, "q.device: ", problem.device(),
                  ", where no kernel takes this call; explain() says why");
  }

  template <class AnyProblem>
  std::vector<Verdict> verdicts(const AnyProblem& problem, const std::string& name) const {
    const AnyKernel* const forced = name.empty() ? nullptr : &named(name);
    bool is_open = true;
    std::vector<Verdict> all;
    for_each([&](const AnyKernel& kernel) {
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

  // Those that this machine can run.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for_each([&](const AnyKernel& kernel) {
      if (!kernel.unavailable()) all.push_back(kernel.name);
    });
    return all;
  }
};

// A line for each.
std::string in_lines(const std::vector<Verdict>&);

}  // namespace heed::planning
