// SPDX-License-Identifier: Apache-2.0
// For many rows, tiles of 64 keys and their values on their way from a cache to a warpgroup's ring. In pages
// 16 keys lie (dims, 16) and their values (dims / 16, 16, 16): all threads of the team copy sixteenths of
// what become rows of 128 bytes, of a dimension's keys and, as the caller's rows would lie, of a value's
// dimensions.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_team.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/wgmma.cuh"

namespace heed::cuda {

template <class Shape>
class ManyPages {
  using Team = DecodeTeam<Shape>;
  static constexpr int dim = Shape::dim, tile_keys = Shape::tile_keys, in_page = 16;
  static_assert(tile_keys == 64);

 public:
  // A tile that is there.
  struct Tile {
    SharedAddress keys, values;

    static constexpr int keys_are_rotated = 1;
    // 16 dimensions of all keys, from 16 k on; 16 keys' values, from 16 k on.
    HEED_DEVICE Operand keys_at(int k) const { return moved(operand(keys, Shape::tile_bytes), k * 2048); }
    HEED_DEVICE Operand values_at(int k) const { return moved(operand(values, tile_keys * 128), k * 2048); }
  };

  HEED_DEVICE ManyPages(const DecodeHead& of, int first_tile)
      : head(of), table(of.c->cached[of.b].table), first(Team::thread() / 32 * in_page) {
    if (head.end > 0) look_up(first_tile + first);
  }

  // Each warp has sixteen keys of a tile, and their page's place one tile ahead.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    const int j = tile + first, lane = Team::thread() % 32;
    const bool is_there = j < head.end;
    const unsigned char *keys = from + lane * 16, *values = keys + head.c->layout.values_at();
    look_up(j + Shape::teams * tile_keys);
#pragma unroll
    for (int n = 0; n < 2 * dim; n += 32) {
      const int row = (n + lane) / 2, half = lane % 2;
      stream16(to + place(row, first / 8 + half), keys + n * 16, is_there);
      // Of values, row 16 d + key has dimensions [16 d, 16 d + 16) of a key.
      const int key = row % 16, d = n / 32;
      stream16(to + Shape::tile_bytes + d / 4 * tile_keys * 128 + place(first + key, d % 4 * 2 + half),
               values + n * 16, head.is_wanted(j + key));
    }
  }

 private:
  // A row of 128 bytes, by sixteenths that its number turns.
  HEED_DEVICE static SharedAddress place(int row, int piece) {
    return static_cast<SharedAddress>(row * 128 + (piece ^ row % 8) * 16);
  }

  // What is beyond the sequence, or nobody sees, becomes 0: then any page will do.
  HEED_DEVICE void look_up(int j) {
    const cache::PageLayout& layout = head.c->layout;
    const int page_size = static_cast<int>(layout.page_size), page = j < head.end ? j / page_size : 0;
    from = table[page] + head.kv_head * layout.head_bytes() + std::int64_t{j % page_size} * dim * 2;
  }

  const DecodeHead head;
  const unsigned char* const* const table;
  const int first;                      // of a tile's keys, this warp's
  const unsigned char* from = nullptr;  // where the next tile has them
};

}  // namespace heed::cuda
