// SPDX-License-Identifier: Apache-2.0
// Times a workload and says what share of the machine it used; no figure without a right result.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/limits.hpp"
#include "bench/workload.hpp"

namespace heed::tool {

// Some runs of a case, and how many seconds each took; then, in a burst about as long, what the machine did
// per second.
struct Turn {
  double seconds, limit;
};

struct Measured {
  std::string name{}, kernel{};
  Findings findings{};
  int runs = 0;
  // Of a run; meaningless unless findings.all_right().
  double median_seconds = 0, min_seconds = 0, deviation_seconds = 0;
  std::vector<Turn> turns{};  // none where no limit was given
};

// Runs until `seconds` have gone by and at least three times, but starts none after five times as long. The
// result of the first run is verified; that of the last must be the same bits. Bursts of the limit, which is
// told how many seconds one has, come on top of that.
Measured measure(Workload&, double seconds, const std::function<double(double)>& limit = {});

// What binds a case: how much of it a run moves or computes, and how much the machine could in a second.
struct Binding {
  enum class Unit : std::uint8_t { operations, bytes } unit = Unit::operations;
  double amount = 0;
  std::string limit{};                  // "fp32", "bf16", "l3", "dram"
  std::optional<double> per_second{};   // none if the limits were not measured
  std::function<double(double)> now{};  // Rate::now
};
Binding binding_of(const Case&, const std::optional<Limits>&);

// What a case does of what the machine could. Where others use the machine too, both change from moment to
// moment, and a machine may slow under load: `before` is the median time against the limit as it was measured
// before all cases; `median` is that of the turns, each against its own burst; `best` is the fastest turn
// against the fastest burst. Without turns, `median` is `before`, and `best` the same of the least time.
struct ShareOfLimit {
  double median, best, before;
};
std::optional<ShareOfLimit> share_of_limit(const Binding&, const Measured&);  // none if no limit was measured

}  // namespace heed::tool
