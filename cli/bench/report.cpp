// SPDX-License-Identifier: Apache-2.0
// See report.hpp.
#include "bench/report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
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

// The fields of a line of CSV: of the run, and of a record.
constexpr std::array run_fields{"date", "heed", "machine", "threads"};
constexpr std::array record_fields{"name",
                                   "role",
                                   "dtype",
                                   "how",
                                   "right",
                                   "runs",
                                   "median_seconds",
                                   "min_seconds",
                                   "standard_deviation_seconds",
                                   "tokens_per_second",
                                   "flops",
                                   "bytes_per_second",
                                   "limit",
                                   "share_of_first_limit",
                                   "share_of_limit",
                                   "best_share_of_limit",
                                   "error_in_bounds",
                                   "saved_median_seconds"};

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string text = value;
  if (text.find_first_of(",\"") == std::string::npos) return text;
  for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
  return '"' + text + '"';
}

std::string csv_line(const Json& record) {
  const Json run = {
      {"date", today()}, {"heed", version()}, {"machine", cpu_model()}, {"threads", num_threads()}};
  std::string line;
  for (const char* field : run_fields) line += csv_cell(run.at(field)) + ",";
  for (const char* field : record_fields) line += csv_cell(record.value(field, Json())) + ",";
  line.pop_back();
  return line;
}

std::string markdown_line(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) line += " " + cell + " |";
  return line;
}

