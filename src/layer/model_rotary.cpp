// SPDX-License-Identifier: Apache-2.0
// The rotary embedding of a config.json, in the spelling of transformers 5 (rope_parameters) or of those
// before it (rope_scaling, rope_theta).
#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "files/json_string.hpp"
#include "layer/model_config.hpp"

namespace heed::layer {
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
    const float said = rope.find_number(name).value_or(0);
    return said == 0 ? usual : said;
  }

  // DeepSeek's way of saying it: a quotient of two logarithmic factors.
  std::optional<float> yarn_attention_factor(float factor) const {
    if (const auto said = rope.find_number("attention_factor")) return said;
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

}  // namespace heed::layer
