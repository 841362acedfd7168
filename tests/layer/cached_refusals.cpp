// SPDX-License-Identifier: Apache-2.0
// Bad calls of the layer over a cache: each with its exact sentence, nothing written, and the cache as it
// was.
#include "../cache/tokens.hpp"
#include "cache/reading.hpp"
#include "cases/listed.hpp"
#include "layer/call.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

using test::Seen;

// Three sequences of 3, 1 and 0 tokens, pages shared with a fork of the first; the call steps two of them.
struct CachedDraft {
  LayerConfig config{.model_dim = 16, .heads = 4, .kv_heads = 2};
  KvCacheConfig cache_config{.batch = 3, .kv_heads = 2, .capacity = 6, .dim = 4, .page_size = 16, .pages = 5};
  Tensor x_memory = random_tensor({2, 1, 2, 16}, 1), out_memory = output({2, 1, 2, 16}),
         weights_memory = output({2, 4, 2, 5});
  std::vector<std::int64_t> numbers{0, 1}, positions{}, counts{};
  std::vector<std::int32_t> valid{};
  AttentionLayer::Call call{.x = x_memory.view()};
  Outputs outputs{.out = out_memory.mutable_view(), .weights = weights_memory.mutable_view()};
  Options options{.masks = {Causal{}}};

  KvCache cache() const {
    KvCache made(cache_config);
    test::append_marked(made, 0, 3, 1);
    test::append_marked(made, 1, 1, 5);
    made.fork(0);
    return made;
  }
  std::int64_t written() const {
    std::int64_t count = 0;
    for (const Tensor* memory : {&out_memory, &weights_memory})
      for (const float value : memory->values) count += value != untouched ? 1 : 0;
    return count;
  }
};

struct BadCachedCall {
  Error::Code code;
  const char* sentence;
  void (*spoil)(CachedDraft&);
};

const std::string no_such_kernel =
    "options.kernel: \"no.such.kernel\" is not a kernel of this build; there are " +
    cases::listed(kernel_names());

