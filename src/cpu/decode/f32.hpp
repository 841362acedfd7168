// SPDX-License-Identifier: Apache-2.0
// Decode's products in f32, where every sum is a chain of multiply-adds: over the caller's keys and values
// (views.hpp), or over a cache's pages (cache/layout.hpp). A cache's keys, and its values, are single
// streams: scores have sixteen keys on the lanes, outputs sixteen dimensions, so no lane is idle however few
// the rows.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/decode/product.hpp"
#include "cpu/decode/views.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector S>
class DecodeCache {
  static constexpr std::int64_t tile = PageLayout::tile;
  static_assert(tile == line_elements);

 public:
  explicit DecodeCache(const DecodeRows<S>& task_rows) : rows(task_rows), c(rows.c), at(rows.at) {}

  // t begins with a whole tile; scores beyond its keys are never read.
  void score(const Scores& t) const {
    with_type(c.k.type, [&](auto type) { score_typed<type.value>(t); });
  }

  // out(rows, dims) += the values, weighted by t.s; for stretches that hide nothing from any row.
  void add_values(const Scores& t, float* out) const {
    with_type(c.v.type, [&](auto type) { add_typed<type.value>(t, out); });
  }

 private:
  // How many tiles are scored together where a line is one vector. A cache of 32768 keys in int8 takes 4.6 ms
  // instead of 4.9 two at a time, and 2 % less four at a time (Xeon, two cores, November 2026).
  template <Type type>
  static constexpr int tiles_together = type == Type::int8 ? 4 : 2;

  // How far before their use tiles are prefetched, in keys: those of the keys, then of the values, then of
  // the next block's keys. Neoverse-N1, two cores, 32768 keys of f32: one tile 10.0 ms, two 9.7, three 10.1;
  // over pages of 64 tokens 10.6, 10.8, 10.8 (November 2026).
  template <Type type>
  std::int64_t prefetch_distance() const {
    if constexpr (S::lanes == tile && tiles_together<type> > 2) return tiles_together<type> * tile;
    return c.layout.page_size < 256 ? tile : 2 * tile;
  }

  template <Type type>
  void score_typed(const Scores& t) const {
    TileWalk keys = walk_keys(t.first_key), later_keys = keys, first_values = walk_values(t.first_key),
             scales = walk_key_scales(t.first_key);
    const std::int64_t distance = prefetch_distance<type>();
    for (std::int64_t n = 0; n < distance; n += tile) later_keys.step();
    const auto next_tile = [&](std::int64_t j) {
      TileWalk& upcoming = j + distance < t.keys ? later_keys : first_values;
      const KeyTile found{keys.place(), upcoming.place(), scales_at(scales)};
      keys.step(), upcoming.step(), scales.step();
      return found;
    };
    std::int64_t j = 0;
    if constexpr (S::lanes == tile) {
      constexpr int tiles = tiles_together<type>;
      for (; c.dim <= chain_terms && j + tiles * tile <= t.keys; j += tiles * tile) {
        KeyTile some[tiles];
        for (int n = 0; n < tiles; ++n) some[n] = next_tile(j + n * tile);
        for (std::int64_t r = 0; r < rows.count; r += 4)
          with_rows(rows.count - r,
                    [&](auto n) { score_some<type, n.value>(some, r, t.s + j * t.width + r); });
      }
    }
    for (; j < t.keys; j += tile) {
      const KeyTile one = next_tile(j);
      for (std::int64_t r = 0; r < rows.count; r += 4)
        with_rows(rows.count - r, [&](auto n) { score_tile<type, n.value>(one, r, t.s + j * t.width + r); });
    }
  }

  template <Type type>
  void add_typed(const Scores& t, float* out) const {
    const std::int64_t last = (c.cached[rows.b].length - 1) / tile * tile,
                       distance = prefetch_distance<type>();
    std::int64_t next = min(t.first_key + round_up(t.keys, tile), last);
    TileWalk values = walk_values(t.first_key), later_values = values, next_keys = walk_keys(next);
    for (std::int64_t n = 0; n < distance; n += tile) later_values.step();
    for (std::int64_t j = 0; j < t.keys; j += tile, values.step()) {
      TileWalk& upcoming = j + distance < t.keys ? later_values : next_keys;
      const float* p = t.s + j * t.width;
      for (std::int64_t r = 0; r < rows.count; r += 4)
        with_rows(rows.count - r, [&](auto n) {
          // fault: last-token-of-the-tile
          add_tile<type, n.value>({values.place(), upcoming.place(), p + r, min(tile, t.keys - j)}, r, out);
        });
      if (&upcoming == &later_values)
        later_values.step();
      else if (next < last)  // else the sequence has no further page
        next_keys.step(), next += tile;
    }
  }

