// SPDX-License-Identifier: Apache-2.0
// Times a workload and says what share of the machine it used; no figure without a right result.
#pragma once
#include <optional>
#include <string>

#include "bench/limits.hpp"
#include "bench/workload.hpp"

namespace heed::tool {

struct Measured {
  std::string name{}, kernel{};
  Findings findings{};
  int runs = 0;
  double median_seconds = 0, least_seconds = 0;  // meaningless unless findings.all_right()
};

// Runs until `seconds` have gone by and at least three times, but starts none after five times as long. The
// result of the first run is verified; that of the last must be the same bits.
Measured measure(Workload&, double seconds);

// What binds a case: how much of it a run moves or computes, and how much the machine could in a second.
struct Binding {
  enum class Unit : std::uint8_t { operations, bytes } unit = Unit::operations;
  double amount = 0;
  std::string limit{};                 // "fp32", "bf16", "l3", "dram"
  std::optional<double> per_second{};  // none if the limits were not measured
};
Binding binding_of(const Case&, const std::optional<Limits>&);

}  // namespace heed::tool
