// SPDX-License-Identifier: Apache-2.0
// What `heed run` computes: a layer and its inputs, from files where they were named and random where they
// were not.
#pragma once
#include <optional>
#include <string>

#include "buffer.hpp"
#include "heed/layer.hpp"
#include "shape_options.hpp"

namespace heed::tool {

struct JobOptions {
  ShapeOptions shape{.takes_f64 = false};
  std::string model{}, weights{}, prefix{}, input{}, context{};
  std::optional<std::int64_t> layer{};  // of the model
  std::optional<Rotary> rotary{};
  std::string weights_flag{"--weights"};  // what the command calls it

  void add_to(CLI::App&);
};

struct LayerJob {
  Extents extents{};
  LayerConfig config{};
  LayerWeights weights{};
  Buffer x;                                      // (batch, 1, queries, model_dim)
  std::optional<Buffer> context{};               // (batch, 1, keys, key_dim); none: self-attention
  bool is_of_model = false;                      // of --model, whose layers are causal
  std::optional<std::int64_t> sliding_window{};  // the model's, of its own key too
};

// What a call of the layer is told: its head map and dropout are its own.
Options of_layer(Options);

// Reads the files and refuses those that contradict each other or the options.
LayerJob make_job(JobOptions);

}  // namespace heed::tool
