// SPDX-License-Identifier: Apache-2.0
// heed convert: gives a checkpoint's attention fewer KV heads, another head order or other names.
#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "arguments.hpp"
#include "checkpoint.hpp"
#include "command.hpp"
#include "heed/files.hpp"
#include "heed/layer.hpp"
#include "staged_files.hpp"
#include "table.hpp"

namespace heed::tool {
namespace {

struct ConvertOptions {
  std::string in{}, out{}, prefix{};
  std::optional<std::int64_t> heads{}, kv_heads_from{}, kv_heads{};
  std::optional<Naming> naming{};
  bool from_tiled = false, is_in_place = false;
};

// Also by another name, or through a link.
void refuse_own_input(const ConvertOptions& options) {
  std::error_code missing;  // then they are two
  if (!options.is_in_place && std::filesystem::equivalent(options.in, options.out, missing))
    throw Error(Error::file, fmt::format("OUT: '{}' is IN; --in-place replaces it", options.out));
}

void refuse_indivisible(const char* flag, std::int64_t divisor, const char* other, std::int64_t number) {
  if (number % divisor != 0)
    throw Error(Error::shape, fmt::format("{}: {} does not divide {}: {}", flag, divisor, other, number));
}

// A wrong number of heads would average rows of different heads without a word.
void refuse_unequal_widths(const LayerWeights& weights, std::int64_t heads, std::int64_t from) {
  const std::int64_t q_rows = weights.w_q.shape[0], k_rows = weights.w_k.shape[0];
  refuse_indivisible("--heads", heads, "the rows of W_q", q_rows);
  refuse_indivisible("--kv-heads-from", from, "the rows of W_k", k_rows);
  if (q_rows / heads != k_rows / from)
    throw Error(Error::shape,
                fmt::format("--kv-heads-from: {} key heads would be {} wide, the {} query heads are {}", from,
                            k_rows / from, heads, q_rows / heads));
}

LayerWeights converted(LayerWeights weights, const ConvertOptions& options) {
  const std::int64_t heads = *options.heads, from = options.kv_heads_from.value_or(heads);
  refuse_unequal_widths(weights, heads, from);
  if (options.from_tiled) weights = interleave_heads(std::move(weights), heads, from);
  return *options.kv_heads == from ? weights : pool_kv_heads(std::move(weights), from, *options.kv_heads);
}

std::int64_t elements_of(const Arrays& arrays) {
  std::int64_t elements = 0;
  for (const auto& [name, array] : arrays) elements += array.elements();
  return elements;
}

Status convert_checkpoint(const ConvertOptions& options, Console& console) {
  refuse_own_input(options);
  StagedFiles files;
  files.expect("OUT", options.out);
  const std::int64_t from = options.kv_heads_from.value_or(*options.heads);
  refuse_indivisible("--kv-heads-from", from, "--heads", *options.heads);
  refuse_indivisible("--kv-heads", *options.kv_heads, "--kv-heads-from", from);
  Metadata metadata;
  console.progress("reading " + options.in);
  Arrays arrays = read_safetensors(options.in, &metadata);
  const std::int64_t parameters_before = elements_of(arrays);
  const std::vector<AttentionNames> layers = find_attention(arrays, options.prefix);
  for (const AttentionNames& layer : layers) {
    console.progress("converting " + layer.prefix);
    const LayerWeights weights = converted(layer_weights(arrays, layer.prefix), options);
    replace_attention(arrays, layer, to_arrays(weights, options.naming.value_or(layer.naming)));
  }
  console.progress("writing " + options.out);
  files.write(options.out, [&](const auto& path) { write_safetensors(path, arrays, metadata); });
  files.move_in();
  console.progress("");

  nlohmann::ordered_json prefixes = nlohmann::ordered_json::array();
  for (const AttentionNames& layer : layers) prefixes.push_back(layer.prefix);
  console.result({{"in", options.in},
                  {"out", options.out},
                  {"prefixes", prefixes},
                  {"heads", *options.heads},
                  {"kv_heads_from", from},
                  {"kv_heads", *options.kv_heads},
                  {"parameters_before", parameters_before},
                  {"parameters_after", elements_of(arrays)}});
  console.print(list_of(console, {{"layers", fmt::format("{}", layers.size())},
                                  {"kv heads", fmt::format("{} -> {}", from, *options.kv_heads)},
                                  {"parameters", fmt::format("{} -> {}", readable_count(parameters_before),
                                                             readable_count(elements_of(arrays)))},
                                  {"wrote", options.out}}));
  return done;
}

}  // namespace

Action add_convert(CLI::App& app) {
  describe(app, "Make a multi-head checkpoint a grouped- or multi-query one",
           "The K and V heads of each group are averaged. Other tensors and the metadata are copied.\n\n"
           "Examples:\n"
           "  heed run --model-dim 64 --heads 8 --batch 1 --length 4 --save-layer mha.safetensors\n"
           "  heed convert mha.safetensors gqa.safetensors --heads 8 --kv-heads 2 --naming llama\n"
           "  heed convert gqa.safetensors mqa.safetensors --heads 8 --kv-heads-from 2 --kv-heads 1 --json");
  auto options = std::make_shared<ConvertOptions>();
  add_text(app, {.name = "IN", .help = "A safetensors file", .value = "FILE", .required = true}, options->in);
  add_text(app, {.name = "OUT", .help = "Where the converted file goes", .value = "FILE", .required = true},
           options->out);
  add_integer(app, {.name = "--heads", .help = "Query heads", .required = true}, 1, options->heads);
  add_integer(app, {.name = "--kv-heads", .help = "Key and value heads wanted", .required = true}, 1,
              options->kv_heads);
  add_integer(app, {.name = "--kv-heads-from", .help = "Key and value heads in IN (default: --heads)"}, 1,
              options->kv_heads_from);
  const std::vector<Choice<Naming>> namings = {
      {"paper", Naming::paper}, {"torch", Naming::torch}, {"llama", Naming::llama}};
  add_choice(app,
             {.name = "--naming",
              .help = "Names in OUT: W_q.weight, in_proj_weight or q_proj.weight ... (default: as in IN)"},
             namings, [options = options.get()](Naming naming) { options->naming = naming; });
  add_text(app,
           {.name = "--prefix",
            .help = "What precedes the names; * stands for anything: 'model.layers.*.self_attn.'",
            .value = "P"},
           options->prefix);
  add_switch(app,
             {.name = "--from-tiled", .help = "In IN query head h reads KV head h mod N: reorder the heads"},
             options->from_tiled);
  add_switch(app, {.name = "--in-place", .help = "OUT may be IN, which is replaced"}, options->is_in_place);
  return [options](Console& console) { return convert_checkpoint(*options, console); };
}

}  // namespace heed::tool
