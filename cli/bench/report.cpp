// SPDX-License-Identifier: Apache-2.0
// See report.hpp.
#include "bench/report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "heed/attention.hpp"
#include "heed/gradient.hpp"
#include "heed/threads.hpp"
#include "heed/version.hpp"
#include "system.hpp"

namespace heed::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr int result_format = 1;  // FORMAT of bench/records.py

// "2026-11-17", in UTC.
std::string today() {
  const std::chrono::year_month_day date{
      std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now())};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()));
}

Json object_of(const std::optional<Rate>& rate) {
  if (!rate) return nullptr;
  Json object = {{"one_thread", rate->one_thread}, {"all_threads", rate->all_threads}};
  if (!rate->instruction.empty()) object["instruction"] = rate->instruction;
  return object;
}

Json object_of(const Limits& limits) {
  return {{"fp32_flops", object_of(limits.fp32)},        {"bf16_flops", object_of(limits.bf16)},
          {"int8_ops", object_of(limits.int8)},          {"l2_bytes_per_second", object_of(limits.l2)},
          {"l3_bytes_per_second", object_of(limits.l3)}, {"dram_bytes_per_second", object_of(limits.dram)}};
}

Json object_of(const Binding& binding, double rate, const std::optional<ShareOfLimit>& share) {
  Json object = {{"limit", binding.limit}};
  object[binding.unit == Binding::Unit::bytes ? "bytes_per_second" : "flops"] = rate;
  object["share_of_limit"] = share ? Json(share->median) : Json(nullptr);
  object["best_share_of_limit"] = share ? Json(share->best) : Json(nullptr);
  return object;
}

std::size_t longest_name(const std::vector<Case>& cases) {
  std::size_t longest = 0;
  for (const Case& c : cases) longest = std::max(longest, c.name().size());
  return longest;
}

std::size_t longest_kernel() {
  std::size_t longest = 0;
  for (const std::vector<std::string>& names : {kernel_names(), backward_kernel_names()})
    for (const std::string& name : names) longest = std::max(longest, name.size());
  return longest;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

Fact fact_of(const std::string& name, const std::optional<Rate>& rate, const char* unit) {
  if (!rate) return {name, "none"};
  const std::string how = rate->instruction.empty() ? "" : fmt::format("  ({})", rate->instruction);
  return {name, fmt::format("{:8.1f} {} one thread, {:8.1f} all{}", rate->one_thread * 1e-9, unit,
                            rate->all_threads * 1e-9, how)};
}

}  // namespace

nlohmann::ordered_json object_of(const Case& c) {
  const Binding binding = binding_of(c, {});
  return {{"name", c.name()},
          {"role", name_of(c.role)},
          {"dtype", c.is_cached() ? name_of(c.stored) : name_of(c.dtype)},
          {"shape", {c.batch, c.heads, c.kv_heads, c.queries, c.keys, c.dim}},
          {binding.unit == Binding::Unit::bytes ? "bytes" : "operations", binding.amount}};
}

BenchReport::BenchReport(const Console& console, std::string command, std::optional<Limits> limits,
                         const std::vector<Case>& to_come)
    : console_(console),
      command_(std::move(command)),
      limits_(std::move(limits)),
      to_come_(to_come.size()),
      table_({{"case", Column::Side::left, longest_name(to_come)},
              {"kernel", Column::Side::left, longest_kernel()},
              {"median", Column::Side::right, 7},
              {"min", Column::Side::right, 7},
              {"runs", Column::Side::right, 6},
              {"KV B/token"},
              {"rate", Column::Side::right, 14},
              {"of limit"},
              {"at best"},
              {"limit", Column::Side::left}}) {
  print_machine();
  if (!to_come.empty()) console_.print("\n" + table_.heading(console_));
  std::fflush(stdout);
}

// A pipe, too, has the line at once.
void BenchReport::add_row(std::vector<std::string> cells) {
  console_.progress("");
  console_.print(table_.line(std::move(cells)));
  std::fflush(stdout);
}

