// SPDX-License-Identifier: Apache-2.0
// Prefill's producer: finds the tiles of rows, describes them, and brings queries, keys and values by the
// copy engine.
#pragma once
#include <cstdint>

#include "cuda/algorithm/prefill_memory.cuh"
#include "cuda/algorithm/prefill_plan.hpp"
#include "cuda/call.hpp"
#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// One thread of a warpgroup that has given up its registers.
template <class Shape>
class PrefillProducer {
 public:
  HEED_DEVICE PrefillProducer(const Call& call, const PrefillPlan& launch, PrefillMemory<Shape> memory)
      : c(call), plan(launch), shared(memory) {}

  HEED_DEVICE void run() {
    unsigned n = 0;
    for (int number = static_cast<int>(block_index()); number < plan.tiles; ++n) {
      RowTile tile = find(number);
      take_left(n, tile);
      const int next = bring(tile, n);
      if (!tile.again) number = next;
    }
    if (arrive(plan.next_tile + 1) + 1 == gridDim.x) plan.next_tile[0] = plan.next_tile[1] = 0;
    for (RowTile tile; take_left(n, tile) || take_left(n + 1, tile); ++n) bring(tile, n);
    describe({-1}, n);
  }

 private:
  HEED_DEVICE int bring(const RowTile& tile, unsigned n) {
    describe(tile, n);
    return load(tile, n);
  }
  HEED_DEVICE void describe(const RowTile& tile, unsigned n) const {
    *shared.slot(n) = tile;
    barrier_arrive(shared.tile_there(n));
  }

  // Waits until slot n is free. Where consumers left the tile there, that one comes next, before the tile at
  // hand.
  HEED_DEVICE bool take_left(unsigned n, RowTile& tile) const {
    barrier_wait(shared.tile_used(n), shared.slot_phase(n) ^ 1);
    RowTile& used = *shared.slot(n);
    if (!used.is_left) return false;
    used.is_left = 0;
    tile = used;
    tile.again = 1;
    return true;
  }

  // Of sequences that differ, the last rows first, which see the most keys under a causal mask.
  HEED_DEVICE RowTile find(int number) const {
    const int heads = static_cast<int>(c.heads);
    if (!plan.tile_starts) {
      const auto [head, tile] = plan.order[number];
      return facts(head / heads, head % heads, tile);
    }
    int low = 0, high = static_cast<int>(c.batch);  // tile_starts[low] * heads <= number
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (plan.tile_starts[middle] * heads <= number ? low : high) = middle;
    }
    const int before = plan.tile_starts[low], each = plan.tile_starts[low + 1] - before;
    number -= before * heads;
    return facts(low, number / each, each - 1 - number % each);
  }

  HEED_DEVICE RowTile facts(int b, int h, int m) const {
    const Sequence& s = c.sequence(b);
    RowTile tile{b, h};
    const auto [first_query, end_query] = rows_of_tile(static_cast<int>(s.queries), Shape::rows, m);
    tile.first_query = first_query, tile.rows = end_query - first_query;
    tile.first_row = s.first_query + tile.first_query;
    tile.key_count = static_cast<int>(s.key_count);
    tile.first_offset = static_cast<int>(s.first_offset), tile.end_offset = static_cast<int>(s.end_offset);
    const int i0 = first_query, i1 = end_query - 1;
    const bool sees_any = tile.begin_of(i0) < tile.end_of(i1);
    tile.first = sees_any ? tile.begin_of(i0) / Shape::keys : 0;
    tile.last = sees_any ? (tile.end_of(i1) - 1) / Shape::keys : 0;
    tile.plain_begin = (tile.begin_of(i1) + Shape::keys - 1) / Shape::keys;
    tile.plain_end = tile.end_of(i0) > 0 ? tile.end_of(i0) / Shape::keys : 0;
    // Where the tensor ends, the engine fills in zeros.
    const int own = tile.key_count - tile.last * Shape::keys;
    tile.tail = s.first_key + s.key_count < plan.key_rows && own < Shape::keys ? own : Shape::keys;
    return tile;
  }

  // Keys are one tile ahead of values. Returns the number of the next tile of rows, asked for as late as the
  // answer can still come in time: who asks early takes a long tile that another could have begun sooner. A
  // tile that comes again has asked before.
  HEED_DEVICE int load(const RowTile& tile, unsigned n) {
    const int kv_head = static_cast<int>(c.kv_head(tile.h)),
              first_key = static_cast<int>(c.sequence(tile.b).first_key);
    barrier_wait(shared.queries_used(n), shared.query_phase(n) ^ 1);
    barrier_arrive_expecting(shared.queries_there(n), Shape::query_bytes);
    load_pieces({shared.queries(n), Shape::rows, &plan.q, &c.q}, tile.h, tile.b,
                static_cast<int>(tile.first_row), shared.queries_there(n), evict_first);
    load_keys(tile.last, first_key, kv_head, tile.b, taken);
    for (int j = tile.last - 1; j >= tile.first; --j, ++taken) {
      load_keys(j, first_key, kv_head, tile.b, taken + 1);
      load_values(j + 1, first_key, kv_head, tile.b, taken);
    }
    const int number = tile.again ? 0 : static_cast<int>(gridDim.x + atomicAdd(plan.next_tile, 1u));
    load_values(tile.first, first_key, kv_head, tile.b, taken++);
    return number;
  }

  HEED_DEVICE void load_keys(int j, int first_key, int kv_head, int b, unsigned n) const {
    barrier_wait(shared.keys_used(n), shared.phase(n) ^ 1);
    barrier_arrive_expecting(shared.keys_there(n), Shape::key_bytes);
    load_pieces({shared.keys(n), Shape::keys, &plan.k, &c.k}, kv_head, b, first_key + j * Shape::keys,
                shared.keys_there(n), evict_last);
  }
  HEED_DEVICE void load_values(int j, int first_key, int kv_head, int b, unsigned n) const {
    barrier_wait(shared.values_used(n), shared.phase(n) ^ 1);
    barrier_arrive_expecting(shared.values_there(n), Shape::key_bytes);
    load_pieces({shared.values(n), Shape::keys, &plan.v, &c.v}, kv_head, b, first_key + j * Shape::keys,
                shared.values_there(n), evict_last);
  }

  struct Rows {
    SharedAddress to;
    int count;
    const CUtensorMap* map;
    const Tensor* from;
  };
  // An axis of stride 0 has one entry.
  HEED_DEVICE void load_pieces(const Rows& rows, int head, int b, int row, SharedAddress barrier,
                               std::uint64_t keep) const {
#pragma unroll
    for (int piece = 0; piece < Shape::pieces; ++piece)
      load_box(rows.to + piece * rows.count * 128, rows.map,
               {piece * 64, row, rows.from->heads == 0 ? 0 : head, rows.from->batch == 0 ? 0 : b}, barrier,
               keep);
  }

  const Call& c;
  const PrefillPlan& plan;
  const PrefillMemory<Shape> shared;
  unsigned taken = 0;  // tiles of values
};

}  // namespace heed::cuda
