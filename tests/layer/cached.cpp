// SPDX-License-Identifier: Apache-2.0
// The layer over a cache (S16, S18): however a sequence is fed, its rows are those of the whole sequence at
// once.
#include <algorithm>
#include <array>

#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

constexpr std::int64_t model_dim = 32, query_heads = 4, head_dim = 8;

struct Kind {
  const char* name;
  std::int64_t kv_heads;
};
constexpr std::array<Kind, 3> kinds{{{"MHA", 4}, {"GQA", 2}, {"MQA", 1}}};

LayerConfig config_of(const Kind& kind, const std::optional<Rotary>& rotary = {}) {
  LayerConfig c = grouped_query(model_dim, query_heads, kind.kv_heads);
  c.rotary = rotary;
  return c;
}

KvCacheConfig cache_of(const LayerConfig& c, std::int64_t batch, std::int64_t capacity) {
  return {.batch = batch, .kv_heads = *c.kv_heads, .capacity = capacity, .dim = head_dim};
}

// Rows [first, first + count) of one batch entry, as a batch of one.
Tensor rows_of(const Tensor& x, std::int64_t first, std::int64_t count, std::int64_t b = 0) {
  const auto begin = x.values.begin() + static_cast<std::ptrdiff_t>(x.index(b, 0, first, 0));
  return {{1, 1, count, x.shape.dim}, {begin, begin + count * x.shape.dim}};
}

Tensor together(const Tensor& a, const Tensor& b) {
  Tensor both = a;
  both.shape.batch += b.shape.batch;
  both.values.insert(both.values.end(), b.values.begin(), b.values.end());
  return both;
}

// The whole sequence through the cache, in steps of these sizes over and over.
Tensor fed(const AttentionLayer& layer, KvCache& cache, const Tensor& x,
           const std::vector<std::int64_t>& sizes) {
  Tensor all{x.shape, {}};
  std::int64_t done = 0;
  for (std::size_t n = 0; done < x.shape.length; ++n) {
    const std::int64_t count = std::min(sizes[n % sizes.size()], x.shape.length - done);
    const Tensor tokens = rows_of(x, done, count);
    const Tensor y = run(layer, {.x = tokens.view(), .cache = &cache}, causal);
    all.values.insert(all.values.end(), y.values.begin(), y.values.end());
    done += count;
  }
  return all;
}

const std::vector<std::optional<Rotary>> rotaries{
    std::nullopt, Rotary{}, Rotary{.base = 500, .dims = 4, .pairs = RotaryPairs::adjacent},
    Rotary{.scaling = YarnScaling{.factor = 4, .original_length = 20}}};

TEST(cached, a_sequence_fed_in_any_steps_has_the_rows_of_the_whole) {
  for (const Kind& kind : kinds)
    for (std::size_t r = 0; r < rotaries.size(); ++r) {
      const LayerConfig c = config_of(kind, rotaries[r]);
      const AttentionLayer layer(c, with_biases(random_weights(c, 1), 2));
      const Tensor x = random_tensor({1, 1, 43, model_dim}, 3);
      const Tensor whole = run(layer, {.x = x.view()}, causal);
      for (const std::vector<std::int64_t>& sizes :
           {std::vector<std::int64_t>{43}, {1}, {16, 27}, {30, 1, 1, 11}, {7}})
        for (const std::optional<std::int64_t> page_size : {std::optional<std::int64_t>(), {16}, {32}}) {
          KvCacheConfig of_cache = cache_of(c, 1, 50);
          of_cache.page_size = page_size;
          KvCache cache(of_cache);
          EXPECT_EQ(bit_misses(fed(layer, cache, x, sizes).values, whole.values), 0)
              << kind.name << ", rotary " << r << ", first step " << sizes[0] << ", pages of "
              << page_size.value_or(0);
          EXPECT_EQ(cache.length(0), 43);
        }
    }
}

TEST(cached, a_long_sequence_crosses_chunks_of_keys) {
  const LayerConfig c = config_of(kinds[1], Rotary{});
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 1100, model_dim}, 3);
  KvCache cache(cache_of(c, 1, 1100));
  EXPECT_EQ(bit_misses(fed(layer, cache, x, {1020, 1, 1, 1, 1, 1, 75}).values,
                       run(layer, {.x = x.view()}, causal).values),
            0);
}

