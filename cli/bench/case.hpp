// SPDX-License-Identifier: Apache-2.0
// One thing `heed bench` times, and how much work it is.
#pragma once
#include <cstdint>
#include <string>

#include "heed/layer.hpp"
#include "heed/tensor.hpp"

namespace heed::tool {

enum class Role : std::uint8_t {
  prefill,    // attention() with as many queries as keys
  decode,     // attention() with one query
  layer,      // AttentionLayer of model_dim = heads * dim
  projection  // one linear map of model_dim x model_dim over `batch` rows
};
const char* name_of(Role);

constexpr int projections_per_run = 4;  // a projection is timed as the four of a layer

struct Case {
  Role role = Role::prefill;
  DType dtype = DType::f32;
  std::int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, dim = 1;
  bool is_causal = false;

  std::int64_t model_dim() const { return heads * dim; }
  LayerConfig layer_config() const { return grouped_query(model_dim(), heads, kv_heads); }
  // "prefill/bf16/1x32x8x4096x4096x128/causal": batch, heads, KV heads, queries, keys, dim; or
  // "projection/f32/2048x768x768": rows, outputs, inputs.
  std::string name() const;

  // Multiplications and additions of the products alone; of a causal mask only the visible half.
  double operations() const;
  double kv_bytes() const;      // keys and values, each byte once
  double weight_bytes() const;  // of one projection, as the layer keeps it: f32
};

}  // namespace heed::tool