const std::vector<BadCachedCall> bad_cached_calls{
    {Error::value, "context: given, but so is a cache, which holds the tokens of x itself",
     [](CachedDraft& d) { d.call.context = d.call.x; }},
    {Error::value, "value: given, but so is a cache, which holds the tokens of x itself",
     [](CachedDraft& d) { d.call.value = d.call.x; }},
    {Error::shape, "context: none is given, and x.dim: 16 is not key_dim: 6",
     [](CachedDraft& d) { d.config.key_dim = 6; }},
    {Error::shape, "cache.kv_heads: 2 is not kv_heads: 4", [](CachedDraft& d) { d.config.kv_heads = 4; }},
    {Error::shape, "cache.dim: 4 is not head_dim: 8", [](CachedDraft& d) { d.config.head_dim = 8; }},
    {Error::shape, "cache.value_dim: 4 is not value_head_dim: 3",
     [](CachedDraft& d) { d.config.value_head_dim = 3; }},
    {Error::shape, "cache.sequences: 4 are not x.batch: 2; say which by call.sequences",
     [](CachedDraft& d) { d.numbers.clear(); }},
    {Error::shape, "sequences: 3 numbers for x.batch: 2", [](CachedDraft& d) { d.numbers = {0, 1, 2}; }},
    {Error::value, "sequences[1]: 0 is sequences[0] too; a sequence grows in one place",
     [](CachedDraft& d) { d.numbers = {0, 0}; }},
    {Error::value, "sequence: 4 is not in [0, 4)", [](CachedDraft& d) { d.numbers = {0, 4}; }},
    {Error::value, "sequence: -1 is not in [0, 4)", [](CachedDraft& d) { d.numbers = {-1, 0}; }},
    {Error::capacity, "sequence 0 holds 3 of 4 tokens; 2 more do not fit",
     [](CachedDraft& d) { d.cache_config.capacity = 4; }},
    {Error::capacity, "cache: 4 tokens need 1 page, 0 are free",
     [](CachedDraft& d) {
       d.cache_config.pages = 2;
       d.numbers = {1, 2};
       d.outputs.weights.reset();
     }},
    {Error::value, "cache.rotary: given, but config.rotary is not",
     [](CachedDraft& d) { d.cache_config.rotary = CacheRotary{}; }},
    {Error::value, "cache.rotary.base: 10000 is not config.rotary.base: 500",
     [](CachedDraft& d) {
       d.cache_config.rotary = CacheRotary{};
       d.config.rotary = Rotary{.base = 500};
     }},
    {Error::shape, "cache.rotary.dims: 4 is not config.rotary.dims: 2",
     [](CachedDraft& d) {
       d.cache_config.rotary = CacheRotary{};
       d.config.rotary = Rotary{.dims = 2};
     }},
    {Error::value, "cache.rotary.pairs: halves are not config.rotary's",
     [](CachedDraft& d) {
       d.cache_config.rotary = CacheRotary{};
       d.config.rotary = Rotary{.pairs = RotaryPairs::adjacent};
     }},
    {Error::value, "cache.rotary.scaling: none is not config.rotary.scaling: linear",
     [](CachedDraft& d) {
       d.cache_config.rotary = CacheRotary{};
       d.config.rotary = Rotary{.scaling = LinearScaling{2}};
     }},
    {Error::value, "cache.rotary.scaling: linear is not config.rotary.scaling: linear with other numbers",
     [](CachedDraft& d) {
       d.cache_config.rotary = CacheRotary{{.scaling = LinearScaling{4}}};
       d.config.rotary = Rotary{.scaling = LinearScaling{2}};
     }},
    {Error::value, "positions: given, but the cache turns its keys by their places in the sequence",
     [](CachedDraft& d) {
       d.cache_config.rotary = CacheRotary{};
       d.config.rotary = Rotary{};
       d.positions = {3, 4};
       d.call.positions = d.positions;
     }},
    {Error::value, "key_positions: given, but the cache turns its keys by their places in the sequence",
     [](CachedDraft& d) {
       d.cache_config.rotary = CacheRotary{};
       d.config.rotary = Rotary{};
       d.positions = {3, 4};
       d.call.key_positions = d.positions;
     }},
    {Error::value, "positions: given, but config.rotary is not",
     [](CachedDraft& d) {
       d.positions = {3, 4};
       d.call.positions = d.positions;
     }},
    {Error::shape, "positions: 3 entries are neither one per token: 2 nor one per batch entry and token: 4",
     [](CachedDraft& d) {
       d.config.rotary = Rotary{};
       d.positions = {3, 4, 5};
       d.call.positions = d.positions;
     }},
    {Error::shape, "weights.shape: (2, 4, 2, 2) is not (batch, heads, queries, keys): (2, 4, 2, 5)",
     [](CachedDraft& d) { d.outputs.weights->shape.dim = 2; }},
    {Error::value,
     "key lengths: given, but so is a cache, which would keep the padding they hide; say by counts how many "
     "tokens of x there are",
     [](CachedDraft& d) {
       d.valid = {5, 2};
       d.options.masks = {Causal{}, KeyLengths{d.valid}};
     }},
    {Error::shape, "counts: 1 entries for x.batch: 2",
     [](CachedDraft& d) {
       d.counts = {2};
       d.call.counts = d.counts;
     }},
    {Error::value, "counts[1]: 3 is not in [0, 2], the tokens of x",
     [](CachedDraft& d) {
       d.counts = {2, 3};
       d.call.counts = d.counts;
     }},
    {Error::value, "counts[0]: -1 is not in [0, 2], the tokens of x",
     [](CachedDraft& d) {
       d.counts = {-1, 2};
       d.call.counts = d.counts;
     }},
    {Error::shape, "weights.shape: (2, 4, 2, 5) is not (batch, heads, queries, keys): (2, 4, 2, 4)",
     [](CachedDraft& d) {
       d.counts = {1, 2};
       d.call.counts = d.counts;
     }},
    {Error::shape,
     "options.bias.shape: (2, 1, 2, 16) does not broadcast to (batch, heads, queries, keys): (2, 4, 2, 5)",
     [](CachedDraft& d) { d.options.bias = d.x_memory.view(); }},
    {Error::value, "options.dropout: the layer owns it; set config.drop_probability and Mode::train",
     [](CachedDraft& d) { d.options.dropout = Dropout{}; }},
    {Error::unsupported, no_such_kernel.c_str(), [](CachedDraft& d) { d.options.kernel = "no.such.kernel"; }},
    {Error::overlap, "out: shares memory with x",
     [](CachedDraft& d) { d.outputs.out.data = d.x_memory.values.data(); }}};

TEST(refusals_over_a_cache, say_why_and_leave_the_cache_as_it_was) {
  for (const BadCachedCall& row : bad_cached_calls) {
    CachedDraft d;
    row.spoil(d);
    KvCache cache = d.cache();
    const Seen before(cache);
    d.call.cache = &cache;
    d.call.sequences = d.numbers;
    const AttentionLayer layer(d.config, random_weights(d.config, 4));
    expect_refusal(row.code, row.sentence, [&] { layer(d.call, d.outputs, d.options); });
    EXPECT_EQ(d.written(), 0) << row.sentence;
    EXPECT_TRUE(Seen(cache) == before) << row.sentence;
  }
}