// Two sequences of 5 and 29 tokens become one batch, in either order, and grow together.
TEST(cached, a_batch_of_different_lengths_has_each_its_own_rows) {
  for (const Kind& kind : kinds)
    for (const std::optional<Rotary>& rotary : rotaries)
      for (const std::vector<std::int64_t>& numbers :
           {std::vector<std::int64_t>{0, 1}, {1, 0}, {2, 0}, {1, 2}}) {
        const LayerConfig c = config_of(kind, rotary);
        const AttentionLayer layer(c, random_weights(c, 1));
        const std::array<Tensor, 2> x{random_tensor({1, 1, 11, model_dim}, 3),
                                      random_tensor({1, 1, 35, model_dim}, 4)};
        KvCache cache(cache_of(c, 3, 40));
        const std::array<std::int64_t, 2> before{5, 29};
        for (std::size_t b = 0; b < 2; ++b) {
          const Tensor prompt = rows_of(x[b], 0, before[b]);
          run(layer, {.x = prompt.view(), .cache = &cache, .sequences = {&numbers[b], 1}}, causal);
        }
        std::int64_t done = 0;
        for (const std::int64_t count : {1, 3, 2}) {
          const Tensor tokens = together(rows_of(x[0], 5 + done, count), rows_of(x[1], 29 + done, count));
          const Tensor y = run(layer, {.x = tokens.view(), .cache = &cache, .sequences = numbers}, causal);
          for (std::size_t b = 0; b < 2; ++b)
            EXPECT_EQ(
                bit_misses(rows_of(y, 0, count, static_cast<std::int64_t>(b)).values,
                           rows_of(run(layer, {.x = x[b].view()}, causal), before[b] + done, count).values),
                0)
                << kind.name << ", sequence " << numbers[b] << ", " << count << " tokens after " << done;
          done += count;
        }
        EXPECT_EQ(cache.length(numbers[0]), 11);
        EXPECT_EQ(cache.length(numbers[1]), 35);
      }
}

TEST(cached, without_numbers_batch_entries_are_the_sequences_in_order) {
  const LayerConfig c = config_of(kinds[1]);
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({3, 1, 6, model_dim}, 3);
  KvCache cache(cache_of(c, 3, 6));
  EXPECT_EQ(bit_misses(run(layer, {.x = x.view(), .cache = &cache}, causal).values,
                       run(layer, {.x = x.view()}, causal).values),
            0);
}

TEST(cached, rejected_drafts_leave_no_trace_and_forks_go_their_own_ways) {
  const LayerConfig c = config_of(kinds[1], Rotary{});
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 24, model_dim}, 3), other = random_tensor({1, 1, 24, model_dim}, 4);
  KvCacheConfig of_cache = cache_of(c, 1, 24);
  of_cache.page_size = 16;
  of_cache.pages = 4;
  KvCache cache(of_cache);
  const Tensor prompt = rows_of(x, 0, 20), draft = rows_of(other, 20, 4), rest = rows_of(x, 20, 4);
  run(layer, {.x = prompt.view(), .cache = &cache}, causal);
  run(layer, {.x = draft.view(), .cache = &cache}, causal);
  cache.truncate(0, 20);
  const std::array<std::int64_t, 1> fork{cache.fork(0)}, first{0};
  run(layer, {.x = draft.view(), .cache = &cache, .sequences = fork}, causal);
  const Tensor y = run(layer, {.x = rest.view(), .cache = &cache, .sequences = first}, causal);
  EXPECT_EQ(bit_misses(y.values, rows_of(run(layer, {.x = x.view()}, causal), 20, 4).values), 0);
}

