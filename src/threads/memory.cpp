// SPDX-License-Identifier: Apache-2.0
#include "threads/memory.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#include "system/system.hpp"

// g++ says it by a macro, clang++ by a feature.
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEED_ADDRESS_SANITIZER
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HEED_ADDRESS_SANITIZER
#endif
#if defined(HEED_ADDRESS_SANITIZER)
extern "C" void __asan_poison_memory_region(const volatile void*, std::size_t);
extern "C" void __asan_unpoison_memory_region(const volatile void*, std::size_t);
#endif

namespace heed::threads {
namespace {

constexpr std::align_val_t alignment{64};
// Bytes in all. A backward pass of 32/8 heads of 2048 x 128 takes 200 MiB; from fresh pages it took 82 ms,
// from kept ones 65 (Xeon, 16 threads, November 2026).
constexpr std::size_t kept_at_most = std::size_t{256} << 20;

struct Block {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

struct ReturnedBlocks {
  std::mutex mutex;
  std::array<Block, 16> blocks{};  // in the order in which they came; a layer's call takes five
  std::size_t count = 0, bytes = 0;

  Block give_out(std::size_t n) {
    const Block block = blocks[n];
    std::move(blocks.begin() + static_cast<std::ptrdiff_t>(n) + 1, blocks.end(),
              blocks.begin() + static_cast<std::ptrdiff_t>(n));
    blocks[--count] = {};
    bytes -= block.bytes;
    return block;
  }
};

void free_block(Block block) { ::operator delete(block.memory, alignment); }

// What nobody may touch: memory that is kept, and what a block has beyond what was asked for. Only an address
// sanitizer hears of it.
void forbid([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(HEED_ADDRESS_SANITIZER)
  __asan_poison_memory_region(memory, bytes);
#endif
}
void allow([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(HEED_ADDRESS_SANITIZER)
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

// NaN in every type, where builds look for mistakes: whoever reads what nobody wrote must not find what the
// last call left there.
void spoil([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(HEED_SPOIL_SCRATCH)
  std::memset(memory, 0xff, bytes);
#endif
}

// At the end of the process, after which calls may still come.
void give_up(ReturnedBlocks& blocks) {
  const std::unique_lock lock(blocks.mutex, std::try_to_lock);  // another thread may still be at work
  if (!lock) return;
  while (blocks.count > 0) free_block(blocks.give_out(0));
}

ReturnedBlocks& returned_blocks() {
  // Never destroyed, whatever the destructor of a mutex does: a union destroys no member.
  union Undying {
    ReturnedBlocks blocks{};
    ~Undying() {}
  };
  static constinit Undying only;
  [[maybe_unused]] static const int is_registered = std::atexit([] { give_up(only.blocks); });
  return only.blocks;
}

// No more than twice as large as it need be: the rest would be missed.
bool fits(const Block& block, std::size_t bytes) { return block.bytes >= bytes && block.bytes / 2 <= bytes; }

// The smallest returned block that fits.
Block take_shared(std::size_t bytes) {
  ReturnedBlocks& all = returned_blocks();
  const std::unique_lock lock(all.mutex, std::try_to_lock);  // may be held for ever in a forked child
  if (!lock) return {};
  std::size_t best = all.count;
  for (std::size_t n = 0; n < all.count; ++n)
    if (fits(all.blocks[n], bytes) && (best == all.count || all.blocks[n].bytes < all.blocks[best].bytes))
      best = n;
  return best < all.count ? all.give_out(best) : Block{};
}

// Makes room by giving up what has been kept longest: calls of one size follow each other.
void keep_shared(Block block) {
  ReturnedBlocks& all = returned_blocks();
  const std::unique_lock lock(all.mutex, std::try_to_lock);
  if (!lock || block.bytes > kept_at_most) return free_block(block);
  while (all.count == all.blocks.size() || all.bytes + block.bytes > kept_at_most)
    free_block(all.give_out(0));
  all.blocks[all.count++] = block;
  all.bytes += block.bytes;
}

// A small block that the thread itself keeps, without asking anybody.
constinit thread_local Block own{};
constexpr std::size_t own_at_most = std::size_t{256} << 10;  // bytes

struct GiveUpOwn {
  ~GiveUpOwn() {
    free_block(std::exchange(own, {}));
    own.bytes = own_at_most + 1;  // and keeps none any more
  }
  void at_the_end_of_this_thread() const {}
};

Block take_block(std::size_t bytes) {
  if (own.memory && fits(own, bytes)) return std::exchange(own, {});
  return take_shared(bytes);
}

void keep_block(Block block) {
  if (own.bytes >= block.bytes || block.bytes > own_at_most) return keep_shared(block);
  thread_local const GiveUpOwn give_up;
  give_up.at_the_end_of_this_thread();
  const Block before = std::exchange(own, block);
  if (before.memory) keep_shared(before);
}

Block fresh_block(std::size_t bytes) {
  const Block block{::operator new(bytes, alignment), bytes};
  system::prefer_large_pages(block.memory, bytes);
  return block;
}

}  // namespace

void ReturnMemory::operator()(float* memory) const noexcept {
  forbid(memory, bytes);
  keep_block({memory, bytes});
}

ReusedMemory take_memory(std::size_t floats) {
  if (floats > std::numeric_limits<std::size_t>::max() / sizeof(float)) throw std::bad_alloc();
  const std::size_t wanted = floats * sizeof(float);
  Block block = take_block(wanted);
  if (!block.memory) block = fresh_block(wanted);
  allow(block.memory, wanted);
  spoil(block.memory, wanted);
  return {static_cast<float*>(block.memory), ReturnMemory{block.bytes}};
}

}  // namespace heed::threads