TEST(refusals_over_a_cache, leave_the_good_call_alone) {
  CachedDraft d;
  KvCache cache = d.cache();
  d.call.cache = &cache;
  d.call.sequences = d.numbers;
  const AttentionLayer layer(d.config, random_weights(d.config, 4));
  layer(d.call, d.outputs, d.options);
  EXPECT_EQ(d.written(), 64 + 80);
  EXPECT_EQ(cache.length(0), 5);
  EXPECT_EQ(cache.length(1), 3);
}

TEST(refusals_over_a_cache, sequences_and_counts_need_one) {
  const CachedDraft d;
  const AttentionLayer layer(d.config, random_weights(d.config, 4));
  expect_refusal(Error::value, "counts: given, but the cache that gets so many tokens is not",
                 [&] { layer({.x = d.call.x, .counts = d.numbers}, d.outputs, d.options); });
  expect_refusal(Error::value, "sequences: given, but the cache they are numbers of is not",
                 [&] { layer({.x = d.call.x, .sequences = d.numbers}, d.outputs, d.options); });
}

// An int8 cache cannot hold an infinity, which shows only when the keys are there.
TEST(refusals_over_a_cache, what_the_cache_cannot_hold_is_refused_for_all_sequences) {
  for (const std::vector<std::int64_t>& numbers : {std::vector<std::int64_t>{0, 1}, {2, 1}}) {
    CachedDraft d;
    d.cache_config.type = CacheType::int8;
    KvCache cache = d.cache();
    const Seen before(cache);
    d.x_memory.values[40] = std::numeric_limits<float>::infinity();  // of the second batch entry
    d.call.cache = &cache;
    d.call.sequences = numbers;
    d.outputs.weights.reset();
    const AttentionLayer layer(d.config, random_weights(d.config, 4));
    EXPECT_THROW(layer(d.call, d.outputs, d.options), Error);
    EXPECT_TRUE(Seen(cache) == before) << "first sequence " << numbers[0];
    EXPECT_EQ(d.written(), 0);
  }
}

TEST(refusals_over_a_cache, a_cache_that_is_being_read_does_not_change) {
  CachedDraft d;
  KvCache cache = d.cache();
  const Seen before(cache);
  d.call.cache = &cache;
  d.call.sequences = d.numbers;
  const AttentionLayer layer(d.config, random_weights(d.config, 4));
  {
    const cache::CacheReading reading(cache, {0});
    expect_refusal(Error::busy, "layer: sequence 0 is being read by another call",
                   [&] { layer(d.call, d.outputs, d.options); });
  }
  EXPECT_TRUE(Seen(cache) == before);
}

struct Tokens {
  Tensor k = random_tensor({2, 2, 2, 4}, 1), v = random_tensor({2, 2, 2, 4}, 2);
};

TEST(appended_tokens, are_taken_back_unless_they_are_kept) {
  const Tokens t;
  KvCache cache = CachedDraft{}.cache();
  const Seen before(cache);
  for (const std::vector<std::int64_t>& numbers : {std::vector<std::int64_t>{1, 2}, {2, 1}}) {
    const layer::GrowingSequences sequences{
        numbers, {cache.length(numbers[0]), cache.length(numbers[1])}, {2, numbers[0]}};
    {
      const layer::AppendedTokens appended(cache, sequences, t.k.view(), t.v.view());
    }
    EXPECT_EQ(Seen(cache).lengths, before.lengths);
    EXPECT_TRUE(Seen(cache).contents == before.contents);
  }
  for (const std::int64_t second : {2, 1, 0}) {
    const layer::GrowingSequences sequences{{2, 1}, {cache.length(2), cache.length(1)}, {0, second}};
    layer::AppendedTokens(cache, sequences, t.k.view(), t.v.view()).keep();
  }
  EXPECT_EQ(cache.length(2), 0);
  EXPECT_EQ(cache.length(1), 4);
}

TEST(appended_tokens, go_nowhere_when_another_call_came_in_between) {
  const Tokens t;
  KvCache cache = CachedDraft{}.cache();
  const layer::GrowingSequences stale{{1, 2}, {0, 0}, {2, 2}};
  expect_refusal(Error::busy,
                 "cache: sequence 1 had 0 tokens when the call began and has 1 now; another call changed it",
                 [&] { const layer::AppendedTokens appended(cache, stale, t.k.view(), t.v.view()); });
  EXPECT_EQ(cache.length(2), 0);
}

}  // namespace
}  // namespace heed::layer_tests
