// SPDX-License-Identifier: Apache-2.0
// Keys and values out of a cache's pages of int8.
#pragma once
#include <cstdint>

#include "general/pages.cuh"
#include "general/place.cuh"
#include "general/products.cuh"

namespace heed::cuda::general {

// Pages of int8: bytes are copied as they lie and become 16-bit numbers, exactly, when their turn comes.
// Scales stay apart: a key's is a factor of its score, a value's of its weight.
template <class Shape>
class Int8Pages {
  using Table = PageTable<Shape>;
  static constexpr int parts = Table::parts, key_pieces = parts * Shape::dim,
                       value_pieces = parts * Shape::value_dim, scale_pieces = parts * 8;
  static constexpr int of_each(int pieces) { return (pieces + Shape::threads - 1) / Shape::threads; }

 public:
  static constexpr bool keys_are_transposed = true, is_quantized = true;
  static constexpr int key_pitch = Shape::pitch(Shape::tile_keys), wide_key_bytes = Shape::dim * key_pitch;
  static constexpr int values_at = key_pieces * 16, scales_at = values_at + value_pieces * 16,
                       slot_bytes = scales_at + Shape::tile_keys * 8;
  static constexpr int found_bytes = (sizeof(typename Table::Found) + 15) / 16 * 16;
  static constexpr int extra_bytes = found_bytes + wide_key_bytes + Shape::value_bytes;
  static constexpr int copies = of_each(key_pieces) + of_each(value_pieces) + 1;
  static_assert(scale_pieces <= Shape::threads);

  HEED_DEVICE Int8Pages(const Call& call, const Plan&, const BlockFacts<Shape>& of, unsigned char* extra)
      : table(call, of, *reinterpret_cast<typename Table::Found*>(extra)),
        wide(shared_address(extra) + found_bytes) {}

  HEED_DEVICE void begin(int tile) { table.begin(tile); }
  HEED_DEVICE void look_up(int tile, int following, int number) { table.look_up(tile, following, number); }

  HEED_DEVICE void prefetch(int tile, int number, SharedAddress slot) {
    to = slot, turn = number;
#pragma unroll 4
    for (int n = 0; n < copies; ++n) copy<true>(n, true, tile * Shape::tile_keys);
  }
  HEED_DEVICE bool aim(int tile, int number, SharedAddress slot) {
    to = slot, turn = number;
    return table.is_whole(tile);
  }
  HEED_DEVICE void copy(int n, bool is_wanted) { copy<false>(n, is_wanted, 0); }

  // For all threads: those before have read what was there, and those after find the tile.
  HEED_DEVICE Operands settle(SharedAddress slot) const {
#pragma unroll
    for (int n = 0; n < of_each(key_pieces); ++n) {
      const int x = n * Shape::threads + thread_index(), part = x / Shape::dim, d = x % Shape::dim;
      if (has(x, key_pieces)) widen(wide + d * key_pitch + part * 32, slot + x * 16);
    }
#pragma unroll
    for (int n = 0; n < of_each(value_pieces); ++n) {
      const int x = n * Shape::threads + thread_index(), part = x / Shape::value_dim,
                block = x % Shape::value_dim / 16, token = x % 16;
      if (has(x, value_pieces))
        widen(wide + wide_key_bytes + (part * 16 + token) * Shape::value_pitch + block * 32,
              slot + values_at + x * 16);
    }
    sync();
    return {wide, wide + wide_key_bytes, slot + scales_at, slot + scales_at + Shape::tile_keys * 4};
  }

 private:
  HEED_DEVICE static bool has(int x, int pieces) { return pieces % Shape::threads == 0 || x < pieces; }

  template <bool is_edge>
  HEED_DEVICE void copy(int n, bool is_wanted, int first) {
    if (n < of_each(key_pieces)) {
      const int x = n * Shape::threads + thread_index(), part = x / Shape::dim, d = x % Shape::dim;
      if (!has(x, key_pieces)) return;
      const unsigned char* from = table.part(turn, part).keys;
      const bool is_there = d < table.c.dim && (!is_edge || from);
      if (is_wanted) prefetch16(to + x * 16, is_there ? from + d * 16 : table.nowhere(), is_there);
    } else if (n < copies - 1) {
      const int x = (n - of_each(key_pieces)) * Shape::threads + thread_index(), part = x / Shape::value_dim,
                y = x % Shape::value_dim;
      if (!has(x, value_pieces)) return;
      const unsigned char* from = table.part(turn, part).values;
      const bool is_there = y / 16 * 16 < table.c.value_dim &&
                            (!is_edge || (from && table.is_seen(first + part * 16 + y % 16)));
      if (is_wanted)
        prefetch16(to + values_at + x * 16, is_there ? from + y * 16 : table.nowhere(), is_there);
    } else if (const int x = thread_index();
               x < scale_pieces) {  // 16 scales of keys and 16 of values, in fours
      const auto& part = table.part(turn, x / 8);
      const unsigned char* from = x % 8 < 4 ? part.key_scales : part.value_scales;
      const bool is_there = !is_edge || from;
      if (is_wanted)
        prefetch16(to + scales_at + (x % 8 < 4 ? 0 : Shape::tile_keys * 4) + x / 8 * 64 + x % 4 * 16,
                   is_there ? from + x % 4 * 16 : table.nowhere(), is_there);
    }
  }

  HEED_DEVICE static void widen(SharedAddress to, SharedAddress from) {
    std::uint32_t bytes[4], low[4], high[4], two[2];
    load16(bytes, from);
    widen_bytes<Shape::type>(two, bytes[0]), low[0] = two[0], low[1] = two[1];
    widen_bytes<Shape::type>(two, bytes[1]), low[2] = two[0], low[3] = two[1];
    widen_bytes<Shape::type>(two, bytes[2]), high[0] = two[0], high[1] = two[1];
    widen_bytes<Shape::type>(two, bytes[3]), high[2] = two[0], high[3] = two[1];
    store16(to, low), store16(to + 16, high);
  }

  Table table;
  SharedAddress to = 0;
  int turn = 0;
  const SharedAddress wide;
};

// change(score or weight, scale of the key) for the scores of a warp.
template <class Shape, class Change>
HEED_DEVICE void each_key(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place,
                          const Change& change) {
#pragma unroll
  for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float scale =
          load_float(scales + (place.key_warp * Shape::warp_keys + 8 * n + lane_index() % 4 * 2 + e) * 4);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) s[m][n][2 * r + e] = change(s[m][n][2 * r + e], scale);
    }
}
template <class Shape>
HEED_DEVICE void scale_keys(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place) {
  each_key<Shape>(s, scales, place, [](float x, float scale) { return x * scale; });
}
// A weight of 0 stays 0, whatever the scale of a key that nobody sees is.
template <class Shape>
HEED_DEVICE void scale_values(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place) {
  each_key<Shape>(s, scales, place, [](float x, float scale) { return x == 0 ? 0.0f : x * scale; });
}

}  // namespace heed::cuda::general
