// SPDX-License-Identifier: Apache-2.0
// One attention layer out of a folder as Hugging Face's transformers saves a model: config.json, and
// model.safetensors or its shards. A folder from outside is hostile until checked.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>

#include "heed/export.hpp"
#include "heed/layer.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

struct PretrainedLayer {
  LayerConfig config{};  // with every default filled in
  LayerWeights weights{};
  // Where the model gives this layer a window: how many keys a query sees, its own included. A layer has none
  // of its own; say Window::from_total(*sliding_window) beside Causal{}.
  std::optional<std::int64_t> sliding_window{};
};

// Of the shards only those that hold the layer are opened, and of those only its own tensors are read. Model
// types that are not known, and parts that a layer does not have (norms of queries and keys), are refused by
// name: docs/checkpoints.md lists what is known.
HEED_API PretrainedLayer from_pretrained(const std::filesystem::path& folder, std::int64_t layer);

}  // namespace HEED_NAMESPACE
