// SPDX-License-Identifier: Apache-2.0
#include "cpu/threads/kept_memory.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

namespace heed::cpu {
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
  ::operator delete(keep_block({memory, bytes}), alignment);
}

KeptMemory take_memory(std::size_t floats) {
  if (floats > std::numeric_limits<std::size_t>::max() / sizeof(float)) throw std::bad_alloc();
  Block block = take_block(floats * sizeof(float));
  if (!block.memory) block = {::operator new(floats * sizeof(float), alignment), floats * sizeof(float)};
  return {static_cast<float*>(block.memory), ReturnMemory{block.bytes}};
}

}  // namespace heed::cpu
