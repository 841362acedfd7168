// SPDX-License-Identifier: Apache-2.0
// The arrays that a call of the layer makes on the way: heads, log-sum-exps, options in f32.
#include "layer/call.hpp"

namespace heed::layer {
namespace {

Floats heads_of(const Backend& backend, const char* name, const View& sequence, std::int64_t heads,
                std::int64_t dim, DType dtype) {
  const Shape shape{sequence.shape.batch, heads, sequence.shape.length, dim};
  return make_floats(backend, name, shape, bshd(shape), dtype);
}

Floats widen(const Backend& backend, const char* name, std::optional<View>& view) {
  if (!view) return {};
  check_argument({name, *view});
  check_device({name, *view}, "config.device", backend.device);
  if (view->dtype == DType::f32) return {};
  Floats copy = copy_as_floats(backend, name, *view);
  view = copy.view;
  return copy;
}

}  // namespace

Heads make_heads(const LayerConfig& c, const Backend& backend, const LayerInputs& in, DType dtype) {
  return {.q = heads_of(backend, "q", in.x, c.heads, *c.head_dim, dtype),
          .k = heads_of(backend, "k", in.context, *c.kv_heads, *c.head_dim, dtype),
          .v = heads_of(backend, "v", in.value, *c.kv_heads, *c.value_head_dim, dtype),
          .attended = heads_of(backend, "attended", in.x, c.heads, *c.value_head_dim, dtype)};
}

Floats make_log_sum_exp(const LayerConfig& c, const Backend& backend, const LayerInputs& in) {
  return heads_of(backend, "log_sum_exp", in.x, c.heads, 1, DType::f32);
}

FloatOptions::FloatOptions(const Backend& backend, const Options& given) : options(given) {
  bias_ = widen(backend, "options.bias", options.bias);
  sink_ = widen(backend, "options.sink", options.sink);
}

}  // namespace heed::layer
