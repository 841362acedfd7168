// SPDX-License-Identifier: Apache-2.0
// Which rows a block of threads has, which keys these see, and which tiles of keys it visits. A row is a
// query of a sequence under one of the query heads that read a KV head; heads of a query are neighbours, so
// that they share the keys and values that a block loads.
#pragma once
#include <cstdint>

#include "cuda/general/plan.hpp"
#include "cuda/tile/block.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda::general {

struct IntRange {
  int begin, end;
};

// A tile of rows of a KV head.
struct RowTile {
  int b, kv_head, first, count;  // rows [first, first + count) of the sequence's; 0: none
  int group, queries, keys;      // of the sequence
  int head;                      // of the KV heads of all sequences
  std::int64_t first_query, first_key;
  Sequence sequence;
  Divisor by_group;

  // Number n of a launch. Heads are taken in sections whose keys and values fit the second-level cache, and
  // of a section the last tiles first, which see more keys than others under a causal mask.
  RowTile() = default;
  HEED_DEVICE RowTile(const Call& c, const Plan& plan, int n, int rows) {
    const int start = plan.by_section.of(n) * plan.section;
    const bool is_last = start + plan.section > plan.heads;
    const int here = is_last ? plan.heads - start : plan.section, within = n - start * plan.row_tiles,
              before = (is_last ? plan.by_last : plan.by_here).of(within);
    *this = RowTile(c, plan, start + within - before * here, {(plan.row_tiles - 1 - before) * rows, rows});
  }
  struct Rows {
    int first, count;
  };
  HEED_DEVICE RowTile(const Call& c, const Plan& plan, int number, const Rows& rows)
      : head(number), by_group(plan.by_group) {
    b = plan.by_kv_heads.of(head), kv_head = head - b * static_cast<int>(c.kv_heads);
    // Each by its own loads: a reference to one or the other would be to memory that is far away.
    Sequence s = c.each;
    if (c.sequences) s = c.sequences[b];
    sequence = s;
    group = plan.group;
    queries = static_cast<int>(s.queries), keys = static_cast<int>(s.keys);
    first_query = s.first_query, first_key = s.first_key;
    first = rows.first;
    count = max_of(0, min_of(rows.count, queries * group - first));
  }

  // Rows beyond the last are as the last: they are computed with the others and never written.
  HEED_DEVICE int query_of(int r) const { return query_of_row(min_of(first + r, queries * group - 1)); }
  HEED_DEVICE Query query(const Call& c, int r) const {
    const int row = min_of(first + r, queries * group - 1), i = query_of_row(row);
    return {b, head_of(c, row - i * group), i, first_query + i};
  }
  // Call::head() without its division of 64 bits, which takes some hundred instructions.
  HEED_DEVICE int head_of(const Call& c, int member) const {
    return c.tiled_heads ? member * static_cast<int>(c.kv_heads) + kv_head : kv_head * group + member;
  }
  HEED_DEVICE int query_of_row(int row) const { return row < 0 ? 0 : by_group.of(row); }
};

// The keys that ranges let query i see, documents that are runs of keys included. Both ends rise with i.
HEED_DEVICE KeyRange range_of(const Call& c, const RowTile& tile, int i) {
  const KeyRange seen = visible_keys(tile.sequence, i);
  if (!c.run_starts) return seen;
  const int own = i + (c.documents[0].queries_are_last ? tile.keys - tile.queries : 0);
  if (own < 0) return {0, 0};
  if (own >= tile.keys) return {tile.keys, tile.keys};
  int before = c.run_offsets[2 * tile.b],
      after = c.run_offsets[2 * tile.b + 1];  // its run is of [before, after)
  const int end = after;
  while (after - before > 1) {
    const int middle = (before + after) / 2;
    (c.run_starts[middle] <= own ? before : after) = middle;
  }
  return {max(seen.begin, c.run_starts[before]), after < end ? min(seen.end, c.run_starts[after]) : seen.end};
}

// What a tile's rows see by ranges: some of them, and all of them.
struct TileRanges {
  int front;      // every row sees keys before it, as far as `end` lets it
  IntRange some;  // besides the front
  IntRange all;

  TileRanges() = default;
  HEED_DEVICE TileRanges(const Call& c, const RowTile& tile, int first_row, int last_row) {
    const KeyRange a = range_of(c, tile, tile.query_of(first_row)),
                   z = range_of(c, tile, tile.query_of(last_row));
    some = {static_cast<int>(a.begin), static_cast<int>(z.end)};
    all = {static_cast<int>(z.begin), static_cast<int>(a.end)};
    front = c.gap_count > 0 ? 0 : static_cast<int>(min(c.front, z.end));
    if (c.gap_count > 0 && c.front > 0) some.begin = 0, all.end = -1;
  }

