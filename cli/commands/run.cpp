// SPDX-License-Identifier: Apache-2.0
// heed run: one attention layer over one batch, from files or random numbers.
#include <fmt/core.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "arguments.hpp"
#include "command.hpp"
#include "digest.hpp"
#include "heed/distributed_layer.hpp"
#include "kernel_choice.hpp"
#include "layer_job.hpp"
#include "layer_stretches.hpp"
#include "picture_file.hpp"
#include "rank_processes.hpp"
#include "staged_files.hpp"
#include "stopwatch.hpp"
#include "table.hpp"
#include "token_list.hpp"

namespace heed::tool {
namespace {

struct RunOptions {
  JobOptions job{};
  std::string out{}, save_weights{}, save_layer{}, words{};
  PictureFile picture{};
  bool show = false, no_causal = false, masks_are_of_model = false;
  std::optional<int> ranks{};
  bool oversubscribes = false;
};

// A layer of a model sees what it sees in its model, unless the user said what it is to see.
RunOptions with_masks_of_model(RunOptions options, const LayerJob& job) {
  ShapeOptions& shape = options.job.shape;
  if (!job.is_of_model || job.context || options.no_causal || shape.causal || shape.window) return options;
  shape.causal = options.masks_are_of_model = true;
  if (job.sliding_window) shape.window = Window::from_total(*job.sliding_window);
  return options;
}

struct Statistics {
  double mean = 0, deviation = 0;
};

Statistics statistics_of(const std::vector<float>& values) {
  if (values.empty()) return {};
  double sum = 0, squares = 0;
  for (const float value : values) sum += value;
  const auto count = static_cast<double>(values.size());
  const double mean = sum / count;
  for (const float value : values) squares += (value - mean) * (value - mean);
  return {.mean = mean, .deviation = std::sqrt(squares / count)};
}

// .npy knows f16 but not bf16, which is written as the f32 of the same value.
Element element_of(DType dtype) { return dtype == DType::f16 ? Element::f16 : Element::f32; }

struct Answer {
  Buffer y;                         // (batch, 1, queries, model_dim)
  std::optional<Buffer> weights{};  // (batch, heads, queries, keys)
  double seconds = 0;
  std::string kernel{};
};

// A share's heads of what is given for each head, which is all of them or one that stands for all.
template <class AnyView>
AnyView heads_of(const LayerShare& share, AnyView x) {
  if (x.shape.heads == 1) return x;
  const std::int64_t first = share.first_head * x.stride.heads;
  if constexpr (std::is_same_v<AnyView, BoolView>)
    x.data += first;
  else
    x.data = static_cast<const std::byte*>(x.data) + first * static_cast<std::int64_t>(bytes_of(x.dtype));
  x.shape.heads = share.heads;
  return x;
}

void keep_heads_of(const LayerShare& share, const Extents& extents, CallOptions& chosen) {
  Options& options = chosen.options;
  const auto cut = [&](auto& mask) {
    if constexpr (requires { mask.where; }) mask.where = heads_of(share, mask.where);
  };
  for (Mask& mask : options.masks) std::visit(cut, mask);
  if (options.bias) options.bias = heads_of(share, *options.bias);
  if (options.sink) options.sink = heads_of(share, *options.sink);
  if (!options.alibi) return;
  std::vector<float> slopes;  // of one batch entry, or of each
  for (std::int64_t first = share.first_head; first < std::ssize(chosen.slopes); first += extents.heads)
    slopes.insert(slopes.end(), chosen.slopes.begin() + first, chosen.slopes.begin() + first + share.heads);
  chosen.slopes = std::move(slopes);
  options.alibi->slopes = chosen.slopes;
}

// The layer of this process's rank, over all of them.
Answer compute_over_ranks(Group& group, const RunOptions& options, const LayerJob& job) {
  const ShapeOptions& shape = options.job.shape;
  CallOptions chosen = make_options(shape, job.extents);
  const LayerShare share = share_of_layer(job.config, group.rank(), group.size());
  const LayerOverRanks layer(job.config, weights_of_share(job.weights, job.config, share), group.rank(),
                             group.size());
  Answer answer{.y = Buffer(job.x.shape(), shape.dtype)};
  answer.kernel = chosen_kernel(shape, job.extents, chosen.options);  // refuses what does not fit all heads
  keep_heads_of(share, job.extents, chosen);
  AttentionLayer::Call call{.x = job.x.view()};
  if (job.context) call.context = job.context->view();
  const Options options_of_call = of_layer(chosen.options);
  answer.seconds = seconds_of([&] { layer(group, call, {.out = answer.y.writable()}, options_of_call); });
  return answer;
}

Answer compute(const RunOptions& options, const LayerJob& job) {
  const ShapeOptions& shape = options.job.shape;
  const Extents& extents = job.extents;
  const CallOptions chosen = make_options(shape, extents);
  AttentionLayer layer(job.config, job.weights);
  if (chosen.options.dropout) layer.set_mode(AttentionLayer::Mode::train);
  Answer answer{.y = Buffer(job.x.shape(), shape.dtype)};
  Outputs outputs{.out = answer.y.writable()};
  if (!options.save_weights.empty()) {
    answer.weights.emplace(Shape{extents.batch, extents.heads, extents.queries, extents.keys});
    outputs.weights = answer.weights->writable();
  }
  AttentionLayer::Call call{.x = job.x.view(), .dropout_seed = shape.seed};
  if (job.context) call.context = job.context->view();
  answer.seconds = seconds_of([&] { layer(call, outputs, of_layer(chosen.options)); });
  answer.kernel = chosen_kernel(shape, extents, chosen.options);
  return answer;
}

// The heads of the first batch entry.
view::Picture picture_of(const RunOptions& options, const LayerJob& job) {
  const Extents& extents = job.extents;
  if (extents.batch == 0) throw Error(Error::shape, "--picture: there is no batch entry to show");
  view::Run run{.queries = extents.queries, .keys = extents.keys};
  if (!options.words.empty()) run.key_tokens = read_token_list("--words", options.words);
  if (!job.context) run.query_tokens = run.key_tokens;
  view::Picture picture(run, {.heads = extents.heads, .kv_heads = extents.kv_heads},
                        {.theme = options.picture.chosen_theme()});
  HiddenKeys hidden(options.job.shape, extents, 0);
  for_every_stretch(job, 0, hidden, [&](const view::Rows& rows) { picture.add_rows(rows); });
  return picture;
}

void save(StagedFiles& files, const RunOptions& options, const LayerJob& job, const Answer& answer,
          const std::optional<view::Picture>& picture) {
  const Extents& extents = job.extents;
  files.write(options.out, [&](const auto& path) {
    write_npy(path, Array::from_floats({extents.batch, extents.queries, extents.model_dim},
                                       answer.y.to_floats(), element_of(options.job.shape.dtype)));
  });
  files.write(options.save_weights, [&](const auto& path) {
    write_npy(path, Array::from_floats({extents.batch, extents.heads, extents.queries, extents.keys},
                                       answer.weights->to_floats()));
  });
  files.write(options.save_layer,
              [&](const auto& path) { write_safetensors(path, to_arrays(job.weights, Naming::paper)); });
  files.write(options.picture.path, [&](const auto& path) { options.picture.write(*picture, path); });
  files.move_in();
}

void report(const Console& console, const RunOptions& options, const LayerJob& job, const Answer& answer) {
  const Extents& extents = job.extents;
  const Statistics statistics = statistics_of(answer.y.to_floats());
  const std::string digest = digest_of(answer.y.bytes());
  const char* dtype = name_of(options.job.shape.dtype);
  const double tokens_per_second = static_cast<double>(extents.batch * extents.queries) / answer.seconds;
  nlohmann::ordered_json object = {{"shape", {extents.batch, extents.queries, extents.model_dim}},
                                   {"dtype", dtype},
                                   {"heads", extents.heads},
                                   {"kv_heads", extents.kv_heads},
                                   {"keys", extents.keys},
                                   {"causal", options.job.shape.causal},
                                   {"kernel", answer.kernel},
                                   {"seconds", answer.seconds},
                                   {"tokens_per_second", tokens_per_second},
                                   {"mean", statistics.mean},
                                   {"std", statistics.deviation},
                                   {"digest", digest}};
  std::vector<Fact> facts = {
      {"shape", fmt::format("({}, {}, {}) {}", extents.batch, extents.queries, extents.model_dim, dtype)},
      {"kernel", answer.kernel},
      {"time", fmt::format("{}, {:.3g} tokens/s", readable_seconds(answer.seconds), tokens_per_second)},
      {"mean", fmt::format("{:.6g}", statistics.mean)},
      {"std", fmt::format("{:.6g}", statistics.deviation)},
      {"digest", digest}};
  if (job.sliding_window) object["sliding_window"] = *job.sliding_window;
  if (options.masks_are_of_model)
    facts.push_back(
        {"mask",
         fmt::format("causal{}, as the model's layer is; --no-causal hides no key",
                     job.sliding_window ? fmt::format(", --window {},0", *job.sliding_window - 1) : "")});
  else if (job.sliding_window && !options.job.shape.window)
    facts.push_back(
        {"window", fmt::format("the model's layer sees {} keys, its own included; say --window {},0",
                               *job.sliding_window, *job.sliding_window - 1)});
  object["files"] = nlohmann::ordered_json::array();
  for (const std::string& path :
       {options.out, options.save_weights, options.save_layer, options.picture.path}) {
    if (path.empty()) continue;
    object["files"].push_back(path);
    facts.push_back({"wrote", path});
  }
  console.result(object);
  console.print(list_of(console, facts));
}

void refuse_over_ranks(const RunOptions& options) {
  if (options.job.shape.scores.dropout)
    throw Error(Error::value, "--dropout: a layer over ranks has none; leave --ranks out");
  if (options.job.shape.scores.head_map != HeadMap::interleaved)
    throw Error(Error::value,
                "--head-map: over ranks heads that share keys are neighbours; leave --ranks out");
  for (const auto& [name, is_given] :
       {std::pair("--save-weights", !options.save_weights.empty()),
        std::pair("--picture", options.picture.is_wanted()), std::pair("--show", options.show)})
    if (is_given) throw Error(Error::value, std::string(name) + ": no rank has all heads; leave --ranks out");
}

// As one of the ranks, or to start them.
Status run_over_ranks(const RunOptions& said, StagedFiles& files, const Console& console) {
  const int ranks = *said.ranks;
  if (!is_rank_process()) return start_ranks(ranks, said.oversubscribes);
  Group group = group_of_processes(ranks);
  try {
    const LayerJob job = make_job(said.job);
    const RunOptions options = with_masks_of_model(said, job);
    const Answer answer = compute_over_ranks(group, options, job);
    if (group.rank() != 0) return done;  // the first one writes and reports
    save(files, options, job, answer, {});
    report(console, options, job, answer);
  } catch (const std::exception& problem) {
    group.abort(problem.what());  // or the others would wait for this one
    throw;
  }
  return done;
}

Status run_layer(const RunOptions& said, Console& console) {
  said.job.shape.use_threads();
  StagedFiles files;
  files.expect("--out", said.out);
  files.expect("--save-weights", said.save_weights);
  files.expect("--save-layer", said.save_layer);
  files.expect("--picture", said.picture.path);
  said.picture.check();
  if (!said.words.empty() && !said.picture.is_wanted() && !said.show)
    throw Error(Error::value, "--words: means nothing without --picture or --show");
  if (said.no_causal && said.job.model.empty())
    throw Error(Error::value, "--no-causal: means nothing without --model");
  if (said.no_causal && (said.job.shape.causal || said.job.shape.window))
    throw Error(Error::value, "--no-causal: means nothing beside --causal or --window");
  if (said.ranks) {
    refuse_over_ranks(said);
    return run_over_ranks(said, files, console);
  }
  const LayerJob job = make_job(said.job);
  const RunOptions options = with_masks_of_model(said, job);
  console.progress("computing");
  const Answer answer = compute(options, job);
  std::optional<view::Picture> picture;
  if (options.show || options.picture.is_wanted()) picture.emplace(picture_of(options, job));
  console.progress("");
  save(files, options, job, answer, picture);
  report(console, options, job, answer);
  if (options.show) {
    const auto ink = console.has_colors() ? view::Picture::Ink::colours : view::Picture::Ink::shades;
    console.print("\n" + picture->text(80, ink));
  }
  return done;
}

}  // namespace

Action add_run(CLI::App& app) {
  describe(
      app, "Run one attention layer, from files or random numbers",
      "The digest is FNV-1a of the output's bytes: equal digests are equal answers, to the bit.\n\n"
      "Examples:\n"
      "  heed run --model-dim 768 --heads 12 --kv-heads 6 --batch 2 --length 128 --causal\n"
      "  heed run --model-dim 64 --heads 4 --batch 1 --length 10 --out x.npy --save-layer w.safetensors\n"
      "  heed run --weights w.safetensors --heads 4 --input x.npy --window 3,0 --out y.npy --save-weights "
      "a.npy\n"
      "  heed run --model-dim 768 --heads 12 --batch 1 --length 512 --ranks 2\n"
      "  heed run --weights w.safetensors --heads 4 --input y.npy --context x.npy --dtype bf16 --json");
  auto options = std::make_shared<RunOptions>();
  options->job.add_to(app);
  const auto file = [&](const char* name, std::string& into, const char* help, const char* value) {
    add_text(app, {.name = name, .help = help, .value = value, .group = "Files written, all or none"}, into);
  };
  file("--out", options->out, "The output, (batch, length, model_dim); bf16 is written as f32", "Y.npy");
  file("--save-weights", options->save_weights, "The attention weights, (batch, heads, queries, keys)",
       "A.npy");
  file("--save-layer", options->save_layer, "The layer's matrices, as --weights reads them", "W.safetensors");
  options->picture.add_to(app, {.name = "--picture",
                                .help = "Heatmaps of the heads of the first batch entry: .png, .svg or .pdf",
                                .value = "FILE",
                                .group = "Files written, all or none"});
  file("--words", options->words, "What stands at their edges, one word to a line", "words.txt");
  add_switch(app, {.name = "--show", .help = "Draw small ones in the terminal"}, options->show);
  add_switch(app,
             {.name = "--no-causal",
              .help = "With --model, whose layers are causal: a query sees every key",
              .group = "Masks"},
             options->no_causal);
  add_workers(app,
              {.name = "--ranks", .help = "As so many processes of this machine, by mpirun; the same digest"},
              options->ranks);
  add_switch(app, {.name = "--oversubscribe", .help = "Also where there are fewer processors"},
             options->oversubscribes);
  return [options](Console& console) { return run_layer(*options, console); };
}

}  // namespace heed::tool
