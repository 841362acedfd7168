// SPDX-License-Identifier: Apache-2.0
// Batches whose sequences get different numbers of tokens: padding neither enters the cache nor attends.
#include <algorithm>
#include <array>
#include <limits>

#include "layer/tensors.hpp"

namespace heed::layer_tests::counts {
namespace {

constexpr std::int64_t model_dim = 32, query_heads = 4, kv_heads = 2, head_dim = 8;
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// Rows [first[b], first[b] + counts[b]) of entry b, and NaN up to the longest.
Tensor padded(const Tensor& x, const std::array<std::int64_t, 2>& first,
              const std::array<std::int64_t, 2>& counts) {
  Tensor made = filled({2, 1, std::max(counts[0], counts[1]), x.shape.dim}, nan);
  for (std::size_t b = 0; b < 2; ++b) {
    const auto from =
        x.values.begin() + static_cast<std::ptrdiff_t>(x.index(static_cast<std::int64_t>(b), 0, first[b], 0));
    std::copy_n(
        from, counts[b] * x.shape.dim,
        made.values.begin() + static_cast<std::ptrdiff_t>(made.index(static_cast<std::int64_t>(b), 0, 0, 0)));
  }
  return made;
}

// Elements of y that are not those of `whole` from first[b] on, or not 0 beyond the counts.
std::int64_t wrong_rows(const Tensor& y, const Tensor& whole, const std::array<std::int64_t, 2>& first,
                        const std::array<std::int64_t, 2>& counts) {
  std::int64_t wrong = 0;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < y.shape.length; ++i)
      for (std::int64_t d = 0; d < y.shape.dim; ++d) {
        const auto at = static_cast<std::size_t>(b);
        const float wanted = i < counts[at] ? whole.at(b, 0, first[at] + i, d) : 0.0f;
        wrong += std::bit_cast<std::uint32_t>(y.at(b, 0, i, d)) != std::bit_cast<std::uint32_t>(wanted);
      }
  return wrong;
}

LayerConfig config_with(const std::optional<Rotary>& rotary) {
  LayerConfig c = grouped_query(model_dim, query_heads, kv_heads);
  c.rotary = rotary;
  return c;
}

KvCacheConfig of_three{.batch = 3, .kv_heads = kv_heads, .capacity = 60, .dim = head_dim, .page_size = 16};

// A prompt, then steps in which either sequence gets more, fewer or no tokens.
const std::array<std::int64_t, 2> schedule[] = {{19, 12}, {1, 0}, {0, 3}, {1, 1}, {2, 7}, {0, 0}, {17, 16}};

TEST(counts, give_every_sequence_its_own_rows_and_the_padding_zeros) {
  const Tensor x = random_tensor({2, 1, 40, model_dim}, 3);
  for (const std::optional<Rotary>& rotary : {std::optional<Rotary>(), {Rotary{}}})
    for (const std::vector<std::int64_t>& numbers : {std::vector<std::int64_t>{0, 1}, {1, 2}, {2, 0}}) {
      const LayerConfig c = config_with(rotary);
      const AttentionLayer layer(c, with_biases(random_weights(c, 1), 2));
      const Tensor whole = run(layer, {.x = x.view()}, causal);
      KvCache cache(of_three);
      std::array<std::int64_t, 2> done{};
      for (const std::array<std::int64_t, 2>& counts : schedule) {
        const Tensor tokens = padded(x, done, counts);
        const Tensor y =
            run(layer, {.x = tokens.view(), .cache = &cache, .sequences = numbers, .counts = counts}, causal);
        EXPECT_EQ(wrong_rows(y, whole, done, counts), 0) << counts[0] << " and " << counts[1] << " tokens";
        for (std::size_t b = 0; b < 2; ++b) {
          done[b] += counts[b];
          EXPECT_EQ(cache.length(numbers[b]), done[b]);
        }
      }
    }
}

TEST(counts, say_nothing_where_they_are_all_tokens) {
  const LayerConfig c = config_with(Rotary{});
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({3, 1, 9, model_dim}, 3);
  const std::array<std::int64_t, 3> all{9, 9, 9};
  KvCache said(of_three), unsaid(of_three);
  EXPECT_EQ(bit_misses(run(layer, {.x = x.view(), .cache = &said, .counts = all}, causal).values,
                       run(layer, {.x = x.view(), .cache = &unsaid}, causal).values),
            0);
}

TEST(counts, keep_padding_out_of_every_kind_of_cache) {
  const LayerConfig c = config_with(Rotary{});
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({2, 1, 40, model_dim}, 3);
  const std::array<std::int64_t, 2> counts{40, 21}, none{};
  const Tensor tokens = padded(x, none, counts);
  KvCacheConfig of_int8 = of_three, windowed = of_three, turning = of_three, whole = of_three;
  of_int8.type = CacheType::int8;  // refuses NaN
  windowed.window = CacheWindow{.length = 6, .front = 2};
  turning.rotary = CacheRotary{.when = CacheRotary::When::read};
  whole.page_size.reset();
  for (KvCacheConfig config : {of_int8, windowed, turning, whole}) {
    config.batch = 2;
    KvCache together(config), apart(config);
    const Tensor y = run(layer, {.x = tokens.view(), .cache = &together, .counts = counts}, causal);
    for (std::int64_t b = 0; b < 2; ++b) {
      const std::int64_t count = counts[static_cast<std::size_t>(b)];
      const auto row = [&](const Tensor& t) {
        return t.values.begin() + static_cast<std::ptrdiff_t>(t.index(b, 0, 0, 0));
      };
      const Tensor own{{1, 1, count, model_dim}, {row(x), row(x) + count * model_dim}};
      const Tensor wanted = run(layer, {.x = own.view(), .cache = &apart, .sequences = {&b, 1}}, causal);
      EXPECT_EQ(bit_misses({row(y), row(y) + count * model_dim}, wanted.values), 0) << "sequence " << b;
      EXPECT_EQ(together.length(b), count);
    }
  }
}

// Weights, log-sum-exp and scores of {3, 1} tokens after {2, 4}: keys are at most 5.
struct Asked {
  std::array<std::int64_t, 2> before{2, 4}, counts{3, 1};
  Tensor y = output({2, 1, 3, model_dim}), weights = output({2, query_heads, 3, 5}),
         averages = output({2, 1, 3, 5}), lse = output({2, query_heads, 3, 1}),
         scores = output({2, query_heads, 3, 5});
};

TEST(counts, leave_padding_rows_that_see_no_key) {
  const LayerConfig c = config_with({});
  const AttentionLayer layer(c, with_biases(random_weights(c, 1), 2));
  const Tensor x = random_tensor({2, 1, 9, model_dim}, 3);
  for (const Stage stage : {Stage::raw, Stage::softcapped, Stage::biased}) {
    Asked a;
    KvCacheConfig config = of_three;
    config.batch = 2;
    for (Tensor* weights : {&a.weights, &a.averages}) {
      KvCache cache(config);
      const Tensor prompt = padded(x, {0, 0}, a.before), tokens = padded(x, a.before, a.counts);
      run(layer, {.x = prompt.view(), .cache = &cache, .counts = a.before}, causal);
      layer({.x = tokens.view(), .cache = &cache, .counts = a.counts},
            {.out = a.y.mutable_view(),
             .weights = weights->mutable_view(),
             .log_sum_exp = a.lse.mutable_view(),
             .scores = {a.scores.mutable_view(), stage}},
            causal);
    }
    for (std::int64_t h = 0; h < query_heads; ++h) {
      for (std::int64_t i = 0; i < 3; ++i) {
        const bool is_padding = i >= 1;  // of the second sequence
        EXPECT_EQ(a.lse.at(1, h, i, 0) == minus_infinity, is_padding);
        EXPECT_GT(a.lse.at(0, h, i, 0), minus_infinity);
        float sum = 0;
        for (std::int64_t j = 0; j < 5; ++j) {
          sum += a.weights.at(1, h, i, j);
          if (is_padding) {
            EXPECT_EQ(a.weights.at(1, h, i, j), 0);
            EXPECT_EQ(a.averages.at(1, 0, i, j), 0);
            EXPECT_EQ(a.scores.at(1, h, i, j), stage == Stage::biased ? minus_infinity : 0);
          }
        }
        EXPECT_NEAR(sum, is_padding ? 0 : 1, 1e-6);
      }
    }
  }
}

TEST(counts, go_with_rows_of_a_bias_and_of_masks) {
  const LayerConfig c = config_with({});
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({2, 1, 8, model_dim}, 3), bias = random_tensor({2, query_heads, 5, 8}, 4);
  const std::array<std::int64_t, 2> before{3, 3}, counts{5, 2};
  std::array<bool, 2 * 5 * 8> hidden{};
  for (std::size_t n = 0; n < hidden.size(); n += 3) hidden[n] = true;
  const Shape of_mask{2, 1, 5, 8};
  const auto options_of = [&](std::int64_t b, std::int64_t keys) {  // entry b alone, or both
    Options options{.masks = {Causal{}}};
    const std::int64_t first = std::max<std::int64_t>(b, 0), entries = b < 0 ? 2 : 1,
                       rows = b < 0 ? 5 : counts[static_cast<std::size_t>(b)];
    options.bias =
        View{&bias.values[bias.index(first, 0, 0, 0)], {entries, query_heads, rows, keys}, bhsd(bias.shape)};
    options.masks.emplace_back(
        Hide{{&hidden[static_cast<std::size_t>(first) * 40], {entries, 1, rows, keys}, bhsd(of_mask)}});
    return options;
  };
  KvCacheConfig config = of_three;
  config.batch = 2;
  KvCache together(config), apart(config);
  const Tensor prompt = padded(x, {0, 0}, before), tokens = padded(x, before, counts);
  run(layer, {.x = prompt.view(), .cache = &together}, causal);
  run(layer, {.x = prompt.view(), .cache = &apart}, causal);
  const Tensor y = run(layer, {.x = tokens.view(), .cache = &together, .counts = counts}, options_of(-1, 8));
  for (std::int64_t b = 0; b < 2; ++b) {
    const std::int64_t count = counts[static_cast<std::size_t>(b)];
    View own = tokens.view();
    own.data = &tokens.values[tokens.index(b, 0, 0, 0)];
    own.shape = {1, 1, count, model_dim};
    const Tensor wanted =
        run(layer, {.x = own, .cache = &apart, .sequences = {&b, 1}}, options_of(b, 3 + count));
    const auto row = y.values.begin() + static_cast<std::ptrdiff_t>(y.index(b, 0, 0, 0));
    EXPECT_EQ(bit_misses({row, row + count * model_dim}, wanted.values), 0) << "sequence " << b;
  }
}

TEST(counts, cut_a_tree_of_drafts) {
  const LayerConfig c = config_with({});
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({2, 1, 7, model_dim}, 3);
  const std::array<std::int64_t, 2> before{4, 4}, counts{2, 1}, none{};
  const std::array<bool, 9> sees{true, false, false, false, true, false, false, true, true};
  const Shape shape{1, 1, 3, 3}, cut{1, 1, 2, 2};
  KvCacheConfig config = of_three;
  config.batch = 2;
  KvCache padded_cache(config), cut_cache(config);
  const Tensor prompt = padded(x, none, before), wide = padded(x, before, {3, 3}),
               narrow = padded(x, before, {2, 2});
  run(layer, {.x = prompt.view(), .cache = &padded_cache}, causal);
  run(layer, {.x = prompt.view(), .cache = &cut_cache}, causal);
  const Tensor y = run(layer, {.x = wide.view(), .cache = &padded_cache, .counts = counts},
                       {.masks = {Tree{{sees, shape}}}});
  const Tensor wanted = run(layer, {.x = narrow.view(), .cache = &cut_cache, .counts = counts},
                            {.masks = {Tree{{sees, cut, bhsd(shape)}}}});
  std::int64_t wrong = 0;
  for (std::int64_t b = 0; b < 2; ++b)
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t d = 0; d < model_dim; ++d) wrong += y.at(b, 0, i, d) != wanted.at(b, 0, i, d);
  EXPECT_EQ(wrong, 0);
}

