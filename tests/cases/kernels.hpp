// SPDX-License-Identifier: Apache-2.0
// The kernels a law is held to: the plan's own choice (an empty name), and each kernel forced by its name.
#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "cases/call.hpp"

namespace heed::cases {

inline std::vector<std::string> plan_and_kernels() {
  std::vector<std::string> names = kernel_names();
  names.insert(names.begin(), "");
  return names;
}

// Empty if a forced kernel says that it cannot take this problem; the plan itself has no such excuse.
inline std::optional<Results> run_if_accepted(const Call& call, const Wants& wants,
                                              const std::string& kernel) {
  try {
    return run(call, wants, kernel);
  } catch (const Error& error) {
    if (error.code == Error::unsupported && !kernel.empty()) return std::nullopt;
    throw;
  }
}

inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.empty() ? "plan" : info.param;
  for (char& c : name)
    if (c == '.' || c == '-') c = '_';
  return name;
}

// A law: one claim, tried with every kernel.
class Law : public testing::TestWithParam<std::string> {
 protected:
  std::optional<Results> attend(const Call& call, const Wants& wants = {}) const {
    return run_if_accepted(call, wants, GetParam());
  }
};

}  // namespace heed::cases
