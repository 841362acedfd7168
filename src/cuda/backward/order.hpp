// SPDX-License-Identifier: Apache-2.0
// How a backward pass in one kernel cuts a call into tiles, and the order of its sums.
//
// A block owns a tile of 128 keys of a KV head, whose dK and dV stay in its registers. It goes through the
// tiles of queries that see the keys, from the last to the first, and at each through the query heads that
// read the KV head: that is the order in which dK and dV are summed. dQ of a tile of queries is a sum over
// tiles of keys, which blocks add to in memory, from the tile of key 0 on: a block waits until those below it
// have added theirs. Tiles of keys are claimed in the same order, so that a block waits only for blocks that
// claimed before it: however few run at once, none waits for ever. No sum depends on anything but the tiles.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/plan.hpp"

namespace heed::cuda {

constexpr int backward_keys = 128;  // of a tile

struct TileOfEntry {
  int b, tile;
};

// The tiles of all sequences in one line. Those of packed sequences begin at first_row / rows + b, which
// needs no list: a tile between two sequences may be nobody's.
struct TileLine {
  int rows;   // of a tile
  int each;   // tiles of a batch entry; of packed sequences: 0
  int count;  // of all
  int batch;

  static constexpr TileLine over(std::int64_t all_rows, int rows, bool is_packed, std::int64_t batch) {
    const auto tiles = static_cast<int>((all_rows + rows - 1) / rows), entries = static_cast<int>(batch);
    return is_packed ? TileLine{rows, 0, tiles + entries, entries}
                     : TileLine{rows, tiles, tiles * entries, entries};
  }

  constexpr int first(int b, std::int64_t first_row) const {
    return each > 0 ? b * each : static_cast<int>(first_row / rows) + b;
  }
  // `first_row` of a sequence says where it begins.
  template <class FirstRow>
  constexpr TileOfEntry find(int n, const FirstRow& first_row) const {
    if (each > 0) return {n / each, n % each};
    int low = 0, high = batch;  // first(low) <= n
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first(middle, first_row(middle)) <= n ? low : high) = middle;
    }
    return {low, n - first(low, first_row(low))};
  }
};

// Tiles of queries [first, last] that see some key of a tile; last < first: none.
struct QueryTiles {
  int first, last;
};
// The first query that sees the tile's first key, the last that sees the last of its keys: of a window's
// front, the last of all.
constexpr QueryTiles query_tiles_of(const Sequence& s, int tile, int rows, int keys = backward_keys,
                                    std::int64_t front = 0) {
  const std::int64_t begin = std::int64_t{tile} * keys, end = begin + keys,
                     last_key = (end < s.key_count ? end : s.key_count) - 1;
  // fault: cuda-gradient-of-the-front
  const std::int64_t first = begin - s.end_offset + 1,
                     last = begin < front ? s.queries - 1 : last_key - s.first_offset;
  const std::int64_t from = first > 0 ? first : 0, to = last < s.queries - 1 ? last : s.queries - 1;
  if (begin >= s.key_count || from > to) return {0, -1};
  return {static_cast<int>(from / rows), static_cast<int>(to / rows)};
}

// Tiles of keys whose steps go to a tile of queries, [first, last]: all of those between do, if any does.
struct KeyTiles {
  int first, last;

  constexpr int count() const { return last < first ? 0 : last - first + 1; }
};
constexpr KeyTiles key_tiles_of(const Sequence& s, int tile, int rows) {
  const auto goes = [&](std::int64_t keys) {
    const QueryTiles of = query_tiles_of(s, static_cast<int>(keys), rows);
    return of.first <= tile && tile <= of.last;
  };
  const std::int64_t begin = std::int64_t{tile} * rows,
                     end = begin + rows < s.queries ? begin + rows : s.queries,
                     seen = end - 1 + s.end_offset < s.key_count ? end - 1 + s.end_offset : s.key_count;
  std::int64_t first = begin + s.first_offset > 0 ? (begin + s.first_offset) / backward_keys : 0,
               last = seen > 0 ? (seen - 1) / backward_keys : -1;
  while (last >= first && !goes(last)) --last;
  while (first <= last && !goes(first)) ++first;
  return {static_cast<int>(first), static_cast<int>(last)};
}

// Of the tiles of keys of one head: steps of all, and of the longest.
struct TileSteps {
  std::int64_t all = 0, max = 0;
};

// In which order blocks claim tiles of keys: those of some heads first, from the lowest on, then those of the
// next heads. With few heads at a time, the queries and sums that blocks share stay in the second-level
// cache. But then blocks have more tiles of one head at once, each of which begins only after the one below
// it; and where tiles differ in length, the long ones of the last heads come late. So blocks have as many
// tiles of a head at once as a quarter of a tile's steps, but no more than four or a fiftieth of all steps of
// a block, so that it need not wait long for its first turns, and all longest tiles are claimed in time: 64
// heads of 4096 x 128 over 8 reached 511 TFLOP/s eight KV heads at a time, two at a time 491, but those of
// 16384 tokens 500 and one at a time 512 (H200, November 2026).
constexpr PrefillOrder claim_order(const TileSteps& steps, int heads, int tiles, int at_once) {
  const auto limited = [](std::int64_t x, std::int64_t low, std::int64_t high) {
    return x < low ? low : x > high ? high : x;
  };
  if (heads == 0 || tiles == 0) return {heads, 1, tiles};
  const std::int64_t of_block = steps.all * heads / at_once, most = of_block / 50 > 4 ? of_block / 50 : 4;
  const std::int64_t depth = limited(steps.all / tiles / 4, 2, most < at_once ? most : at_once);
  std::int64_t section = (at_once + depth - 1) / depth;
  if (steps.max * tiles > steps.all * 5 / 4) {
    const std::int64_t in_time = steps.max * at_once / (steps.all > 0 ? steps.all : 1);
    section = section > in_time ? section : in_time;
  }
  const std::int64_t sections = limited((heads + section / 2) / section, 1, heads);
  return {heads, static_cast<int>((heads + sections - 1) / sections), tiles};
}

}  // namespace heed::cuda