  HEED_DEVICE bool some_see(int first, int keys) const {
    return first < some.end && (first + keys > some.begin || first < front);
  }
  HEED_DEVICE bool all_see(int first, int keys) const {
    return first >= all.begin && first + keys <= all.end;
  }
};

// What a thread needs to know of a row.
struct RowFacts {
  int begin, end;  // the keys that ranges let it see, besides the front
  int i, h;        // its query and query head
  std::int64_t query, out, bias,
      mask;  // where its row of the queries, outputs, the bias and the first mask begins
};

// Tiles of which some row of a warp sees some of the warp's keys, or every row all of them.
struct WarpTiles {
  IntRange some, all;

  WarpTiles() = default;
  template <class Shape>
  HEED_DEVICE static WarpTiles of(const TileRanges& ranges, int key_warp) {
    constexpr int keys = Shape::tile_keys;
    const int first = key_warp * Shape::shared_keys;
    const auto floor = [](int n) { return n < 0 ? -1 : n / keys; };
    WarpTiles t;
    t.some = {max_of(0, ranges.some.begin - first - Shape::shared_keys + keys) / keys,
              floor(ranges.some.end - 1 - first) + 1};
    t.all = {(max_of(0, ranges.all.begin - first) + keys - 1) / keys,
             floor(ranges.all.end - first - Shape::shared_keys) + 1};
    return t;
  }
};

// Where a cache's page has what a KV head needs, in bytes from the page's beginning: keys, values and their
// scales.
struct PageOffsets {
  std::int64_t keys, values, key_scales, value_scales;
  int key_bytes, value_bytes;  // of a token
};

// What all threads of a block know, in shared memory: registers are for products.
template <class Shape>
struct BlockFacts {
  RowTile tile;
  TileRanges ranges;                     // of all rows
  TileRanges of_warp[Shape::row_warps];  // of a warp's
  alignas(16) WarpTiles tiles_of_warp[Shape::row_warps * Shape::key_warps];
  const std::uint16_t *first_key, *first_value;  // of an array
  PageOffsets in_page;                           // of a cache
  IntRange keys;                                 // that the block walks
  IntRange units;  // whose partial states it leaves; begin -1: its rows end here
  RowFacts rows[Shape::rows];
  unsigned char is_poisoned[Shape::rows];  // the row holds a number that is not finite

  // By all threads, which meet before they read it; warps do different things at a time, those without rows
  // what is not of a row.
  HEED_DEVICE void find(const Call& c, const Plan& plan) {
    find(c, plan, RowTile(c, plan, static_cast<int>(block_index()), Shape::rows));
  }
  HEED_DEVICE void find(const Call& c, const Plan& plan, const RowTile& of) {
    constexpr int after_rows = (Shape::rows + 31) / 32 * 32;
    const int n = thread_index(), m = after_rows + 96 <= Shape::threads ? n - after_rows : n;
    if (m == 0) {
      tile = of;
      const TileRanges all(c, of, 0, Shape::rows - 1);
      const bool is_cut = plan.partials.cuts(of.group, of.sequence);
      const int unit_keys = plan.partials.unit_keys;
      ranges = all, units = {-1, -1};
      keys = {all.front > 0 ? 0 : all.some.begin, all.some.end};
      if (is_cut) {
        const int first = block_in_column() * plan.units_each, last = (of.keys + unit_keys - 1) / unit_keys;
        units = {first, min_of(first + plan.units_each, last)};
        keys = {max_of(keys.begin, units.begin * unit_keys), min_of(keys.end, units.end * unit_keys)};
      }
      // Nothing to do: units beyond the keys, or rows whose keys are not cut.
      if (is_cut ? units.begin >= units.end : block_in_column() > 0) tile.count = 0;
    }
    if (m == 32 && !c.cached) first_key = first_of(c.k, of), first_value = first_of(c.v, of);
    if (m == 32 && c.cached) {
      const cache::PageLayout& layout = c.layout;
      const std::int64_t head = of.kv_head * layout.head_bytes();
      in_page = {head,
                 head + layout.values_at(),
                 head + layout.key_scales_at(),
                 head + layout.value_scales_at(),
                 static_cast<int>(layout.dim * layout.element_bytes),
                 static_cast<int>(layout.value_width() * layout.element_bytes)};
    }
    if (const int warp = m - 64; warp >= 0 && warp < Shape::row_warps * Shape::key_warps) {
      const int row_warp = warp % Shape::row_warps;
      const TileRanges ranges_of(c, of, row_warp * Shape::warp_rows, (row_warp + 1) * Shape::warp_rows - 1);
      if (warp < Shape::row_warps) of_warp[warp] = ranges_of;
      tiles_of_warp[warp] = WarpTiles::of<Shape>(ranges_of, warp / Shape::row_warps);
    }
    for (int r = n; r < Shape::rows && of.count > 0; r += Shape::threads) {
      const Query q = of.query(c, r);
      const KeyRange range = range_of(c, of, static_cast<int>(q.i));
      rows[r] = {static_cast<int>(range.begin),
                 static_cast<int>(range.end),
                 static_cast<int>(q.i),
                 static_cast<int>(q.h),
                 row_of(c.q, q).first,
                 row_of(c.out, q).first,
                 c.bias.data ? row_of(c.bias, q).first : 0,
                 c.mask_count > 0 ? row_of(c.masks[0].where, q).first : 0};
      is_poisoned[r] = 0;
    }
  }
  HEED_DEVICE static const std::uint16_t* first_of(const Tensor& t, const RowTile& tile) {
    return static_cast<const std::uint16_t*>(t.data) + row_of(t, tile.b, tile.kv_head, tile.first_key).first;
  }
  HEED_DEVICE Query query(int r) const {
    return {tile.b, rows[r].h, rows[r].i, tile.first_query + rows[r].i};
  }
};

