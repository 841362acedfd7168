// SPDX-License-Identifier: Apache-2.0
// Random schedules of every call against the model: what is read back, what is counted, what is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <span>

#include "model.hpp"

namespace heed::test {
namespace {

KvCacheConfig draw_config(Random& random) {
  KvCacheConfig c;
  c.batch = draw(random, 1, 3);
  c.kv_heads = draw(random, 1, 3);
  c.capacity = draw(random, 1, 150);
  c.dim = 2 * draw(random, 1, 10);
  if (one_in(random, 2)) c.value_dim = draw(random, 1, 40);
  c.type = static_cast<CacheType>(draw(random, 0, 3));
  if (!one_in(random, 5)) c.page_size = 16 << draw(random, 0, 2);
  if (one_in(random, 2)) c.pages = draw(random, 1, 24);
  if (one_in(random, 3)) c.window = {draw(random, 1, 40), one_in(random, 2) ? draw(random, 0, 40) : 0};
  if (one_in(random, 3)) {
    c.rotary.emplace();
    c.rotary->when = one_in(random, 2) ? CacheRotary::When::append : CacheRotary::When::read;
    c.rotary->rotary.pairs = one_in(random, 2) ? RotaryPairs::halves : RotaryPairs::adjacent;
    if (one_in(random, 2)) c.rotary->rotary.dims = 2 * draw(random, 1, c.dim / 2);
  }
  return c;
}

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed)
      : random_(seed), cache_(draw_config(random_)), model_(cache_.config()) {}

  // One call, on both. False when they disagree.
  bool step() {
    switch (draw(random_, 0, 11)) {
      case 0:
        return truncate();
      case 1:
        return fork();
      case 2:
        return release();
      case 3:
        return add();
      case 4:
        return reset();
      case 5:
        return one_in(random_, 4) ? save_and_load() : append_to();
      case 6:
      case 7:
        return append();
      default:
        return append_to();
    }
  }

  std::string description() const {
    const KvCacheConfig& c = cache_.config();
    return std::string(name_of(c.type)) + ", page_size " + std::to_string(*c.page_size) +
           (c.window ? ", a window" : "") + (c.rotary ? ", rotary" : "");
  }

  // Everything that can be seen, sequence by sequence.
  bool agrees() const {
    const auto count = static_cast<std::int64_t>(model_.sequences.size());
    if (cache_.sequences() != count || cache_.pages_in_use() != model_.pages_in_use()) return false;
    for (std::int64_t n = 0; n < count; ++n) {
      const Model::Sequence& s = model_.sequences[static_cast<std::size_t>(n)];
      if (s.is_released) continue;
      if (cache_.length(n) != static_cast<std::int64_t>(s.tokens.size())) return false;
      if (!(read(cache_, n) == model_.contents(static_cast<std::size_t>(n)))) return false;
    }
    return true;
  }

 private:
  std::int64_t any_sequence() {  // sometimes one that does not exist
    return draw(random_, one_in(random_, 10) ? -1 : 0,
                static_cast<std::int64_t>(model_.sequences.size()) - (one_in(random_, 10) ? 0 : 1));
  }
  std::int64_t any_length(std::int64_t n) {
    if (!model_.is_in_use(n)) return 0;
    const auto length =
        static_cast<std::int64_t>(model_.sequences[static_cast<std::size_t>(n)].tokens.size());
    return one_in(random_, 2) ? std::max<std::int64_t>(length - draw(random_, -1, 5), 0)
                              : draw(random_, -1, length + 1);
  }
  DType any_dtype() { return static_cast<DType>(draw(random_, 0, 2)); }

  // Is refused exactly when the model says so.
  template <class Call>
  bool is_as_expected(bool is_allowed, const Call& call) {
    return (refusal_of(call) == "nothing") == is_allowed;
  }

