// SPDX-License-Identifier: Apache-2.0
// heed view: attention as one page for the browser, from an example, from weights or from a layer and its
// input.
#include "heed/view.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "arguments.hpp"
#include "command.hpp"
#include "layer_stretches.hpp"
#include "picture_file.hpp"
#include "sequence.hpp"
#include "staged_files.hpp"
#include "stopwatch.hpp"
#include "system.hpp"
#include "table.hpp"
#include "token_list.hpp"
#include "weights_file.hpp"
#include "worked_example.hpp"

namespace heed::tool {
namespace {

struct ViewOptions {
  JobOptions job{};
  std::string weights{}, compare{}, tokens{}, query_tokens{}, key_tokens{}, title{};
  PictureFile picture{};
  std::string out{"attention.html"};
  std::optional<std::int64_t> budget_megabytes{}, entry{};
  bool open = false, play = false;

  bool has_layer() const { return !job.weights.empty(); }
  std::int64_t batch_entry() const { return entry.value_or(0); }
};

using UseRows = std::function<void(const view::Rows&)>;

// One run of the page, and how its rows come about.
struct Shown {
  view::Run run{};
  view::Layer layer{};
  std::function<void(const UseRows&)> for_every_stretch{};
};

void name_tokens(view::Run& run, const ViewOptions& options) {
  run.query_tokens = read_token_list("--query-tokens", options.query_tokens);
  run.key_tokens = read_token_list("--key-tokens", options.key_tokens);
  if (options.tokens.empty()) return;
  const std::vector<std::string> tokens = read_token_list("--tokens", options.tokens);
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count != run.queries || count != run.keys)
    throw Error(Error::shape, fmt::format("--tokens: {} lines in '{}' for {} queries and {} keys", count,
                                          options.tokens, run.queries, run.keys));
  run.query_tokens = run.key_tokens = tokens;
}

Shown shown_job(std::string name, std::shared_ptr<LayerJob> job, std::shared_ptr<HiddenKeys> hidden,
                std::int64_t entry) {
  Shown shown{
      .run = {.name = std::move(name), .queries = job->extents.queries, .keys = job->extents.keys},
      .layer = {
          .heads = job->extents.heads, .kv_heads = job->extents.kv_heads, .head_map = job->config.head_map}};
  if (!job->context) shown.run.first_position = hidden->first_position();
  shown.for_every_stretch = [job, hidden, entry](const UseRows& use) {
    for_every_stretch(*job, entry, *hidden, use);
  };
  return shown;
}

std::vector<Shown> example_runs() {
  const struct {
    const char* name;
    std::int64_t kv_heads;
    bool causal;
  } runs[] = {{"MHA", 6, false}, {"GQA", 3, false}, {"MQA", 1, false}, {"MHA, causal", 6, true}};
  std::vector<Shown> shown;
  for (const auto& [name, kv_heads, causal] : runs) {
    auto job = std::make_shared<LayerJob>(example_job(kv_heads));
    ShapeOptions shape;
    shape.causal = causal;
    shown.push_back(shown_job(name, job, std::make_shared<HiddenKeys>(shape, job->extents, 0), 0));
    shown.back().run.query_tokens = shown.back().run.key_tokens = example_sentence();
  }
  return shown;
}

Shown layer_run(const ViewOptions& options, const std::string& file) {
  JobOptions wanted = options.job;
  wanted.weights = file;
  auto job = std::make_shared<LayerJob>(make_job(wanted));
  if (options.batch_entry() >= job->extents.batch)
    throw Error(Error::value, fmt::format("--entry: {} is not below the {} batch entries of --input",
                                          options.batch_entry(), job->extents.batch));
  auto hidden = std::make_shared<HiddenKeys>(options.job.shape, job->extents, options.batch_entry());
  Shown shown = shown_job(std::filesystem::path(file).stem().string(), job, hidden, options.batch_entry());
  name_tokens(shown.run, options);
  return shown;
}

Shown weights_run(const ViewOptions& options, const std::string& flag, const std::string& file) {
  auto weights = std::make_shared<WeightsFile>(flag, file, options.batch_entry(), options.job.shape);
  Shown shown{.run = {.name = std::filesystem::path(file).stem().string(),
                      .queries = weights->queries(),
                      .keys = weights->keys(),
                      .first_position = weights->first_position()},
              .layer = {.heads = weights->heads(),
                        .kv_heads = options.job.shape.kv_heads.value_or(weights->heads())}};
  name_tokens(shown.run, options);
  shown.for_every_stretch = [weights](const UseRows& use) { weights->for_every_stretch(use); };
  return shown;
}

void refuse_strays(const ViewOptions& options) {
  const auto refuse = [](const std::string& value, const char* flag, const char* without) {
    if (!value.empty()) throw Error(Error::value, fmt::format("{}: means nothing without {}", flag, without));
  };
  if (options.has_layer() && !options.weights.empty())
    throw Error(Error::value, "--weights: means nothing beside --layer");
  if (options.has_layer() && options.job.input.empty())
    throw Error(Error::value, "--input: must be said with --layer");
  if (!options.has_layer()) {
    refuse(options.job.input, "--input", "--layer");
    refuse(options.job.context, "--context", "--layer");
    refuse(options.job.prefix, "--prefix", "--layer");
    if (options.job.rotary) refuse("set", "--rotary", "--layer");
    if (options.job.shape.heads) refuse("set", "--heads", "--layer");
  }
  if (!options.tokens.empty() && (!options.query_tokens.empty() || !options.key_tokens.empty()))
    throw Error(Error::value,
                "--tokens: names queries and keys at once; say --query-tokens and --key-tokens without it");
  if (options.has_layer() || !options.weights.empty()) return;
  for (const auto& [value, flag] : {std::pair{options.tokens, "--tokens"},
                                    {options.query_tokens, "--query-tokens"},
                                    {options.key_tokens, "--key-tokens"},
                                    {options.compare, "--compare"}})
    refuse(value, flag, "--weights or --layer");
  if (options.entry || options.job.shape.kv_heads || options.job.shape.causal || options.job.shape.window)
    throw Error(Error::value,
                "heed view: the example takes no options of shape or mask; say --weights or --layer");
}

std::vector<Shown> runs_of(const ViewOptions& options) {
  refuse_strays(options);
  if (!options.has_layer() && options.weights.empty()) return example_runs();
  const auto run = [&](const std::string& flag, const std::string& file) {
    return options.has_layer() ? layer_run(options, file) : weights_run(options, flag, file);
  };
  std::vector<Shown> shown;
  shown.push_back(run("--weights", options.has_layer() ? options.job.weights : options.weights));
  if (!options.compare.empty()) shown.push_back(run("--compare", options.compare));
  return shown;
}

void save_picture(StagedFiles& files, const ViewOptions& options, const Shown& shown) {
  const PictureFile& file = options.picture;
  view::Picture picture(shown.run, shown.layer, {.theme = file.chosen_theme(), .title = options.title});
  shown.for_every_stretch([&](const view::Rows& rows) { picture.add_rows(rows); });
  files.write(file.path, [&](const auto& beside) { file.write(picture, beside); });
}

// Starts a browser if that is wanted. The page is written, so that a machine without one has something to
// say, not a failure.
void open_if_asked(const ViewOptions& options, nlohmann::ordered_json& result, Console& console) {
  if (!options.open) return;
  const bool opened = open_in_browser(options.out);
  result["opened"] = opened;
  if (!opened)
    console.warn(fmt::format("no browser could be started here; '{}' is written, for any browser to open",
                             options.out));
}

// The playground brings its own tokens and vectors.
void refuse_beside_play(const ViewOptions& o) {
  const JobOptions& job = o.job;
  const ShapeOptions& shape = job.shape;
  for (const auto& [is_said, flag] : {std::pair{!o.weights.empty(), "--weights"},
                                      {!o.compare.empty(), "--compare"},
                                      {!o.tokens.empty(), "--tokens"},
                                      {!o.query_tokens.empty(), "--query-tokens"},
                                      {!o.key_tokens.empty(), "--key-tokens"},
                                      {!o.title.empty(), "--title"},
                                      {o.picture.is_wanted(), "--picture"},
                                      {o.picture.theme.has_value(), "--theme"},
                                      {o.budget_megabytes.has_value(), "--budget"},
                                      {o.entry.has_value(), "--entry"},
                                      {!job.weights.empty(), "--layer"},
                                      {!job.input.empty(), "--input"},
                                      {!job.context.empty(), "--context"},
                                      {!job.prefix.empty(), "--prefix"},
                                      {job.rotary.has_value(), "--rotary"},
                                      {shape.heads.has_value(), "--heads"},
                                      {shape.kv_heads.has_value(), "--kv-heads"},
                                      {shape.causal, "--causal"},
                                      {shape.window.has_value(), "--window"}})
    if (is_said) throw Error(Error::value, fmt::format("{}: means nothing beside --play", flag));
}

Status play(const ViewOptions& options, Console& console) {
  refuse_beside_play(options);
  StagedFiles files;
  files.expect("--out", options.out);
  files.write(options.out, [](const auto& path) { view::save_playground(path); });
  files.move_in();
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(options.out));
  console.print(list_of(console, {{"wrote", options.out},
                                  {"size", fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6)}}));
  nlohmann::ordered_json result = {{"page", options.out}, {"bytes", bytes}};
  open_if_asked(options, result, console);
  console.result(result);
  return done;
}