void BenchReport::add(const Case& c, const Measured& measured) {
  Json object = object_of(c);
  object.update({{"by", "heed"},
                 {"how", measured.kernel.empty() ? Json(nullptr) : Json(measured.kernel)},
                 {"right", measured.findings.all_right()},
                 {"checked_elements", measured.findings.compared},
                 {"error_in_bounds", measured.findings.worst_in_bounds}});
  const bool reads_tokens = c.role == Role::decode || c.is_cached();
  if (reads_tokens) object["kv_bytes_per_token"] = c.kv_bytes_per_token();
  const std::string kernel = measured.kernel.empty() ? "-" : measured.kernel;
  if (!measured.findings.all_right()) {
    object["first_miss"] = measured.findings.first_miss;
    cases_.push_back(object);
    add_row({c.name(), kernel, "WRONG"});
    return;
  }
  const Binding binding = binding_of(c, limits_);
  object.update({{"runs", measured.runs},
                 {"median_seconds", measured.median_seconds},
                 {"min_seconds", measured.min_seconds},
                 {"turns", measured.turns.size()}});
  const double rate = binding.amount / measured.median_seconds;
  const std::optional<ShareOfLimit> share = share_of_limit(binding, measured);
  object.update(object_of(binding, rate, share));
  cases_.push_back(object);
  add_row(
      {c.name(), kernel, readable_seconds(measured.median_seconds), readable_seconds(measured.min_seconds),
       fmt::format("{}", measured.runs), reads_tokens ? readable_count(c.kv_bytes_per_token()) : "",
       fmt::format("{:.1f} {}", rate * 1e-9, binding.unit == Binding::Unit::bytes ? "GB/s   " : "GFLOP/s"),
       share ? percent(share->median) : "", share ? percent(share->best) : "", share ? binding.limit : ""});
}

void BenchReport::print_machine() const {
  const Caches caches = find_caches();
  console_.print(fmt::format("heed {}, {} threads, L2 {} KiB, L3 {} KiB", version(), num_threads(),
                             caches.l2 >> 10, caches.l3 >> 10));
  if (!limits_) return;
  console_.print(
      list_of(console_,
              {fact_of("fp32", limits_->fp32, "GFLOP/s"), fact_of("bf16", limits_->bf16, "GFLOP/s"),
               fact_of("int8", limits_->int8, "GOP/s  "), fact_of("l2 read", limits_->l2, "GB/s   "),
               fact_of("l3 read", limits_->l3, "GB/s   "), fact_of("dram read", limits_->dram, "GB/s   ")}));
}

void BenchReport::finish(End end) const {
  const Caches caches = find_caches();
  Json object = {{"format", result_format},
                 {"date", today()},
                 {"command", command_},
                 {"machine",
                  {{"name", cpu_model()},
                   {"threads", num_threads()},
                   {"l2_bytes", caches.l2},
                   {"l3_bytes", caches.l3},
                   {"memory_bytes", physical_memory_bytes()}}},
                 {"versions", {{"heed", version()}}},
                 {"limits", limits_ ? object_of(*limits_) : Json(nullptr)},
                 {"cases", cases_}};
  if (end == End::interrupted) object["interrupted_after"] = cases_.size();
  console_.result(object);
  if (end == End::interrupted)
    console_.print(fmt::format("\nInterrupted after {} of {} cases.", cases_.size(), to_come_));
  if (cases_.empty()) return;
  console_.print(
      "\nEvery result was compared with the double-precision reference before its time was taken. Caches are "
      "warm.\nA decode counts each key and value byte once, as they are kept; a step the layer's weights "
      "too; a causal prefill counts the visible half; a projection is a quarter of a layer without its "
      "attention.\nA share of arithmetic is the median of turns with bursts of it that are "
      "as long; at best, the fastest turn's of the fastest burst.");
}

}  // namespace heed::tool
