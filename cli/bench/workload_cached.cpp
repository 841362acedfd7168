// SPDX-License-Identifier: Apache-2.0
// See workload_cached.hpp.
#include "bench/workload_cached.hpp"

#include <algorithm>

#include "bench/verify_cached.hpp"
#include "kernel_choice.hpp"
#include "random_values.hpp"

namespace heed::tool {
namespace {

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

std::unique_ptr<Workload> make_cached_workload(const Case& c) {
  if (c.role == Role::step) return std::make_unique<StepWorkload>(c);
  return std::make_unique<CacheWorkload>(c);
}

}  // namespace heed::tool
