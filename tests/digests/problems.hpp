// SPDX-License-Identifier: Apache-2.0
// The fixed problems behind golden.txt. Inputs come from integers alone, so that they are the same on every
// machine; changing one, or the order of its numbers, changes its digest.
#pragma once
#include <string>
#include <vector>

#include "cases/call.hpp"

namespace heed::digests {

struct Problem {
  std::string name;
  cases::Call call;
  bool weights = false;  // digested too, by the kernels that return them
};

std::vector<Problem> problems();
// The same problem with q, k and v in a 16-bit type.
cases::Call in_dtype(const cases::Call&, DType);

}  // namespace heed::digests