  // From the tile that begins with this key.
  TileWalk walk_keys(std::int64_t key) const { return TileWalk::of_keys(c, rows.b, rows.kv_head, key); }
  TileWalk walk_values(std::int64_t key) const { return TileWalk::of_values(c, rows.b, rows.kv_head, key); }
  TileWalk walk_key_scales(std::int64_t key) const {
    return TileWalk::of_key_scales(c, rows.b, rows.kv_head, key);
  }
  static const float* scales_at(const TileWalk& walk) {
    const void* scales = walk.place();
    return static_cast<const float*>(scales);
  }

  struct KeyTile {
    const unsigned char *keys, *next;
    const float* scales;  // of int8
  };

  // s(16 keys, rows r ... r + 3) of `n` rows; the rows that are missing score 0.
  template <Type type, int n>
  void score_tile(const KeyTile& t, std::int64_t r, float* s) const {
    // fault: cached-scores-of-other-rows
    score_in_chains<S, type, n>({rows.buffers.q + r, at.rows, t.keys, c.dim, s, rows.width, t.next});
    if constexpr (type == Type::int8) scale_fours(t.scales, tile, s, rows.width);
  }

  // The same of several tiles, whose dimensions are one chain.
  template <Type type, int n, int tiles>
  void score_some(const KeyTile (&some)[tiles], std::int64_t r, float* s) const {
    Tiles<tiles> t{rows.buffers.q + r, at.rows, {}, c.dim, s, rows.width, {}, {}};
    for (int i = 0; i < tiles; ++i)
      // fault: scales-of-another-tile
      t.lines[i] = some[i].keys, t.next[i] = some[i].next, t.scales[i] = some[i].scales;
    score_tiles<S, type, n>(t);
  }

  struct ValueTile {
    const unsigned char *values, *next;
    const float* p;  // (keys, rows)
    std::int64_t keys;
  };

  template <Type type, int n>
  void add_tile(const ValueTile& t, std::int64_t r, float* out) const {
    add_blocks<S, type, n>({t.p, rows.width, t.values, t.keys, out + r * at.dims, at.dims, t.next},
                           c.layout.value_width() / tile);
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
};

// Either of them, whichever holds the keys.
template <Vector Lanes>
class DecodeF32 {
 public:
  using S = Lanes;
  static constexpr int min_width = 4;

  static void measure(const Call&, Cutter&) {}  // the rows' buffers are enough

  DecodeF32(const DecodeRows<S>& task_rows, Cutter&)
      : rows(task_rows), c(rows.c), at(rows.at), views(rows), cache(rows) {}

  // A cache's tiles are whole at their beginning.
  static std::int64_t key_step(const Call& c) { return c.cached ? PageLayout::tile : 1; }

  void begin() {
    // Rows that are not real are never scored.
    const std::int64_t keys = min(block_keys, round_up(c.sequences[rows.b].keys, PageLayout::tile));
    if (c.cached || views.transposes_keys()) fill(rows.buffers.s, keys * rows.width, 0.0f);
    pack_queries();
    has_sums = false;
  }

  void score(const Scores& t) const {
    if (c.cached)
      cache.score(t);
    else
      views.score(t);
  }

  // What the first block comes to are the sums so far, and is added up where they lie: 0 + x differs from x
  // in the sign of a zero alone, which no output has (finish.hpp).
  void add_values(const Scores& t, Coverage coverage, float* out) {
    if (c.layout.is_quantized)
      apply_scales<S>(t, t.first_key + t.keys,
                      [&](std::int64_t j) { return value_scales(c, rows.b, rows.kv_head, j); });
    if (!has_sums) {
      has_sums = true;  // fault: blocks-of-decode-in-one-chain
      return add_block(t, coverage, out);
    }
    fill(rows.buffers.values, rows.count * at.dims, 0.0f);
    add_block(t, coverage, rows.buffers.values);
    for (std::int64_t n = 0; n < rows.count * at.dims; n += S::lanes)
      S::store(out + n, S::add(S::load(out + n), S::load(rows.buffers.values + n)));
  }

 private:
  void add_block(const Scores& t, Coverage coverage, float* sums) const {
    if (c.cached && coverage == Coverage::full)
      cache.add_values(t, sums);
    else
      views.add_values(t, coverage, sums);
  }

  // (depth, rows), scaled: one vector of rows per dimension.
  void pack_queries() const {
    const auto row_at = [query = rows.query, q = c.q](std::int64_t r) { return row_of(q, query(r)); };
    pack_rows<S>(row_at, {rows.count, at.rows, c.dim, rows.depth}, rows.buffers.k_rows, rows.buffers.q);
    scale_all<S>(rows.buffers.q, rows.depth * at.rows,
                 c.scaling.query);  // by 1, too, as prefill: a mode may flush
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
  const DecodeViews<S> views;
  const DecodeCache<S> cache;
  bool has_sums = false;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
