// SPDX-License-Identifier: Apache-2.0
// The models whose attention is this library's layer, and what their configurations leave unsaid.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/json.hpp"
#include "heed/layer.hpp"

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

// The values of a config.json that is not believed yet: each is asked for by name and kind, and refused with
// a sentence that has the file, the name and what was found.

class ModelFields {
 public:
  // `subject` begins every sentence: "llama/config.json: rope_parameters."
  ModelFields(const files::Json& object, std::string subject)
      : object_(&object), subject_(std::move(subject)) {}

  bool has(std::string_view name) const;                             // and it is not null
  bool says_null(const char* name) const;                            // has it, as null
  std::optional<std::int64_t> find_integer(const char* name) const;  // at least 1
  std::int64_t integer(const char* name) const;
  std::optional<double> find_real(const char* name) const;   // finite as a float
  std::optional<float> find_number(const char* name) const;  // the same, rounded
  float number(const char* name) const;
  std::vector<float> numbers(const char* name) const;
  bool truth(const char* name, bool otherwise) const;
  std::optional<std::string> find_text(const char* name) const;
  std::string text(const char* name) const;
  std::optional<ModelFields> find_object(const char* name) const;
  const files::Json* find(std::string_view name) const;  // nullptr where it is missing or null
  const std::vector<std::string>& names() const { return object_->as<files::Json::Object>()->keys; }

  // "llama/config.json: rope_parameters.factor: " and what is wrong with it
  [[nodiscard]] Error error(const std::string& name, const std::string& what,
                            Error::Code code = Error::file) const;

 private:
  const files::Json& need(const char* name) const;

  const files::Json* object_;
  std::string subject_;
};

// What config.json says about one attention layer of a model.

struct ModelLayer {
  const ModelType* type = nullptr;
  LayerConfig config{};                    // complete
  ModelBiases biases = ModelBiases::none;  // as_configured: all four
  std::optional<std::int64_t> sliding_window{};
};

ModelLayer read_model_config(const std::filesystem::path& config_file, std::int64_t layer);

// rope_parameters, or the older rope_scaling with rope_theta beside it.
Rotary read_rotary(const ModelFields&, const ModelType&, std::int64_t head_dim);

}  // namespace heed::layer
