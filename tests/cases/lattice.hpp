// SPDX-License-Identifier: Apache-2.0
// The table of problems that every kernel must get right. A case is a number: the same one everywhere, in
// every dtype.
#pragma once
#include <cstdint>
#include <string>

#include "cases/call.hpp"

namespace heed::cases {

struct Case {
  std::string name;
  Call call;
  Wants wants{};
};

// Cases are numbered 0 .. case_count() - 1; consecutive triples are one problem in f32, f16 and bf16.
std::int64_t case_count();
Case make_case(std::int64_t number);
// Whether HEED_TEST_SELECTION=small keeps it.
bool in_small_selection(std::int64_t number);

}  // namespace heed::cases
