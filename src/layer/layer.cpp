// SPDX-License-Identifier: Apache-2.0
// AttentionLayer: project to heads, turn, attend, merge the heads (S16).
#include "heed/layer.hpp"

#include <limits>

#include "layer/appended_tokens.hpp"
#include "layer/call.hpp"
#include "layer/config.hpp"
#include "layer/floats.hpp"
#include "layer/weights.hpp"
#include "lowering/make_problem.hpp"
#include "plan/backends.hpp"
#include "plan/plan.hpp"
#include "refusal/argument.hpp"
#include "threads/pool.hpp"

namespace heed::inline v0_2 {
using namespace layer;

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

const LayerWeights& checked(const LayerWeights& w, const LayerConfig& completed) {
  check_weights(w, completed);
  return w;
}

// attention() works on f32 heads here, so a bias or sink of another dtype is read through an f32 copy.
class FloatOptions {
 public:
  FloatOptions(const Backend& backend, const Options& given) : options(given) {
    bias_ = widen(backend, "options.bias", options.bias);
    sink_ = widen(backend, "options.sink", options.sink);
  }
  Options options;

 private:
  static Floats widen(const Backend& backend, const char* name, std::optional<View>& view) {
    if (!view) return {};
    check_argument({name, *view});
    check_device({name, *view}, "config.device", backend.device());
    if (view->dtype == DType::f32) return {};
    Floats copy = copy_as_floats(backend, name, *view);
    view = copy.view;
    return copy;
  }
  Floats bias_, sink_;
};

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

// (batch, heads, length, dim) as a projection writes it: heads side by side in each token's row.
Floats make_heads(const Backend& backend, const char* name, const View& sequence, std::int64_t heads,
                  std::int64_t dim) {
  const Shape shape{sequence.shape.batch, heads, sequence.shape.length, dim};
  return make_floats(backend, name, shape, bshd(shape));
}

}  // namespace

struct AttentionLayer::State {
  State(const LayerConfig& completed, const LayerWeights& w)
      : config(completed),
        backend(planning::backend_of("config", config.device)),
        weights(checked(w, config)),
        project_q(make_projection(backend, w.w_q, w.b_q)),
        project_k(make_projection(backend, w.w_k, w.b_k)),
        project_v(make_projection(backend, w.w_v, w.b_v)),
        project_out(make_projection(backend, w.w_o, w.b_o)) {}

  LayerConfig config;
  const Backend& backend;
  LayerWeights weights;
  std::unique_ptr<const Projection> project_q, project_k, project_v, project_out;
  Mode mode = Mode::eval;
};

AttentionLayer::AttentionLayer(const LayerConfig& config, const LayerWeights& weights)
    : state_(std::make_unique<State>(complete(config), weights)) {}
AttentionLayer::~AttentionLayer() = default;
AttentionLayer::AttentionLayer(AttentionLayer&&) noexcept = default;
AttentionLayer& AttentionLayer::operator=(AttentionLayer&&) noexcept = default;

void AttentionLayer::operator()(const Call& call, const Outputs& outputs, const Options& given) const {
  const LayerConfig& c = state_->config;
  const Backend& backend = state_->backend;
  const LayerInputs in = check_call(c, call, outputs, given);

  FloatOptions floats(backend, given);
  Options& options = floats.options;
  options.head_map = c.head_map;
  if (state_->mode == Mode::train && c.drop_probability > 0)
    options.dropout = Dropout{c.drop_probability, call.dropout_seed};

  const Floats q = make_heads(backend, "q", in.x, c.heads, *c.head_dim);
  const Floats k = make_heads(backend, "k", in.context, *c.kv_heads, *c.head_dim);
  const Floats v = make_heads(backend, "v", in.value, *c.kv_heads, *c.value_head_dim);
  const Floats attended = make_heads(backend, "attended", in.x, c.heads, *c.value_head_dim);
  const ScoreOutput weights(backend, "weights", outputs.weights, c.heads);
  const ScoreOutput scores(backend, "scores.into", outputs.scores.into, c.heads);
  const Outputs results{.out = attended.view,
                        .weights = weights.target(),
                        .log_sum_exp = outputs.log_sum_exp,
                        .scores = {scores.target(), outputs.scores.stage}};

  // Refusals come before the projections are paid for, and before the cache changes. The problem lets go of
  // the cache before its tokens could be taken back.
  std::optional<AppendedTokens> appended;
  Problem problem = call.cache ? make_problem({.q = q.view,
                                               .cache = call.cache,
                                               .sequences = in.cached.numbers,
                                               .query_counts = in.cached.counts},
                                              results, options, in.cached.lengths_after)
                               : make_problem({q.view, k.view, v.view}, results, options);
  const threads::ForOneCall said(options.threads, options.executor);
  const Kernel& kernel = planning::choose(problem);

  (*state_->project_q)(in.x, q.view);
  (*state_->project_k)(in.context, k.view);
  (*state_->project_v)(in.value, v.view);
  if (c.rotary && !in.positions.empty()) backend.rotate(q.view, in.positions, *c.rotary, in.lengths);
  if (c.rotary && !in.key_positions.empty()) backend.rotate(k.view, in.key_positions, *c.rotary, in.lengths);
  if (call.cache) {
    appended.emplace(*call.cache, in.cached, k.view, v.view);
    problem.reading.emplace(*call.cache);
  }
  planning::run(kernel, problem);
  fill_padding(backend, in.cached.counts, results);
  weights.deliver();
  scores.deliver();
  (*state_->project_out)(attended.view, outputs.out);
  fill_rows_after(backend, in.cached.counts, 0, outputs.out);
  if (appended) appended->keep();
}

void AttentionLayer::set_mode(Mode mode) { state_->mode = mode; }
AttentionLayer::Mode AttentionLayer::mode() const { return state_->mode; }
const LayerConfig& AttentionLayer::config() const { return state_->config; }
LayerWeights AttentionLayer::weights() const { return state_->weights; }

}  // namespace heed::inline v0_2
