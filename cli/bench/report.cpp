// SPDX-License-Identifier: Apache-2.0
// See report.hpp.
#include "bench/report.hpp"

#include <fmt/core.h>

#include "heed/threads.hpp"
#include "heed/version.hpp"

namespace heed::tool {
namespace {

using Json = nlohmann::ordered_json;

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
  Json object = {{"flops", nullptr}, {"bytes_per_second", nullptr}, {"limit", binding.limit}};
  object[binding.unit == Binding::Unit::bytes ? "bytes_per_second" : "flops"] = rate;
  object["share_of_limit"] = share ? Json(share->median) : Json(nullptr);
  object["best_share_of_limit"] = share ? Json(share->best) : Json(nullptr);
  return object;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

Fact fact_of(const std::string& name, const std::optional<Rate>& rate, const char* unit) {
  if (!rate) return {name, "none"};
  const std::string how = rate->instruction.empty() ? "" : fmt::format("  ({})", rate->instruction);
  return {name, fmt::format("{:8.1f} {} one thread, {:8.1f} all{}", rate->one_thread * 1e-9, unit,
                            rate->all_threads * 1e-9, how)};
}

}  // namespace

BenchReport::BenchReport(const Console& console, std::optional<Limits> limits)
    : console_(console),
      limits_(std::move(limits)),
      table_({{"case", Column::Side::left},
              {"kernel", Column::Side::left},
              {"median"},
              {"min"},
              {"runs"},
              {"KV B/token"},
              {"rate"},
              {"of limit"},
              {"at best"},
              {"limit", Column::Side::left}}) {}

void BenchReport::add(const Case& c, const Measured& measured) {
  Json object = {{"name", c.name()},
                 {"kernel", measured.kernel.empty() ? Json(nullptr) : Json(measured.kernel)},
                 {"right", measured.findings.all_right()},
                 {"checked_elements", measured.findings.compared},
                 {"worst_error_in_bounds", measured.findings.worst_in_bounds}};
  const bool reads_tokens = c.role == Role::decode || c.is_cached();
  object["kv_bytes_per_token"] = reads_tokens ? Json(c.kv_bytes_per_token()) : Json(nullptr);
  const std::string kernel = measured.kernel.empty() ? "-" : measured.kernel;
  if (!measured.findings.all_right()) {
    object["first_miss"] = measured.findings.first_miss;
    cases_.push_back(object);
    table_.add({c.name(), kernel, "WRONG"});
    return;
  }
  const Binding binding = binding_of(c, limits_);
  object.update({{"runs", measured.runs},
                 {"median_seconds", measured.median_seconds},
                 {"min_seconds", measured.least_seconds},
                 {"turns", measured.turns.size()}});
  const double rate = binding.amount / measured.median_seconds;
  const std::optional<ShareOfLimit> share = share_of_limit(binding, measured);
  object.update(object_of(binding, rate, share));
  cases_.push_back(object);
  table_.add(
      {c.name(), kernel, readable_seconds(measured.median_seconds), readable_seconds(measured.least_seconds),
       fmt::format("{}", measured.runs), reads_tokens ? readable_count(c.kv_bytes_per_token()) : "",
       fmt::format("{:.1f} {}", rate * 1e-9, binding.unit == Binding::Unit::bytes ? "GB/s   " : "GFLOP/s"),
       share ? percent(share->median) : "", share ? percent(share->best) : "", share ? binding.limit : ""});
}

void BenchReport::print_limits() const {
  console_.print(
      list_of(console_,
              {fact_of("fp32", limits_->fp32, "GFLOP/s"), fact_of("bf16", limits_->bf16, "GFLOP/s"),
               fact_of("int8", limits_->int8, "GOP/s  "), fact_of("l2 read", limits_->l2, "GB/s   "),
               fact_of("l3 read", limits_->l3, "GB/s   "), fact_of("dram read", limits_->dram, "GB/s   ")}));
}

void BenchReport::print() const {
  const Caches caches = find_caches();
  console_.result({{"machine",
                    {{"threads", num_threads()},
                     {"l2_bytes", caches.l2},
                     {"l3_bytes", caches.l3},
                     {"memory_bytes", physical_memory_bytes()},
                     {"heed", version()}}},
                   {"limits", limits_ ? object_of(*limits_) : Json(nullptr)},
                   {"cases", cases_}});
  console_.print(fmt::format("heed {}, {} threads, L2 {} KiB, L3 {} KiB", version(), num_threads(),
                             caches.l2 >> 10, caches.l3 >> 10));
  if (limits_) print_limits();
  if (cases_.empty()) return;
  console_.print("\n" + table_.text(console_));
  console_.print(
      "\nEvery result was compared with the double-precision reference before its time was taken. Caches are "
      "warm.\nA decode counts each key and value byte once, as they are kept; a step the layer's weights "
      "too; a causal prefill counts the visible half; a projection is a quarter of a layer without its "
      "attention.\nA share of arithmetic is the median of turns with bursts of it that are "
      "as long; at best, the fastest turn's of the fastest burst.");
}

}  // namespace heed::tool
