// SPDX-License-Identifier: Apache-2.0
// A team's ring of tiles of keys and values out of a cache. In its pages 16 keys lie (dims, 16) and their
// values (dims / 16, 16, 16): all threads of the team copy sixteenths of what become rows of 128 bytes, of a
// dimension's keys and, as the caller's rows would lie, of a value's dimensions.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_team.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/wgmma.cuh"

namespace heed::cuda {

template <class Shape>
class DecodePages {
  using Team = DecodeTeam<Shape>;
  static constexpr int dim = Shape::dim, tile_keys = Shape::tile_keys, in_page = 16;
  static_assert(tile_keys == 64);

 public:
  struct Shared {
    unsigned char tiles[Shape::stages][2][Shape::tile_bytes];
  };
  struct Barriers {};

  // A tile that is there.
  struct Tile {
    SharedAddress keys, values;

    static constexpr int keys_are_turned = 1;
    // 16 dimensions of all keys, from 16 k on; 16 keys' values, from 16 k on.
    HEED_DEVICE Operand keys_at(int k) const { return moved(operand(keys, Shape::tile_bytes), k * 2048); }
    HEED_DEVICE Operand values_at(int k) const { return moved(operand(values, tile_keys * 128), k * 2048); }
  };

  HEED_DEVICE static void prepare(const DecodePlan&, Barriers&) {}

  HEED_DEVICE DecodePages(const DecodeHead& of, const DecodePlan&, const KeyStretch& keys, Shared& memory,
                          Barriers&)
      : head(of),
        end(keys.end),
        ring(shared_address(&memory)),
        next(keys.begin + Team::number() * tile_keys) {
#pragma unroll 1
    for (int n = 0; n < Shape::stages - 1; ++n) load();
  }

  // The next tile, there for the whole team; the tile before it is no longer needed.
  HEED_DEVICE Tile take(int /*first_key*/) {
    wait_for_copies<Shape::stages - 2>();
    show_to_engines();
    Team::sync();
    load();
    const SharedAddress at = ring + taken * 2 * Shape::tile_bytes;
    taken = taken == Shape::stages - 1 ? 0 : taken + 1;
    return {at, at + Shape::tile_bytes};
  }
  HEED_DEVICE void drain() const { wait_for_copies<0>(); }

 private:
  // A row of 128 bytes, by sixteenths that its number turns.
  HEED_DEVICE static SharedAddress place(int row, int piece) {
    return static_cast<SharedAddress>(row * 128 + (piece ^ row % 8) * 16);
  }

  // Starts the copies of the next tile into the stage that is free.
  HEED_DEVICE void load() {
    if (next < end) {
      const SharedAddress to = ring + loaded * 2 * Shape::tile_bytes;
#pragma unroll 1
      for (int first = 0; first < tile_keys; first += in_page) load_some(to, first);
    }
    close_copies();
    next += Shape::teams * tile_keys;
    loaded = loaded == Shape::stages - 1 ? 0 : loaded + 1;
  }

  // 16 keys from `first` of the tile on. What is beyond the sequence, or nobody sees, is 0.
  HEED_DEVICE void load_some(SharedAddress to, int first) const {
    const cache::PageLayout& layout = head.c->layout;
    const int j = next + first;
    const bool is_there = j < head.end;
    const int page_size = static_cast<int>(layout.page_size), page = is_there ? j / page_size : 0;
    const unsigned char* from = head.c->cached[head.b].table[page] + head.kv_head * layout.head_bytes() +
                                std::int64_t{j % page_size} * dim * 2;
#pragma unroll
    for (int n = Team::thread(); n < 2 * dim; n += Team::threads) {
      const int row = n / 2, half = n % 2;
      stream16(to + place(row, first / 8 + half), is_there ? from + n * 16 : from, is_there);
      // Of values, row 16 d + key has dimensions [16 d, 16 d + 16) of a key.
      const int key = first + row % 16, d = row / 16;
      stream16(to + Shape::tile_bytes + d / 4 * tile_keys * 128 + place(key, d % 4 * 2 + half),
               from + layout.values_at() + n * 16, j + row % 16 >= head.begin && j + row % 16 < head.end);
    }
  }

  const DecodeHead head;
  const int end;
  const SharedAddress ring;
  int next, loaded = 0, taken = 0;  // the next tile's first key, its stage, and that of the tile to take
};

}  // namespace heed::cuda
