// SPDX-License-Identifier: Apache-2.0
#include "layer/model_config.hpp"

#include <string_view>

#include "files/json_string.hpp"
#include "layer/config.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {
namespace {

constexpr std::int64_t longest_config = std::int64_t{1} << 20;  // real ones have a few thousand bytes

const ModelType& find_type(const ModelFields& model) {
  const std::string name = model.text("model_type");
  std::string known;
  for (const ModelType& type : model_types) {
    if (name == type.name) return type;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  const char* why = why_not(name);
  throw model.error(
      "model_type",
      files::quote_briefly(name) + (why ? ": " + std::string(why) : " is not known here; known are " + known),
      Error::unsupported);
}

// Where layers differ, layer_types says which have the window; before that it was max_window_layers.
std::optional<std::int64_t> find_window(const ModelFields& model, const ModelType& type, std::int64_t layer) {
  if (!type.slides) return {};
  std::optional<std::int64_t> window = model.find_integer("sliding_window");
  const bool says_none = !window && model.says_null("sliding_window");
  if (!window && !says_none) window = type.sliding_window;
  if (std::string_view(type.name) != "qwen2") return window;
  if (!model.truth("use_sliding_window", false) || !window) return {};
  const files::Json* kinds = model.find("layer_types");
  if (!kinds) {
    constexpr std::int64_t usual = 28;
    return layer >= model.find_integer("max_window_layers").value_or(usual) ? window : std::nullopt;
  }
  const auto* list = kinds->as<files::Json::List>();
  if (!list || std::ssize(*list) <= layer)
    throw model.error("layer_types", describe(*kinds) + " has no entry for layer " + std::to_string(layer));
  const files::Json& kind = (*list)[static_cast<std::size_t>(layer)];
  const auto* word = kind.as<std::string>();
  if (word && *word == "sliding_attention") return window;
  if (word && *word == "full_attention") return {};
  throw model.error("layer_types", describe(kind) + " is neither sliding_attention nor full_attention",
                    Error::unsupported);
}

LayerConfig read_config(const ModelFields& model, const ModelType& type) {
  LayerConfig c{.model_dim = model.integer("hidden_size"), .heads = model.integer("num_attention_heads")};
  c.kv_heads = model.find_integer("num_key_value_heads");
  c.head_dim = model.find_integer("head_dim");
  c.drop_probability = model.find_number("attention_dropout").value_or(0);
  c = complete(c);
  c.rotary = read_rotary(model, type, *c.head_dim);
  return complete(c);
}

}  // namespace

const char* why_not(const std::string& model_type) {
  struct Stranger {
    const char *model_type, *why;
  };
  constexpr const char* norms =
      "it normalises its queries and keys (q_norm, k_norm), which the layer does not";
  constexpr Stranger strangers[] = {{"qwen3", norms},
                                    {"qwen3_moe", norms},
                                    {"gemma3", norms},
                                    {"gemma3_text", norms},
                                    {"olmo2", norms},
                                    {"gemma2", "it caps its scores and scales them in its own way"},
                                    {"gpt2", "it has no rotary embedding, and packs its heads in columns"},
                                    {"deepseek_v2", "its keys and values are compressed"},
                                    {"deepseek_v3", "its keys and values are compressed"}};
  for (const Stranger& stranger : strangers)
    if (model_type == stranger.model_type) return stranger.why;
  return nullptr;
}

ModelLayer read_model_config(const std::filesystem::path& config_file, std::int64_t layer) {
  const files::Json json = files::read_json_file(config_file, longest_config);
  const ModelFields model(json, config_file.string() + ": ");
  ModelLayer read{.type = &find_type(model)};
  if (model.has("quantization_config"))
    throw model.error("quantization_config", "the weights are quantised, which is not read here",
                      Error::unsupported);
  const std::int64_t layers = model.integer("num_hidden_layers");
  if (layer < 0 || layer >= layers)
    throw refusal(Error::value, "layer: ", layer, " is not in [0, ", layers, "), the layers of ",
                  config_file.parent_path().string());
  try {
    read.config = read_config(model, *read.type);
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(config_file.string())) throw;
    throw refusal(error.code, config_file.string(), ": ", error.what());
  }
  read.biases = read.type->biases;
  if (read.biases == ModelBiases::as_configured && !model.truth("attention_bias", false))
    read.biases = ModelBiases::none;
  read.sliding_window = find_window(model, *read.type, layer);
  return read;
}

}  // namespace heed::layer
