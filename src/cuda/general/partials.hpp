// SPDX-License-Identifier: Apache-2.0
// Partial states of rows whose keys are cut: into units of a fixed length from key 0 on, so that no bit
// depends on who computed them. The kernels that leave them merge them by one launch (merge.cu).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {
struct SavedEnd;  // of a row (exact/state.cuh)

// One of a row: max, sum, two that are unused, and the values under their weights, in fours.
constexpr std::int64_t partial_floats(std::int64_t value_dim) { return 4 + (value_dim + 3) / 4 * 4; }

// Rows of a KV head are the queries in order, each under all heads that read it.
struct Partials {
  float* states = nullptr;  // (sequences, KV heads, units, rows, partial_floats)
  // States of a KV head before those of each sequence, (batch); null: every sequence has room for as many.
  const std::int32_t* starts = nullptr;
  int units = 0, rows = 0;  // that there is room for, of the longest sequence
  int unit_keys = 0;
  int cut_rows = 0;   // max rows of a KV head whose keys are cut
  int key_warps = 1;  // that each leave a state of a unit

  constexpr bool cuts(const Call& c, const Sequence& s) const {
    return s.queries * c.group() <= cut_rows && s.keys > unit_keys;
  }
  // States of a row.
  constexpr int units_of(const Sequence& s) const {
    return static_cast<int>((s.keys + unit_keys - 1) / unit_keys) * key_warps;
  }

  // States of one KV head of a sequence.
  struct OfHead {
    float* first;
    std::int64_t row_floats, unit_floats;
    constexpr float* at(int unit, int row) const { return first + unit * unit_floats + row * row_floats; }
  };
  constexpr OfHead of_head(const Call& c, int b, int kv_head) const {
    const Sequence& s = c.sequence(b);
    const std::int64_t own_rows = starts ? s.queries * c.group() : rows,
                       own_units = starts ? units_of(s) : units;
    const std::int64_t before = starts ? starts[b] : b * own_units * own_rows,
                       floats = partial_floats(c.value_dim);
    return {states + (before * c.kv_heads + kv_head * own_units * own_rows) * floats, floats,
            own_rows * floats};
  }
};

// Partial states become outputs; `ends` as in general::Plan.
void launch_partial_merge(const Call&, const Partials&, SavedEnd* ends, Stream);

}  // namespace heed::cuda
