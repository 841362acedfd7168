// SPDX-License-Identifier: Apache-2.0
// See measure.hpp.
#include "bench/measure.hpp"

#include <algorithm>
#include <limits>

#include "stopwatch.hpp"

namespace heed::tool {
namespace {

constexpr std::size_t wanted_runs = 3;
constexpr double patience = 5;  // times the seconds that were asked for

std::vector<std::byte> copy_of(const Buffer& buffer) {
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Measured measure(Workload& workload, double seconds) {
  Measured measured{.kernel = workload.kernel()};
  workload.result().fill(std::numeric_limits<float>::quiet_NaN());
  workload.run();
  measured.findings = verify_written(workload.result());
  measured.findings.add(workload.verify());
  if (!measured.findings.all_right()) return measured;

  const std::vector<std::byte> first = copy_of(workload.result());
  std::vector<double> runs;
  double total = 0;
  while (runs.empty() || total < seconds || (runs.size() < wanted_runs && total < patience * seconds)) {
    const double run = seconds_of([&] { workload.run(); });
    runs.push_back(run / static_cast<double>(workload.repeats()));
    total += run;
  }
  if (!std::ranges::equal(workload.result().bytes(), first))
    measured.findings.add({.misses = 1, .first_miss = "the last run's result differs from the first's"});
  measured.runs = static_cast<int>(runs.size());
  measured.median_seconds = median_of(runs);
  measured.least_seconds = *std::min_element(runs.begin(), runs.end());
  return measured;
}

Binding binding_of(const Case& c, const std::optional<Limits>& limits) {
  const bool is_one_row = c.role == Role::projection && c.batch * c.queries == 1;
  if (c.role == Role::decode || (c.is_cached() && c.queries == 1) || is_one_row) {
    Binding binding{.unit = Binding::Unit::bytes,
                    .amount = is_one_row             ? c.weight_bytes()
                              : c.role == Role::step ? c.step_bytes()
                                                     : c.kv_bytes()};
    // A run starts where the last one ended, so what fits into the cache with a margin stays there.
    const double touched = binding.amount * (is_one_row ? projections_per_run : 1);
    const bool is_cached = limits && limits->l3 && touched < 0.75 * static_cast<double>(limits->caches.l3);
    binding.limit = is_cached ? "l3" : "dram";
    if (limits) binding.per_second = is_cached ? limits->l3->all_threads : limits->dram.all_threads;
    return binding;
  }
  Binding binding{.amount = c.operations(), .limit = "fp32"};
  if (!limits) return binding;
  const bool has_matrix = c.dtype == DType::bf16 && limits->bf16;
  binding.limit = has_matrix ? "bf16" : "fp32";
  binding.per_second = has_matrix ? limits->bf16->all_threads : limits->fp32.all_threads;
  return binding;
}

}  // namespace heed::tool
