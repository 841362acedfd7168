// SPDX-License-Identifier: Apache-2.0
// The kernels a law is held to: the plan's own choice (an empty name), and each kernel forced by its name.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

inline bool is_f64(const std::string& kernel) { return kernel.starts_with("cpu.f64."); }

// A random problem in a dtype that the kernel takes: those for f64 take no other.
inline Call for_kernel(const std::string& kernel, Call call) {
  if (!is_f64(kernel)) return call;
  if (call.bias && call.bias->dtype() != DType::f32) call.bias = call.bias->as(DType::f64);
  call.q = call.q.as(DType::f64), call.k = call.k.as(DType::f64), call.v = call.v.as(DType::f64);
  if (call.dropout)  // 0.1 itself, which no float is
    call.dropout->drop_probability = std::round(call.dropout->drop_probability * 10) / 10;
  return call;
}

// Whether the plan takes the kernel that the options name; a plan without a name always takes one.
inline bool is_accepted(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  return options.kernel.empty() ||
         std::ranges::any_of(plan(inputs, outputs, options),
                             [](const Verdict& verdict) { return verdict.choice == Verdict::taken; });
}

// False, with nothing written, if a forced kernel cannot take this problem.
inline bool attend_if_accepted(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  if (!is_accepted(inputs, outputs, options)) return false;
  attention(inputs, outputs, options);
  return true;
}

inline std::optional<Results> run_if_accepted(const Call& call, const Wants& wants,
                                              const std::string& kernel) {
  Results results(call, wants);
  if (!attend_if_accepted(call.inputs(), results.outputs(), call.options(kernel))) return std::nullopt;
  return results;
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
