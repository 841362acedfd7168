// SPDX-License-Identifier: Apache-2.0
// See shape_options.hpp.
#include "shape_options.hpp"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "arguments.hpp"
#include "heed/error.hpp"
#include "heed/option_list.hpp"
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
  add_scores(app);
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
  add_integer(app,
              {.name = "--front", .help = "How many first keys are seen outside the window", .group = group},
              0, front);
  const auto file = [&](const char* name, std::string& into, const char* help, const char* value) {
    add_text(app, {.name = name, .help = help, .value = value, .group = group}, into);
  };
  file("--key-lengths", key_lengths, "How many keys each batch entry has, (batch)", "L.npy");
  file("--keep", keep, "Booleans that broadcast to (batch, heads, queries, keys): true attends", "M.npy");
  file("--hide", hide, "The same: true is ignored", "M.npy");
  file("--tree", tree, "Which of the last keys, drafted ones, a query sees: (batch, heads, queries, queries)",
       "M.npy");
}

namespace {

// A flag for each option, by its type; masks have theirs.
struct AddFlag {
  CLI::App& app;
  ShapeOptions& into;

  static Flag flag(const OptionText& text, const char* value) {
    std::string name = std::string("--") + text.keyword();
    for (char& c : name)
      if (c == '_') c = '-';
    return {.name = name,
            .help = std::string(text.meaning) +
                    (text.otherwise ? fmt::format(" (default {})", text.otherwise) : ""),
            .value = value,
            .group = "Scores"};
  }
  void operator()(const OptionText&, Masks&) const {}
  void operator()(const OptionText& text, std::optional<double>& number) const {
    const Flag shown = flag(text, "X");
    const bool is_positive = text.domain == Domain::positive;
    add_value(app, shown, [&number, is_positive, name = shown.name](const std::string& said) {
      number = parse_double(name, said);
      if (!std::isfinite(*number) || (is_positive && *number <= 0))
        throw Error(Error::value, fmt::format("{}: {} is not a finite number{}", name, said,
                                              is_positive ? " above 0" : ""));
    });
  }
  void operator()(const OptionText& text, Optional<View>& view) const {
    add_text(app, flag(text, "F.npy"), &view == &into.scores.bias ? into.bias : into.sink);
  }
  void operator()(const OptionText& text, std::optional<Alibi>&) const {
    Flag shown = flag(text, "[S.npy]");
    shown.help += "; without a file 2^(-8 (h + 1) / heads)";
    add_optional_value(app, shown, [&all = into](const std::string& file) { all.alibi = file; });
  }
  void operator()(const OptionText& text, std::optional<Dropout>& dropout) const {
    const Flag shown = flag(text, "P");
    add_value(app, shown, [&dropout, name = shown.name](const std::string& said) {
      const double probability = parse_double(name, said);
      if (!(probability >= 0 && probability < 1))
        throw Error(Error::value, fmt::format("{}: {} is outside [0, 1)", name, said));
      dropout = Dropout{.drop_probability = probability};
    });
  }
  void operator()(const OptionText& text, HeadMap& map) const {
    const std::vector<Choice<HeadMap>> maps = {{"interleaved", HeadMap::interleaved},
                                               {"tiled", HeadMap::tiled}};
    add_choice(app, flag(text, "MAP"), maps, [&map](HeadMap chosen) { map = chosen; });
  }
};

// The same as a command line has them.
struct AddWords {
  std::string& line;
  const ShapeOptions& of;

  void add(const OptionText& text, const std::string& value) const {
    line += fmt::format(" {} {}", AddFlag::flag(text, "").name, value);
  }
  void operator()(const OptionText&, const Masks&) const {}
  void operator()(const OptionText& text, const std::optional<double>& number) const {
    if (number) add(text, fmt::format("{}", *number));
  }
  void operator()(const OptionText& text, const Optional<View>& view) const {
    const std::string& file = &view == &of.scores.bias ? of.bias : of.sink;
    if (!file.empty()) add(text, "'" + file + "'");
  }
  void operator()(const OptionText& text, const std::optional<Alibi>&) const {
    if (of.alibi) add(text, of.alibi->empty() ? "" : "'" + *of.alibi + "'");
  }
  void operator()(const OptionText& text, const std::optional<Dropout>& dropout) const {
    if (dropout) add(text, fmt::format("{}", dropout->drop_probability));
  }
  void operator()(const OptionText& text, const HeadMap& map) const {
    if (map != HeadMap::interleaved) add(text, "tiled");
  }
};

}  // namespace

void ShapeOptions::add_scores(CLI::App& app) { visit_options(scores, AddFlag{app, *this}); }

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
  if (options.front) line += fmt::format(" --front {}", *options.front);
  if (options.align) line += *options.align == Align::starts ? " --align starts" : " --align ends";
  if (!options.tokens.empty())
    line += fmt::format(" --tokens '{}' --pad-id {}", options.tokens, options.pad_id.value_or(0));
  for (const auto& [flag, file] :
       {std::pair("--document", &options.document), std::pair("--key-lengths", &options.key_lengths),
        std::pair("--keep", &options.keep), std::pair("--hide", &options.hide),
        std::pair("--tree", &options.tree)})
    if (!file->empty()) line += fmt::format(" {} '{}'", flag, *file);
  visit_options(options.scores, AddWords{line, options});
  return line + fmt::format(" --dtype {} --seed {}", name_of(options.dtype), options.seed);
}

}  // namespace heed::tool
