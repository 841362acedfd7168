// SPDX-License-Identifier: Apache-2.0
// What config.json says about one attention layer of a model.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

#include "heed/layer.hpp"
#include "layer/model_fields.hpp"
#include "layer/model_types.hpp"

namespace heed::layer {

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
