// SPDX-License-Identifier: Apache-2.0
// heed demo: the same layer as MHA, GQA and MQA: what sharing key and value heads saves, and that the answer
// is right.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "command.hpp"
#include "heed/cache.hpp"
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
  bool decodes_as_it_prefills = false;  // to the bit
  Check check{};                        // of both kernels
  std::string prefill_kernel{}, decode_kernel{};
};

Buffer random_tensor(const Shape& shape, Stream stream) {
  return random_buffer(shape, DType::f32, {.stream = stream});
}

double prefill_seconds(const AttentionLayer& layer) {
  const Buffer x = random_tensor({batch, 1, length, model_dim}, Stream::x);
  Buffer y(x.shape());
  return median_seconds([&] { layer({.x = x.view()}, {.out = y.writable()}); });
}

// The last `queries` of 1024 tokens, on the kernel that was timed.
Check compare_prefill(std::int64_t kv_heads, const std::string& kernel) {
  const Buffer q = random_tensor({1, heads, checked_queries, head_dim}, Stream::q);
  const Buffer k = random_tensor({1, kv_heads, length, head_dim}, Stream::k);
  const Buffer v = random_tensor(k.shape(), Stream::v);
  Buffer out(q.shape());
  const Inputs inputs{.q = q.view(), .k = k.view(), .v = v.view()};
  const Options options{.masks = {Causal{.align = Align::ends}}, .kernel = kernel};
  attention(inputs, {.out = out.writable()}, options);
  return check(inputs, {.out = out.writable()}, options);
}

// Tokens [first, first + count) of one sequence.
View tokens_of(const Buffer& x, std::int64_t first, std::int64_t count) {
  View view = x.view();
  view.data = x.bytes().data() + static_cast<std::size_t>(first * model_dim) * sizeof(float);
  view.shape.length = count;
  return view;
}

// The 1024th token of a sequence whose first 1023 are in a cache.
class Decoding {
 public:
  explicit Decoding(const AttentionLayer& layer)
      : layer_(layer), cache_({.kv_heads = *layer.config().kv_heads, .capacity = length, .dim = head_dim}) {
    Buffer y({1, 1, length - 1, model_dim});
    layer_({.x = tokens_of(x_, 0, length - 1), .cache = &cache_}, {.out = y.writable()}, causal_);
  }

  void run() {
    cache_.truncate(0, length - 1);
    layer_({.x = tokens_of(x_, length - 1, 1), .cache = &cache_}, {.out = y_.writable()}, causal_);
  }
  // Is the token's row the last row of the layer over the whole sequence at once?
  bool is_as_prefilled() const {
    Buffer whole(x_.shape());
    layer_({.x = x_.view()}, {.out = whole.writable()}, causal_);
    return std::ranges::equal(y_.bytes(), whole.bytes().last(y_.bytes().size()));
  }
  std::string kernel() const {
    Buffer out(q_.shape());
    return taken_kernel(plan({.q = q_.view(), .cache = &cache_}, {.out = out.writable()}));
  }
  Check compare() const {
    Buffer out(q_.shape());
    const Inputs inputs{.q = q_.view(), .cache = &cache_};
    attention(inputs, {.out = out.writable()});
    return check(inputs, {.out = out.writable()});
  }
  std::int64_t bytes_per_token() const { return cache_.bytes_per_token(); }

 private:
  const AttentionLayer& layer_;
  KvCache cache_;
  Buffer x_ = random_tensor({1, 1, length, model_dim}, Stream::x), y_{{1, 1, 1, model_dim}};
  Buffer q_ = random_tensor({1, heads, 1, head_dim}, Stream::q);
  Options causal_{.masks = {Causal{}}};
};

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
  const AttentionLayer layer(config, weights);
  console.progress(fmt::format("{}: prefill", variant.name));
  measured.prefill_seconds = prefill_seconds(layer);
  console.progress(fmt::format("{}: decode", variant.name));
  Decoding decoding(layer);
  measured.decode_seconds = median_seconds([&] { decoding.run(); });
  measured.cache_bytes_per_token = decoding.bytes_per_token();
  console.progress(fmt::format("{}: comparing with the reference", variant.name));
  measured.decodes_as_it_prefills = decoding.is_as_prefilled();
  const Extents prefill{batch, length, length, model_dim, heads, variant.kv_heads, head_dim};
  measured.prefill_kernel = chosen_kernel({}, prefill, {});
  measured.decode_kernel = decoding.kernel();
  const auto prefilled = compare_prefill(variant.kv_heads, measured.prefill_kernel);
  measured.check = worse_of(prefilled, decoding.compare());
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
          {"decodes_as_it_prefills", measured.decodes_as_it_prefills},
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
          readable_error(measured.check.worst_error),
          readable_error(measured.check.worst_error_in_bounds),
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
               {"worst error"},
               {"of bound"},
               {"kernels", Column::Side::left}});
  Status status = done;
  for (const Variant& variant : variants) {
    const Measured measured = measure(variant, console);
    rows.push_back(object_of(measured));
    table.add(cells_of(measured));
    if (measured.check.beyond_bound == 0 && measured.decodes_as_it_prefills) continue;
    status = failed_check;
    console.error(
        fmt::format("{}: {}", variant.name,
                    measured.check.beyond_bound > 0
                        ? measured.check.first_miss
                        : "a token after its cache differs from the last one of the whole sequence"));
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
      "\nprefill: the whole layer over {} tokens. decode: the whole layer over one token, the {}th of a "
      "sequence in a cache;\nits result is the last row of the layer over all of them, to the bit.\n"
      "worst error: the largest distance from the double-precision reference, and its share of the computed "
      "bound.",
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
