// SPDX-License-Identifier: Apache-2.0
// A step of the layer with its first, second, third ... allocation failing: the cache is as it was. And with
// another call's append at that moment.
#include <functional>

#include "../cache/tokens.hpp"
#include "cases/allocations.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

using cases::allocations;
using test::Seen;

// The call with its allocation number n failing. False when it needs no more than it gets.
template <class Call>
bool fails(int n, const Call& call) {
  allocations.until_failure = n;
  bool failed = false;
  try {
    call();
  } catch (const std::bad_alloc&) {
    failed = true;
  } catch (const Error& error) {
    failed = error.code == Error::capacity;
  }
  allocations.until_failure = -1;
  return failed;
}

struct Step {
  LayerConfig config{.model_dim = 16, .heads = 4, .kv_heads = 2, .rotary = Rotary{}};
  AttentionLayer layer{config, random_weights(config, 1)};
  Tensor prompt = random_tensor({3, 1, 20, 16}, 2), x = random_tensor({2, 1, 2, 16}, 3),
         y = output({2, 1, 2, 16}), weights = output({2, 1, 2, 22});
  Options options{.masks = {Causal{}}};

  KvCache cache(const KvCacheConfig& of_cache) const {
    KvCache made(of_cache);
    run(layer, {.x = prompt.view(), .cache = &made}, options);
    return made;
  }
  void take(KvCache& cache, std::span<const std::int64_t> numbers) {
    layer({.x = x.view(), .cache = &cache, .sequences = numbers},
          {.out = y.mutable_view(), .weights = weights.mutable_view()}, options);
  }
  void take_without_weights(KvCache& cache, std::span<const std::int64_t> numbers) {
    layer({.x = x.view(), .cache = &cache, .sequences = numbers}, {.out = y.mutable_view()}, options);
  }
};

const KvCacheConfig paged{.batch = 3, .kv_heads = 2, .capacity = 40, .dim = 4, .page_size = 16};

TEST(failing_allocations, leave_the_cache_as_it_was) {
  for (const std::vector<std::int64_t>& numbers : {std::vector<std::int64_t>{0, 1}, {2, 0}})
    for (const CacheType type : {CacheType::f32, CacheType::int8}) {
      KvCacheConfig of_cache = paged;
      of_cache.type = type;
      if (type == CacheType::int8) of_cache.rotary = CacheRotary{};
      int n = 0;
      for (;; ++n) {
        Step step;
        KvCache cache = step.cache(of_cache);
        const Seen before(cache);
        const bool failed = fails(n, [&] { step.take(cache, numbers); });
        ASSERT_EQ(Seen(cache) == before, failed) << "allocation " << n << " of a step over " << name_of(type);
        if (!failed) break;
      }
      EXPECT_GE(n, 8);
    }
}

// A fork and a window cannot give their pages back to where they were, but what is seen of them can.
TEST(failing_allocations, leave_what_is_seen_of_forks_and_windows) {
  KvCacheConfig windowed = paged;
  windowed.window = CacheWindow{.length = 6, .front = 1};
  for (const KvCacheConfig& of_cache : {paged, windowed}) {
    const std::vector<std::int64_t> numbers{0, 1};
    Tensor wanted{};
    int n = 0;
    for (bool failed = true; failed; ++n) {
      Step step;
      KvCacheConfig roomy = of_cache;
      roomy.pages = 12;
      KvCache cache = step.cache(roomy);
      cache.fork(0);
      if (n == 0) {
        KvCache other = step.cache(roomy);
        other.fork(0);
        step.take(other, numbers);
        wanted = step.y;
      }
      failed = fails(n, [&] { step.take(cache, numbers); });
      for (std::int64_t b = 0; b < 4; ++b)
        ASSERT_EQ(cache.length(b), b < 2 && !failed ? 22 : 20) << "allocation " << n;
      if (failed) step.take(cache, numbers);
      ASSERT_EQ(bit_misses(step.y.values, wanted.values), 0) << "allocation " << n;
    }
    EXPECT_GE(n, 8);
  }
}

// In the same thread, which is as good as another: nothing waits.
TEST(an_append_at_any_moment_of_a_step, is_refused_or_comes_before_or_after_it) {
  const std::vector<std::int64_t> numbers{0, 1};
  Step alone, after;
  KvCache undisturbed = alone.cache(paged), appended_to = after.cache(paged);
  alone.take_without_weights(undisturbed, numbers);
  test::append_marked(appended_to, 0, 1, 9);
  after.take_without_weights(appended_to, numbers);
  int n = 0, refused_appends = 0, refused_steps = 0;
  for (bool came = true; came; ++n) {
    Step step;
    KvCache cache = step.cache(paged);
    std::string append, call;
    const std::function<void()> intrusion = [&] {
      append = test::refusal_of([&] { test::append_marked(cache, 0, 1, 9); });
    };
    allocations.intrusion = &intrusion;
    allocations.until_intrusion = n;
    call = test::refusal_of([&] { step.take_without_weights(cache, numbers); });
    came = allocations.until_intrusion < 0;
    allocations.until_intrusion = -1;
    refused_appends += append != "nothing";
    refused_steps += call != "nothing";
    const bool was_taken = call == "nothing";
    EXPECT_TRUE(!was_taken || bit_misses(step.y.values, alone.y.values) == 0 ||
                (append == "nothing" && bit_misses(step.y.values, after.y.values) == 0))
        << "at allocation " << n << ": " << append;
    EXPECT_EQ(cache.length(0), 20 + (append == "nothing") + (was_taken ? 2 : 0)) << "at allocation " << n;
    EXPECT_EQ(cache.length(1), was_taken ? 22 : 20) << "at allocation " << n;
  }
  EXPECT_GT(refused_appends, 0);
  EXPECT_GT(refused_steps, 2);
}

}  // namespace
}  // namespace heed::layer_tests
