// SPDX-License-Identifier: Apache-2.0
// What a model's config.json says of its attention layers: the fields, the rotary embedding, the
// configuration.
#include "layer/model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "files/json.hpp"
#include "layer/config.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {
namespace {

constexpr double most = std::numeric_limits<std::int32_t>::max();

}  // namespace

Error ModelFields::error(const std::string& name, const std::string& what, Error::Code code) const {
  return {code, subject_ + name + ": " + what};
}

const files::Json* ModelFields::find(std::string_view name) const {
  const files::Json* found = object_->find(name);
  return found && !found->is_null() ? found : nullptr;
}

const files::Json& ModelFields::need(const char* name) const {
  if (const files::Json* found = find(name)) return *found;
  throw error(name, "missing");
}

bool ModelFields::says_null(const char* name) const {
  const files::Json* found = object_->find(name);
  return found && found->is_null();
}

bool ModelFields::has(std::string_view name) const { return find(name) != nullptr; }

std::optional<std::int64_t> ModelFields::find_integer(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  const auto* number = found->as<double>();
  if (!number || !(*number >= 1 && *number <= most) || *number != std::floor(*number))
    throw error(name, describe(*found) + " is not a whole number in [1, 2147483647]");
  return static_cast<std::int64_t>(*number);
}

std::int64_t ModelFields::integer(const char* name) const {
  need(name);
  return *find_integer(name);
}

std::optional<double> ModelFields::find_real(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  const auto* number = found->as<double>();
  if (!number || !std::isfinite(static_cast<float>(*number)))
    throw error(name, describe(*found) + " is not a number of 32 bits");
  return *number;
}

std::optional<float> ModelFields::find_number(const char* name) const {
  const std::optional<double> found = find_real(name);
  return found ? std::optional(static_cast<float>(*found)) : std::nullopt;
}

float ModelFields::number(const char* name) const {
  need(name);
  return *find_number(name);
}

std::vector<float> ModelFields::numbers(const char* name) const {
  const auto* list = need(name).as<files::Json::List>();
  if (!list) throw error(name, describe(need(name)) + " is not a list of numbers");
  std::vector<float> numbers;
  for (const files::Json& item : *list) {
    const auto* number = item.as<double>();
    if (!number) throw error(name, describe(item) + " in it is not a number");
    numbers.push_back(static_cast<float>(*number));
  }
  return numbers;
}

bool ModelFields::truth(const char* name, bool otherwise) const {
  const files::Json* found = find(name);
  if (!found) return otherwise;
  const auto* truth = found->as<bool>();
  if (!truth) throw error(name, describe(*found) + " is neither true nor false");
  return *truth;
}

std::optional<std::string> ModelFields::find_text(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  const auto* text = found->as<std::string>();
  if (!text) throw error(name, describe(*found) + " is not a string");
  return *text;
}

std::string ModelFields::text(const char* name) const {
  need(name);
  return *find_text(name);
}

std::optional<ModelFields> ModelFields::find_object(const char* name) const {
  const files::Json* found = find(name);
  if (!found) return {};
  if (!found->as<files::Json::Object>()) throw error(name, describe(*found) + " is not an object");
  return ModelFields(*found, subject_ + name + ".");
}

// The rotary embedding of a config.json, in the spelling of transformers 5 (rope_parameters) or of those
// before it (rope_scaling, rope_theta).

namespace {

constexpr std::array<std::string_view, 16> known_keys{"rope_type",        "type",
                                                      "rope_theta",       "partial_rotary_factor",
                                                      "factor",           "original_max_position_embeddings",
                                                      "attention_factor", "beta_fast",
                                                      "beta_slow",        "mscale",
                                                      "mscale_all_dim",   "truncate",
                                                      "short_factor",     "long_factor",
                                                      "low_freq_factor",  "high_freq_factor"};

struct RopeFields {
  const ModelFields& model;
  const ModelFields& rope;

  // The model's own key first: that is where Phi-3 keeps it.
  std::int64_t original_length() const {
    constexpr const char* name = "original_max_position_embeddings";
    if (const auto length = model.find_integer(name)) return *length;
    if (const auto length = rope.find_integer(name)) return *length;
    return model.integer("max_position_embeddings");
  }

