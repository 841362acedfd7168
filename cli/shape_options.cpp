// SPDX-License-Identifier: Apache-2.0
// See shape_options.hpp.
#include "shape_options.hpp"

#include <fmt/core.h>

#include <limits>

#include "arguments.hpp"
#include "heed/error.hpp"
#include "heed/threads.hpp"

namespace heed::tool {
namespace {

Window parse_window(const std::string& text) {
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos)
    throw Error(Error::value, fmt::format("--window: '{}' is not two counts LEFT,RIGHT", text));
  const Window window{.left = parse_integer("--window", text.substr(0, comma)),
                      .right = parse_integer("--window", text.substr(comma + 1))};
  for (const std::int64_t count : {window.left, window.right})
    if (count < 0) throw Error(Error::value, fmt::format("--window: {} is less than 0", count));
  return window;
}

// "--heads: 7", and who says so where it is not the user: "--model-dim: 768 (the default)".
std::string text_of(const ShapeOptions& options, const std::string& flag, bool is_said, std::int64_t value) {
  std::string text = fmt::format("{}: {}", flag, value);
  const auto found = options.found_in.find(flag);
  if (found != options.found_in.end()) return text + fmt::format(" (of {})", found->second);
  return is_said ? text : text + " (the default)";
}

}  // namespace

void ShapeOptions::add_to(CLI::App& app) {
  add_extents(app);
  add_masks(app);
  std::vector<Choice<DType>> dtypes = {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}};
  if (takes_f64) dtypes.push_back({"f64", DType::f64});
  add_choice(app, {.name = "--dtype", .help = "Element type of inputs and outputs (default f32)"}, dtypes,
             [this](DType chosen) { dtype = chosen; });
  add_value(app, {.name = "--seed", .help = "Of all that is random (default 0)"},
            [this](const std::string& text) { seed = parse_unsigned("--seed", text); });
  add_text(app, {.name = "--kernel", .help = "Use this one, as `heed explain` names them", .value = "NAME"},
           kernel);
  add_workers(app, {.name = "--threads", .help = "Threads to use; no bit of any result depends on it"},
              threads);
}

void ShapeOptions::add_extents(CLI::App& app) {
  const auto extent = [&](const char* name, std::int64_t minimum, std::optional<std::int64_t>& into,
                          const std::string& help) {
    add_integer(app, {.name = name, .help = help, .group = "Shape"}, minimum, into);
  };
  extent("--batch", 0, batch, "Sequences (default 2)");
  extent("--length", 0, length, fmt::format("Tokens in each (default {})", default_length));
  extent("--context-length", 0, context_length,
         "Cross-attention over this many keys (default: self-attention)");
  extent("--model-dim", 1, model_dim, "Width of a token (default 768)");
  extent("--heads", 1, heads, "Query heads (default 12)");
  extent("--kv-heads", 1, kv_heads, "Key and value heads: --heads is MHA, 1 is MQA (default: --heads)");
  extent("--head-dim", 1, head_dim, "Width of a head (default: --model-dim / --heads)");
}

void ShapeOptions::add_band(CLI::App& app) {
  const std::string group = "Masks";
  add_switch(app, {.name = "--causal", .help = "A query sees no later key", .group = group}, causal);
  add_value(app,
            {.name = "--window",
             .help = "A query sees its own place and so many keys to its left and right",
             .value = "L,R",
             .group = group},
            [this](const std::string& text) { window = parse_window(text); });
  const std::vector<Choice<Align>> aligns = {{"starts", Align::starts}, {"ends", Align::ends}};
  add_choice(
      app,
      {.name = "--align", .help = "Where queries and keys coincide if there are more of one", .group = group},
      aligns, [this](Align chosen) { align = chosen; });
}

void ShapeOptions::add_masks(CLI::App& app) {
  add_band(app);
  const std::string group = "Masks";
  add_text(app,
           {.name = "--tokens",
            .help = "Token ids, (batch, keys); those equal to --pad-id are unseen",
            .value = "T.npy",
            .group = group},
           tokens);
  add_text(app,
           {.name = "--document",
            .help = "Of which document every key is, (batch, keys) or (keys); a query sees its own",
            .value = "D.npy",
            .group = group},
           document);
  add_integer(app, {.name = "--pad-id", .help = "The padding token (default 0)", .group = group},
              std::numeric_limits<std::int64_t>::min(), pad_id);
}

void ShapeOptions::use_threads() const {
  if (threads) set_num_threads(*threads);
}

Extents resolve(const ShapeOptions& options) {
  Extents extents;
  extents.batch = options.batch.value_or(2);
  extents.queries = options.length.value_or(options.default_length);
  extents.keys = options.context_length.value_or(extents.queries);
  extents.heads = options.heads.value_or(12);
  extents.kv_heads = options.kv_heads.value_or(extents.heads);
  extents.model_dim = options.model_dim.value_or(768);
  const std::string heads = text_of(options, "--heads", options.heads.has_value(), extents.heads);
  if (extents.heads % extents.kv_heads != 0)
    throw Error(Error::shape, fmt::format("--kv-heads: {} does not divide {}", extents.kv_heads, heads));
  if (!options.head_dim && extents.model_dim % extents.heads != 0)
    throw Error(Error::shape, fmt::format("{} does not divide {}", heads,
                                          text_of(options, "--model-dim", options.model_dim.has_value(),
                                                  extents.model_dim)));
  extents.head_dim = options.head_dim.value_or(extents.model_dim / extents.heads);
  return extents;
}

void agree(ShapeOptions& options, std::optional<std::int64_t> ShapeOptions::* option,
           const Finding& finding) {
  std::optional<std::int64_t>& said = options.*option;
  if (said && *said != finding.found)
    throw Error(Error::shape,
                fmt::format("{} differs from the {} of {}", text_of(options, finding.flag, true, *said),
                            finding.found, finding.where));
  if (!said) options.found_in[finding.flag] = finding.where;
  said = finding.found;
}

std::string command_line(const ShapeOptions& options, const Extents& extents) {
  std::string line =
      fmt::format("--batch {} --length {} --heads {} --kv-heads {} --head-dim {}", extents.batch,
                  extents.queries, extents.heads, extents.kv_heads, extents.head_dim);
  if (extents.keys != extents.queries) line += fmt::format(" --context-length {}", extents.keys);
  if (options.causal) line += " --causal";
  if (options.window) line += fmt::format(" --window {},{}", options.window->left, options.window->right);
  if (options.align) line += *options.align == Align::starts ? " --align starts" : " --align ends";
  if (!options.tokens.empty())
    line += fmt::format(" --tokens '{}' --pad-id {}", options.tokens, options.pad_id.value_or(0));
  if (!options.document.empty()) line += fmt::format(" --document '{}'", options.document);
  return line + fmt::format(" --dtype {} --seed {}", name_of(options.dtype), options.seed);
}

}  // namespace heed::tool
