// SPDX-License-Identifier: Apache-2.0
// LayerConfig: the names the papers use, the defaults, and what is refused.
#include "layer/config.hpp"

#include <limits>

#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace heed::layer {

namespace {

// Matrices have two extents; with each below 2^31 their number of elements fits an int64.
constexpr std::int64_t largest_extent = std::numeric_limits<std::int32_t>::max();

void check_extent(const char* name, std::int64_t extent) {
  if (extent < 1 || extent > largest_extent)
    throw refusal(Error::value, "config.", name, ": ", extent, " is not in [1, ", largest_extent, "]");
}

void check_width(const char* head_dim_name, std::int64_t heads, std::int64_t head_dim) {
  if (heads * head_dim > largest_extent)
    throw refusal(Error::value, "config.heads * config.", head_dim_name, ": ", heads * head_dim,
                  " is beyond ", largest_extent);
}

}  // namespace

LayerConfig complete(const LayerConfig& config) {
  LayerConfig c = config;
  check_extent("model_dim", c.model_dim);
  check_extent("heads", c.heads);
  if (!c.head_dim) {
    if (c.model_dim % c.heads != 0)
      throw refusal(Error::shape, "config.heads: ", c.heads,
                    " does not divide config.model_dim: ", c.model_dim, ", and no head_dim is given");
    c.head_dim = c.model_dim / c.heads;
  }
  if (!c.kv_heads) c.kv_heads = c.heads;
  if (!c.value_head_dim) c.value_head_dim = c.head_dim;
  if (!c.key_dim) c.key_dim = c.model_dim;
  if (!c.value_dim) c.value_dim = c.key_dim;
  check_extent("kv_heads", *c.kv_heads);
  check_extent("head_dim", *c.head_dim);
  check_extent("value_head_dim", *c.value_head_dim);
  check_extent("key_dim", *c.key_dim);
  check_extent("value_dim", *c.value_dim);
  if (c.heads % *c.kv_heads != 0)
    throw refusal(Error::shape, "config.kv_heads: ", *c.kv_heads, " does not divide config.heads: ", c.heads);
  check_width("head_dim", c.heads, *c.head_dim);
  check_width("value_head_dim", c.heads, *c.value_head_dim);
  if (!(c.drop_probability >= 0 && c.drop_probability < 1))
    throw refusal(Error::value, "config.drop_probability: ", c.drop_probability, " is not in [0, 1)");
  if (c.rotary) {
    rotary::check_rotary(*c.rotary, *c.head_dim, "config.rotary");
    if (!c.rotary->dims) c.rotary->dims = c.head_dim;
  }
  return c;
}

}  // namespace heed::layer

namespace HEED_NAMESPACE {

LayerConfig multi_head(std::int64_t model_dim, std::int64_t heads) {
  return {.model_dim = model_dim, .heads = heads, .kv_heads = heads};
}

LayerConfig multi_query(std::int64_t model_dim, std::int64_t heads) {
  return {.model_dim = model_dim, .heads = heads, .kv_heads = 1};
}

LayerConfig grouped_query(std::int64_t model_dim, std::int64_t heads, std::int64_t kv_heads) {
  return {.model_dim = model_dim, .heads = heads, .kv_heads = kv_heads};
}

}  // namespace HEED_NAMESPACE
