// SPDX-License-Identifier: Apache-2.0
// The layer over caches of every type, with a window, or with keys that the cache turns; and in training.
#include <array>

#include "files/scratch_folder.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

Array identity(std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n * n));
  for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i * n + i)] = 1;
  return Array::from_floats({n, n}, values);
}

Tensor tokens_of(const Tensor& x, std::int64_t first, std::int64_t count) {
  const auto begin = x.values.begin() + first * x.shape.dim;
  return {{1, 1, count, x.shape.dim}, {begin, begin + count * x.shape.dim}};
}

// The queries are x itself and the answers are not projected, so that attention() over what the cache reads
// back is the whole layer.
TEST(cached_kinds, every_type_attends_to_what_it_holds) {
  const LayerConfig c = grouped_query(16, 2, 1);
  LayerWeights w = random_weights(c, 1);
  w.w_q = w.w_o = identity(16);
  const AttentionLayer layer(c, w);
  const Tensor x = random_tensor({1, 1, 40, 16}, 2);
  for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::int8})
    for (const std::optional<std::int64_t> page_size : {std::optional<std::int64_t>(), {16}}) {
      KvCache cache({.kv_heads = 1, .capacity = 40, .dim = 8, .type = type, .page_size = page_size});
      for (const auto& [first, count] : {std::array<std::int64_t, 2>{0, 37}, {37, 1}, {38, 2}}) {
        const Tensor tokens = tokens_of(x, first, count);
        const Tensor y = run(layer, {.x = tokens.view(), .cache = &cache}, causal);
        Tensor k = output({1, 1, first + count, 8}), v = k, wanted = output({1, 1, count, 16});
        cache.read(0, k.mutable_view(), v.mutable_view());
        const Shape split{1, 2, count, 8};
        attention({.q = {tokens.values.data(), split, bshd(split)}, .k = k.view(), .v = v.view()},
                  {.out = {wanted.values.data(), split, bshd(split)}}, {.masks = {Causal{Align::ends}}});
        EXPECT_EQ(far_misses(y.values, wanted.values, 1e-6), 0)
            << name_of(type) << ", pages of " << page_size.value_or(0) << ", token " << first;
      }
    }
}

TEST(cached_kinds, a_window_cache_has_the_rows_of_the_windowed_layer) {
  LayerConfig c = grouped_query(16, 4, 2);
  c.rotary = Rotary{};
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 90, 16}, 2);
  for (const std::int64_t front : {0, 3}) {
    KvCache cache({.kv_heads = 2,
                   .capacity = 90,
                   .dim = 4,
                   .page_size = 16,
                   .pages = 4,
                   .window = CacheWindow{.length = 10, .front = front}});
    Tensor all{x.shape, {}};
    for (std::int64_t done = 0; done < 90; done += 5) {
      const Tensor tokens = tokens_of(x, done, 5);
      const Tensor y = run(layer, {.x = tokens.view(), .cache = &cache}, causal);
      all.values.insert(all.values.end(), y.values.begin(), y.values.end());
    }
    const Tensor whole =
        run(layer, {.x = x.view()}, {.masks = {Window{.left = 9, .right = 0, .front = front}}});
    EXPECT_EQ(bit_misses(all.values, whole.values), 0) << "front " << front;
  }
}

TEST(cached_kinds, a_cache_that_turns_its_keys_changes_no_bit) {
  LayerConfig c = grouped_query(16, 4, 2);
  c.rotary = Rotary{.base = 100};
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 20, 16}, 2);
  const Tensor whole = run(layer, {.x = x.view()}, causal);
  for (const auto when : {CacheRotary::When::append, CacheRotary::When::read}) {
    // The same dims, said here and unsaid there.
    KvCache cache(
        {.kv_heads = 2, .capacity = 20, .dim = 4, .rotary = CacheRotary{{.base = 100, .dims = 4}, when}});
    Tensor all{x.shape, {}};
    for (std::int64_t done = 0; done < 20; done += 4) {
      const Tensor tokens = tokens_of(x, done, 4);
      const Tensor y = run(layer, {.x = tokens.view(), .cache = &cache}, causal);
      all.values.insert(all.values.end(), y.values.begin(), y.values.end());
    }
    EXPECT_EQ(bit_misses(all.values, whole.values), 0)
        << (when == CacheRotary::When::read ? "read" : "append");
  }
}

