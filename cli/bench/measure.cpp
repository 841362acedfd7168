// SPDX-License-Identifier: Apache-2.0
// See measure.hpp.
#include "bench/measure.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "stopwatch.hpp"

namespace heed::tool {
namespace {

constexpr std::size_t wanted_runs = 3;
constexpr double patience = 5;  // times the seconds that were asked for
// Of runs, after which a burst follows: long beside the start of its threads. And of a burst, at most.
constexpr double turn_seconds = 20e-3, longest_burst_seconds = 200e-3;

std::vector<std::byte> copy_of(const Buffer& buffer) {
  return {buffer.bytes().begin(), buffer.bytes().end()};
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double standard_deviation_of(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1));
}

}  // namespace

Measured measure(Workload& workload, double seconds, const std::function<double(double)>& limit) {
  Measured measured{.kernel = workload.kernel()};
  workload.result().fill(std::numeric_limits<float>::quiet_NaN());
  workload.run();
  measured.findings = verify_written(workload.result());
  measured.findings.add(workload.verify());
  if (!measured.findings.all_right()) return measured;

  const std::vector<std::byte> first = copy_of(workload.result());
  // What runs do besides the case is taken off as the least that it took: a disturbance of its own makes no
  // run look faster.
  double besides = std::numeric_limits<double>::infinity();
  std::vector<double> runs;
  double total = 0;
  const auto goes_on = [&] {
    return runs.empty() || total < seconds || (runs.size() < wanted_runs && total < patience * seconds);
  };
  while (goes_on()) {
    const double before = total;
    const std::size_t runs_before = runs.size();
    do {
      runs.push_back(seconds_of([&] { workload.run(); }));
      total += runs.back();
      besides = std::min(besides, workload.seconds_besides());
    } while (total - before < turn_seconds && goes_on());
    if (!limit) continue;
    const double turn = total - before, count = static_cast<double>(runs.size() - runs_before);
    measured.turns.push_back({turn / count, limit(std::min(turn, longest_burst_seconds))});
  }
  const auto repeats = static_cast<double>(workload.repeats());
  const auto of_case = [&](double run) { return (run - besides) / repeats; };
  for (Turn& turn : measured.turns) turn.seconds = of_case(turn.seconds);
  if (!std::ranges::equal(workload.result().bytes(), first))
    measured.findings.add({.misses = 1, .first_miss = "the last run's result differs from the first's"});
  measured.runs = static_cast<int>(runs.size());
  measured.median_seconds = of_case(median_of(runs));
  measured.min_seconds = of_case(*std::min_element(runs.begin(), runs.end()));
  measured.deviation_seconds = standard_deviation_of(runs) / repeats;
  return measured;
}

std::optional<ShareOfLimit> share_of_limit(const Binding& binding, const Measured& measured) {
  if (!binding.per_second) return {};
  const double least = binding.amount / *binding.per_second;  // that the machine could take
  const double before = least / measured.median_seconds;
  if (measured.turns.empty()) return ShareOfLimit{before, least / measured.min_seconds, before};
  std::vector<double> shares;
  double rate = 0, limit = 0;
  for (const Turn& turn : measured.turns) {
    shares.push_back(binding.amount / turn.seconds / turn.limit);
    rate = std::max(rate, binding.amount / turn.seconds), limit = std::max(limit, turn.limit);
  }
  return ShareOfLimit{median_of(shares), rate / limit, before};
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
  const Rate& rate = has_matrix ? *limits->bf16 : limits->fp32;
  binding.limit = has_matrix ? "bf16" : "fp32";
  binding.per_second = rate.all_threads;
  binding.now = rate.now;
  return binding;
}

}  // namespace heed::tool
