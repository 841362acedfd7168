// SPDX-License-Identifier: Apache-2.0
// What a block of threads of the exact kernels is to do: which rows, which dimensions of the values, which
// keys.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/exact/plan.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

constexpr int exact_tile = 128;    // keys whose scores are multiplied together
constexpr int exact_depth = 32;    // dimensions of them that are in shared memory together
constexpr int exact_stage = 4096;  // floats: a piece of keys, or of values

// In shared memory, where it takes no registers.
struct ExactWork {
  std::int64_t b, kv_head, first_dim, number, split;
  std::int64_t group, first_row, first_head, head_step, first_query_row, keys;
  const void *first_key, *first_value;  // of the head, where K and V are not in a cache
  int count;                            // rows that are real
  Seen seen;

  // For one thread. The last queries of a causal problem see the most keys and come first.
  struct Tile {
    std::int64_t rows, dims;
  };
  HEED_DEVICE void find(const Call& c, const ExactPlan& plan, Tile of) {
    const std::int64_t dims = of.dims, row_tiles = of.rows == exact_rows ? plan.row_tiles : plan.first_tiles;
    std::int64_t n = block_index();
    split = n % plan.splits, number = n /= plan.splits;
    const std::int64_t tile = row_tiles - 1 - n % row_tiles;
    n /= row_tiles;
    first_dim = n % plan.value_parts * dims, n /= plan.value_parts;
    kv_head = n % c.kv_heads, b = n / c.kv_heads;
    const Sequence& s = c.sequence(b);
    group = c.group(), first_row = tile * of.rows;
    first_head = c.head(kv_head, 0), head_step = c.head(kv_head, 1) - first_head;
    first_query_row = s.first_query, keys = s.keys;
    first_key = first_of(c.k, s.first_key), first_value = first_of(c.v, s.first_key);
    count = static_cast<int>(min(of.rows, s.queries * group - first_row));
    if (count > 0) seen = seen_by(c, b, first_row / group, (first_row + count - 1) / group);
  }

  HEED_DEVICE const void* first_of(const Tensor& t, std::int64_t first) const {
    const std::int64_t e = b * t.stride.batch + kv_head * t.stride.heads + first * t.stride.length;
    return static_cast<const unsigned char*>(t.data) + e * (t.type == Type::f32 ? 4 : 2);
  }

  HEED_DEVICE bool has_rows() const { return count > 0; }
  // Where another kernel went first, whether it could not finish these rows. Tiles beyond the counters share
  // theirs: done again, a row has the same bits.
  HEED_DEVICE bool has_unfinished(const Call& c, const ExactPlan& plan) const {
    return plan.first_tiles == 0 || *unfinished(c, plan) != 0;
  }
  HEED_DEVICE unsigned* unfinished(const Call& c, const ExactPlan& plan) const {
    const std::int64_t tile = (b * c.kv_heads + kv_head) * plan.first_tiles + first_row / long_rows;
    return plan.arrivals + tile % exact_counters;
  }
  HEED_DEVICE bool is_row(int r) const { return r < count; }
  // Rows are the queries in order, each for all heads that read the KV head: neighbours see nearly the same
  // keys.
  HEED_DEVICE Query query(int r) const {
    const std::int64_t n = (first_row + r) / group, member = first_row + r - n * group;
    return {b, first_head + member * head_step, n, first_query_row + n};
  }

  // Whether every row sees all of these keys, as far as its range says.
  HEED_DEVICE bool all_see(const Call& c, KeyRange some) const {
    const std::int64_t end = visible_keys(c, b, first_row / group).end,
                       begin = visible_keys(c, b, (first_row + count - 1) / group).begin;
    return some.end <= end && begin <= some.begin;
  }

  // Chunks that some row may see: those of the front, then those of the band; at least one, whose state then
  // has seen nothing.
  HEED_DEVICE static std::int64_t chunks_up_to(std::int64_t key) {
    return (key + chunk_keys - 1) / chunk_keys;
  }
  HEED_DEVICE std::int64_t front_chunks() const { return chunks_up_to(max(0, seen.front)); }
  HEED_DEVICE std::int64_t first_band_chunk() const { return max(front_chunks(), seen.begin / chunk_keys); }
  HEED_DEVICE std::int64_t chunk_count() const {
    const std::int64_t band = chunks_up_to(max(0, seen.end)) - first_band_chunk();
    return max(1, front_chunks() + max(0, band));
  }
  HEED_DEVICE bool has_chunk() const { return split < chunk_count(); }
  // The keys of this block's own chunk where chunks run apart, else all.
  HEED_DEVICE KeyRange chunks(const ExactPlan& plan) const {
    if (plan.splits == 1) return all_chunks();
    const std::int64_t chunk = split < front_chunks() ? split : first_band_chunk() + split - front_chunks();
    return {chunk * chunk_keys, min((chunk + 1) * chunk_keys, seen.end)};
  }
  HEED_DEVICE KeyRange all_chunks() const { return {0, seen.end}; }

  // Blocks of keys that some row may see, in order; past the end of `keys` after the last.
  HEED_DEVICE std::int64_t first_block(KeyRange keys_of) const { return from_block(keys_of.begin, keys_of); }
  HEED_DEVICE std::int64_t next_block(std::int64_t block, KeyRange keys_of) const {
    return from_block(block + block_keys, keys_of);
  }
  HEED_DEVICE KeyRange part_of(std::int64_t block) const { return seen.within({block, block + block_keys}); }
  HEED_DEVICE std::int64_t from_block(std::int64_t block, KeyRange keys_of) const {
    if (block >= seen.front) block = max(block, seen.begin / block_keys * block_keys);
    while (block < keys_of.end) {
      const KeyRange part = part_of(block);
      if (part.begin < part.end) break;
      block += block_keys;
    }
    return block;
  }

  HEED_DEVICE float* partial(const ExactPlan& plan, std::int64_t floats, std::int64_t chunk) const {
    return plan.partials + (number * plan.splits + chunk) * floats;
  }
};

}  // namespace heed::cuda
