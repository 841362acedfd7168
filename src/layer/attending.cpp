// SPDX-License-Identifier: Apache-2.0
#include "layer/attending.hpp"

#include <limits>

#include "api/plan.hpp"
#include "call/make_problem.hpp"

namespace heed::layer {
namespace {

// The rows that attention() left alone.
void fill_padding(const Backend& backend, std::span<const std::int64_t> counts, const Outputs& results) {
  constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
  fill_rows_after(backend, counts, 0, results.out);
  if (results.weights) fill_rows_after(backend, counts, 0, *results.weights);
  if (results.log_sum_exp) fill_rows_after(backend, counts, minus_infinity, *results.log_sum_exp);
  if (const Scores& scores = results.scores; scores.into)
    fill_rows_after(backend, counts, scores.stage == Stage::biased ? minus_infinity : 0, *scores.into);
}

Options completed(const LayerState& state, const AttentionLayer::Call& call, Options options) {
  state.complete_options(call, options);
  return options;
}

std::optional<Projections> lent(const LayerState& state, const AttentionLayer::Call& call) {
  if (call.weights) return state.lend(*call.weights);
  require_weights(state);
  return std::nullopt;
}

Heads make_heads(const LayerState& state, const Projections& by, const AttentionLayer::Call& call,
                 const LayerInputs& in) {
  Heads heads = make_heads(state.config, state.backend, in, LayerState::head_type(by, call, in));
  if (call.activations) heads.log_sum_exp = make_log_sum_exp(state.config, state.backend, in);
  return heads;
}

Problem make_problem(const AttentionLayer::Call& call, const LayerInputs& in, const Heads& heads,
                     const Outputs& results, const Options& options) {
  if (!call.cache) return call::make_problem({heads.q.view, heads.k.view, heads.v.view}, results, options);
  return call::make_problem({.q = heads.q.view,
                             .cache = call.cache,
                             .sequences = in.cached.numbers,
                             .query_counts = in.cached.counts},
                            results, options, in.cached.lengths_after);
}

}  // namespace

Attending::Attending(const LayerState& state, const AttentionLayer::Call& call, const Outputs& outputs,
                     const Options& given)
    : in(check_call(state.config, call, outputs, given)),
      device_(state.backend.stay_with("x", call.x)),
      state_(state),
      call_(call),
      lent_(lent(state, call)),
      floats_(state.backend, completed(state, call, given)),
      heads(make_heads(state, projections(), call, in)),
      weights_(state.backend, "weights", outputs.weights, state.config.heads),
      scores_(state.backend, "scores.into", outputs.scores.into, state.config.heads),
      results_{.out = heads.attended.view,
               .weights = weights_.target(),
               .log_sum_exp = call.activations ? heads.log_sum_exp.view : outputs.log_sum_exp,
               .scores = {scores_.target(), outputs.scores.stage}},
      problem_(make_problem(call, in, heads, results_, floats_.options)),
      said_(floats_.options.threads, floats_.options.executor),
      kernel_(api::choose(Work::attention, problem_)) {}

void Attending::run() {
  state_.project(projections(), in, heads);
  if (call_.cache) {
    appended_.emplace(*call_.cache, in.cached, heads.k.view, heads.v.view);
    call::hold_cache(problem_);
  }
  api::run(kernel_, problem_);
  fill_padding(state_.backend, in.cached.counts, results_);
  weights_.deliver();
  scores_.deliver();
}

}  // namespace heed::layer
