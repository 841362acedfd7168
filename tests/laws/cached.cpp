// SPDX-License-Identifier: Apache-2.0
// O1 over caches (S18): however tokens came into a cache, attention over it has the bits of plain attention.
#include "laws/cached.hpp"

#include <limits>
#include <map>
#include <optional>

#include "cases/selection.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

class Cached : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Cached, testing::ValuesIn(plan_and_kernels()), test_name);

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TokenShape random_tokens(Dice& dice) {
  const std::int64_t kv_heads = dice.between(1, 3), dim = dice.pick<std::int64_t>({1, 8, 16, 33, 64, 140});
  return {kv_heads * dice.between(1, 5), kv_heads, dim,
          dice.one_in(3) ? dice.pick<std::int64_t>({1, 7, 16, 40}) : dim,
          dice.pick<DType>({DType::f32, DType::bf16})};
}

KvCacheConfig random_config(Dice& dice, const TokenShape& s, std::int64_t batch, std::int64_t capacity) {
  KvCacheConfig made{.batch = batch,
                     .kv_heads = s.kv_heads,
                     .capacity = capacity,
                     .dim = s.dim,
                     .value_dim = s.value_dim,
                     .type = cache_type(s.dtype)};
  if (!dice.one_in(3)) made.page_size = dice.pick<std::int64_t>({16, 32, 128});
  made.pages = (capacity / made.page_size.value_or(capacity) + 2) * (batch + 4);
  return made;
}

// A cache and what must be in it: which tokens each sequence holds.
class Schedule {
 public:
  Schedule(std::uint64_t seed, std::string forced) : dice_(seed), kernel_(std::move(forced)) {
    shape_ = random_tokens(dice_);
    const std::int64_t batch = dice_.between(1, 3);
    cache_.emplace(random_config(dice_, shape_, batch, capacity));
    const bool is_long = dice_.one_in(25);  // beyond a block of keys, and a chunk
    for (std::int64_t b = 0; b < batch; ++b) held_[b] = {seed * 100 + static_cast<std::uint64_t>(b), 0};
    for (int step = 0; step < 8; ++step) take_step(is_long);
  }

  // Every sequence by itself, then some of them as one batch: the last tokens of each, as queries.
  void check() {
    for (const auto& [number, tokens] : held_) {
      if (tokens.length == 0) continue;
      const std::int64_t count = std::min<std::int64_t>(dice_.between(1, 12), tokens.length);
      const std::vector<std::int64_t> one{number};
      compare(one, count);
    }
    std::vector<std::int64_t> some;
    std::int64_t count = dice_.between(1, 3);
    for (const auto& [number, tokens] : held_)
      if (tokens.length >= count) some.push_back(number);
    if (!some.empty()) compare(some, count);
  }

 private:
  struct Held {
    std::uint64_t seed;
    std::int64_t length;
  };
  static constexpr std::int64_t capacity = 1500;

  void take_step(bool is_long) {
    auto at = held_.begin();
    std::advance(at, dice_.between(0, std::ssize(held_) - 1));
    auto& [number, tokens] = *at;
    if (dice_.one_in(5) && held_.size() < 6) {
      const std::int64_t length = dice_.one_in(2) ? tokens.length : dice_.between(0, tokens.length);
      held_[cache_->fork(number, length)] = {tokens.seed, length};
    } else if (dice_.one_in(5)) {
      tokens.length = dice_.between(0, tokens.length);
      cache_->truncate(number, tokens.length);
    } else if (dice_.one_in(8) && held_.size() > 1) {
      poison_then_release(number, tokens.length);
      held_.erase(at);
    } else {
      const std::int64_t room = capacity - tokens.length;
      append(number, tokens, std::min(room, dice_.one_in(3) ? 1 : dice_.between(1, is_long ? 700 : 60)));
    }
  }

  void append(std::int64_t number, Held& tokens, std::int64_t count) {
    if (dice_.one_in(4)) poison_tail(number, tokens.length);
    const Tokens all(shape_, tokens.length + count, tokens.seed);
    const Tensor k = all.k.rows(tokens.length, count), v = all.v.rows(tokens.length, count);
    cache_->append_to(number, k.view(), v.view());
    tokens.length += count;
  }

  // Tokens that were drafted and rolled back, NaN throughout, must leave no trace; nor may those of a
  // sequence that was given up, whose pages others take over.
  void poison_tail(std::int64_t number, std::int64_t length) {
    const std::int64_t count = std::min<std::int64_t>(20, capacity - length);
    if (count <= 0) return;
    Tensor k({1, shape_.kv_heads, count, shape_.dim}, shape_.dtype),
        v({1, shape_.kv_heads, count, shape_.value_dim}, shape_.dtype);
    k.fill(nan), v.fill(nan);
    cache_->append_to(number, k.view(), v.view());
    cache_->truncate(number, length);
  }
  void poison_then_release(std::int64_t number, std::int64_t length) {
    cache_->truncate(number, length / 2);
    poison_tail(number, length / 2);
    cache_->release(number);
  }

