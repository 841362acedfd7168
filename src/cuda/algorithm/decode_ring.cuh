// SPDX-License-Identifier: Apache-2.0
// A team's ring of tiles of keys and values that its threads copy themselves, some tiles ahead of the one
// they work on. `Copies` knows where a tile lies: it starts a thread's part of the copies of one, and has the
// Tile that products read.
#pragma once
#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_team.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

template <class Shape, class Copies>
class DecodeRing {
  using Team = DecodeTeam<Shape>;

 public:
  struct Shared {
    unsigned char tiles[Shape::stages][2][Shape::tile_bytes];
  };
  struct Barriers {};
  using Tile = typename Copies::Tile;

  HEED_DEVICE static void prepare(const DecodePlan&, Barriers&) {}

  // This team's tiles of a stretch of the head's keys.
  HEED_DEVICE DecodeRing(const DecodeHead& head, const DecodePlan&, const KeyStretch& keys, Shared& memory,
                         Barriers&)
      : end(keys.end),
        ring(shared_address(&memory)),
        next(keys.begin + Team::number() * Shape::tile_keys),
        copies(head, next) {}

  HEED_DEVICE void begin() {
#pragma unroll 1
    for (int n = 0; n < Shape::stages - 1; ++n) load();
  }

  // The next tile, there for the whole team; the tile before it is no longer needed.
  HEED_DEVICE Tile take(int /*first_key*/) {
    wait_for_copies<Shape::stages - 2>();
    if constexpr (Shape::many) show_to_engines();
    Team::sync();
    load();
    const SharedAddress at = ring + taken * 2 * Shape::tile_bytes;
    taken = after(taken);
    return {at, at + Shape::tile_bytes};
  }
  // Instead, where only other teams have one.
  HEED_DEVICE void pass() const { Team::sync(); }
  HEED_DEVICE void drain() const { wait_for_copies<0>(); }

 private:
  HEED_DEVICE static int after(int stage) { return stage == Shape::stages - 1 ? 0 : stage + 1; }

  // Starts the copies of the next tile into the stage that is free.
  HEED_DEVICE void load() {
    if (next < end) copies.start(next, ring + loaded * 2 * Shape::tile_bytes);
    close_copies();
    next += Shape::teams * Shape::tile_keys;
    loaded = after(loaded);
  }

  const int end;
  const SharedAddress ring;
  int next, loaded = 0, taken = 0;  // the next tile's first key, its stage, and that of the tile to take
  Copies copies;
};

}  // namespace heed::cuda
