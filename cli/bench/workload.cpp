// SPDX-License-Identifier: Apache-2.0
// See workload.hpp.
#include "bench/workload.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "heed/check.hpp"
#include "heed/gradient.hpp"
#include "kernel_choice.hpp"
#include "random_values.hpp"
#include "stopwatch.hpp"

namespace heed::tool {
namespace {

// True but for one in eight, in no order that a kernel could make use of.
std::unique_ptr<bool[]> scattered(const Shape& shape) {
  const std::vector<float> random =
      random_buffer(shape, DType::f32, {.stream = Stream::mask}).to_floats();  // in [-1, 1)
  auto made = std::make_unique<bool[]>(random.size());
  for (std::size_t n = 0; n < random.size(); ++n) made[n] = random[n] >= -0.75f;
  return made;
}

class AttentionWorkload : public Workload {
 public:
  explicit AttentionWorkload(const Case& c)
      : q_(random_buffer({c.batch, c.heads, c.queries, c.dim}, c.dtype, {.stream = Stream::q})),
        k_(random_buffer({c.batch, c.kv_heads, c.keys, c.dim}, c.dtype, {.stream = Stream::k})),
        v_(random_buffer(k_.shape(), c.dtype, {.stream = Stream::v})),
        out_(q_.shape(), c.dtype) {
    const Shape pairs{1, 1, c.queries, c.keys};
    if (c.between == Between::causal) options_.masks = {Causal{}};
    if (c.between == Between::bias)
      options_.bias = bias_.emplace(random_buffer(pairs, c.dtype, {.stream = Stream::bias})).view();
    if (c.between == Between::keep) {
      keep_ = scattered(pairs);
      options_.masks = {Keep{{keep_.get(), pairs}}};
    }
  }

  void run() override { attention(inputs(), {.out = out_.writable()}, options_); }
  std::string kernel() override { return taken_kernel(plan(inputs(), {.out = out_.writable()}, options_)); }
  Buffer& result() override { return out_; }
  Findings verify() const override { return verify_attention(inputs(), out_.view(), options_); }

 private:
  Inputs inputs() const { return {.q = q_.view(), .k = k_.view(), .v = v_.view()}; }

  Buffer q_, k_, v_, out_;
  std::optional<Buffer> bias_{};
  std::unique_ptr<bool[]> keep_{};
  Options options_{};
};

LayerWeights rounded_to(LayerWeights weights, DType dtype) {
  const Element element = dtype == DType::bf16  ? Element::bf16
                          : dtype == DType::f16 ? Element::f16
                                                : Element::f32;
  for (Array* matrix : {&weights.w_q, &weights.w_k, &weights.w_v, &weights.w_o})
    *matrix = Array::from_floats(matrix->shape, matrix->to_floats(), element);
  return weights;
}

class LayerWorkload : public Workload {
 public:
  explicit LayerWorkload(const Case& c)
      : case_(c),
        weights_(rounded_to(random_weights(c.layer_config(), 0), c.dtype)),
        layer_(c.layer_config(), weights_),
        x_(random_buffer({c.batch, 1, c.queries, c.model_dim()}, c.dtype, {.stream = Stream::x})),
        y_(x_.shape(), c.dtype) {}

  void run() override { layer_({.x = x_.view()}, {.out = y_.writable()}); }
  std::string kernel() override {
    const Extents extents{case_.batch, case_.queries,  case_.keys, case_.model_dim(),
                          case_.heads, case_.kv_heads, case_.dim};
    return chosen_kernel({.dtype = case_.dtype}, extents, {});
  }
  Buffer& result() override { return y_; }
  Findings verify() const override {
    return verify_layer({.config = layer_.config(), .weights = weights_, .x = x_, .y = y_});
  }

 private:
  Case case_;
  LayerWeights weights_;
  AttentionLayer layer_;
  Buffer x_, y_;
};

// The public API has projections only inside a layer. With few keys per query a run is four projections and a
// little attention between them.
class ProjectionWorkload : public LayerWorkload {
 public:
  explicit ProjectionWorkload(const Case& c) : LayerWorkload(c), between_(c) {}
  std::int64_t repeats() const override { return projections_per_run; }
  double seconds_besides() override {
    return seconds_of([&] { between_.run(); });
  }
  std::string kernel() override { return ""; }

