// SPDX-License-Identifier: Apache-2.0
#include "threads/kept_memory.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
extern "C" void __asan_poison_memory_region(const volatile void*, std::size_t);
extern "C" void __asan_unpoison_memory_region(const volatile void*, std::size_t);
#endif

namespace heed::threads {
namespace {

constexpr std::align_val_t alignment{64};
constexpr std::size_t kept_at_most = std::size_t{64} << 20;  // bytes in all

struct Block {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

struct Kept {
  std::mutex mutex;
  std::array<Block, 8> blocks{};  // a layer's call takes five
  std::size_t bytes = 0;
  ~Kept() {
    for (const Block& block : blocks) ::operator delete(block.memory, alignment);
  }
};

// What nobody may touch: memory that is kept, and what a block has beyond what was asked for. Only an address
// sanitizer hears of it.
void forbid([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory, bytes);
#endif
}
void allow([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
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

Kept& kept() {
  static Kept only;
  return only;
}

// The smallest kept block that is large enough, and no more than twice as large as that: the rest would be
// missed.
Block take_block(std::size_t bytes) {
  const std::unique_lock lock(kept().mutex, std::try_to_lock);  // may be held for ever in a forked child
  if (!lock) return {};
  Block* best = nullptr;
  for (Block& block : kept().blocks)
    if (block.bytes >= bytes && block.bytes / 2 <= bytes && (!best || block.bytes < best->bytes))
      best = &block;
  if (!best) return {};
  kept().bytes -= best->bytes;
  return std::exchange(*best, {});
}

// Makes room by giving up the smallest block, if that is smaller.
void* keep_block(Block block) {
  const std::unique_lock lock(kept().mutex, std::try_to_lock);
  if (!lock) return block.memory;
  Block& place = *std::ranges::min_element(kept().blocks, {}, &Block::bytes);
  if (place.bytes >= block.bytes || kept().bytes - place.bytes + block.bytes > kept_at_most)
    return block.memory;
  kept().bytes += block.bytes - place.bytes;
  return std::exchange(place, block).memory;
}

}  // namespace

void ReturnMemory::operator()(float* memory) const noexcept {
  forbid(memory, bytes);
  ::operator delete(keep_block({memory, bytes}), alignment);
}

KeptMemory take_memory(std::size_t floats) {
  if (floats > std::numeric_limits<std::size_t>::max() / sizeof(float)) throw std::bad_alloc();
  const std::size_t wanted = floats * sizeof(float);
  Block block = take_block(wanted);
  if (!block.memory) block = {::operator new(wanted, alignment), wanted};
  allow(block.memory, wanted);
  spoil(block.memory, wanted);
  return {static_cast<float*>(block.memory), ReturnMemory{block.bytes}};
}

}  // namespace heed::threads