// This thread's keys of a tile and this thread's rows of a warp.
template <class Shape>
struct Place {
  int warp_row, key_warp;
  int share = 0;  // which of the warps that share rows

  // The first of keys first + 8 n + {0, 1}.
  HEED_DEVICE int first_key(int tile) const { return warp_first_key(tile) + lane_index() % 4 * 2; }
  HEED_DEVICE int warp_first_key(int tile) const {
    return tile * Shape::tile_keys + key_warp * Shape::shared_keys + share * Shape::warp_keys;
  }
  HEED_DEVICE int first_dim() const { return share * Shape::out_dim; }  // of its sums
  HEED_DEVICE int row(int m, int r) const {
    return warp_row * Shape::warp_rows + m * 16 + r * 8 + lane_index() / 4;
  }
};

// The document of a query, if it is of any (S20).
struct Document {
  std::int32_t id;
  bool is_any;
};
HEED_DEVICE Document document_of(const DocumentIds& d, const RowTile& tile, int i) {
  if (d.queries) return {d.queries[tile.b * d.queries_step + i], true};
  const int own = i + (d.queries_are_last ? tile.keys - tile.queries : 0);
  const bool is_any = own >= 0 && own < tile.keys;
  return {is_any ? d.keys[tile.b * d.keys_step + own] : 0, is_any};
}

// A bit for each of the first tiles of keys; all others are visited.
struct DocumentTiles {
  static constexpr int max_tiles = 2048;
  std::uint32_t bits[max_tiles / 32];
  std::int32_t min_id, max_id;

  // By all threads of a block: tiles that hold a number between the lowest and the highest of the rows'
  // documents.
  template <class Shape>
  HEED_DEVICE void find(const Call& c, const BlockFacts<Shape>& block) {
    if (!scans_documents(c)) return;
    constexpr int threads = Shape::threads, tile_keys = Shape::tile_keys;
    const RowTile& tile = block.tile;
    const DocumentIds d = c.documents[0];
    for (int n = thread_index(); n < max_tiles / 32; n += threads) bits[n] = 0;
    if (thread_index() == 0) min_id = 0x7fffffff, max_id = -0x7fffffff - 1;
    sync();
    for (int r = thread_index(); r < Shape::rows; r += threads) {
      const Document own = document_of(d, tile, tile.query_of(r));
      if (own.is_any) atomicMin(&min_id, own.id), atomicMax(&max_id, own.id);
    }
    sync();
    const std::int32_t* ids = d.keys + tile.b * d.keys_step;
    for (int t = block.keys.begin / tile_keys + thread_index();
         t < min_of((block.keys.end + tile_keys - 1) / tile_keys, max_tiles); t += threads) {
      bool is_wanted = false;
      for (int j = t * tile_keys; j < min_of((t + 1) * tile_keys, tile.keys); ++j)
        is_wanted = is_wanted || (ids[j] >= min_id && ids[j] <= max_id);
      if (is_wanted) atomicOr(&bits[t / 32], 1u << t % 32);
    }
    sync();
  }

  HEED_DEVICE bool has(int tile) const { return tile >= max_tiles || (bits[tile / 32] >> tile % 32 & 1); }
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
        documents(scans_documents(c) ? &by_document : nullptr),
        end((of.keys.end + Shape::tile_keys - 1) / Shape::tile_keys),
        is_simple(!scans_documents(c) && c.front == 0) {}

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
