// SPDX-License-Identifier: Apache-2.0
// AttentionLayer: project to heads, turn, attend, merge the heads (S16).
#include "heed/layer.hpp"

#include <limits>

#include "layer/appended_tokens.hpp"
#include "layer/call.hpp"
#include "layer/config.hpp"
#include "layer/state.hpp"
#include "lowering/make_problem.hpp"
#include "plan/plan.hpp"
#include "threads/pool.hpp"

namespace heed::inline v0_2 {
using namespace layer;

namespace {

// An array of scores the caller asked for: written by attention() where it can be, else by way of a buffer.
// The buffer spans the whole batch, because dropout counts batch entries (S7).
class ScoreOutput {
 public:
  ScoreOutput(const Backend& backend, const char* name, const std::optional<MutableView>& wanted,
              std::int64_t heads)
      : backend_(backend), wanted_(wanted) {
    if (!wanted || (wanted->dtype == DType::f32 && wanted->shape.heads == heads)) return;
    Shape per_head = wanted->shape;
    per_head.heads = heads;
    buffer_ = make_floats(backend, name, per_head, bhsd(per_head));
    is_buffered_ = true;
  }
  std::optional<MutableView> target() const { return is_buffered_ ? buffer_.view : wanted_; }
  void deliver() const {
    if (!is_buffered_) return;
    if (wanted_->shape.heads == buffer_.view.shape.heads)
      backend_.copy(buffer_.view, *wanted_);
    else
      backend_.average_heads(buffer_.view, *wanted_);
  }

 private:
  const Backend& backend_;
  std::optional<MutableView> wanted_;
  Floats buffer_{};
  bool is_buffered_ = false;
};

// The rows that attention() left alone.
void fill_padding(const Backend& backend, std::span<const std::int64_t> counts, const Outputs& results) {
  constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
  fill_rows_after(backend, counts, 0, results.out);
  if (results.weights) fill_rows_after(backend, counts, 0, *results.weights);
  if (results.log_sum_exp) fill_rows_after(backend, counts, minus_infinity, *results.log_sum_exp);
  if (const Scores& scores = results.scores; scores.into)
    fill_rows_after(backend, counts, scores.stage == Stage::biased ? minus_infinity : 0, *scores.into);
}

}  // namespace

AttentionLayer::AttentionLayer(const LayerConfig& config, const LayerWeights& weights)
    : state_(std::make_unique<State>(complete(config), weights)) {}
AttentionLayer::~AttentionLayer() = default;
AttentionLayer::AttentionLayer(AttentionLayer&&) noexcept = default;
AttentionLayer& AttentionLayer::operator=(AttentionLayer&&) noexcept = default;

AttentionLayer::Activations::Activations() = default;
AttentionLayer::Activations::~Activations() = default;
AttentionLayer::Activations::Activations(Activations&&) noexcept = default;
AttentionLayer::Activations& AttentionLayer::Activations::operator=(Activations&&) noexcept = default;

void AttentionLayer::operator()(const Call& call, const Outputs& outputs, const Options& given) const {
  const LayerConfig& c = state_->config;
  const Backend& backend = state_->backend;
  const LayerInputs in = check_call(c, call, outputs, given);

  FloatOptions floats(backend, given);
  Options& options = floats.options;
  state_->complete_options(call, options);
  Heads heads = make_heads(c, backend, in, state_->head_type(call, in));
  if (call.activations) heads.log_sum_exp = make_log_sum_exp(c, backend, in);
  const ScoreOutput weights(backend, "weights", outputs.weights, c.heads);
  const ScoreOutput scores(backend, "scores.into", outputs.scores.into, c.heads);
  const Outputs results{.out = heads.attended.view,
                        .weights = weights.target(),
                        .log_sum_exp = call.activations ? heads.log_sum_exp.view : outputs.log_sum_exp,
                        .scores = {scores.target(), outputs.scores.stage}};

  // Refusals come before the projections are paid for, and before the cache changes. The problem lets go of
  // the cache before its tokens could be taken back.
  std::optional<AppendedTokens> appended;
  Problem problem = call.cache ? make_problem({.q = heads.q.view,
                                               .cache = call.cache,
                                               .sequences = in.cached.numbers,
                                               .query_counts = in.cached.counts},
                                              results, options, in.cached.lengths_after)
                               : make_problem({heads.q.view, heads.k.view, heads.v.view}, results, options);
  const threads::ForOneCall said(options.threads, options.executor);
  const Kernel& kernel = planning::choose(problem);

  state_->project(in, heads);
  if (call.cache) {
    appended.emplace(*call.cache, in.cached, heads.k.view, heads.v.view);
    problem.reading.emplace(*call.cache);
  }
  planning::run(kernel, problem);
  fill_padding(backend, in.cached.counts, results);
  weights.deliver();
  scores.deliver();
  (*state_->project_out)(heads.attended.view, outputs.out);
  fill_rows_after(backend, in.cached.counts, 0, outputs.out);
  if (appended) appended->keep();
  if (call.activations) {
    if (outputs.log_sum_exp) backend.copy(heads.log_sum_exp.view, *outputs.log_sum_exp);
    *call.activations = Activations();
    call.activations->state_.reset(new Activations::State{std::move(heads)});
  }
}

void AttentionLayer::set_mode(Mode mode) { state_->mode = mode; }
AttentionLayer::Mode AttentionLayer::mode() const { return state_->mode; }
const LayerConfig& AttentionLayer::config() const { return state_->config; }
LayerWeights AttentionLayer::weights() const { return state_->weights; }

}  // namespace heed::inline v0_2