  void compare(const std::vector<std::int64_t>& numbers, std::int64_t count) {
    const auto batch = std::ssize(numbers);
    Tensor q({batch, shape_.heads, count, shape_.dim}, shape_.dtype);
    Attended got = make_attended(shape_, batch, count);
    for (std::int64_t b = 0; b < batch; ++b) {
      const Held& held = held_[numbers[static_cast<std::size_t>(b)]];
      const Tokens all(shape_, held.length, held.seed);
      for_each({1, shape_.heads, count, shape_.dim}, [&](auto, auto h, auto i, auto d) {
        q.set(b, h, i, d, all.q.at(0, h, held.length - count + i, d));
      });
    }
    if (!attend_if_accepted({.q = q.view(), .cache = &*cache_, .sequences = numbers},
                            {.out = got.out.mutable_view(), .log_sum_exp = got.log_sum_exp.mutable_view()},
                            {.masks = {Causal{}}, .kernel = kernel_}))
      return;
    for (std::int64_t b = 0; b < batch; ++b) {
      const Held& held = held_[numbers[static_cast<std::size_t>(b)]];
      const Attended expected = attend_plainly(Tokens(shape_, held.length, held.seed), shape_, held.length,
                                               count, {.masks = {Causal{Align::ends}}, .kernel = kernel_});
      Attended mine = make_attended(shape_, 1, count);
      for_each(mine.out.shape(), [&](auto, auto h, auto i, auto d) {
        mine.out.set(0, h, i, d, got.out.at(b, h, i, d));
        mine.log_sum_exp.set(0, h, i, 0, got.log_sum_exp.at(b, h, i, 0));
      });
      EXPECT_TRUE(same_bits(mine, expected)) << "sequence " << numbers[static_cast<std::size_t>(b)] << " of "
                                             << batch << ", " << count << " queries";
    }
  }

  Dice dice_;
  std::string kernel_;
  TokenShape shape_{};
  std::optional<KvCache> cache_{};
  std::map<std::int64_t, Held> held_{};
};

TEST_P(Cached, any_way_of_feeding_the_same_tokens_gives_the_bits_of_plain_attention) {
  const std::uint64_t schedules = GetParam().empty() ? 500 : GetParam() == "reference" ? 10 : 50;
  for (std::uint64_t seed : seeds(9000, 9000 + schedules / (small_selection() ? 5 : 1))) {
    SCOPED_TRACE("schedule seed " + std::to_string(seed));
    Schedule schedule(seed, GetParam());
    schedule.check();
    if (HasFailure()) return;
  }
}

// Every option over a cache, against the same call over plain views.
TEST_P(Cached, every_option_means_the_same_over_a_cache) {
  for (std::uint64_t seed : seeds(9600, small_selection() ? 9650 : 9700)) {
    Call call = random_call(seed, {.dropout = true});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    if (call.queries() > call.keys() || call.keys() == 0) continue;
    KvCache cache({.batch = call.batch(),
                   .kv_heads = call.k.shape().heads,
                   .capacity = call.keys() + 5,
                   .dim = call.k.shape().dim,
                   .value_dim = call.v.shape().dim,
                   .type = cache_type(call.q.dtype()),
                   .page_size = seed % 3 == 0 ? std::nullopt : std::optional<std::int64_t>(16 << seed % 2)});
    cache.append(call.k.view(), call.v.view());
    for (const Wants& wants : {Wants{.log_sum_exp = true}, Wants{true, true, {}},
                               Wants{true, true, Stage::raw}, Wants{false, false, Stage::biased}}) {
      const auto expected = attend(call, wants);
      if (!expected) continue;
      Results got(call, wants);
      attention({.q = call.q.view(), .cache = &cache}, got.outputs(), call.options(GetParam()));
      EXPECT_TRUE(same_bits(got, *expected));
    }
  }
}

