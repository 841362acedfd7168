// SPDX-License-Identifier: Apache-2.0
// Attention over long sequences never allocates queries * keys: this program watches every allocation it
// makes.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "cases/backward.hpp"
#include "cases/kernels.hpp"
#include "cases/selection.hpp"

namespace {

std::atomic<std::size_t> live{0}, peak{0};

// The size lies in front of each block, in a header as wide as the block's alignment.
void* counted(std::size_t bytes, std::size_t alignment) {
  const std::size_t header = alignment < 16 ? 16 : alignment;
  const std::size_t total = (bytes + 2 * header - 1) / header * header;
  auto* block = static_cast<std::byte*>(std::aligned_alloc(header, total));
  if (block == nullptr) throw std::bad_alloc();
  *reinterpret_cast<std::size_t*>(block) = bytes;
  const std::size_t now = live += bytes;
  std::size_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
  return block + header;
}

void release(void* p, std::size_t alignment) noexcept {
  if (p == nullptr) return;
  std::byte* block = static_cast<std::byte*>(p) - (alignment < 16 ? 16 : alignment);
  live -= *reinterpret_cast<std::size_t*>(block);
  std::free(block);
}

std::size_t as_size(std::align_val_t a) { return static_cast<std::size_t>(a); }

}  // namespace

void* operator new(std::size_t n) { return counted(n, 16); }
void* operator new[](std::size_t n) { return counted(n, 16); }
void* operator new(std::size_t n, std::align_val_t a) { return counted(n, as_size(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return counted(n, as_size(a)); }
void operator delete(void* p) noexcept { release(p, 16); }
void operator delete[](void* p) noexcept { release(p, 16); }
void operator delete(void* p, std::size_t) noexcept { release(p, 16); }
void operator delete[](void* p, std::size_t) noexcept { release(p, 16); }
void operator delete(void* p, std::align_val_t a) noexcept { release(p, as_size(a)); }
void operator delete[](void* p, std::align_val_t a) noexcept { release(p, as_size(a)); }
void operator delete(void* p, std::size_t, std::align_val_t a) noexcept { release(p, as_size(a)); }
void operator delete[](void* p, std::size_t, std::align_val_t a) noexcept { release(p, as_size(a)); }

namespace heed::cases {
namespace {

constexpr std::size_t most_extra = std::size_t{64} << 20;

// What one call allocates beyond what was live before it.
std::size_t extra_bytes(const Call& call, const Wants& wants = {}) {
  Results results(call, wants);
  const Outputs outputs = results.outputs();
  const Options options = call.options();
  const std::size_t before = live;
  peak = before;
  attention(call.inputs(), outputs, options);
  return peak - before;
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
  const std::size_t before = live;
  peak = before;
  { const std::vector<char> block(most_extra + 1); }
  EXPECT_GT(peak - before, most_extra);
  EXPECT_EQ(live, before);
}

TEST(Memory, a_long_sequence_never_allocates_queries_times_keys) {
  const std::int64_t length = small_selection() ? 4096 : 16384;  // as floats: 64 MiB or 1 GiB
  const long resident = resident_kilobytes();
  const Call call = long_call(length);
  const std::size_t allowed = small_selection() ? most_extra / 2 : most_extra;
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
  EXPECT_LT(extra_bytes(call), most_extra / 2);
}

TEST(Memory, gradients_of_a_long_sequence_never_allocate_queries_times_keys) {
  Call call = long_call(small_selection() ? 4096 : 8192);  // as floats: 64 or 256 MiB
  call.causal = Causal{};
  call.sink = Tensor({1, 1, 1, 1});
  const BackwardCall backward(call, 5);
  BackwardResults results(backward);
  const Gradients gradients = results.views(backward);
  const Options options = call.options();
  const std::size_t before = live;
  peak = before;
  attention_backward(call.inputs(), backward.saved(), gradients, options);
  EXPECT_LT(peak - before, most_extra / 4);
}

TEST(Memory, one_query_over_many_keys_needs_little_beyond_its_inputs) {
  Call call{.q = Tensor::random({1, 1, 1, 8}, 1),
            .k = Tensor::random({1, 1, 1 << 18, 8}, 2),
            .v = Tensor::random({1, 1, 1 << 18, 8}, 3)};
  EXPECT_LT(extra_bytes(call), most_extra / 4);
}

}  // namespace
}  // namespace heed::cases
