// SPDX-License-Identifier: Apache-2.0
// What an AttentionLayer owns: its weights, what backward() has added up by them, and the projections packed
// of them.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "heed/layer.hpp"
#include "layer/call.hpp"
#include "layer/recorded_call.hpp"
#include "layer/weights.hpp"

namespace heed::layer {

// Which of Q, K, V and the output a stack of matrices has, by bit.
enum Stacked : unsigned { of_q = 1, of_k = 2, of_v = 4, of_out = 8 };

// Q or K, or the gradient by it, and where its tokens are; without positions it stays as it is.
struct Rotated {
  MutableView x;
  std::span<const std::int64_t> positions;
};

struct Projections {
  std::unique_ptr<const Projection> q{}, k{}, v{}, out{};
};

struct LayerState {
  // Of weights that are checked.
  LayerState(const LayerConfig& completed, const LayerWeights&);
  // With none: every call lends its own.
  explicit LayerState(const LayerConfig& completed);

  // Makes what is packed anew from `weights`.
  void pack();
  // dY * W for the gradients by what these projections write, side by side in one row; packed at the first
  // request.
  const Projection& back(unsigned stacked);
  // Where the layer computes: by w_q, w_k, w_v, w_o, then by their biases, without memory where there is
  // none. f32; zeros at the first request.
  using WeightGradients = std::array<Floats, 8>;
  const WeightGradients& gradient_sums();

  // Of a call's own weights, or throws Error.
  Projections lend(const LayerViews&) const;
  // The type of 16 bits that the inputs, all weights and a cache have, if matrix instructions multiply it;
  // else f32.
  static DType head_type(const Projections&, const AttentionLayer::Call&, const LayerInputs&);
  // Q, K and V of a call, rotated.
  void project(const Projections&, const LayerInputs&, const Heads&) const;
  // By the rotary embedding, where there is one.
  void rotate(const Rotated& q, const Rotated& k, std::span<const std::int64_t> lengths) const;
  // The call's options for attention(): the layer's own head map and dropout among them.
  void complete_options(const AttentionLayer::Call&, Options&) const;

  LayerConfig config;
  const Backend& backend;
  bool has_weights = true;
  LayerWeights weights{};
  std::uint64_t packed = 0;  // the number of what is packed: another one for every layer and update()
  std::optional<WeightGradients> gradients{};
  std::array<std::vector<float>, 8>
      fetched_gradients{};  // in the CPU's memory, where they are not made there
  Projections projections{};
  std::map<unsigned, std::unique_ptr<const Projection>> transposed{};
  AttentionLayer::Mode mode = AttentionLayer::Mode::eval;
};

// Throws Error where it has none of its own.
void require_weights(const LayerState&);

}  // namespace heed::layer

namespace HEED_NAMESPACE {

struct AttentionLayer::State : layer::LayerState {
  State(const LayerConfig& completed, const LayerWeights& w)
      : LayerState(completed, layer::checked(w, completed)) {}
  explicit State(const LayerConfig& completed) : LayerState(completed) {}
};

struct AttentionLayer::Activations::State {
  layer::Heads heads;
  layer::RecordedCall recorded;
  std::uint64_t packed;  // LayerState::packed
};

}  // namespace HEED_NAMESPACE