// One query over sequences that end anywhere in a tile, whose rest is NaN: for one row, for four at once and
// for both.
TEST_P(Cached, what_was_rolled_back_in_the_last_tile_is_never_read) {
  for (const std::int64_t heads : {1, 3, 4, 5})
    for (std::int64_t length = 1; length <= 33; ++length) {
      SCOPED_TRACE(std::to_string(heads) + " heads, length " + std::to_string(length));
      const TokenShape s{heads, 1, 20, 20, length % 2 ? DType::f32 : DType::bf16};
      KvCache cache({.kv_heads = 1, .capacity = 48, .dim = s.dim, .type = cache_type(s.dtype)});
      const Tokens all(s, length, 9700);
      cache.append(all.k.view(), all.v.view());
      Tensor bad({1, 1, 48 - length, s.dim}, s.dtype);
      bad.fill(nan);
      cache.append(bad.view(), bad.view());
      cache.truncate(0, length);
      Attended got = make_attended(s, 1, 1);
      const Tensor q = all.q.rows(length - 1, 1);
      if (!attend_if_accepted({.q = q.view(), .cache = &cache},
                              {.out = got.out.mutable_view(), .log_sum_exp = got.log_sum_exp.mutable_view()},
                              {.kernel = GetParam()}))
        continue;
      EXPECT_TRUE(same_bits(got, attend_plainly(all, s, length, 1, {.kernel = GetParam()})));
    }
}

// A window cache forgets what its window hides; nothing else changes.
TEST_P(Cached, a_window_cache_gives_the_bits_of_the_window_over_all_tokens_in_bounded_memory) {
  for (std::uint64_t seed : seeds(9800, 9830)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed);
    const TokenShape s = random_tokens(dice);
    const CacheWindow window{dice.between(1, 60), dice.one_in(2) ? 0 : dice.between(1, 40)};
    KvCacheConfig config = random_config(dice, s, 1, 1200);
    config.page_size = 16;
    config.pages = 16;  // 256 tokens' worth for a sequence of up to a thousand
    config.window = window;
    KvCache cache(config);
    const Tokens all(s, 1000, seed);
    std::int64_t length = 0;
    while (length < 300 ||
           (seed % 15 == 5 && length < 950)) {  // one in fifteen goes round the pool three times
      const std::int64_t count = dice.between(1, 40);
      const Tensor k = all.k.rows(length, count), v = all.v.rows(length, count);
      cache.append(k.view(), v.view());
      length += count;
      Attended got = make_attended(s, 1, count);
      const Tensor q = all.q.rows(length - count, count);
      const Options whole{
          .masks = {Causal{Align::ends}, Window{window.length - 1, 0, Align::ends, window.front}},
          .kernel = GetParam()};
      if (!attend_if_accepted({.q = q.view(), .cache = &cache},
                              {.out = got.out.mutable_view(), .log_sum_exp = got.log_sum_exp.mutable_view()},
                              {.masks = {Causal{}}, .kernel = GetParam()}))
        continue;
      EXPECT_TRUE(same_bits(got, attend_plainly(all, s, length, count, whole))) << "at " << length;
    }
  }
}

// plan() decides by what a kernel will be handed, which for a cache that turns keys when they are read is a
// copy; attention() must decide alike, or a kernel is handed what it cannot read.
TEST_P(Cached, every_pair_of_query_and_cache_types_is_right_or_refused_as_the_plan_says) {
  using When = CacheRotary::When;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::int8})
      for (const std::optional<When> when :
           {std::optional<When>(), std::optional(When::append), std::optional(When::read)})
        for (const std::int64_t queries : {1, 40}) {
          SCOPED_TRACE(std::string(name_of(dtype)) + " queries, cache of " + name_of(type) + ", " +
                       std::to_string(queries) + " queries" +
                       (!when                 ? ""
                        : *when == When::read ? ", turned when read"
                                              : ", turned"));
          const TokenShape shape{.heads = 4, .kv_heads = 2, .dim = 16, .value_dim = 12, .dtype = dtype};
          const Tokens tokens(shape, 70, 7);
          KvCacheConfig config{.kv_heads = 2, .capacity = 70, .dim = 16, .value_dim = 12, .type = type};
          if (when) config.rotary = CacheRotary{{}, *when};
          KvCache cache(config);
          cache.append(tokens.k.view(), tokens.v.view());
          const Tensor q = tokens.q.rows(70 - queries, queries);
          Attended found = make_attended(shape, 1, queries);
          const Inputs inputs{.q = q.view(), .cache = &cache};
          const Outputs outputs{.out = found.out.mutable_view(),
                                .log_sum_exp = found.log_sum_exp.mutable_view()};
          const Options options{.masks = {Causal{}}, .kernel = GetParam()};
          if (!is_accepted(inputs, outputs, options)) {
            EXPECT_THROW(attention(inputs, outputs, options), Error);
            continue;
          }
          attention(inputs, outputs, options);
          const Check judged = check(inputs, outputs, {.masks = {Causal{}}});
          EXPECT_EQ(judged.beyond_bound, 0) << judged.first_miss;
        }
}

}  // namespace
}  // namespace heed::cases