// A page is something else than what it is made from, and never takes its place.
void refuse_to_replace_sources(const ViewOptions& o) {
  const std::pair<const char*, const std::string*> sources[] = {
      {"--weights", &o.weights},           {"--compare", &o.compare},       {"--tokens", &o.tokens},
      {"--query-tokens", &o.query_tokens}, {"--key-tokens", &o.key_tokens}, {"--layer", &o.job.weights},
      {"--input", &o.job.input},           {"--context", &o.job.context}};
  const auto refuse = [&](const char* out_flag, const std::string& out) {
    for (const auto& [flag, path] : sources) {
      std::error_code missing;  // a file that is not there is nobody's source
      if (!path->empty() && !out.empty() && std::filesystem::equivalent(out, *path, missing))
        throw Error(Error::value, fmt::format("{}: '{}' is what {} reads", out_flag, out, flag));
    }
  };
  refuse("--out", o.out), refuse("--picture", o.picture.path);
}

Status show(const ViewOptions& options, Console& console) {
  if (options.play) return play(options, console);
  refuse_to_replace_sources(options);
  options.job.shape.use_threads();
  StagedFiles files;
  files.expect("--out", options.out);
  files.expect("--picture", options.picture.path);
  options.picture.check();
  const std::vector<Shown> runs = runs_of(options);
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 1'000'000;
  const std::int64_t budget = std::min(options.budget_megabytes.value_or(40), most);
  view::Page page({.title = options.title.empty() ? "Attention" : options.title,
                   .layers = static_cast<std::int64_t>(runs.size()),
                   .budget_bytes = budget * 1'000'000});
  const double seconds = seconds_of([&] {
    for (const Shown& shown : runs) {
      console.progress("computing " + shown.run.name);
      page.add_run(shown.run);
      page.add_layer(shown.layer);
      std::int64_t rows_done = 0;
      shown.for_every_stretch([&](const view::Rows& rows) {
        page.add_rows(rows);
        rows_done += rows.weights.shape.length;
        console.progress(
            fmt::format("computing {}: {} of {} rows", shown.run.name, rows_done, shown.run.queries));
      });
    }
    console.progress("writing");
    if (options.picture.is_wanted()) save_picture(files, options, runs.front());
    files.write(options.out, [&](const auto& path) { page.save(path); });
  });
  files.move_in();
  console.progress("");
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(options.out));
  std::vector<Fact> facts = {
      {"wrote", options.out + (options.picture.is_wanted() ? ", " + options.picture.path : "")},
      {"size", fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6)},
      {"time", readable_seconds(seconds)}};
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  for (const Shown& shown : runs) names.push_back(shown.run.name);
  console.print(list_of(console, facts));
  nlohmann::ordered_json result = {
      {"page", options.out}, {"bytes", bytes}, {"runs", names}, {"seconds", seconds}};
  open_if_asked(options, result, console);
  console.result(result);
  return done;
}

}  // namespace

