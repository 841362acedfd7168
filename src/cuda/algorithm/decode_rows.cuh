// SPDX-License-Identifier: Apache-2.0
// A team's ring of tiles of keys and values that the caller has in rows: one thread of the team asks the copy
// engine for them. A tile lies in pieces of 64 dimensions, rows of 128 bytes whose sixteenths the engine
// turns by the key's number, as the matrix units want them.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_team.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/wgmma.cuh"

namespace heed::cuda {

template <class Shape>
class DecodeRows {
  using Team = DecodeTeam<Shape>;
  static constexpr int tile_keys = Shape::tile_keys;

 public:
  struct Shared {
    unsigned char tiles[Shape::stages][2][Shape::tile_bytes];
  };
  struct Barriers {
    std::uint64_t there[Shape::stages];
  };

  // A tile that is there.
  struct Tile {
    SharedAddress keys, values;

    static constexpr int keys_are_rotated = 0;
    // 16 dimensions of all keys, from 16 k on; 16 keys' values, from 16 k on.
    HEED_DEVICE Operand keys_at(int k) const {
      return moved(operand(keys), k / 4 * tile_keys * 128 + k % 4 * 32);
    }
    HEED_DEVICE Operand values_at(int k) const { return moved(operand(values, tile_keys * 128), k * 2048); }
  };

  // Before anything of this call is read; all threads meet before a team takes its first tile.
  HEED_DEVICE static void prepare(const DecodePlan& plan, Barriers& barriers) {
    if (Team::thread() != 0) return;
    prefetch_map(&plan.k), prefetch_map(&plan.v);
#pragma unroll
    for (int n = 0; n < Shape::stages; ++n) barrier_init(shared_address(&barriers.there[n]), 1);
    barriers_are_ready();
  }

  // This team's tiles of a stretch of the head's keys.
  HEED_DEVICE DecodeRows(const DecodeHead& of, const DecodePlan& maps, const KeyStretch& keys, Shared& memory,
                         Barriers& barriers)
      : head(of),
        plan(maps),
        end(keys.end),
        ring(shared_address(&memory)),
        there(shared_address(&barriers)),
        next(keys.begin + Team::number() * tile_keys) {
    const Call& c = *head.c;
    first_row = static_cast<int>(head.first_key);
    k_head = c.k.heads == 0 ? 0 : head.kv_head, k_entry = c.k.batch == 0 ? 0 : head.b;
    v_head = c.v.heads == 0 ? 0 : head.kv_head, v_entry = c.v.batch == 0 ? 0 : head.b;
  }

  // The first tile's on their way while launches ahead may still write them. More than one makes the copies
  // that are wanted at once wait.
  HEED_DEVICE void bring_first_nearer() const {
    constexpr int lines = Shape::dim * 2 / 128;  // of a row
#pragma unroll 1
    for (int n = Team::thread(); n < tile_keys * lines; n += Team::threads) {
      const int j = next + n / lines, first = n % lines * 64;
      if (j >= end) return;
      bring_nearer(element_of(head.c->k, j) + first), bring_nearer(element_of(head.c->v, j) + first);
    }
  }

  HEED_DEVICE void begin() {
    if (Team::thread() != 0) return;
#pragma unroll 1
    for (int n = 0; n < Shape::stages - 1; ++n) load();
  }

  // The next tile, there for the whole team, which meets once; the tile before it is no longer needed.
  HEED_DEVICE Tile take(int first_key) {
    const SharedAddress at = ring + taken * 2 * Shape::tile_bytes;
    const bool is_whole = first_key >= head.begin && first_key + tile_keys <= head.end;
    if (!is_whole) {
      barrier_wait(there + taken * 8, phase);
      clear_values(at + Shape::tile_bytes, first_key);
    }
    Team::sync();
    if (Team::thread() == 0) load();
    if (is_whole) barrier_wait(there + taken * 8, phase);
    taken = taken == Shape::stages - 1 ? 0 : taken + 1;
    if (taken == 0) phase ^= 1;
    return {at, at + Shape::tile_bytes};
  }
  // Instead, where only the other team has one.
  HEED_DEVICE void pass() const { Team::sync(); }
  HEED_DEVICE void drain() const {}

 private:
  HEED_DEVICE const std::uint16_t* element_of(const Tensor& t, int j) const {
    return static_cast<const std::uint16_t*>(t.data) + head.b * t.batch + head.kv_head * t.heads +
           (head.first_key + j) * t.length;
  }
  HEED_DEVICE static SharedAddress place(int key, int piece) {
    return static_cast<SharedAddress>(piece / 8 * tile_keys * 128 + key * 128 + (piece % 8 ^ key % 8) * 16);
  }

  // Starts the copies of the next tile into the stage that is free. For the team's first thread.
  HEED_DEVICE void load() {
    if (next >= end) return;
    const SharedAddress to = ring + loaded * 2 * Shape::tile_bytes, barrier = there + loaded * 8;
    barrier_arrive_expecting(barrier, 2 * Shape::tile_bytes);
    cuda::load_rows(to, &plan.k, {0, first_row + next, k_head, k_entry}, barrier, evict_first);
    load_rows(to + Shape::tile_bytes, &plan.v, {0, first_row + next, v_head, v_entry}, barrier, evict_first);
    next += Shape::teams * tile_keys;
    loaded = loaded == Shape::stages - 1 ? 0 : loaded + 1;
  }

  // Scores of keys that nobody sees are masked, but 0 times their values must be 0.
  HEED_DEVICE void clear_values(SharedAddress values, int first_key) const {
    constexpr int pieces = Shape::dim / 8;
#pragma unroll 1
    for (int n = Team::thread(); n < tile_keys * pieces; n += Team::threads) {
      const int key = n / pieces, j = first_key + key;
      if (j < head.begin || j >= head.end) clear_shared16(values + place(key, n % pieces));
    }
    show_to_engines();
  }

  const DecodeHead head;
  const DecodePlan& plan;
  const int end;
  const SharedAddress ring, there;
  int next, loaded = 0, taken = 0;  // the next tile's first key, its stage, and that of the tile to take
  unsigned phase = 0;
  int first_row = 0, k_head = 0, k_entry = 0, v_head = 0, v_entry = 0;  // known to the first thread
};

}  // namespace heed::cuda