 private:
  AttentionWorkload between_;
};

constexpr std::int64_t tokens_at_once = 1024;  // of a filling: the cache is large enough by itself

class CacheWorkload : public Workload {
 public:
  explicit CacheWorkload(const Case& c)
      : cache_(c.cache_config()),
        q_(random_buffer({c.batch, c.heads, c.queries, c.dim}, c.dtype, {.stream = Stream::q})),
        out_(q_.shape(), c.dtype) {
    for (std::int64_t b = 0; b < c.batch; ++b) fill_sequence(cache_, b, c.length_of(b));
  }

  void run() override { attention(inputs(), {.out = out_.writable()}); }
  std::string kernel() override { return taken_kernel(plan(inputs(), {.out = out_.writable()})); }
  Buffer& result() override { return out_; }
  Findings verify() const override { return verify_cached(cache_, q_.view(), out_.view()); }

 private:
  Inputs inputs() const { return {.q = q_.view(), .cache = &cache_}; }

  KvCache cache_;
  Buffer q_, out_;
};

// Every run appends the same token, so that the next one must take it back first; that costs nothing.
class StepWorkload : public Workload {
 public:
  explicit StepWorkload(const Case& c)
      : case_(c),
        weights_(random_weights(c.layer_config(), 0)),
        layer_(c.layer_config(), weights_),
        cache_(c.cache_config()),
        x_(random_buffer({1, 1, 1, c.model_dim()}, c.dtype, {.stream = Stream::x})),
        y_(x_.shape(), c.dtype) {
    fill_sequence(cache_, 0, c.keys - 1);
  }

  void run() override {
    cache_.truncate(0, case_.keys - 1);
    layer_({.x = x_.view(), .cache = &cache_}, {.out = y_.writable()}, {.masks = {Causal{}}});
  }
  std::string kernel() override {
    Buffer q({1, case_.heads, 1, case_.dim}), out(q.shape());
    return taken_kernel(plan({.q = q.view(), .cache = &cache_}, {.out = out.writable()}));
  }
  Buffer& result() override { return y_; }
  Findings verify() const override { return verify_step({layer_.config(), weights_, cache_, x_, y_}); }

 private:
  Case case_;
  LayerWeights weights_;
  AttentionLayer layer_;
  KvCache cache_;
  Buffer x_, y_;
};

class BackwardWorkload : public Workload {
 public:
  explicit BackwardWorkload(const Case& c)
      : case_(c),
        q_(random_buffer({c.batch, c.heads, c.queries, c.dim}, c.dtype, {.stream = Stream::q})),
        k_(random_buffer({c.batch, c.kv_heads, c.keys, c.dim}, c.dtype, {.stream = Stream::k})),
        v_(random_buffer(k_.shape(), c.dtype, {.stream = Stream::v})),
        out_gradient_(random_buffer(q_.shape(), c.dtype, {.stream = Stream::x})),
        out_(q_.shape(), c.dtype),
        log_sum_exp_({c.batch, c.heads, c.queries, 1}),
        gradients_({.dim = q_.shape().elements() + 2 * k_.shape().elements()}, c.dtype) {
    if (c.between == Between::causal) options_.masks = {Causal{}};
    attention(inputs(), {.out = out_.writable(), .log_sum_exp = log_sum_exp_.writable()}, options_);
  }

  void run() override { attention_backward(inputs(), saved(), gradients(), options_); }
  std::string kernel() override { return taken_kernel(plan(inputs(), saved(), gradients(), options_)); }
  Buffer& result() override { return gradients_; }

  // Rows spread over dq, dk and dv, each by heed::check() on the smallest call that has it.
  Findings verify() const override {
    Findings all;
    for (const std::int64_t head : spread_over(case_.heads))
      for (const std::int64_t query : spread_over(case_.queries)) all.add(verify_query(head, query));
    for (const std::int64_t head : spread_over(case_.kv_heads))
      for (const std::int64_t key : spread_over(case_.keys)) all.add(verify_key(head, key));
    return all;
  }

