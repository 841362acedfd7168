// SPDX-License-Identifier: Apache-2.0
#include "c/layer_config.hpp"

#include <cstring>

#include "c/call.hpp"
#include "c/rotary.hpp"
#include "c/sized.hpp"
#include "c/views.hpp"
#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"

namespace heed::c {
namespace {

std::optional<std::int64_t> unless_zero(std::int64_t extent) {
  return extent == 0 ? std::optional<std::int64_t>() : std::optional<std::int64_t>(extent);
}

Element element_of(DType dtype) {
  return dtype == DType::f32 ? Element::f32 : dtype == DType::f16 ? Element::f16 : Element::bf16;
}

// A layer owns its weights, packed row after row.
std::vector<std::byte> packed(const View& matrix) {
  const std::size_t bytes = bytes_of(matrix.dtype);
  std::vector<std::byte> data(static_cast<std::size_t>(matrix.shape.elements()) * bytes);
  std::byte* next = data.data();
  for (std::int64_t row = 0; row < matrix.shape.length; ++row)
    for (std::int64_t column = 0; column < matrix.shape.dim; ++column, next += bytes) {
      const std::int64_t at = row * matrix.stride.length + column * matrix.stride.dim;
      std::memcpy(next, static_cast<const std::byte*>(matrix.data) + at * static_cast<std::int64_t>(bytes),
                  bytes);
    }
  return data;
}

Array to_matrix(const char* name, const heed_view& given) {
  const View view = to_view(name, given);
  check_argument({name, view});
  if (view.device != Device::cpu)
    throw refusal(Error::device, name, ".device: ", view.device,
                  ", but weights are copied from the CPU's memory");
  if (view.shape.batch != 1 || view.shape.heads != 1)
    throw refusal(Error::shape, name, ".shape: ", view.shape, " is not (1, 1, rows, columns)");
  return {element_of(view.dtype), {view.shape.length, view.shape.dim}, packed(view)};
}

std::optional<Array> to_bias(const char* name, const heed_view& given) {
  if (!is_given(given)) return std::nullopt;
  Array row = to_matrix(name, given);
  if (row.shape[0] != 1)
    throw refusal(Error::shape, name, ".length: ", row.shape[0], " is not 1; a bias is (1, 1, 1, entries)");
  row.shape = {row.shape[1]};
  return row;
}

}  // namespace

LayerConfig to_config(const heed_layer_config* given) {
  const heed_layer_config c = read_known("config", given);
  LayerConfig config{.model_dim = c.model_dim, .heads = c.heads};
  config.kv_heads = unless_zero(c.kv_heads);
  config.head_dim = unless_zero(c.head_dim);
  config.value_head_dim = unless_zero(c.value_head_dim);
  config.key_dim = unless_zero(c.key_dim);
  config.value_dim = unless_zero(c.value_dim);
  config.drop_probability = c.drop_probability;
  config.head_map = to_head_map("config", c.head_map);
  config.rotary = to_rotary("config.rotary", c.rotary);
  return config;
}

heed_layer_config from_config(const LayerConfig& c) {
  return {.size = sizeof(heed_layer_config),
          .model_dim = c.model_dim,
          .heads = c.heads,
          .kv_heads = *c.kv_heads,
          .head_dim = *c.head_dim,
          .value_head_dim = *c.value_head_dim,
          .key_dim = *c.key_dim,
          .value_dim = *c.value_dim,
          .drop_probability = c.drop_probability,
          .head_map = from_head_map(c.head_map),
          .rotary = nullptr};
}

LayerWeights to_weights(const heed_layer_weights* given) {
  const heed_layer_weights w = read_known("weights", given);
  LayerWeights weights;
  weights.w_q = to_matrix("w_q", w.w_q);
  weights.w_k = to_matrix("w_k", w.w_k);
  weights.w_v = to_matrix("w_v", w.w_v);
  weights.w_o = to_matrix("w_o", w.w_o);
  weights.b_q = to_bias("b_q", w.b_q);
  weights.b_k = to_bias("b_k", w.b_k);
  weights.b_v = to_bias("b_v", w.b_v);
  weights.b_o = to_bias("b_o", w.b_o);
  return weights;
}

}  // namespace heed::c
