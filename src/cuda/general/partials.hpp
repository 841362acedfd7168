// SPDX-License-Identifier: Apache-2.0
// Partial states of rows whose keys are cut: into units of a fixed length from key 0 on, so that no bit
// depends on who computed them. The kernels that leave them merge them by one launch (merge.cu).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {
struct SavedEnd;  // of a row (exact/state.cuh)

// One of a row: max, sum, some that are unused, and the values under their weights, in sixteens: whole
// sectors of 32 bytes, of which a row begins with one.
constexpr int partial_head = 8;  // floats before the values
constexpr std::int64_t partial_floats(std::int64_t value_dim) {
  return partial_head + (value_dim + 15) / 16 * 16;
}

// Query heads of one KV head, each of all its queries, that fit side by side into a tile of rows.
constexpr int heads_of_tile(int group, std::int64_t queries, int rows) {
  if (4 * queries <= rows && group % 4 == 0) return 4;
  return 2 * queries <= rows && group % 2 == 0 ? 2 : 1;
}

// Keys of a unit of prefill's, of which `keys` are for as many queries as a tile has rows. Where heads share
// a tile, and where one has two, there are as many tiles of rows and units in all.
constexpr int prefill_unit_keys(int keys, int group, std::int64_t queries, int tile_rows) {
  return queries > tile_rows ? 2 * keys : keys / heads_of_tile(group, queries, tile_rows);
}

// Rows of a KV head are the queries in order, each under all heads that read it.
struct Partials {
  float* states = nullptr;  // (sequences, KV heads, units, rows, partial_floats)
  // States of a KV head before those of each sequence, (batch); null: every sequence has room for as many.
  const std::int32_t* starts = nullptr;
  int units = 0,
      rows = 0;  // that there is room for, of the longest sequence; all have as many without starts
  int unit_keys = 0;
  int tile_rows = 0;  // prefill's, on which the keys of a unit depend; else 0
  int cut_rows = 0;   // max rows of a KV head whose keys are cut
  int key_warps = 1;  // that each leave a state of a unit
  // Values lie as prefill's threads have them, so that each stores four at a time: of every sixteen those of
  // columns 0, 1, 8 and 9, then 2, 3, 10 and 11, and so on.
  bool is_in_pairs = false;

  constexpr bool cuts(int group, const Sequence& s) const {
    const bool has_tiles = tile_rows > 0 && s.queries > tile_rows;
    return s.queries * group <= cut_rows && s.keys > (has_tiles ? 2 * unit_keys : unit_keys);
  }
  constexpr bool cuts(const Call& c, const Sequence& s) const { return cuts(static_cast<int>(c.group()), s); }
  constexpr int keys_of_unit(int group, const Sequence& s) const {
    return tile_rows == 0 ? unit_keys : prefill_unit_keys(unit_keys, group, s.queries, tile_rows);
  }
  // States of a row.
  constexpr int units_of(int group, const Sequence& s) const {
    const int each = keys_of_unit(group, s);
    return (static_cast<int>(s.keys) + each - 1) / each * key_warps;
  }

  // States of one KV head of a sequence.
  struct OfHead {
    float* first;
    std::int64_t row_floats, unit_floats;
    constexpr float* at(int unit, int row) const { return first + unit * unit_floats + row * row_floats; }
  };
  // Of sequence b of the call, which is s.
  constexpr OfHead of_head(const Call& c, int group, const Sequence& s, int b, int kv_head) const {
    const std::int64_t floats = partial_floats(c.value_dim);
    const int own_rows = starts ? static_cast<int>(s.queries) * group : rows,
              own_units = starts ? units_of(group, s) : units;
    const std::int64_t states_of_head = std::int64_t{own_rows} * own_units,
                       before = starts ? std::int64_t{starts[b]} : b * states_of_head;
    return {states + (before * c.kv_heads + kv_head * states_of_head) * floats, floats, own_rows * floats};
  }
  constexpr OfHead of_head(const Call& c, int b, int kv_head) const {
    return of_head(c, static_cast<int>(c.group()), c.sequence(b), b, kv_head);
  }
};

// Partial states become outputs; `ends` as in general::Plan.
void launch_partial_merge(const Call&, const Partials&, SavedEnd* ends, Stream);

}  // namespace heed::cuda
