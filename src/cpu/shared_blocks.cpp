// SPDX-License-Identifier: Apache-2.0
#include "cpu/shared_blocks.hpp"

#include <cstring>

namespace heed::cpu {
namespace {

constexpr std::int64_t float_bytes = sizeof(float);
// Of all KV heads. With 16 threads of a Xeon 8 of 4096 x 128 in f32, 32 MiB, take 5 to 11 % less time than
// where every task packs for itself, 8 of 2048 x 128 2 to 8, 12 of 1024 x 64 2 to 7 (November 2026).
constexpr std::int64_t max_kept_bytes = std::int64_t{48} << 20;
// Tasks for each thread, at least. Those that begin at once wait for what one of them packs, and only later
// ones find it done.
constexpr std::int64_t min_rounds = 2;

}  // namespace

SharedBlocks plan_shared_blocks(const Call& c, std::int64_t block_floats, std::int64_t tasks,
                                std::int64_t threads) {
  const std::int64_t heads = c.batch * c.kv_heads, of_head = (c.keys - 1) / block_keys + 1,
                     max_blocks = max_kept_bytes / float_bytes / block_floats;
  const bool is_shared = tasks > heads && tasks >= min_rounds * threads;
  return is_shared && of_head <= max_blocks / heads ? SharedBlocks{nullptr, heads, of_head, block_floats}
                                                    : SharedBlocks{};
}

std::int64_t bytes_of(const SharedBlocks& kept) {
  return kept.heads * kept.of_head * kept.floats * float_bytes;
}

SharedBlocks placed(SharedBlocks kept, void* memory) {
  if (kept.heads == 0) return kept;
  kept.memory = static_cast<float*>(memory);
  for (std::int64_t head = 0; head < kept.heads; ++head)
    for (std::int64_t n = 0; n < kept.of_head; ++n)
      std::memset(kept.block(head, n), 0, shared_header_floats * sizeof(float));
  return kept;
}

}  // namespace heed::cpu