 private:
  Inputs inputs() const { return {.q = q_.view(), .k = k_.view(), .v = v_.view()}; }
  Saved saved() const { return {out_.view(), log_sum_exp_.view()}; }
  Gradients gradients() const {
    // Side by side in one buffer, as one result.
    const MutableView all = const_cast<Buffer&>(gradients_).writable();
    const auto piece = [&](std::int64_t first, const Shape& shape) {
      MutableView view = part_of(all, {0, 0, 0, first}, shape);
      view.stride = bhsd(shape);
      return view;
    };
    const std::int64_t of_q = q_.shape().elements(), of_k = k_.shape().elements();
    return {.out = out_gradient_.view(),
            .q = piece(0, q_.shape()),
            .k = piece(of_q, k_.shape()),
            .v = piece(of_q + of_k, k_.shape())};
  }
  std::int64_t last_batch() const { return case_.batch - 1; }
  bool is_causal() const { return case_.between == Between::causal; }

  // dq of one query needs its own row and the keys it sees.
  Findings verify_query(std::int64_t head, std::int64_t query) const {
    const std::int64_t kv_head = head / (case_.heads / case_.kv_heads),
                       keys = is_causal() ? query + 1 : case_.keys;
    const auto row = [&](const auto& view) {
      return part_of(view, {last_batch(), head, query, 0}, {1, 1, 1, view.shape.dim});
    };
    const auto seen = [&](const View& view) {
      return part_of(view, {last_batch(), kv_head, 0, 0}, {1, 1, keys, view.shape.dim});
    };
    const Gradients found = gradients();
    return findings_of(
        check({.q = row(q_.view()), .k = seen(k_.view()), .v = seen(v_.view())},
              {row(out_.view()), row(log_sum_exp_.view())}, {.out = row(found.out), .q = row(*found.q)}),
        fmt::format("head {}, query {}", head, query));
  }

  // dk and dv of one key need that key, and the queries that see it with what was saved of them.
  Findings verify_key(std::int64_t kv_head, std::int64_t key) const {
    const std::int64_t group = case_.heads / case_.kv_heads, first = is_causal() ? key : 0;
    const auto rows = [&](const View& view) {
      return part_of(view, {last_batch(), kv_head * group, first, 0},
                     {1, group, case_.queries - first, view.shape.dim});
    };
    const auto row = [&](const auto& view) {
      return part_of(view, {last_batch(), kv_head, key, 0}, {1, 1, 1, view.shape.dim});
    };
    const Gradients found = gradients();
    return findings_of(check({.q = rows(q_.view()), .k = row(k_.view()), .v = row(v_.view())},
                             {rows(out_.view()), rows(log_sum_exp_.view())},
                             {.out = rows(found.out), .k = row(*found.k), .v = row(*found.v)}),
                       fmt::format("KV head {}, key {}", kv_head, key));
  }

  static Findings findings_of(const Check& found, const std::string& where) {
    return {.compared = found.compared,
            .misses = found.beyond_bound,
            .worst_in_bounds = found.worst_error_in_bounds,
            .first_miss = found.first_miss.empty() ? "" : where + ": " + found.first_miss};
  }

  Case case_;
  Buffer q_, k_, v_, out_gradient_, out_, log_sum_exp_, gradients_;
  Options options_{};
};

}  // namespace

void fill_sequence(KvCache& cache, std::int64_t sequence, std::int64_t length) {
  const KvCacheConfig& c = cache.config();
  for (std::int64_t at = cache.length(sequence); at < length; at += tokens_at_once) {
    const std::int64_t count = std::min(tokens_at_once, length - at);
    const auto seed = static_cast<std::uint64_t>(sequence * c.capacity + at);
    const Buffer k = random_buffer({1, c.kv_heads, count, c.dim}, DType::f32, {seed, Stream::k});
    const Buffer v = random_buffer({1, c.kv_heads, count, *c.value_dim}, DType::f32, {seed, Stream::v});
    cache.append_to(sequence, k.view(), v.view());
  }
}

std::unique_ptr<Workload> make_workload(const Case& c) {
  if (c.role == Role::cache) return std::make_unique<CacheWorkload>(c);
  if (c.role == Role::step) return std::make_unique<StepWorkload>(c);
  if (c.role == Role::backward) return std::make_unique<BackwardWorkload>(c);
  if (c.role == Role::layer) return std::make_unique<LayerWorkload>(c);
  if (c.role == Role::projection) return std::make_unique<ProjectionWorkload>(c);
  return std::make_unique<AttentionWorkload>(c);
}

}  // namespace heed::tool