  // Where no factor is said it is how much further than its original length the model reaches.
  float factor() const {
    if (const auto factor = rope.find_number("factor")) return *factor;
    return static_cast<float>(model.integer("max_position_embeddings")) /
           static_cast<float>(original_length());
  }

  float or_usual(const char* name, float usual) const {
    const float given = rope.find_number(name).value_or(0);
    return given == 0 ? usual : given;
  }

  // DeepSeek's way of saying it: a quotient of two logarithmic factors.
  std::optional<float> yarn_attention_factor(float factor) const {
    if (const auto given = rope.find_number("attention_factor")) return given;
    const float above = or_usual("mscale", 0), below = or_usual("mscale_all_dim", 0);
    if (above == 0 || below == 0) return {};
    if (factor <= 1) return 1.0f;
    const double logarithm = 0.1 * std::log(static_cast<double>(factor));
    return static_cast<float>((above * logarithm + 1) / (below * logarithm + 1));
  }

  YarnScaling yarn() const {
    const float s = factor();
    return {.factor = s,
            .original_length = original_length(),
            .beta_fast = or_usual("beta_fast", 32),
            .beta_slow = or_usual("beta_slow", 1),
            .truncate = rope.truth("truncate", true),
            .attention_factor = yarn_attention_factor(s)};
  }

  Llama3Scaling llama3() const {
    return {.factor = rope.number("factor"),
            .original_length = original_length(),
            .low_frequency_factor = rope.number("low_freq_factor"),
            .high_frequency_factor = rope.number("high_freq_factor")};
  }

  LongRopeScaling longrope() const {
    return {.short_factors = rope.numbers("short_factor"),
            .long_factors = rope.numbers("long_factor"),
            .original_length = original_length(),
            .factor = factor(),
            .attention_factor = rope.find_number("attention_factor")};
  }

  std::optional<RotaryScaling> scaling(std::string kind, const ModelType& type) const {
    // Phi-3's first checkpoints call it by other names.
    if (std::string_view(type.name) == "phi3" && (kind == "su" || kind == "yarn")) kind = "longrope";
    if (kind == "default") return {};
    if (kind == "linear") return LinearScaling{rope.number("factor")};
    if (kind == "dynamic")
      return DynamicScaling{rope.number("factor"), model.integer("max_position_embeddings")};
    if (kind == "yarn") return yarn();
    if (kind == "llama3") return llama3();
    if (kind == "longrope") return longrope();
    throw rope.error(
        "rope_type",
        files::quote_briefly(kind) + " is none of default, linear, dynamic, yarn, llama3, longrope",
        Error::unsupported);
  }
};

void check_keys(const ModelFields& rope) {
  for (const std::string& key : rope.names())
    if (rope.has(key) && std::ranges::find(known_keys, key) == known_keys.end())
      throw rope.error(key, "is not known here, and may change the result", Error::unsupported);
}

// The first of these places that has it.
std::optional<double> find_in(const ModelFields& rope, const ModelFields& model, const char* name) {
  const auto found = rope.find_real(name);
  return found ? found : model.find_real(name);
}

}  // namespace

Rotary read_rotary(const ModelFields& model, const ModelType& type, std::int64_t head_dim) {
  std::optional<ModelFields> rope = model.find_object("rope_scaling");
  if (!rope || rope->names().empty()) rope = model.find_object("rope_parameters");
  const files::Json nothing{files::Json::Object{}};
  if (!rope) rope.emplace(nothing, "");
  check_keys(*rope);

  Rotary rotary;
  rotary.base = static_cast<float>(find_in(*rope, model, "rope_theta").value_or(type.rotary_base));
  rotary.dims = head_dim;
  const double part = find_in(*rope, model, "partial_rotary_factor").value_or(1);
  if (part != 1 && !type.turns_partly)
    throw model.error("partial_rotary_factor",
                      std::string("is not 1, and a ") + type.name + " turns its whole heads",
                      Error::unsupported);
  if (!(part > 0 && part <= 1)) throw model.error("partial_rotary_factor", "is not in (0, 1]");
  if (part != 1) rotary.dims = static_cast<std::int64_t>(static_cast<double>(head_dim) * part);
  const auto kind = rope->find_text("rope_type");
  rotary.scaling =
      RopeFields{model, *rope}.scaling(kind ? *kind : rope->find_text("type").value_or("default"), type);
  return rotary;
}

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