TEST(counts, drop_in_training_what_is_dropped_without_padding) {
  LayerConfig c = config_with({});
  c.drop_probability = 0.5f;
  AttentionLayer layer(c, random_weights(c, 1));
  layer.set_mode(AttentionLayer::Mode::train);
  const Tensor x = random_tensor({2, 1, 8, model_dim}, 2);
  const std::array<std::int64_t, 2> counts{8, 5}, none{};
  const Tensor tokens = padded(x, none, counts);
  KvCacheConfig config = of_three;
  config.batch = 2;
  KvCache cache(config);
  const Tensor y =
      run(layer, {.x = tokens.view(), .cache = &cache, .counts = counts, .dropout_seed = 3}, causal);
  EXPECT_EQ(wrong_rows(y, run(layer, {.x = x.view(), .dropout_seed = 3}, causal), none, counts), 0);
}

TEST(counts, write_zeros_of_every_type) {
  const LayerConfig c = config_with({});
  const AttentionLayer layer(c, with_biases(random_weights(c, 1), 2));
  const Tensor x = random_tensor({3, 1, 2, model_dim}, 2);
  const std::array<std::int64_t, 3> counts{1, 2, 0};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    KvCache cache(of_three);
    std::vector<std::uint16_t> y(3 * 2 * model_dim, 0xffff);
    void* const halves = y.data();
    const Shape shape{3, 1, 2, model_dim};
    layer({.x = x.view(), .cache = &cache, .counts = counts}, {.out = {halves, shape, dtype}}, causal);
    for (const std::size_t row : {1u, 4u, 5u})
      EXPECT_EQ(std::count(y.begin() + static_cast<std::ptrdiff_t>(row * model_dim),
                           y.begin() + static_cast<std::ptrdiff_t>((row + 1) * model_dim), 0),
                model_dim);
  }
}

}  // namespace
}  // namespace heed::layer_tests::counts
