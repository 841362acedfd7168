// SPDX-License-Identifier: Apache-2.0
// One row of the tables of bad calls: what is wrong, and the code and the sentence that must answer it.
#pragma once
#include <gtest/gtest.h>

#include <ostream>
#include <span>
#include <string>

#include "refusals/call.hpp"

namespace heed {

struct BadCall {
  const char* claim;
  Error::Code code;
  const char* sentence;
  void (*spoil)(Call&);
};

inline std::ostream& operator<<(std::ostream& out, const BadCall& bad) { return out << bad.claim; }

class BadCalls : public testing::TestWithParam<BadCall> {};

inline std::string claim_of(const testing::TestParamInfo<BadCall>& info) { return info.param.claim; }

}  // namespace heed
