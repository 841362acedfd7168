// SPDX-License-Identifier: Apache-2.0
#include "threads/kept_memory.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>

#include "threads/large_pages.hpp"

#if defined(__SANITIZE_ADDRESS__)
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

struct Kept {
  std::mutex mutex;
  std::array<Block, 8> blocks{};  // a layer's call takes five
  std::size_t bytes = 0;
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

// At the end of the process, after which calls may still come.
void give_up(Kept& kept) {
  const std::unique_lock lock(kept.mutex, std::try_to_lock);  // another thread may still be at work
  if (!lock) return;
  for (Block& block : kept.blocks) ::operator delete(std::exchange(block, {}).memory, alignment);
  kept.bytes = 0;
}

Kept& kept() {
  // Never destroyed, whatever the destructor of a mutex does: a union destroys no member.
  union Undying {
    Kept kept{};
    ~Undying() {}
  };
  static constinit Undying only;
  [[maybe_unused]] static const int is_registered = std::atexit([] { give_up(only.kept); });
  return only.kept;
}

// No more than twice as large as it need be: the rest would be missed.
bool fits(const Block& block, std::size_t bytes) { return block.bytes >= bytes && block.bytes / 2 <= bytes; }

// The smallest kept block that fits.
Block take_shared(std::size_t bytes) {
  Kept& all = kept();
  const std::unique_lock lock(all.mutex, std::try_to_lock);  // may be held for ever in a forked child
  if (!lock) return {};
  Block* best = nullptr;
  for (Block& block : all.blocks)
    if (fits(block, bytes) && (!best || block.bytes < best->bytes)) best = &block;
  if (!best) return {};
  all.bytes -= best->bytes;
  return std::exchange(*best, {});
}

// Makes room by giving up the smallest block, if that is smaller. Returns what nobody keeps.
Block keep_shared(Block block) {
  Kept& all = kept();
  const std::unique_lock lock(all.mutex, std::try_to_lock);
  if (!lock) return block;
  Block& place = *std::ranges::min_element(all.blocks, {}, &Block::bytes);
  if (place.bytes >= block.bytes || all.bytes - place.bytes + block.bytes > kept_at_most) return block;
  all.bytes += block.bytes - place.bytes;
  return std::exchange(place, block);
}

// A small block that the thread itself keeps, without asking anybody: calls of one size follow each other.
constinit thread_local Block own{};
constexpr std::size_t own_at_most = std::size_t{256} << 10;  // bytes

struct GiveUpOwn {
  ~GiveUpOwn() {
    ::operator delete(std::exchange(own.memory, nullptr), alignment);
    own.bytes = own_at_most + 1;  // and keeps none any more
  }
  void at_the_end_of_this_thread() const {}
};

Block take_block(std::size_t bytes) {
  if (own.memory && fits(own, bytes)) return std::exchange(own, {});
  return take_shared(bytes);
}

Block keep_block(Block block) {
  if (own.bytes >= block.bytes || block.bytes > own_at_most) return keep_shared(block);
  thread_local const GiveUpOwn give_up;
  give_up.at_the_end_of_this_thread();
  const Block before = std::exchange(own, block);
  return before.memory ? keep_shared(before) : before;
}

Block fresh_block(std::size_t bytes) {
  const Block block{::operator new(bytes, alignment), bytes};
  prefer_large_pages(block.memory, bytes);
  return block;
}

}  // namespace

void ReturnMemory::operator()(float* memory) const noexcept {
  forbid(memory, bytes);
  ::operator delete(keep_block({memory, bytes}).memory, alignment);
}

KeptMemory take_memory(std::size_t floats) {
  if (floats > std::numeric_limits<std::size_t>::max() / sizeof(float)) throw std::bad_alloc();
  const std::size_t wanted = floats * sizeof(float);
  Block block = take_block(wanted);
  if (!block.memory) block = fresh_block(wanted);
  allow(block.memory, wanted);
  spoil(block.memory, wanted);
  return {static_cast<float*>(block.memory), ReturnMemory{block.bytes}};
}

}  // namespace heed::threads
