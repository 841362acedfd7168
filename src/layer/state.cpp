// SPDX-License-Identifier: Apache-2.0
#include "layer/state.hpp"

#include <algorithm>
#include <atomic>

#include "layer/weights.hpp"
#include "plan/backends.hpp"

namespace heed::layer {
namespace {

// Weights of 16 bits stay as they are; of any other element they become f32.
std::unique_ptr<const Projection> make_projection(const Backend& backend, const Array& w,
                                                  const std::optional<Array>& bias) {
  const Shape shape{1, 1, w.shape[0], w.shape[1]};
  const std::vector<float> offsets = bias ? bias->to_floats() : std::vector<float>{};
  if (w.element == Element::bf16 || w.element == Element::f16)
    return backend.project({w.data.data(), shape, w.element == Element::bf16 ? DType::bf16 : DType::f16},
                           offsets);
  const std::vector<float> values = w.to_floats();
  return backend.project({values, shape}, offsets);
}

// One matrix (in, out of all): the stacked ones, transposed.
std::unique_ptr<const Projection> make_transposed(const Backend& backend,
                                                  const std::vector<const Array*>& stacked) {
  const auto in = static_cast<std::size_t>(stacked.front()->shape[1]);
  std::size_t out = 0;
  for (const Array* w : stacked) out += static_cast<std::size_t>(w->shape[0]);
  std::vector<float> values(in * out);
  std::size_t column = 0;
  for (const Array* w : stacked) {
    const std::vector<float> rows = w->to_floats();
    for (std::size_t o = 0; o * in < rows.size(); ++o, ++column)
      for (std::size_t i = 0; i < in; ++i) values[i * out + column] = rows[o * in + i];
  }
  return backend.project({values, Shape{1, 1, static_cast<std::int64_t>(in), static_cast<std::int64_t>(out)}},
                         {});
}

Array zeros_like(const Array& x) {
  return {Element::f32, x.shape,
          std::vector<std::byte>(static_cast<std::size_t>(x.elements()) * sizeof(float))};
}

std::optional<Array> zeros_like(const std::optional<Array>& x) {
  return x ? std::optional<Array>(zeros_like(*x)) : std::nullopt;
}

}  // namespace

LayerState::LayerState(const LayerConfig& completed, const LayerWeights& w)
    : config(completed), backend(planning::backend_of("config", config.device)), weights(w) {
  pack();
}

void LayerState::pack() {
  static std::atomic<std::uint64_t> so_far{0};
  project_q = make_projection(backend, weights.w_q, weights.b_q);
  project_k = make_projection(backend, weights.w_k, weights.b_k);
  project_v = make_projection(backend, weights.w_v, weights.b_v);
  project_out = make_projection(backend, weights.w_o, weights.b_o);
  transposed.clear();
  packed = ++so_far;
}

const Projection& LayerState::back(unsigned stacked) {
  std::unique_ptr<const Projection>& made = transposed[stacked];
  if (!made) {
    std::vector<const Array*> chosen;
    for (std::size_t i = 0; i < 4; ++i)
      if (stacked >> i & 1) chosen.push_back(matrices(weights)[i]);
    made = make_transposed(backend, chosen);
  }
  return *made;
}

LayerWeights& LayerState::gradient_arrays() {
  const LayerWeights& w = weights;
  if (!gradients)
    gradients = LayerWeights{zeros_like(w.w_q), zeros_like(w.w_k), zeros_like(w.w_v), zeros_like(w.w_o),
                             zeros_like(w.b_q), zeros_like(w.b_k), zeros_like(w.b_v), zeros_like(w.b_o)};
  return *gradients;
}

DType LayerState::head_type(const AttentionLayer::Call& call, const LayerInputs& in) const {
  if (call.cache && call.cache->config().type != CacheType::bf16) return DType::f32;
  for (const View* input : {&in.x, &in.context, &in.value})
    if (input->dtype != DType::bf16) return DType::f32;
  for (const auto* projection : {&project_q, &project_k, &project_v, &project_out})
    if (!(*projection)->takes_bf16()) return DType::f32;
  return DType::bf16;
}

void LayerState::project(const LayerInputs& in, const Heads& heads) const {
  backend.project_all({{{*project_q, in.x, heads.q.view},
                        {*project_k, in.context, heads.k.view},
                        {*project_v, in.value, heads.v.view}}});
  turn({heads.q.view, in.positions}, {heads.k.view, in.key_positions}, in.lengths);
}

void LayerState::turn(const Turned& q, const Turned& k, std::span<const std::int64_t> lengths) const {
  if (!config.rotary) return;
  if (!q.positions.empty() && q.x.shape.length == k.x.shape.length &&
      std::ranges::equal(q.positions, k.positions))
    return backend.rotate({{q.x, k.x}}, q.positions, *config.rotary, lengths);
  for (const Turned* each : {&q, &k})
    if (!each->positions.empty()) backend.rotate({{each->x}}, each->positions, *config.rotary, lengths);
}

void LayerState::complete_options(const AttentionLayer::Call& call, Options& options) const {
  options.head_map = config.head_map;
  if (mode == AttentionLayer::Mode::train && config.drop_probability > 0)
    options.dropout = Dropout{config.drop_probability, call.dropout_seed};
}

}  // namespace heed::layer
