// SPDX-License-Identifier: Apache-2.0
// What a layer owns: weights, their projections, sums of gradients; and how inputs become heads.
#include "layer/state.hpp"

#include <algorithm>
#include <atomic>

#include "backend/backend.hpp"
#include "layer/config.hpp"
#include "layer/weights.hpp"
#include "refusal/refusal.hpp"

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

// A matrix that a call lends, with its bias: what they are, and how many rows and columns it must have.
struct LentMatrix {
  const char* name;
  const View& matrix;
  std::int64_t rows, columns;
  const char* bias_name;
  const Optional<View>& bias;
};

void check_lent(const LentMatrix& lent, Device device) {
  check_argument({lent.name, lent.matrix});
  check_device({lent.name, lent.matrix}, "config.device", device);
  const Shape wanted{1, 1, lent.rows, lent.columns}, found = lent.matrix.shape;
  if (found != wanted)
    throw refusal(Error::shape, lent.name, ".shape: (", found.batch, ", ", found.heads, ", ", found.length,
                  ", ", found.dim, ") is not (1, 1, ", lent.rows, ", ", lent.columns, ")");
  if (!lent.bias) return;
  check_argument({lent.bias_name, *lent.bias});
  check_device({lent.bias_name, *lent.bias}, "config.device", device);
  if (lent.bias->shape != Shape{1, 1, 1, lent.rows})
    throw refusal(Error::shape, lent.bias_name, ".shape: (", lent.bias->shape.batch, ", ",
                  lent.bias->shape.heads, ", ", lent.bias->shape.length, ", ", lent.bias->shape.dim,
                  ") is not (1, 1, 1, ", lent.rows, ")");
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

Floats zeros_like(const Backend& backend, const Array& x) {
  const Shape shape{1, 1, x.shape.size() == 2 ? x.shape[0] : 1, x.shape.back()};
  Floats zeros = make_floats(backend, "gradients of the weights", shape, bhsd(shape));
  backend.fill(zeros.view, 0);
  return zeros;
}

}  // namespace

LayerState::LayerState(const LayerConfig& completed, const LayerWeights& w)
    : config(completed), backend(backend_of("config", config.device)), weights(w) {
  pack();
}

LayerState::LayerState(const LayerConfig& completed)
    : config(completed), backend(backend_of("config", config.device)), has_weights(false) {}

void LayerState::pack() {
  static std::atomic<std::uint64_t> so_far{0};
  projections = {.q = make_projection(backend, weights.w_q, weights.b_q),
                 .k = make_projection(backend, weights.w_k, weights.b_k),
                 .v = make_projection(backend, weights.w_v, weights.b_v),
                 .out = make_projection(backend, weights.w_o, weights.b_o)};
  transposed.clear();
  packed = ++so_far;
}

void require_weights(const LayerState& state) {
  if (!state.has_weights)
    throw refusal(Error::value, "weights: none are given, and the layer has none of its own");
}

Projections LayerState::lend(const LayerViews& w) const {
  const auto make = [&](const LentMatrix& lent) {
    check_lent(lent, config.device);
    return backend.project_lent(lent.matrix, lent.bias);
  };
  return {.q = make({"weights.w_q", w.w_q, query_width(config), config.model_dim, "weights.b_q", w.b_q}),
          .k = make({"weights.w_k", w.w_k, key_width(config), *config.key_dim, "weights.b_k", w.b_k}),
          .v = make({"weights.w_v", w.w_v, value_width(config), *config.value_dim, "weights.b_v", w.b_v}),
          .out = make({"weights.w_o", w.w_o, config.model_dim, merged_width(config), "weights.b_o", w.b_o})};
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

const LayerState::WeightGradients& LayerState::gradient_sums() {
  if (gradients) return *gradients;
  WeightGradients sums;
  for (std::size_t i = 0; i < 4; ++i) {
    sums[i] = zeros_like(backend, *matrices(weights)[i]);
    if (const std::optional<Array>& bias = *biases(weights)[i]) sums[4 + i] = zeros_like(backend, *bias);
  }
  return gradients.emplace(std::move(sums));
}

DType LayerState::head_type(const Projections& by, const AttentionLayer::Call& call, const LayerInputs& in) {
  const DType type = in.x.dtype;
  const CacheType of_cache = type == DType::bf16 ? CacheType::bf16 : CacheType::f16;
  if (call.cache && call.cache->config().type != of_cache) return DType::f32;
  for (const View* input : {&in.context, &in.value})
    if (input->dtype != type) return DType::f32;
  for (const auto* projection : {&by.q, &by.k, &by.v, &by.out})
    if (!(*projection)->has_matrix_instructions_for(type)) return DType::f32;
  return type;
}

void LayerState::project(const Projections& by, const LayerInputs& in, const Heads& heads) const {
  backend.project_all(
      {{{*by.q, in.x, heads.q.view}, {*by.k, in.context, heads.k.view}, {*by.v, in.value, heads.v.view}}});
  rotate({heads.q.view, in.positions}, {heads.k.view, in.key_positions}, in.lengths);
}

void LayerState::rotate(const Rotated& q, const Rotated& k, std::span<const std::int64_t> lengths) const {
  if (!config.rotary) return;
  if (!q.positions.empty() && q.x.shape.length == k.x.shape.length &&
      std::ranges::equal(q.positions, k.positions))
    return backend.rotate({{q.x, k.x}}, q.positions, *config.rotary, lengths);
  for (const Rotated* each : {&q, &k})
    if (!each->positions.empty()) backend.rotate({{each->x}}, each->positions, *config.rotary, lengths);
}

void LayerState::complete_options(const AttentionLayer::Call& call, Options& options) const {
  options.head_map = config.head_map;
  if (mode == AttentionLayer::Mode::train && config.drop_probability > 0)
    options.dropout = Dropout{config.drop_probability, call.dropout_seed};
}

}  // namespace heed::layer