Json object_of(const Binding& binding, double rate, const std::optional<ShareOfLimit>& share) {
  Json object = {{"limit", binding.limit}};
  object[binding.unit == Binding::Unit::bytes ? "bytes_per_second" : "flops"] = rate;
  object["share_of_limit"] = share ? Json(share->median) : Json(nullptr);
  object["best_share_of_limit"] = share ? Json(share->best) : Json(nullptr);
  object["share_of_first_limit"] = share ? Json(share->before) : Json(nullptr);
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

std::vector<Column> columns_of(const std::vector<Case>& to_come, bool are_compared) {
  std::vector<Column> columns = {{"case", Column::Side::left, longest_name(to_come)},
                                 {"kernel", Column::Side::left, longest_kernel()},
                                 {"median", Column::Side::right, 7},
                                 {"±", Column::Side::right, 5},
                                 {"min", Column::Side::right, 7},
                                 {"runs", Column::Side::right, 6},
                                 {"tokens/s", Column::Side::right, 11},
                                 {"rate", Column::Side::right, 14},
                                 {"of limit"},
                                 {"meanwhile"},
                                 {"limit", Column::Side::left, 5}};
  if (are_compared) columns.push_back({"to saved"});
  return columns;
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

BenchReport::BenchReport(const Console& console, BenchRun run, const std::vector<Case>& to_come)
    : console_(console),
      run_(std::move(run)),
      to_come_(to_come.size()),
      columns_(columns_of(to_come, run_.saved.has_value())),
      table_(columns_) {
  if (run_.layout == Layout::aligned) print_machine();
  if (!to_come.empty()) print_heading();
  std::fflush(stdout);
}

void BenchReport::print_heading() const {
  if (run_.layout == Layout::aligned) return console_.print("\n" + table_.heading(console_));
  if (run_.layout == Layout::csv) {
    std::string titles;
    for (const char* field : run_fields) titles += std::string(field) + ",";
    for (const char* field : record_fields) titles += std::string(field) + ",";
    titles.pop_back();
    return console_.print(titles);
  }
  std::vector<std::string> titles, sides;
  for (const Column& column : columns_) {
    titles.push_back(column.title);
    sides.push_back(column.side == Column::Side::left ? "---" : "--:");
  }
  console_.print(markdown_line(titles) + "\n" + markdown_line(sides));
}

// A pipe, too, has the line at once.
void BenchReport::add_row(const Json& record, std::vector<std::string> cells) {
  console_.progress("");
  cells.resize(columns_.size());
  console_.print(run_.layout == Layout::csv        ? csv_line(record)
                 : run_.layout == Layout::markdown ? markdown_line(cells)
                                                   : table_.line(std::move(cells)));
  std::fflush(stdout);
}

void BenchReport::add(const Case& c, const Measured& measured) {
  Json object = object_of(c);
  object.update({{"by", "heed"},
                 {"how", measured.kernel.empty() ? Json(nullptr) : Json(measured.kernel)},
                 {"right", measured.findings.all_right()},
                 {"checked_elements", measured.findings.compared},
                 {"error_in_bounds", measured.findings.worst_in_bounds}});
  if (c.role == Role::decode || c.is_cached()) object["kv_bytes_per_token"] = c.kv_bytes_per_token();
  const std::string kernel = measured.kernel.empty() ? "-" : measured.kernel;
  if (!measured.findings.all_right()) {
    object["first_miss"] = measured.findings.first_miss;
    cases_.push_back(object);
    add_row(object, {c.name(), kernel, "WRONG"});
    return;
  }
  const Binding binding = binding_of(c, run_.limits);
  const double rate = binding.amount / measured.median_seconds,
               tokens = static_cast<double>(c.tokens()) / measured.median_seconds;
  object.update({{"runs", measured.runs},
                 {"median_seconds", measured.median_seconds},
                 {"min_seconds", measured.min_seconds},
                 {"standard_deviation_seconds", measured.deviation_seconds},
                 {"tokens_per_second", tokens},
                 {"turns", measured.turns.size()}});
  const std::optional<ShareOfLimit> share = share_of_limit(binding, measured);
  object.update(object_of(binding, rate, share));
  std::vector<std::string> cells = {
      c.name(),
      kernel,
      readable_seconds(measured.median_seconds),
      fmt::format("{:.1f} %", 100 * measured.deviation_seconds / measured.median_seconds),
      readable_seconds(measured.min_seconds),
      fmt::format("{}", measured.runs),
      tokens < 100 ? fmt::format("{:.1f}", tokens) : readable_count(std::llround(tokens)),
      fmt::format("{:.1f} {}", rate * 1e-9, binding.unit == Binding::Unit::bytes ? "GB/s   " : "GFLOP/s"),
      share ? percent(share->before) : "",
      share && !measured.turns.empty() ? percent(share->median) : "",
      share ? binding.limit : ""};
  if (share && !measured.turns.empty()) slowdowns_.push_back(share->before / share->median);
  if (run_.saved) {
    const std::optional<double> saved = run_.saved->seconds_of(c.name());
    if (saved) object["saved_median_seconds"] = *saved;
    cells.push_back(saved ? fmt::format("{:.2f} x", *saved / measured.median_seconds) : "");
  }
  cases_.push_back(object);
  add_row(object, std::move(cells));
}

void BenchReport::print_machine() const {
  const Caches caches = find_caches();
  console_.print(fmt::format("heed {}, {} threads, L2 {} KiB, L3 {} KiB", version(), num_threads(),
                             caches.l2 >> 10, caches.l3 >> 10));
  if (!run_.limits) return;
  const Limits& limits = *run_.limits;
  console_.print(list_of(
      console_, {fact_of("fp32", limits.fp32, "GFLOP/s"), fact_of("bf16", limits.bf16, "GFLOP/s"),
                 fact_of("int8", limits.int8, "GOP/s  "), fact_of("l2 read", limits.l2, "GB/s   "),
                 fact_of("l3 read", limits.l3, "GB/s   "), fact_of("dram read", limits.dram, "GB/s   ")}));
}

// What the columns mean, and what a reader must know about this run.
void BenchReport::print_notes() const {
  if (run_.layout == Layout::csv || cases_.empty()) return;
  if (run_.layout == Layout::markdown)
    console_.print(
        fmt::format("\nheed {}, {}, {} threads, {}", version(), cpu_model(), num_threads(), today()));
  console_.print(
      "\nEvery result was compared with the double-precision reference before its time was taken. Caches are "
      "warm.\nA decode counts each key and value byte once, as they are kept; a step the layer's weights "
      "too; a causal prefill counts the visible half; a projection is a quarter of a layer without its "
      "attention.\n± is the standard deviation of the runs, as a share of the median.");
  if (run_.limits)
    console_.print(
        "Of limit: the median's rate over what the machine did before all cases. Meanwhile: over what it did "
        "in bursts of arithmetic between the runs, the median of turns.");
  if (!slowdowns_.empty()) {
    std::vector<double> sorted = slowdowns_;
    std::ranges::sort(sorted);
    const double median = sorted[sorted.size() / 2];
    if (median < 0.9)
      console_.print(fmt::format(
          "This machine slows under load, or is shared: meanwhile it did {} of its limit.", percent(median)));
  }
  if (run_.saved)
    console_.print(fmt::format("To saved: above 1, faster than in {}: heed {}, {}, {} threads, {}.",
                               run_.saved->path, run_.saved->version, run_.saved->machine,
                               run_.saved->threads, run_.saved->date));
}

void BenchReport::finish(End end) const {
  const Caches caches = find_caches();
  Json object = {{"format", result_format},
                 {"date", today()},
                 {"command", run_.command},
                 {"machine",
                  {{"name", cpu_model()},
                   {"threads", num_threads()},
                   {"l2_bytes", caches.l2},
                   {"l3_bytes", caches.l3},
                   {"memory_bytes", physical_memory_bytes()}}},
                 {"versions", {{"heed", version()}}},
                 {"limits", run_.limits ? object_of(*run_.limits) : Json(nullptr)},
                 {"cases", cases_}};
  if (end == End::interrupted) object["interrupted_after"] = cases_.size();
  console_.result(object);
  if (end == End::interrupted && run_.layout != Layout::csv)
    console_.print(fmt::format("\nInterrupted after {} of {} cases.", cases_.size(), to_come_));
  print_notes();
}

}  // namespace heed::tool
