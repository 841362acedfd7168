// SPDX-License-Identifier: Apache-2.0
// A random layer and calls of it, the same on every rank that draws them from the same seed.
#pragma once
#include <string>

#include "cases/compare.hpp"
#include "cases/counter_random.hpp"
#include "cases/tensor.hpp"
#include "heed/cache.hpp"
#include "heed/distributed_layer.hpp"

namespace heed::cases {

inline Array random_bias(std::int64_t length, std::uint64_t seed) {
  const Tensor values = Tensor::random({1, 1, 1, length}, seed);
  std::vector<float> floats;
  for (std::int64_t d = 0; d < length; ++d) floats.push_back(static_cast<float>(values.at(0, 0, 0, d)));
  return Array::from_floats({length}, floats);
}

struct LayerCase {
  LayerConfig config{};
  LayerWeights weights{};
  DType dtype = DType::f32;
  Options options{};
  std::int64_t batch = 1;
  std::vector<std::int64_t> lengths{};  // of the calls; the second and later ones go to a cache
  bool has_cache = false;

  LayerCase(std::uint64_t seed, int ranks) {
    Dice dice(seed);
    const std::int64_t kv_heads = dice.between(1, 4);
    const std::int64_t least = (ranks + kv_heads - 1) / kv_heads;  // query heads for each
    config = {.model_dim = dice.between(ranks, 40),
              .heads = kv_heads * dice.between(least, least + 2),
              .kv_heads = kv_heads,
              .head_dim = 2 * dice.between(1, 6)};
    if (dice.one_in(3)) config.value_head_dim = dice.between(1, 9);
    if (dice.one_in(2)) config.rotary = Rotary{};
    const Element element = dice.pick<Element>({Element::f32, Element::bf16, Element::f16});
    dtype = element == Element::bf16 ? DType::bf16 : DType::f32;
    weights = random_weights(config, seed);
    for (Array* w : {&weights.w_q, &weights.w_k, &weights.w_v, &weights.w_o})
      *w = Array::from_floats(w->shape, w->to_floats(), element);
    if (dice.one_in(2)) {
      weights.b_q = random_bias(weights.w_q.shape[0], seed + 1);
      weights.b_o = random_bias(weights.w_o.shape[0], seed + 2);
    }
    batch = dice.between(1, 2);
    has_cache = dice.one_in(2);
    lengths = has_cache ? std::vector<std::int64_t>{dice.between(1, 50), 1, dice.between(1, 4)}
                        : std::vector<std::int64_t>{dice.between(0, 60)};
    if (dice.one_in(2)) options.masks = {Causal{}};
    if (dice.one_in(3)) options.softcap = 3.0f;
  }

  Tensor x(std::size_t n) const {
    return Tensor::random({batch, 1, lengths[n], config.model_dim}, n, 1, dtype);
  }
  KvCache cache(std::int64_t kv_heads) const {
    return KvCache({.batch = batch,
                    .kv_heads = kv_heads,
                    .capacity = 64,
                    .dim = *config.head_dim,
                    .value_dim = config.value_head_dim.value_or(*config.head_dim),
                    .type = dtype == DType::bf16 ? CacheType::bf16 : CacheType::f32});
  }

  // out of every call, and the log-sum-exp of `heads` heads.
  template <class Layer>
  std::vector<Tensor> run(const Layer& layer, std::int64_t heads, std::int64_t kv_heads) const {
    std::vector<Tensor> results;
    KvCache kept = cache(kv_heads);
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      const Tensor tokens = x(n);
      Tensor out(tokens.shape(), dtype), log_sum_exp({batch, heads, lengths[n], 1});
      layer({.x = tokens.view(), .cache = has_cache ? &kept : nullptr},
            {.out = out.mutable_view(), .log_sum_exp = log_sum_exp.mutable_view()}, options);
      results.push_back(std::move(out));
      results.push_back(std::move(log_sum_exp));
    }
    return results;
  }
};

inline Tensor heads_between(const Tensor& whole, std::int64_t first, std::int64_t count) {
  Shape s = whole.shape();
  s.heads = count;
  Tensor part(s, whole.dtype());
  for_each(s, [&](auto b, auto h, auto i, auto d) { part.set(b, h, i, d, whole.at(b, h + first, i, d)); });
  return part;
}

inline testing::AssertionResult layer_has_the_bits_of_one_process(Group& group, std::uint64_t seed) {
  const LayerCase one(seed, group.size());
  const LayerShare share = share_of_layer(one.config, group.rank(), group.size());
  const LayerOverRanks part(one.config, weights_of_share(one.weights, one.config, share), group.rank(),
                            group.size());
  const auto over_ranks = [&](const AttentionLayer::Call& call, const Outputs& outputs,
                              const Options& options) { part(group, call, outputs, options); };
  const std::vector<Tensor> found = one.run(over_ranks, share.heads, share.kv_heads);
  const std::vector<Tensor> expected =
      one.run(AttentionLayer(one.config, one.weights), one.config.heads, *one.config.kv_heads);
  for (std::size_t n = 0; n < found.size(); ++n) {
    const auto same = same_bits(
        found[n], n % 2 == 0 ? expected[n] : heads_between(expected[n], share.first_head, share.heads));
    if (!same)
      return testing::AssertionFailure() << same.message() << " in result " << n << " on rank "
                                         << group.rank() << " of " << group.size() << ", seed " << seed;
  }
  return testing::AssertionSuccess();
}

}  // namespace heed::cases