Action add_view(CLI::App& app) {
  describe(
      app, "Write a page that shows attention, for any browser, without a network",
      "Without a source it shows an example: a sentence under MHA, GQA and MQA, and under a causal mask.\n"
      "Weights that are all 0 above the diagonal are taken to be causal; --causal and --window say it.\n\n"
      "Examples:\n"
      "  heed view --open\n"
      "  heed view --play --open\n"
      "  heed view --weights a.npy --tokens words.txt --out attention.html\n"
      "  heed view --weights mha.npy --compare gqa.npy --tokens words.txt --title 'MHA and GQA'\n"
      "  heed view --layer w.safetensors --heads 4 --input x.npy --causal --budget 10");
  auto options = std::make_shared<ViewOptions>();
  options->job.weights_flag = "--layer";
  const auto file = [&](const char* name, std::string& into, const char* help, const char* value) {
    add_text(app, {.name = name, .help = help, .value = value, .group = "What is shown"}, into);
  };
  file("--weights", options->weights,
       "Weights, (batch, heads, queries, keys), without the first or the first two axes too", "A.npy");
  file("--layer", options->job.weights, "A layer's matrices, to be run on --input", "W.safetensors");
  file("--input", options->job.input, "(batch, length, model_dim) or (length, model_dim)", "X.npy");
  file("--context", options->job.context, "Keys and values come from this sequence instead", "C.npy");
  file("--prefix", options->job.prefix, "What precedes the names of the matrices", "P");
  file("--compare", options->compare, "A second file of the kind of the first, beside it", "FILE");
  file("--tokens", options->tokens, "The words of queries and keys, one to a line", "words.txt");
  file("--query-tokens", options->query_tokens, "The words of the queries alone", "words.txt");
  file("--key-tokens", options->key_tokens, "The words of the keys alone", "words.txt");
  add_integer(app,
              {.name = "--entry", .help = "Which entry of the batch (default 0)", .group = "What is shown"},
              0, options->entry);
  add_integer(app, {.name = "--heads", .help = "Query heads of the layer", .group = "Shape"}, 1,
              options->job.shape.heads);
  add_integer(app,
              {.name = "--kv-heads",
               .help = "Key and value heads (default: as the layer says, else as many as query heads)",
               .group = "Shape"},
              1, options->job.shape.kv_heads);
  add_optional_value(app,
                     {.name = "--rotary",
                      .help = "Turn queries and keys by their position (default base 10000)",
                      .value = "[BASE]",
                      .group = "Shape"},
                     [job = &options->job](const std::string& text) {
                       job->rotary = Rotary{};
                       if (!text.empty()) job->rotary->base = parse_float("--rotary", text);
                     });
  options->job.shape.add_band(app);
  add_text(app,
           {.name = "--out", .help = "Where the page goes (default attention.html)", .value = "PAGE.html"},
           options->out);
  options->picture.add_to(app,
                          {.name = "--picture",
                           .help = "Heatmaps of what is shown first, as a picture too: .png, .svg or .pdf",
                           .value = "FILE"});
  add_text(app, {.name = "--title", .help = "What stands above it", .value = "TEXT"}, options->title);
  add_integer(
      app, {.name = "--budget", .help = "The page stays below so many megabytes (default 40)", .value = "MB"},
      1, options->budget_megabytes);
  add_workers(app, {.name = "--threads", .help = "Threads to use"}, options->job.shape.threads);
  add_switch(app,
             {.name = "--play",
              .help = "A page to play with attention in instead, heed itself inside as WebAssembly",
              .group = "What is shown"},
             options->play);
  add_switch(app, {.name = "--open", .help = "Start a browser on it, where there is one"}, options->open);
  return [options](Console& console) { return show(*options, console); };
}

}  // namespace heed::tool