// Two candidates for the next token, and a follower of the second: each sees its own branch only.
TEST(cached, a_tree_of_drafts_sees_its_branches) {
  const LayerConfig c = config_of(kinds[2], Rotary{});
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 9, model_dim}, 3), prompt = rows_of(x, 0, 6),
               drafts = rows_of(x, 6, 3);
  KvCache cache(cache_of(c, 1, 9));
  run(layer, {.x = prompt.view(), .cache = &cache}, causal);
  const std::array<bool, 9> sees{true, false, false, false, true, false, false, true, true};
  const Shape shape{1, 1, 3, 3};
  const std::vector<std::int64_t> positions{6, 6, 7};
  const Tensor y = run(layer, {.x = drafts.view(), .cache = &cache, .positions = positions},
                       {.masks = {Tree{{sees, shape}}}});
  cache.truncate(0, 6);
  const Tensor branch = rows_of(x, 7, 2);
  EXPECT_EQ(far_misses(rows_of(y, 1, 2).values,
                       run(layer, {.x = branch.view(), .cache = &cache}, causal).values, 1e-6),
            0);
}

TEST(cached, weights_of_new_tokens_are_their_rows_of_all_weights) {
  for (const Kind& kind : kinds)
    for (const std::int64_t shown : {query_heads, std::int64_t{1}}) {
      const LayerConfig c = config_of(kind, Rotary{});
      const AttentionLayer layer(c, random_weights(c, 1));
      const Tensor x = random_tensor({1, 1, 21, model_dim}, 3), prompt = rows_of(x, 0, 18);
      Tensor y = output({1, 1, 21, model_dim}), all = output({1, shown, 21, 21}),
             lse = output({1, query_heads, 21, 1});
      layer({.x = x.view()},
            {.out = y.mutable_view(), .weights = all.mutable_view(), .log_sum_exp = lse.mutable_view()},
            causal);
      KvCache cache(cache_of(c, 1, 21));
      run(layer, {.x = prompt.view(), .cache = &cache}, causal);
      std::int64_t misses = 0, first = 18;
      for (const std::int64_t count : {1, 2}) {
        const Tensor tokens = rows_of(x, first, count);
        const std::int64_t keys = first + count;
        Tensor y_now = output({1, 1, count, model_dim}), now = output({1, shown, count, keys}),
               lse_now = output({1, query_heads, count, 1});
        layer({.x = tokens.view(), .cache = &cache},
              {.out = y_now.mutable_view(),
               .weights = now.mutable_view(),
               .log_sum_exp = lse_now.mutable_view()},
              causal);
        for (std::int64_t i = 0; i < count; ++i) {
          for (std::int64_t h = 0; h < query_heads; ++h)
            misses += lse_now.at(0, h, i, 0) != lse.at(0, h, first + i, 0) ? 1 : 0;
          for (std::int64_t h = 0; h < shown; ++h)
            for (std::int64_t j = 0; j < keys; ++j)
              misses += now.at(0, h, i, j) != all.at(0, h, first + i, j) ? 1 : 0;
        }
        first += count;
      }
      EXPECT_EQ(misses, 0) << kind.name << ", " << shown << " heads of weights";
    }
}

TEST(cached, weights_of_a_shorter_sequence_end_with_zeros) {
  const LayerConfig c = config_of(kinds[1]);
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({2, 1, 9, model_dim}, 3), prompt = rows_of(x, 0, 7),
               tokens = random_tensor({2, 1, 1, model_dim}, 4);
  KvCache cache(cache_of(c, 2, 9));
  const std::array<std::int64_t, 1> second{1};
  run(layer, {.x = prompt.view(), .cache = &cache, .sequences = second}, causal);
  Tensor y = output({2, 1, 1, model_dim}), weights = output({2, query_heads, 1, 8});
  layer({.x = tokens.view(), .cache = &cache}, {.out = y.mutable_view(), .weights = weights.mutable_view()});
  std::int64_t wrong = 0;
  for (std::int64_t h = 0; h < query_heads; ++h) {
    wrong += weights.at(0, h, 0, 0) != 1 ? 1 : 0;
    for (std::int64_t j = 1; j < 8; ++j) wrong += weights.at(0, h, 0, j) != 0 ? 1 : 0;
    for (std::int64_t j = 0; j < 8; ++j) wrong += !(weights.at(1, h, 0, j) > 0) ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace heed::layer_tests
