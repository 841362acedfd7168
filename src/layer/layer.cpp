// SPDX-License-Identifier: Apache-2.0
// AttentionLayer: project to heads, rotate, attend, merge the heads (S16).
#include "heed/layer.hpp"

#include "backend/backend.hpp"
#include "layer/attending.hpp"
#include "layer/config.hpp"
#include "layer/state.hpp"
#include "refusal/refusal.hpp"

namespace HEED_NAMESPACE {
using namespace layer;

AttentionLayer::AttentionLayer(const LayerConfig& config, const LayerWeights& weights)
    : state_(std::make_unique<State>(complete(config), weights)) {}
AttentionLayer::AttentionLayer(const LayerConfig& config)
    : state_(std::make_unique<State>(complete(config))) {}
AttentionLayer::~AttentionLayer() = default;
AttentionLayer::AttentionLayer(AttentionLayer&&) noexcept = default;
AttentionLayer& AttentionLayer::operator=(AttentionLayer&&) noexcept = default;

AttentionLayer::Activations::Activations() = default;
AttentionLayer::Activations::~Activations() = default;
AttentionLayer::Activations::Activations(Activations&&) noexcept = default;
AttentionLayer::Activations& AttentionLayer::Activations::operator=(Activations&&) noexcept = default;

void AttentionLayer::operator()(const Call& call, const Outputs& outputs, const Options& given) const {
  const Backend& backend = state_->backend;
  if (call.weights && call.activations)
    throw refusal(Error::unsupported, "activations: are for backward(), which reads the layer's own weights");
  Attending attending(*state_, call, outputs, given);
  attending.run();
  Heads& heads = attending.heads;
  (*attending.projections().out)(heads.attended.view, outputs.out);
  fill_rows_after(backend, attending.in.cached.counts, 0, outputs.out);
  attending.keep();
  if (call.activations) {
    if (outputs.log_sum_exp) backend.copy(heads.log_sum_exp.view, *outputs.log_sum_exp);
    *call.activations = Activations();
    call.activations->state_.reset(
        new Activations::State{std::move(heads), attending.recorded(), state_->packed});
  }
}

void AttentionLayer::set_mode(Mode mode) { state_->mode = mode; }
AttentionLayer::Mode AttentionLayer::mode() const { return state_->mode; }
const LayerConfig& AttentionLayer::config() const { return state_->config; }
LayerWeights AttentionLayer::weights() const { return state_->weights; }

}  // namespace HEED_NAMESPACE