TEST(cached_kinds, given_positions_turn_queries_and_keys) {
  LayerConfig c = grouped_query(16, 4, 2);
  c.rotary = Rotary{};
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 6, 16}, 2), last = tokens_of(x, 4, 2);
  const std::vector<std::int64_t> all{3, 9, 10, 11, 40, 80}, later(all.begin() + 4, all.end());
  const std::vector<std::int64_t> earlier(all.begin(), all.begin() + 4);
  const Tensor first = tokens_of(x, 0, 4);
  KvCache cache({.kv_heads = 2, .capacity = 6, .dim = 4});
  run(layer, {.x = first.view(), .cache = &cache, .positions = earlier}, causal);
  const Tensor y = run(layer, {.x = last.view(), .cache = &cache, .positions = later}, causal);
  const Tensor whole = run(layer, {.x = x.view(), .positions = all}, causal);
  EXPECT_EQ(bit_misses(y.values, tokens_of(whole, 4, 2).values), 0);
}

TEST(cached_kinds, training_drops_as_it_does_without_a_cache) {
  LayerConfig c = grouped_query(16, 4, 2);
  c.drop_probability = 0.5f;
  AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({2, 1, 8, 16}, 2);
  const Tensor evaluated = run(layer, {.x = x.view()}, causal);
  layer.set_mode(AttentionLayer::Mode::train);
  KvCache cache({.batch = 2, .kv_heads = 2, .capacity = 8, .dim = 4});
  const Tensor y = run(layer, {.x = x.view(), .cache = &cache, .dropout_seed = 3}, causal);
  EXPECT_EQ(bit_misses(y.values, run(layer, {.x = x.view(), .dropout_seed = 3}, causal).values), 0);
  EXPECT_NE(bit_misses(y.values, evaluated.values), 0);
}

TEST(cached_kinds, options_mean_what_they_mean_without_a_cache) {
  const LayerConfig c = grouped_query(16, 4, 2);
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 9, 16}, 2), last = tokens_of(x, 7, 2), first = tokens_of(x, 0, 7);
  const Tensor bias = random_tensor({1, 4, 9, 9}, 3), sink = random_tensor({1, 4, 1, 1}, 4);
  Tensor last_bias = output({1, 4, 2, 9});
  for (std::int64_t h = 0; h < 4; ++h)
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t j = 0; j < 9; ++j)
        last_bias.values[last_bias.index(0, h, i, j)] = bias.at(0, h, 7 + i, j);
  const Options whole{.masks = {Causal{}, Window{.left = 5, .right = 0}},
                      .bias = bias.view(),
                      .scale = 0.7f,
                      .softcap = 2.0f,
                      .sink = sink.view()};
  KvCache cache({.kv_heads = 2, .capacity = 9, .dim = 4});
  run(layer, {.x = first.view(), .cache = &cache}, causal);
  Options now = whole;
  now.bias = last_bias.view();
  EXPECT_EQ(bit_misses(run(layer, {.x = last.view(), .cache = &cache}, now).values,
                       tokens_of(run(layer, {.x = x.view()}, whole), 7, 2).values),
            0);
}

class CachedFiles : public test::ScratchFolder {};

TEST_F(CachedFiles, a_loaded_cache_goes_on_as_the_saved_one) {
  const LayerConfig c = grouped_query(16, 4, 2);
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor prompt = random_tensor({3, 1, 5, 16}, 2), token = random_tensor({3, 1, 1, 16}, 3);
  KvCache saved({.batch = 3, .kv_heads = 2, .capacity = 40, .dim = 4, .page_size = 16});
  run(layer, {.x = prompt.view(), .cache = &saved}, causal);
  saved.save("cache");
  KvCache loaded = KvCache::load("cache");
  EXPECT_EQ(bit_misses(run(layer, {.x = token.view(), .cache = &loaded}).values,
                       run(layer, {.x = token.view(), .cache = &saved}).values),
            0);
}

TEST(cached_kinds, no_tokens_are_no_error_and_change_nothing) {
  const LayerConfig c = grouped_query(16, 4, 2);
  const AttentionLayer layer(c, random_weights(c, 1));
  KvCache cache({.kv_heads = 2, .capacity = 4, .dim = 4});
  const Tensor x = random_tensor({1, 1, 3, 16}, 2), none = output({1, 1, 0, 16});
  run(layer, {.x = x.view(), .cache = &cache}, causal);
  run(layer, {.x = none.view(), .cache = &cache}, causal);
  EXPECT_EQ(cache.length(0), 3);
}

}  // namespace
}  // namespace heed::layer_tests
