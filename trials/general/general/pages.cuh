// SPDX-License-Identifier: Apache-2.0
// Keys and values out of a cache's pages.
#pragma once
#include <cstdint>

#include "general/source.cuh"

namespace heed::cuda::general {

// Where a cache has 16 tokens of a KV head, found a tile before it is read: the table is far away.
template <class Shape>
class PageTable {
 public:
  static constexpr int parts = Shape::tile_keys / 16;
  struct Part {
    const unsigned char *keys, *values, *key_scales, *value_scales;  // null: it is beyond the keys
  };
  using Found = Part[2][parts];

  HEED_DEVICE PageTable(const Call& call, const BlockFacts<Shape>& of, Found& shared)
      : c(call), block(of), found(shared), pages(c.cached[of.tile.b].table) {}

  // The first tile; then, before the block meets, the tile that is copied after that as number `turn`, and
  // the one that follows it, whose page is on its way until the next time.
  HEED_DEVICE void begin(int tile) { fetch(tile); }
  HEED_DEVICE void look_up(int tile, int following, int turn) {
    const int n = thread_index();
    if (n >= parts) return;
    Part part{};
    if (page) {
      const int j = tile * Shape::tile_keys + n * 16, page_size = static_cast<int>(c.layout.page_size),
                before = j - j / page_size * page_size;
      const PageOffsets& at = block.in_page;
      part.keys = page + at.keys + before * at.key_bytes;
      part.values = page + at.values + before * at.value_bytes;
      part.key_scales = page + at.key_scales + before * 4;
      part.value_scales = page + at.value_scales + before * 4;
    }
    found[turn % 2][n] = part;
    fetch(following);
  }
  HEED_DEVICE const Part& part(int turn, int n) const { return found[turn % 2][n]; }
  HEED_DEVICE bool is_seen(int j) const { return j >= block.keys.begin && j < block.keys.end; }
  HEED_DEVICE bool is_whole(int tile) const {
    return tile * Shape::tile_keys >= block.keys.begin && (tile + 1) * Shape::tile_keys <= block.keys.end;
  }
  // For copies of nothing.
  HEED_DEVICE const unsigned char* nowhere() const { return aligned(c.q.data); }

  const Call& c;

 private:
  HEED_DEVICE void fetch(int tile) {
    const int j = tile * Shape::tile_keys + thread_index() * 16;
    page = thread_index() < parts && j < block.keys.end ? pages[j / static_cast<int>(c.layout.page_size)]
                                                        : nullptr;
  }

  const BlockFacts<Shape>& block;
  Found& found;
  const unsigned char* const* const pages;
  const unsigned char* page = nullptr;
};

// A cache's pages: 16 keys lie (dims, 16) and their values (dims / 16, 16, 16). Keys stay transposed; a
// value's dimensions become one row, as an array's are. A warp copies the keys or the values of 16 tokens:
// eight neighbouring lanes write a column of eight rows, which lie in different banks, and the next 512 bytes
// of the page go to one constant further.
template <class Shape>
class Pages {
  using Table = PageTable<Shape>;
  static constexpr int runs = 2 * Table::parts / Shape::warps,
                       steps = (Shape::dim > Shape::value_dim ? Shape::dim : Shape::value_dim) / 16;
  static_assert(2 * Table::parts % Shape::warps == 0 && (runs == 1 || runs % 2 == 0));

 public:
  static constexpr bool keys_are_transposed = true, is_quantized = false;
  static constexpr int key_pitch = Shape::pitch(Shape::tile_keys);
  static constexpr int key_bytes = Shape::dim * key_pitch, slot_bytes = key_bytes + Shape::value_bytes;
  static constexpr int extra_bytes = sizeof(typename Table::Found), copies = runs * steps;

  HEED_DEVICE Pages(const Call& call, const Plan&, const BlockFacts<Shape>& of, unsigned char* extra)
      : table(call, of, *reinterpret_cast<typename Table::Found*>(extra)), warp(warp_index()) {}

  // Before the block meets, of the tile that is copied after it.
  HEED_DEVICE void begin(int tile) { table.begin(tile); }
  HEED_DEVICE void look_up(int tile, int following, int number) { table.look_up(tile, following, number); }

  HEED_DEVICE void prefetch(int tile, int number, SharedAddress slot) {
    aim(tile, number, slot);
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      const bool of_keys = has_keys(run);
      const int token = tile * Shape::tile_keys + part(run) * 16 + lane_token();
      const bool is_seen = from[run] && (of_keys || table.is_seen(token));
#pragma unroll 4
      for (int n = 0; n < steps; ++n)
        if (n < width(run))
          prefetch16(to[run] + n * step(run), from[run] ? from[run] + n * 512 : table.nowhere(),
                     is_seen && has(run, n));
    }
  }
  HEED_DEVICE bool aim(int tile, int number, SharedAddress slot) {
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      const auto& found = table.part(number, part(run));
      const int lane = lane_index();
      // Of keys a lane has half a row of 16 dimensions' 32 bytes; of values half of a token's.
      const int row = has_keys(run) ? lane / 16 * 8 + lane % 8 : lane_token(), half = lane / 8 % 2;
      from[run] = has_keys(run) ? found.keys : found.values;
      if (from[run]) from[run] += row * 32 + half * 16;
      to[run] = slot +
                (has_keys(run) ? row * key_pitch + part(run) * 32
                               : key_bytes + (part(run) * 16 + row) * Shape::value_pitch) +
                half * 16;
    }
    return table.is_whole(tile);
  }
  HEED_DEVICE void copy(int n, bool is_wanted) {
    const int run = n % runs, m = n / runs;
    prefetch16_if(is_wanted && m < width(run) && has(run, m), to[run] + m * step(run), from[run] + m * 512);
  }

  HEED_DEVICE Operands settle(SharedAddress slot) const { return {slot, slot + key_bytes, 0, 0}; }

 private:
  // Run r of a warp: with one run, half of the warps have keys; else every other run of a warp.
  HEED_DEVICE bool has_keys(int run) const { return runs == 1 ? warp < Table::parts : run % 2 == 0; }
  HEED_DEVICE int part(int run) const {
    return runs == 1 ? warp % Table::parts : run / 2 * Shape::warps + warp;
  }
  HEED_DEVICE static int lane_token() { return lane_index() / 16 * 8 + lane_index() % 8; }
  HEED_DEVICE int width(int run) const { return (has_keys(run) ? Shape::dim : Shape::value_dim) / 16; }
  HEED_DEVICE int step(int run) const { return has_keys(run) ? 16 * key_pitch : 32; }
  // Whether the call has dimensions there.
  HEED_DEVICE bool has(int run, int n) const {
    return has_keys(run) ? n * 16 + lane_index() / 16 * 8 + lane_index() % 8 < static_cast<int>(table.c.dim)
                         : n * 16 < static_cast<int>(table.c.value_dim);
  }

  Table table;
  const int warp;
  const unsigned char* from[runs];
  SharedAddress to[runs];
};

}  // namespace heed::cuda::general
