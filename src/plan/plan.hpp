// SPDX-License-Identifier: Apache-2.0
// The ordered list of kernels. The first that takes a problem runs it; the reference takes everything and is
// last.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "problem/problem.hpp"

namespace heed {

struct Kernel {
  std::string name;                                    // backend.role.target
  std::function<std::string()> unavailable;            // why this machine cannot run it; empty: it can
  std::function<std::string(const Problem&)> refuses;  // why it does not take this problem; empty: it does
  std::function<void(const Problem&)> run;
};

const std::vector<Kernel>& kernels();

}  // namespace heed