  bool append_tokens(std::int64_t first, std::int64_t batch, bool is_batch) {
    const KvCacheConfig& c = cache_.config();
    const std::int64_t tokens = one_in(random_, 6) ? draw(random_, 0, 90) : draw(random_, 0, 4);
    const Tokens k = Tokens::random(random_, {batch, c.kv_heads, tokens, c.dim}, any_dtype());
    const Tokens v = Tokens::random(random_, {batch, c.kv_heads, tokens, *c.value_dim}, any_dtype());
    std::vector<std::int64_t> counts(static_cast<std::size_t>(batch), tokens);
    const bool has_counts = is_batch && one_in(random_, 2);
    if (has_counts)
      for (std::size_t b = 0; b < counts.size(); ++b)
        counts[b] = model_.sequences[b].is_released && !one_in(random_, 20) ? 0 : draw(random_, 0, tokens);
    auto after = model_.appended(first, k, v, counts);
    const bool is_right = is_as_expected(after.has_value(), [&] {
      if (!is_batch) return cache_.append_to(first, k.view(), v.view());
      const std::span<const std::int64_t> given(counts);
      cache_.append(k.view(), v.view(), has_counts ? given : given.first(0));
    });
    if (after) model_ = std::move(*after);
    return is_right;
  }
  bool append() { return append_tokens(0, static_cast<std::int64_t>(model_.sequences.size()), true); }
  bool append_to() {
    const std::int64_t n = any_sequence();
    if (model_.is_in_use(n)) return append_tokens(n, 1, false);
    const KvCacheConfig& c = cache_.config();
    return is_as_expected(false, [&] {
      cache_.append_to(n, marked(c, 1, c.dim, 1).view(), marked(c, 1, *c.value_dim, 1).view());
    });
  }

  bool truncate() {
    const std::int64_t n = any_sequence(), length = any_length(n);
    const bool is_allowed = model_.has_prefix(n, length);
    if (is_allowed) model_.truncate(model_.sequences[static_cast<std::size_t>(n)], length);
    return is_as_expected(is_allowed, [&] { cache_.truncate(n, length); });
  }

  bool fork() {
    const std::int64_t n = any_sequence(), length = any_length(n);
    const bool is_allowed = model_.has_prefix(n, length);
    std::int64_t expected = -1, found = -1;
    if (is_allowed) {
      Model::Sequence made = model_.sequences[static_cast<std::size_t>(n)];
      model_.truncate(made, length);
      expected = model_.add(made);
    }
    return is_as_expected(is_allowed, [&] { found = cache_.fork(n, length); }) && found == expected;
  }

  bool release() {
    const std::int64_t n = any_sequence();
    const bool is_allowed = model_.is_in_use(n);
    if (is_allowed) {
      model_.sequences[static_cast<std::size_t>(n)] = model_.empty();
      model_.sequences[static_cast<std::size_t>(n)].is_released = true;
    }
    return is_as_expected(is_allowed, [&] { cache_.release(n); });
  }

  bool add() { return cache_.add() == model_.add(model_.empty()); }

  bool reset() {
    if (one_in(random_, 4)) {
      for (Model::Sequence& s : model_.sequences) model_.truncate(s, 0);
      cache_.reset();
      return true;
    }
    const std::int64_t n = any_sequence();
    if (model_.is_in_use(n)) model_.truncate(model_.sequences[static_cast<std::size_t>(n)], 0);
    return is_as_expected(model_.is_in_use(n), [&] { cache_.reset(n); });
  }

  bool save_and_load() {
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / ("heed-cache-" + std::to_string(::getpid()));
    cache_.save(file);
    cache_ = KvCache::load(file);
    std::filesystem::remove(file);
    return true;
  }

  Random random_;
  KvCache cache_;
  Model model_;
};

TEST(Schedules, every_call_does_what_the_model_does) {
  int failures = 0;
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Schedule schedule(seed);
    for (int step = 0; step < 40; ++step)
      if (!schedule.step() || !schedule.agrees()) {
        ++failures;
        ADD_FAILURE() << "seed " << seed << ", step " << step << ", " << schedule.description();
        break;
      }
  }
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace heed::test
