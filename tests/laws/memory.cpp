// SPDX-License-Identifier: Apache-2.0
// Attention over long sequences never allocates queries * keys: this program watches every allocation it
// makes.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstddef>
#include <limits>

#include "cases/allocations.hpp"
#include "cases/backward.hpp"
#include "cases/kernels.hpp"
#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "heed/stream.hpp"
#include "heed/threads.hpp"

namespace heed::cases {
namespace {

constexpr std::int64_t max_extra = std::int64_t{64} << 20;

// What one call allocates beyond what was live before it.
std::int64_t extra_bytes(const Call& call, const Wants& wants = {}) {
  Results results(call, wants);
  const Outputs outputs = results.outputs();
  const Options options = call.options();
  const std::int64_t before = allocations.live_bytes;
  allocations.peak_bytes = before;
  attention(call.inputs(), outputs, options);
  return allocations.peak_bytes - before;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif
#else
constexpr bool sanitized = false;
#endif

long resident_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

Call long_call(std::int64_t length) {
  return {.q = Tensor::random({1, 1, length, 8}, 1),
          .k = Tensor::random({1, 1, length, 8}, 2),
          .v = Tensor::random({1, 1, length, 8}, 3)};
}

TEST(Memory, the_watch_sees_an_allocation) {
  const std::int64_t before = allocations.live_bytes;
  allocations.peak_bytes = before;
  {
    const std::vector<char> block(max_extra + 1);
  }
  EXPECT_GT(allocations.peak_bytes - before, max_extra);
  EXPECT_EQ(allocations.live_bytes, before);
}

TEST(Memory, a_long_sequence_never_allocates_queries_times_keys) {
  const std::int64_t length = small_selection() ? 4096 : 16384;  // as floats: 64 MiB or 1 GiB
  const long resident = resident_kilobytes();
  const Call call = long_call(length);
  const std::int64_t allowed = small_selection() ? max_extra / 2 : max_extra;
  EXPECT_LT(extra_bytes(call), allowed);
  EXPECT_LT(extra_bytes(call, {.log_sum_exp = true}), allowed);
  if (!sanitized) {
    EXPECT_LT(resident_kilobytes() - resident, 100 << 10) << "kilobytes, however they were allocated";
  }
}

TEST(Memory, masks_bias_and_options_do_not_change_that) {
  const std::int64_t length = small_selection() ? 4096 : 8192;  // as floats: 64 or 256 MiB
  Call call = long_call(length);
  call.causal = Causal{};
  call.window = Window{200, 0};
  call.key_lengths = {{static_cast<std::int32_t>(length - 3)}};
  call.bias = Tensor::random({1, 1, 1, length}, 4);
  call.sink = Tensor({1, 1, 1, 1});
  call.softcap = 30.0f;
  call.dropout = Dropout{0.1f, 1};
  EXPECT_LT(extra_bytes(call), max_extra / 2);
}

TEST(Memory, gradients_of_a_long_sequence_never_allocate_queries_times_keys) {
  Call call = long_call(small_selection() ? 4096 : 8192);  // as floats: 64 or 256 MiB
  call.causal = Causal{};
  call.sink = Tensor({1, 1, 1, 1});
  const BackwardCall backward(call, 5);
  BackwardResults results(backward);
  const Gradients gradients = results.views(backward);
  const Options options = call.options();
  const std::int64_t before = allocations.live_bytes;
  allocations.peak_bytes = before;
  attention_backward(call.inputs(), backward.saved(), gradients, options);
  EXPECT_LT(allocations.peak_bytes - before, max_extra / 4);
}

// A window keeps the time short; what a call allocates does not depend on how many keys a query sees.
TEST(Memory, training_on_131072_tokens_takes_at_most_128_mebibytes_beyond_the_callers_arrays) {
  const std::int64_t length = small_selection() ? 16384 : 131072;
  Call call{.q = Tensor::random({1, 1, length, 64}, 1),
            .k = Tensor::random({1, 1, length, 64}, 2),
            .v = Tensor::random({1, 1, length, 64}, 3)};
  call.causal = Causal{};
  call.window = Window{256, 0};
  const BackwardCall backward(call, 5);
  BackwardResults results(backward);
  const Gradients gradients = results.views(backward);
  Options options = call.options();
  for (const int threads : {2, 32, 64, 128}) {
    options.threads = threads;
    const std::int64_t before = allocations.live_bytes;
    allocations.peak_bytes = before;
    attention_backward(call.inputs(), backward.saved(), gradients, options);
    EXPECT_LT(allocations.peak_bytes - before, std::int64_t{128} << 20) << threads << " threads";
  }
}

TEST(Memory, a_stream_keeps_its_queries_and_one_chunk_of_keys) {
  const Tensor q = Tensor::random({1, 4, 64, 16}, 1), k = Tensor::random({1, 4, 3000, 16}, 2);
  Tensor out(q.shape());
  const std::int64_t before = allocations.live_bytes;
  allocations.peak_bytes = before;
  KeyStream keys({.q = q.view()}, {.out = out.mutable_view()}, {.threads = 1});
  std::int64_t after_first = 0;
  for (int n = 0; n < 40; ++n) {
    keys.add(k.view(), k.view());
    if (n == 0) after_first = allocations.peak_bytes;
  }
  EXPECT_EQ(allocations.peak_bytes, after_first) << "the fortieth stretch asked for more than the first";
  keys.finish();
  const std::int64_t chunk = 2 * 4 * 1024 * 16 * 4, states = 4 * 64 * 18 * 4;
  EXPECT_LT(allocations.peak_bytes - before, 2 * (chunk + states) + (1 << 19));
}

TEST(Memory, one_query_over_many_keys_needs_little_beyond_its_inputs) {
  Call call{.q = Tensor::random({1, 1, 1, 8}, 1),
            .k = Tensor::random({1, 1, 1 << 18, 8}, 2),
            .v = Tensor::random({1, 1, 1 << 18, 8}, 3)};
  EXPECT_LT(extra_bytes(call), max_extra / 4);
}

// Such a row is repaired in 64 bits: each thread keeps the scores of a panel, but neither keys nor values.
TEST(Memory, a_value_that_is_no_number_makes_no_copy_of_keys_and_values) {
  const int threads = num_threads();
  set_num_threads(1);
  constexpr std::int64_t keys = 1 << 15;
  for (const std::int64_t queries : {1, 40})
    for (const float planted :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Call call{.q = Tensor::random({1, 2, queries, 16}, 1),
                .k = Tensor::random({1, 1, keys, 16}, 2),
                .v = Tensor::random({1, 1, keys, 16}, 3)};
      call.v.set(0, 0, keys / 3, 5, planted);
      const std::int64_t of_keys_and_values = 2 * keys * 16 * 8;
      EXPECT_LT(extra_bytes(call), of_keys_and_values / 3) << queries << " queries, " << planted;

      KvCache cache({.kv_heads = 1, .capacity = keys, .dim = 16});
      cache.append(call.k.view(), call.v.view());
      Tensor out(call.q.shape());
      const std::int64_t before = allocations.live_bytes;
      allocations.peak_bytes = before;
      attention({.q = call.q.view(), .cache = &cache}, {.out = out.mutable_view()});
      EXPECT_LT(allocations.peak_bytes - before, of_keys_and_values / 3)
          << queries << " queries, " << planted;
      EXPECT_TRUE(std::isnan(planted) ? std::isnan(out.at(0, 1, 0, 5)) : out.at(0, 1, 0, 5) == planted);
      EXPECT_TRUE(std::isfinite(out.at(0, 1, 0, 4)));
    }
  set_num_threads(threads);
}

// Allocations of a call that has been made before: its scratch is kept.
template <class Attend>
std::int64_t allocations_of(const Attend& attend) {
  attend();
  const std::int64_t before = allocations.count;
  attend();
  return allocations.count - before;
}

TEST(Memory, is_not_asked_for_by_a_call_that_has_been_made_before) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t heads : {2, 32})
      for (const std::int64_t queries : {1, 5, 40})
        for (const std::int64_t keys : {40, 1100}) {
          SCOPED_TRACE(std::to_string(heads) + " heads, " + std::to_string(queries) + " queries, " +
                       std::to_string(keys) + " keys of " + name_of(dtype));
          const Tensor q = Tensor::random({3, heads, queries, 16}, 1, 1, dtype),
                       k = Tensor::random({3, heads / 2, keys, 16}, 2, 1, dtype),
                       v = Tensor::random({3, heads / 2, keys, 16}, 3, 1, dtype);
          Tensor out(q.shape(), dtype), log_sum_exp({3, heads, queries, 1});
          const std::vector<std::int32_t> lengths{40, 7, 39};
          const BoolTensor keep({1, 1, queries, keys});
          const Tensor bias({1, 1, 1, keys}), sink({1, 1, 1, 1});
          EXPECT_EQ(allocations_of([&] {
                      attention({.q = q.view(), .k = k.view(), .v = v.view()},
                                {.out = out.mutable_view(), .log_sum_exp = log_sum_exp.mutable_view()},
                                {.masks = {Causal{Align::ends}, Window{200, 0, Align::ends, 4},
                                           KeyLengths{lengths}, Keep{keep.view()}},
                                 .bias = bias.view(),
                                 .sink = sink.view()});
                    }),
                    0);
          KvCache cache({.batch = 3,
                         .kv_heads = heads / 2,
                         .capacity = keys,
                         .dim = 16,
                         .type = dtype == DType::f32 ? CacheType::f32 : CacheType::bf16,
                         .page_size = 64});
          cache.append(k.view(), v.view());
          EXPECT_EQ(allocations_of([&] {
                      attention({.q = q.view(), .cache = &cache}, {.out = out.mutable_view()},
                                {.masks = {Causal{}}});
                    }),
                    0);
        }
}

TEST(Memory, is_not_asked_for_by_packed_sequences_either) {
  const Tensor q = Tensor::random({1, 4, 12, 16}, 1), k = Tensor::random({1, 2, 30, 16}, 2);
  Tensor out(q.shape());
  const std::vector<std::int64_t> query_starts{0, 5, 9, 12}, key_starts{0, 11, 20, 30};
  EXPECT_EQ(allocations_of([&] {
              attention({.q = q.view(),
                         .k = k.view(),
                         .v = k.view(),
                         .query_starts = query_starts,
                         .key_starts = key_starts},
                        {.out = out.mutable_view()}, {.masks = {Causal{Align::ends}}});
            }),
            0);
}

}  // namespace
}  // namespace heed::cases
