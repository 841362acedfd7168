// SPDX-License-Identifier: Apache-2.0
// What a cache refuses, with which sentence, and that it is then exactly as before.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "tokens.hpp"

namespace heed::test {
namespace {

const KvCacheConfig usual{.batch = 2, .kv_heads = 2, .capacity = 40, .dim = 4, .page_size = 16, .pages = 4};

struct Given {
  Tokens k, v;
};

Given tokens(Shape k, std::int64_t value_dim) {
  Given given{Tokens(k), Tokens({k.batch, k.heads, k.length, value_dim})};
  given.k.fill([](const Shape&) { return 1.0f; });
  given.v.fill([](const Shape&) { return 2.0f; });
  return given;
}

// A cache with 20 and 3 tokens in its two sequences, a released third, and what a call on it refuses with.
std::string refused(const std::function<void(KvCache&)>& call) {
  KvCache cache(usual);
  append_marked(cache, 0, 20, 1);
  append_marked(cache, 1, 3, 50);
  cache.release(cache.add());
  const Seen before(cache);
  const std::string sentence = refusal_of([&] { call(cache); });
  EXPECT_EQ(Seen(cache), before) << sentence;
  return sentence;
}

std::string refused_append(Shape k, std::int64_t value_dim = 4, std::vector<std::int64_t> counts = {}) {
  const Given given = tokens(k, value_dim);
  return refused([&](KvCache& cache) { cache.append(given.k.view(), given.v.view(), counts); });
}

std::string refused_append_to(std::int64_t sequence, std::int64_t count) {
  const Given given = tokens({1, 2, count, 4}, 4);
  return refused([&](KvCache& cache) { cache.append_to(sequence, given.k.view(), given.v.view()); });
}

TEST(Refusals, no_room) {
  EXPECT_EQ(refused_append_to(0, 21), "capacity: sequence 0 holds 20 of 40 tokens; 21 more do not fit");
  EXPECT_EQ(refused_append({3, 2, 20, 4}, 4, {20, 14, 0}),
            "capacity: cache: 34 tokens need 2 pages, 1 is free");
  EXPECT_EQ(refused_append({3, 2, 30, 4}, 4, {0, 30, 0}),
            "capacity: cache: 30 tokens need 2 pages, 1 is free");
}

TEST(Refusals, no_room_for_the_copy_of_a_shared_page) {
  KvCache cache({.kv_heads = 1, .capacity = 40, .dim = 1, .page_size = 16, .pages = 1});
  append_marked(cache, 0, 1, 1);
  cache.fork(0);
  const Seen before(cache);
  EXPECT_EQ(refusal_of([&] { append_marked(cache, 1, 1, 1); }),
            "capacity: cache: 1 token needs 1 page, 0 are free");
  EXPECT_EQ(Seen(cache), before);
  cache.release(0);
  append_marked(cache, 1, 1, 5);
  EXPECT_EQ(marks(cache, 1), (std::vector<float>{1, 5}));
}

TEST(Refusals, sequences_that_are_not_there) {
  EXPECT_EQ(refused_append_to(3, 1), "value: sequence: 3 is not in [0, 3)");
  EXPECT_EQ(refused_append_to(-1, 1), "value: sequence: -1 is not in [0, 3)");
  EXPECT_EQ(refused_append_to(2, 1), "value: sequence: 2 is released");
  EXPECT_EQ(refused([](KvCache& cache) { cache.truncate(5, 0); }), "value: sequence: 5 is not in [0, 3)");
  EXPECT_EQ(refused([](KvCache& cache) { cache.reset(5); }), "value: sequence: 5 is not in [0, 3)");
  EXPECT_EQ(refused([](KvCache& cache) { cache.fork(5); }), "value: sequence: 5 is not in [0, 3)");
  EXPECT_EQ(refused([](KvCache& cache) { cache.fork(2); }), "value: sequence: 2 is released");
  EXPECT_EQ(refused([](KvCache& cache) { cache.release(2); }), "value: sequence: 2 is released");
  EXPECT_EQ(refused([](KvCache& cache) { static_cast<void>(cache.length(3)); }),
            "value: sequence: 3 is not in [0, 3)");
}

TEST(Refusals, lengths_that_are_not_there) {
  EXPECT_EQ(refused([](KvCache& cache) { cache.truncate(0, 21); }),
            "value: length: 21 is not in [0, 20], the tokens of sequence 0");
  EXPECT_EQ(refused([](KvCache& cache) { cache.truncate(0, -1); }),
            "value: length: -1 is not in [0, 20], the tokens of sequence 0");
  KvCache cache(usual);
  append_marked(cache, 0, 20, 1);
  cache.truncate(0, 8);
  EXPECT_EQ(refusal_of([&] { cache.fork(0, 12); }),
            "value: length: 12 is not in [0, 8], the tokens of sequence 0");
  EXPECT_EQ(cache.sequences(), 2);
}

TEST(Refusals, shapes_that_do_not_fit) {
  EXPECT_EQ(refused_append({2, 2, 1, 4}), "shape: k.batch: 2 is not the cache's sequences: 3");
  EXPECT_EQ(refused_append({3, 1, 1, 4}), "shape: k.heads: 1 is not the cache's kv_heads: 2");
  EXPECT_EQ(refused_append({3, 2, 1, 5}), "shape: k.dim: 5 is not the cache's dim: 4");
  EXPECT_EQ(refused_append({3, 2, 1, 4}, 3), "shape: v.dim: 3 is not the cache's value_dim: 4");
  EXPECT_EQ(refused_append({3, 2, 1, 4}, 4, {1, 1}), "shape: counts: 2 entries for 3 sequences");
  EXPECT_EQ(refused_append({3, 2, 1, 4}, 4, {1, 2, 0}),
            "value: counts[1]: 2 is not in [0, 1], the tokens of k");
  EXPECT_EQ(refused_append({3, 2, 1, 4}, 4, {-1, 0, 0}),
            "value: counts[0]: -1 is not in [0, 1], the tokens of k");
  EXPECT_EQ(refused_append({3, 2, 1, 4}), "value: sequence: 2 is released, but gets 1 token");
  const Given given = tokens({1, 2, 2, 4}, 4), longer = tokens({1, 2, 3, 4}, 4),
              two = tokens({2, 2, 2, 4}, 4);
  EXPECT_EQ(refused([&](KvCache& cache) { cache.append_to(0, given.k.view(), longer.v.view()); }),
            "shape: v.length: 3 is not k.length: 2");
  EXPECT_EQ(refused([&](KvCache& cache) { cache.append_to(0, two.k.view(), two.v.view()); }),
            "shape: k.batch: 2 is not the one sequence: 1");
}

std::string refused_key(const std::function<void(View&)>& change) {
  const Given given = tokens({1, 2, 2, 4}, 4);
  View k = given.k.view();
  change(k);
  return refused([&](KvCache& cache) { cache.append_to(0, k, given.v.view()); });
}

TEST(Refusals, memory_that_cannot_be_read) {
  EXPECT_EQ(refused_key([](View& k) { k.data = nullptr; }),
            "value: k.data: null, but the shape is (1, 2, 2, 4)");
  EXPECT_EQ(refused_key([](View& k) { k.data = static_cast<const char*>(k.data) + 1; }),
            "value: k.data: the address is not a multiple of the element's 4 bytes");
  EXPECT_EQ(refused_key([](View& k) { k.stride.heads = -8; }), "shape: k.stride.heads: -8 is negative");
  EXPECT_EQ(
      refused_key([](View& k) { k.stride.length = std::numeric_limits<std::int64_t>::max(); }),
      "shape: k: shape (1, 2, 2, 4) with strides (16, 8, 9223372036854775807, 1) reaches beyond any memory");
  EXPECT_EQ(refused_key([](View& k) { k.shape.length = -1; }), "shape: k.length: -1 is negative");
  EXPECT_EQ(refused_key([](View& k) { k.dtype = static_cast<DType>(7); }),
            "dtype: k.dtype: 7 is none of f32, f16, bf16");
  EXPECT_EQ(refused_key([](View& k) { k.device = Device::cuda; }),
            "device: k.device: cuda is not the cache's: cpu");
}

TEST(Refusals, results_that_do_not_fit) {
  std::vector<float> memory(1000, 5.0f);
  const Shape right{1, 2, 20, 4}, wrong{1, 2, 19, 4};
  const auto at = [&](std::size_t begin, Shape shape) { return MutableView{memory.data() + begin, shape}; };
  const auto reading = [&](MutableView k, MutableView v) {
    const std::string sentence = refused([&](KvCache& cache) { cache.read(0, k, v); });
    EXPECT_EQ(memory, std::vector<float>(1000, 5.0f)) << sentence;
    return sentence;
  };
  EXPECT_EQ(reading(at(0, wrong), at(500, right)), "shape: k.length: 19 is not the sequence's length: 20");
  EXPECT_EQ(reading(at(0, right), at(100, right)), "overlap: v: shares memory with k");
  MutableView flat = at(0, right);
  flat.stride.heads = 0;
  EXPECT_EQ(reading(flat, at(500, right)), "overlap: k.stride.heads: 0 puts 2 results in one place");
}

TEST(Refusals, results_may_be_slices_of_one_buffer) {
  KvCache cache(usual);
  append_marked(cache, 0, 20, 1);
  const Contents apart = read(cache, 0);
  std::vector<float> both(2 * 20 * 8);  // (heads, tokens, the key beside the value)
  const Shape shape{1, 2, 20, 4};
  const Strides stride{320, 160, 8, 1};
  cache.read(0, {both.data(), shape, stride}, {both.data() + 4, shape, stride});
  for (std::size_t n = 0; n < apart.k.size(); ++n) {
    EXPECT_EQ(both[n / 4 * 8 + n % 4], apart.k[n]);
    EXPECT_EQ(both[n / 4 * 8 + 4 + n % 4], apart.v[n]);
  }
}

std::string refused_config(const std::function<void(KvCacheConfig&)>& change) {
  KvCacheConfig config = usual;
  change(config);
  return refusal_of([&] { const KvCache cache(config); });
}

TEST(Refusals, configurations_that_make_no_cache) {
  EXPECT_EQ(refused_config([](auto& c) { c.dim = 0; }), "value: config.dim: 0 is not in [1, 2147483647]");
  EXPECT_EQ(refused_config([](auto& c) { c.kv_heads = 0; }),
            "value: config.kv_heads: 0 is not in [1, 2147483647]");
  EXPECT_EQ(refused_config([](auto& c) { c.batch = -1; }),
            "value: config.batch: -1 is not in [0, 2147483647]");
  EXPECT_EQ(refused_config([](auto& c) { c.pages = 0; }), "value: config.pages: 0 is not in [1, 2147483647]");
  EXPECT_EQ(refused_config([](auto& c) {
              c.batch = 0;
              c.pages.reset();
            }),
            "value: config.pages: must be given, since config.batch is 0 and says nothing of how many");
  EXPECT_EQ(refused_config([](auto& c) { c.page_size = 24; }),
            "value: config.page_size: 24 is not a power of two of at least 16");
  EXPECT_EQ(refused_config([](auto& c) { c.page_size = 8; }),
            "value: config.page_size: 8 is not a power of two of at least 16");
  EXPECT_EQ(refused_config([](auto& c) { c.type = static_cast<CacheType>(9); }),
            "value: config.type: 9 is none of f32, f16, bf16, int8");
  EXPECT_EQ(refused_config([](auto& c) { c.window = {0, 0}; }),
            "value: config.window.length: 0 is not in [1, 1152921504606846976]");
  EXPECT_EQ(refused_config([](auto& c) { c.rotary = {{.dims = 6}}; }),
            "value: config.rotary.dims: 6 is more than the head's dim: 4");
  EXPECT_EQ(refused_config([](auto& c) { c.rotary = {{}, static_cast<CacheRotary::When>(2)}; }),
            "value: config.rotary.when: 2 is none of append, read");
  EXPECT_EQ(refused_config([](auto& c) { c.page_size = std::int64_t{1} << 58; }),
            "capacity: config.pages: 4 pages of 288230376151711744 tokens are beyond any memory");
  EXPECT_EQ(refused_config([](auto& c) {
              c.pages.reset();
              c.capacity = std::int64_t{1} << 60;
            }),
            "value: config.pages: 144115188075855872 is not in [1, 2147483647]");
}

TEST(Refusals, a_complete_configuration_makes_the_same_cache_again) {
  for (const std::int64_t capacity : {1, 15, 16, 17, 100}) {
    const KvCache cache({.batch = 3, .kv_heads = 1, .capacity = capacity, .dim = 5});
    const KvCacheConfig& c = cache.config();
    EXPECT_EQ(*c.page_size, (capacity + 15) / 16 * 16);
    EXPECT_EQ(*c.pages, 3);
    EXPECT_EQ(*c.value_dim, 5);
    EXPECT_EQ(*KvCache(c).config().page_size, *c.page_size);
  }
}

}  // namespace
}  // namespace heed::test
