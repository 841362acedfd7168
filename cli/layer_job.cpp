// SPDX-License-Identifier: Apache-2.0
// See layer_job.hpp.
#include "layer_job.hpp"

#include <fmt/core.h>

#include "arguments.hpp"
#include "heed/files.hpp"
#include "heed/pretrained.hpp"
#include "random_values.hpp"
#include "sequence.hpp"

namespace heed::tool {
namespace {

// A count of heads, as the rows of a matrix tell it.
std::int64_t heads_in(const std::string& flag, const Array& matrix, std::int64_t rows_per_head) {
  const std::int64_t rows = matrix.shape[0];
  if (rows % rows_per_head != 0)
    throw Error(Error::shape, fmt::format("{}: the {} rows of W_k are no multiple of the head width {}", flag,
                                          rows, rows_per_head));
  return rows / rows_per_head;
}

void refuse_other_ranks(const std::string& flag, const LayerWeights& weights) {
  const struct {
    const char* name;
    const Array& matrix;
  } matrices[] = {{"W_q", weights.w_q}, {"W_k", weights.w_k}, {"W_v", weights.w_v}, {"W_o", weights.w_o}};
  for (const auto& [name, matrix] : matrices)
    if (matrix.shape.size() != 2)
      throw Error(Error::shape,
                  fmt::format("{}: {} of shape {} is not a matrix", flag, name, text_of(matrix.shape)));
}

// What the matrices say about the layer. Only the number of heads cannot be read off them.
LayerConfig config_of(const std::string& flag, const LayerWeights& weights, ShapeOptions& shape) {
  refuse_other_ranks(flag, weights);
  if (!shape.heads)
    throw Error(Error::value,
                fmt::format("--heads: must be said with {}, a file of matrices does not tell", flag));
  const std::int64_t heads = *shape.heads, rows = weights.w_q.shape[0];
  if (rows % heads != 0 || rows == 0)
    throw Error(Error::shape, fmt::format("--heads: {} does not divide the {} rows of W_q", heads, rows));
  agree(shape, &ShapeOptions::model_dim, {"--model-dim", weights.w_q.shape[1], flag});
  agree(shape, &ShapeOptions::head_dim, {"--head-dim", rows / heads, flag});
  agree(shape, &ShapeOptions::kv_heads, {"--kv-heads", heads_in(flag, weights.w_k, rows / heads), flag});
  LayerConfig config;
  config.key_dim = weights.w_k.shape[1];
  config.value_dim = weights.w_v.shape[1];
  if (*shape.kv_heads > 0) config.value_head_dim = weights.w_v.shape[0] / *shape.kv_heads;
  return config;
}

void take_input(const Sequence& input, ShapeOptions& shape) {
  agree(shape, &ShapeOptions::batch, {"--batch", input.batch, "--input"});
  agree(shape, &ShapeOptions::length, {"--length", input.length, "--input"});
  agree(shape, &ShapeOptions::model_dim, {"--model-dim", input.width, "--input"});
}

void take_context(const Sequence& context, ShapeOptions& shape, LayerConfig& config) {
  agree(shape, &ShapeOptions::batch, {"--batch", context.batch, "--context"});
  agree(shape, &ShapeOptions::context_length, {"--context-length", context.length, "--context"});
  if (config.key_dim && *config.key_dim != context.width)
    throw Error(Error::shape, fmt::format("--context: width {} differs from the {} columns of W_k",
                                          context.width, *config.key_dim));
  config.key_dim = context.width;
}

Buffer random_sequence(const Shape& shape, const ShapeOptions& options, Stream stream) {
  Buffer buffer(shape, options.dtype);
  fill_random(buffer, {.seed = options.seed, .stream = stream});
  return buffer;
}

// A model says everything about its layer but the tokens.
PretrainedLayer take_model(const JobOptions& options, ShapeOptions& shape) {
  if (!options.weights.empty()) throw Error(Error::value, "--weights: means nothing beside --model");
  if (options.rotary) throw Error(Error::value, "--rotary: means nothing beside --model, which says it");
  PretrainedLayer model = from_pretrained(options.model, options.layer.value_or(0));
  agree(shape, &ShapeOptions::model_dim, {"--model-dim", model.config.model_dim, "--model"});
  agree(shape, &ShapeOptions::heads, {"--heads", model.config.heads, "--model"});
  agree(shape, &ShapeOptions::kv_heads, {"--kv-heads", *model.config.kv_heads, "--model"});
  agree(shape, &ShapeOptions::head_dim, {"--head-dim", *model.config.head_dim, "--model"});
  return model;
}

}  // namespace

void JobOptions::add_to(CLI::App& app) {
  shape.add_to(app);
  add_optional_value(app,
                     {.name = "--rotary",
                      .help = "Turn queries and keys by their position (default base 10000)",
                      .value = "[BASE]"},
                     [this](const std::string& text) {
                       rotary = Rotary{};
                       if (!text.empty()) rotary->base = parse_float("--rotary", text);
                     });
  const auto file = [&](const char* name, std::string& into, const char* help, const char* value) {
    add_text(app, {.name = name, .help = help, .value = value, .group = "Files read"}, into);
  };
  file("--model", model, "A model of Hugging Face's: config.json and safetensors; its layers are causal",
       "FOLDER");
  add_integer(app, {.name = "--layer", .help = "Which of its layers (default 0)", .group = "Files read"}, 0,
              layer);
  file("--weights", weights, "The layer's matrices (default: random, by --seed)", "W.safetensors");
  file("--prefix", prefix, "What precedes their names in that file", "P");
  file("--input", input, "(batch, length, model_dim) or (length, model_dim) (default: random)", "X.npy");
  file("--context", context, "Keys and values come from this sequence instead", "C.npy");
}

Options of_layer(Options options) {
  options.head_map = HeadMap::interleaved;
  options.dropout.reset();
  return options;
}

LayerJob make_job(JobOptions options) {
  ShapeOptions& shape = options.shape;
  LayerConfig config;
  std::optional<LayerWeights> weights;
  std::optional<Sequence> input, context;
  std::optional<std::int64_t> sliding_window;
  if (!options.prefix.empty() && options.weights.empty())
    throw Error(Error::value, fmt::format("--prefix: means nothing without {}", options.weights_flag));
  if (!options.model.empty()) {
    PretrainedLayer model = take_model(options, shape);
    config = model.config;
    weights = std::move(model.weights);
    sliding_window = model.sliding_window;
  } else if (options.layer) {
    throw Error(Error::value, "--layer: means nothing without --model");
  } else if (!options.weights.empty()) {
    weights = layer_weights(read_safetensors(options.weights), options.prefix);
    config = config_of(options.weights_flag, *weights, shape);
  }
  if (!options.input.empty()) {
    input = read_sequence("--input", options.input);
    take_input(*input, shape);
  }
  if (!options.context.empty()) {
    context = read_sequence("--context", options.context);
    take_context(*context, shape, config);
  }

  const Extents extents = resolve(shape);
  config.model_dim = extents.model_dim;
  config.heads = extents.heads;
  config.kv_heads = extents.kv_heads;
  config.head_dim = extents.head_dim;
  if (options.rotary) config.rotary = options.rotary;
  if (shape.scores.head_map != HeadMap::interleaved) config.head_map = shape.scores.head_map;
  if (shape.scores.dropout)
    config.drop_probability = static_cast<float>(shape.scores.dropout->drop_probability);
  checked_bytes({1, extents.heads, extents.head_dim, extents.model_dim},
                DType::f32);  // before anything that large
  const Shape x_shape{extents.batch, 1, extents.queries, extents.model_dim};
  LayerJob job{.extents = extents,
               .config = config,
               .weights = weights ? std::move(*weights) : random_weights(config, shape.seed),
               .x = input ? input->rounded_to(shape.dtype) : random_sequence(x_shape, shape, Stream::x)};
  job.is_of_model = !options.model.empty();
  job.sliding_window = sliding_window;
  const Shape context_shape{extents.batch, 1, extents.keys, config.key_dim.value_or(extents.model_dim)};
  if (context)
    job.context = context->rounded_to(shape.dtype);
  else if (shape.context_length)
    job.context = random_sequence(context_shape, shape, Stream::context);
  return job;
}

}  // namespace heed::tool
