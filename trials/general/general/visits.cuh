// SPDX-License-Identifier: Apache-2.0
// Which tiles of keys a block visits, in order: those that ranges let some of its rows see, less the ones
// whose documents none of the rows is of.
#pragma once
#include <cstdint>

#include "general/rows.cuh"

namespace heed::cuda::general {

// The document of a query, if it is of any (S20).
struct Document {
  std::int32_t id;
  bool is_any;
};
HEED_DEVICE Document document_of(const Call& c, const DocumentIds& d, const RowTile& tile, int i) {
  if (d.queries) return {d.queries[tile.b * d.queries_step + i], true};
  const int own = i + (d.queries_are_last ? tile.keys - tile.queries : 0);
  const bool is_any = own >= 0 && own < tile.keys;
  return {is_any ? d.keys[tile.b * d.keys_step + own] : 0, is_any};
}

// A bit for each tile of keys, as far as there is room; beyond, every tile is visited.
struct DocumentTiles {
  static constexpr int most = 2048;
  std::uint32_t bits[most / 32];
  std::int32_t least, max_id;

  // By all threads of a block: tiles that hold a number between the least and the most of the rows'
  // documents.
  template <class Shape>
  HEED_DEVICE void find(const Call& c, const BlockFacts<Shape>& block) {
    if (c.document_count == 0) return;
    constexpr int threads = Shape::threads, tile_keys = Shape::tile_keys;
    const RowTile& tile = block.tile;
    const DocumentIds d = c.documents[0];
    for (int n = thread_index(); n < most / 32; n += threads) bits[n] = 0;
    if (thread_index() == 0) least = 0x7fffffff, max_id = -0x7fffffff - 1;
    sync();
    for (int r = thread_index(); r < Shape::rows; r += threads) {
      const Document own = document_of(c, d, tile, tile.query_of(r));
      if (own.is_any) atomicMin(&least, own.id), atomicMax(&max_id, own.id);
    }
    sync();
    const std::int32_t* ids = d.keys + tile.b * d.keys_step;
    for (int t = block.keys.begin / tile_keys + thread_index();
         t < min((block.keys.end + tile_keys - 1) / tile_keys, most); t += threads) {
      bool is_wanted = false;
      for (int j = t * tile_keys; j < min((t + 1) * tile_keys, tile.keys); ++j)
        is_wanted = is_wanted || (ids[j] >= least && ids[j] <= max_id);
      if (is_wanted) atomicOr(&bits[t / 32], 1u << t % 32);
    }
    sync();
  }

  HEED_DEVICE bool has(int tile) const { return tile >= most || (bits[tile / 32] >> tile % 32 & 1); }
};

// Where there are only ranges, one tile after the other.
template <class Shape>
class Consecutive {
 public:
  HEED_DEVICE Consecutive(const Call&, const BlockFacts<Shape>& of, const DocumentTiles&)
      : begin(of.keys.begin / Shape::tile_keys),
        end((of.keys.end + Shape::tile_keys - 1) / Shape::tile_keys) {}
  HEED_DEVICE int first() const { return begin; }
  HEED_DEVICE int next(int tile) const { return tile + 1; }
  HEED_DEVICE bool is_end(int tile) const { return tile >= end; }

 private:
  const int begin, end;
};

template <class Shape>
class Visits {
 public:
  HEED_DEVICE Visits(const Call& c, const BlockFacts<Shape>& of, const DocumentTiles& by_document)
      : block(of),
        documents(c.document_count > 0 ? &by_document : nullptr),
        end((of.keys.end + Shape::tile_keys - 1) / Shape::tile_keys),
        is_simple(c.document_count == 0 && c.front == 0) {}

  HEED_DEVICE int first() const { return from(block.keys.begin / Shape::tile_keys); }
  HEED_DEVICE int next(int tile) const { return from(tile + 1); }
  HEED_DEVICE bool is_end(int tile) const { return tile >= end; }

 private:
  HEED_DEVICE int from(int tile) const {
    while (!is_simple && tile < end) {
      const int key = tile * Shape::tile_keys, begin = block.ranges.some.begin;
      if (key >= block.ranges.front && key + Shape::tile_keys <= begin)
        tile = begin / Shape::tile_keys;
      else if (documents && !documents->has(tile))
        ++tile;
      else
        break;
    }
    return tile;
  }

  const BlockFacts<Shape>& block;
  const DocumentTiles* const documents;
  const int end;
  const bool is_simple;
};

}  // namespace heed::cuda::general
