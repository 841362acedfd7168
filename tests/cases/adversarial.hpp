// SPDX-License-Identifier: Apache-2.0
// Values chosen to break a softmax: huge, equal, tiny, one-hot, and rows that are all but masked.
#pragma once
#include <string>
#include <utility>

#include "cases/call.hpp"

namespace heed::cases {

inline constexpr int adversarial_count = 17;
std::pair<std::string, Call> adversarial(int which, DType dtype);

}  // namespace heed::cases
