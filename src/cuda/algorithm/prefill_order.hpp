// SPDX-License-Identifier: Apache-2.0
// Which rows a tile of prefill's has, and in which order it takes the tiles of sequences that are all alike.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"

namespace heed::cuda {

// A tile of rows: which of the heads of all sequences, and which of its tiles.
struct HeadTile {
  int head, tile;
};

// Queries [begin, end) of a sequence.
struct TileRows {
  int begin, end;
};

// Where not all tiles can have as many rows as a block has, the first one has fewer: no other sees fewer keys
// under a causal mask, and it costs a block the time of its keys however few its rows are.
constexpr TileRows rows_of_tile(int queries, int rows, int tile) {
  const int first = (queries - 1) % rows + 1;
  return {tile == 0 ? 0 : first + (tile - 1) * rows, first + tile * rows};
}

// Heads are taken in sections, and of a section the longest tiles of all its heads first: blocks that end
// with short tiles end alike. Head by head, 32 or 64 heads of 1024 to 4096 tokens took 3 to 10 % longer under
// a causal mask (H200, November 2026). The last tile of a head has all its rows, which see the most keys
// under a causal mask: it is the longest.
struct PrefillOrder {
  int heads;    // of all sequences
  int section;  // heads; the last one may have fewer
  int tiles;    // of a head

  constexpr HeadTile operator[](int number) const {
    const int first = number / (section * tiles) * section;
    const int here = heads - first < section ? heads - first : section;
    const int within = number - first * tiles;
    return {first + within % here, tiles - 1 - within / here};
  }
};

// Keys and values of a section stay in the second-level cache, whose halves may both hold them: 12 MB of 50
// are within 2 % of 25 or 40, and faster more often than not.
constexpr std::int64_t section_bytes = 12'000'000;

// Tiles are of different lengths under a causal mask, and where the first one has few rows. Where all are
// alike, a head at a time.
constexpr PrefillOrder prefill_order(const Call& c, std::int64_t rows) {
  const Sequence& s = c.each;
  const bool is_causal = s.end_offset < s.key_count && s.first_offset + s.queries <= 0,
             is_ragged = s.queries % rows != 0;
  const std::int64_t heads = c.batch * c.heads, bytes = c.batch * c.kv_heads * s.key_count * c.dim * 4,
                     sections = is_causal || is_ragged ? bytes / section_bytes + 1 : heads;
  return {static_cast<int>(heads), static_cast<int>((heads + sections - 1) / sections),
          static_cast<int>((s.queries + rows - 1) / rows)};
}

}  // namespace heed::cuda
