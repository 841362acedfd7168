// SPDX-License-Identifier: Apache-2.0
// The ordered list of kernels. The first that takes a problem runs it; the reference takes everything and is
// last.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "problem/problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {

struct Kernel {
  std::string name;                               // backend.role.target
  std::function<Reason()> unavailable;            // why this machine cannot run it
  std::function<Reason(const Problem&)> refuses;  // why it does not take this problem
  std::function<bool(const Problem&)> run;        // returns whether it left something to the reference
};

const std::vector<Kernel>& kernels();

// The kernel that options.kernel names, or the first that takes the problem. Throws Error where the one that
// is named refuses or does not exist.
const Kernel& choose(const Problem&);

}  // namespace heed::inline v0_2
