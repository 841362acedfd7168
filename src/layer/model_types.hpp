// SPDX-License-Identifier: Apache-2.0
// The models whose attention is this library's layer, and what their configurations leave unsaid.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace heed::layer {

enum class ModelBiases : std::uint8_t { none, as_configured, of_queries_keys_and_values };

struct ModelType {
  const char* name;
  ModelBiases biases = ModelBiases::none;
  float rotary_base = 10000;                     // where config.json has none
  bool slides = false;                           // sliding_window is obeyed
  std::optional<std::int64_t> sliding_window{};  // where config.json has no such key; null is no window
  bool packs_heads = false;                      // q, k and v are one matrix
  bool turns_partly = false;                     // partial_rotary_factor is obeyed
};

inline constexpr ModelType model_types[] = {
    {.name = "llama", .biases = ModelBiases::as_configured},
    {.name = "mistral", .slides = true, .sliding_window = 4096},
    {.name = "mixtral", .rotary_base = 1000000, .slides = true},
    {.name = "qwen2", .biases = ModelBiases::of_queries_keys_and_values, .slides = true},
    {.name = "gemma", .biases = ModelBiases::as_configured},
    {.name = "phi3", .slides = true, .packs_heads = true, .turns_partly = true}};

// Why a model that is met often is not among them; nullptr for all others.
const char* why_not(const std::string& model_type);

}  // namespace heed::layer
