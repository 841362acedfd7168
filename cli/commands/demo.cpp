// SPDX-License-Identifier: Apache-2.0
// heed demo: the same layer as MHA, GQA and MQA: what sharing key and value heads saves, and that the answer
// is right.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "command.hpp"
#include "heed/check.hpp"
#include "heed/layer.hpp"
#include "kernel_choice.hpp"
#include "random_values.hpp"
#include "stopwatch.hpp"
#include "table.hpp"

namespace heed::tool {
namespace {

constexpr std::int64_t batch = 2, length = 1024, model_dim = 768, heads = 12, head_dim = model_dim / heads;
constexpr std::int64_t checked_queries =
    16;  // of 1024: the reference is slow, and seconds are the demo's budget

struct Variant {
  const char* name;
  std::int64_t kv_heads;
};
constexpr std::array<Variant, 3> variants = {{{"MHA", 12}, {"GQA", 6}, {"MQA", 1}}};

struct Measured {
  Variant variant{};
  std::int64_t parameters = 0, cache_bytes_per_token = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  Check check{};  // of both kernels
  std::string prefill_kernel{}, decode_kernel{};
};

Buffer random_buffer(const Shape& shape, Stream stream) {
  Buffer buffer(shape);
  fill_random(buffer, {.stream = stream});
  return buffer;
}

double prefill_seconds(const LayerConfig& config, const LayerWeights& weights) {
  const AttentionLayer layer(config, weights);
  const Buffer x = random_buffer({batch, 1, length, model_dim}, Stream::x);
  Buffer y(x.shape());
  return median_seconds([&] { layer({.x = x.view()}, {.out = y.writable()}); });
}

// One new token that attends to 1024 cached ones.
double decode_seconds(std::int64_t kv_heads) {
  const Buffer q = random_buffer({1, heads, 1, head_dim}, Stream::q);
  const Buffer k = random_buffer({1, kv_heads, length, head_dim}, Stream::k);
  const Buffer v = random_buffer(k.shape(), Stream::v);
  Buffer out(q.shape());
  return median_seconds(
      [&] { attention({.q = q.view(), .k = k.view(), .v = v.view()}, {.out = out.writable()}); });
}

// The last `queries` of 1024 tokens, on the kernel that was timed.
Check compare_with_reference(std::int64_t kv_heads, std::int64_t queries, const std::string& kernel) {
  const Buffer q = random_buffer({1, heads, queries, head_dim}, Stream::q);
  const Buffer k = random_buffer({1, kv_heads, length, head_dim}, Stream::k);
  const Buffer v = random_buffer(k.shape(), Stream::v);
  Buffer out(q.shape());
  const Inputs inputs{.q = q.view(), .k = k.view(), .v = v.view()};
  const Options options{.masks = {Causal{.align = Align::ends}}, .kernel = kernel};
  attention(inputs, {.out = out.writable()}, options);
  return check(inputs, {.out = out.writable()}, options);
}

Check worse_of(const Check& a, const Check& b) {
  return {.compared = a.compared + b.compared,
          .beyond_bound = a.beyond_bound + b.beyond_bound,
          .worst_error = std::max(a.worst_error, b.worst_error),
          .worst_error_in_bounds = std::max(a.worst_error_in_bounds, b.worst_error_in_bounds),
          .first_miss = a.first_miss.empty() ? b.first_miss : a.first_miss};
}

Measured measure(const Variant& variant, const Console& console) {
  Measured measured{.variant = variant};
  const LayerConfig config = grouped_query(model_dim, heads, variant.kv_heads);
  const LayerWeights weights = random_weights(config, 0);
  measured.parameters =
      weights.w_q.elements() + weights.w_k.elements() + weights.w_v.elements() + weights.w_o.elements();
  measured.cache_bytes_per_token = 2 * variant.kv_heads * head_dim * static_cast<std::int64_t>(sizeof(float));
  console.progress(fmt::format("{}: prefill", variant.name));
  measured.prefill_seconds = prefill_seconds(config, weights);
  console.progress(fmt::format("{}: decode", variant.name));
  measured.decode_seconds = decode_seconds(variant.kv_heads);
  console.progress(fmt::format("{}: comparing with the reference", variant.name));
  const Extents prefill{batch, length, length, model_dim, heads, variant.kv_heads, head_dim};
  const Extents decode{1, 1, length, model_dim, heads, variant.kv_heads, head_dim};
  measured.prefill_kernel = chosen_kernel({}, prefill, {});
  measured.decode_kernel = chosen_kernel({}, decode, {});
  measured.check =
      worse_of(compare_with_reference(variant.kv_heads, checked_queries, measured.prefill_kernel),
               compare_with_reference(variant.kv_heads, 1, measured.decode_kernel));
  console.progress("");
  return measured;
}

double tokens_per_second(const Measured& measured) {
  return static_cast<double>(batch * length) / measured.prefill_seconds;
}

nlohmann::ordered_json object_of(const Measured& measured) {
  return {{"name", measured.variant.name},
          {"kv_heads", measured.variant.kv_heads},
          {"parameters", measured.parameters},
          {"cache_bytes_per_token", measured.cache_bytes_per_token},
          {"prefill_seconds", measured.prefill_seconds},
          {"prefill_tokens_per_second", tokens_per_second(measured)},
          {"decode_seconds_per_token", measured.decode_seconds},
          {"worst_error", measured.check.worst_error},
          {"worst_error_in_bounds", measured.check.worst_error_in_bounds},
          {"beyond_bound", measured.check.beyond_bound},
          {"prefill_kernel", measured.prefill_kernel},
          {"decode_kernel", measured.decode_kernel}};
}

std::vector<std::string> cells_of(const Measured& measured) {
  return {measured.variant.name,
          fmt::format("{}", measured.variant.kv_heads),
          readable_count(measured.parameters),
          readable_count(measured.cache_bytes_per_token),
          readable_seconds(measured.prefill_seconds),
          readable_count(static_cast<std::int64_t>(tokens_per_second(measured))),
          readable_seconds(measured.decode_seconds),
          fmt::format("{:.1e}", measured.check.worst_error),
          fmt::format("{:.2g}", measured.check.worst_error_in_bounds),
          fmt::format("{}, {}", measured.prefill_kernel, measured.decode_kernel)};
}

Status demonstrate(Console& console) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Table table({{"layer", Column::Side::left},
               {"kv heads"},
               {"parameters"},
               {"cache B/token"},
               {"prefill"},
               {"tokens/s"},
               {"decode/token"},
               {"error"},
               {"of bound"},
               {"kernels", Column::Side::left}});
  Status status = done;
  for (const Variant& variant : variants) {
    const Measured measured = measure(variant, console);
    rows.push_back(object_of(measured));
    table.add(cells_of(measured));
    if (measured.check.beyond_bound == 0) continue;
    status = failed_check;
    console.error(fmt::format("{}: {}", variant.name, measured.check.first_miss));
  }
  console.result({{"batch", batch},
                  {"length", length},
                  {"model_dim", model_dim},
                  {"heads", heads},
                  {"dtype", "f32"},
                  {"layers", rows}});
  console.print(fmt::format("One attention layer, f32: batch {}, length {}, model {}, {} query heads of {}\n",
                            batch, length, model_dim, heads, head_dim));
  console.print(table.text(console));
  console.print(fmt::format(
      "\nprefill: the whole layer over {} tokens. decode: one query over {} cached keys.\n"
      "error: the largest distance from the double-precision reference, and its share of the computed bound.",
      batch * length, length));
  return status;
}

}  // namespace

Action add_demo(CLI::App& app) {
  describe(app, "Multi-head, grouped-query and multi-query attention side by side",
           "Examples:\n"
           "  heed demo\n"
           "  heed demo --json");
  return demonstrate;
}

}  // namespace heed::tool
