// SPDX-License-Identifier: Apache-2.0
// Decode's products by AMX: sixteen rows at the most, so keys and values are read once, and whatever is done
// to them counts.
#pragma once
#include <cstdint>

#include "cpu/decode/decode_amx_keys.hpp"
#include "cpu/decode/decode_amx_values.hpp"
#include "cpu/decode/decode_state.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/range.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/amx.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

class DecodeAmx {
 public:
  using S = NarrowAmx;
  static constexpr int min_width = 1;

  static std::int64_t scratch_floats(const Call& c) {
    Cutter nothing{nullptr};
    AmxKeys::Parts(c, nothing), AmxValues::Parts(c, nothing);
    return nothing.floats;
  }

  DecodeAmx(const DecodeRows<S>& task_rows, float* memory) : DecodeAmx(task_rows, Cutter{memory}) {}

  // Tiles of 32 keys are anchored at key 0, whatever is seen of them.
  static std::int64_t key_step(const Call&) { return 32; }

  void begin() const {
    keys.pack_queries();
    if (keys.zips()) shape_for_rows(16);
  }

  void score(const Scores& t) const { keys.score(t); }

  void add_values(const Scores& t, bool partly_hidden, float* out) {
    // Of values as many pairs as there are in a step, unless tiles stay as keys want them.
    const std::int64_t pairs = keys.zips() ? 16 : min(16, (t.keys + 1) / 2);
    if (!keys.zips()) shape_for_rows(static_cast<int>(pairs));
    if (values.add(t, pairs, out)) add_poison(t, partly_hidden, out);
  }

 private:
  DecodeAmx(const DecodeRows<S>& task_rows, Cutter memory)
      : rows(task_rows), c(rows.c), keys(rows, memory), values(rows, memory) {}

  // The first operand and the sums have as many rows as are real, where those are not of keys; the second has
  // so many pairs.
  void shape_for_rows(int pairs) const {
    const TileShape few{static_cast<int>(rows.count)}, whole, weights{few.rows, 4 * pairs}, zipped{pairs};
    shape_tiles({few, few, few, few, weights, zipped, zipped, whole});
  }

  // The values that were left out because they are not finite, added to the rows that see them and to no
  // other (S4).
  [[gnu::noinline]] void add_poison(const Scores& t, bool partly_hidden, float* out) const {
    for (std::int64_t j = 0; j < t.keys; ++j) {
      const float* x =
          widen<S>(value_row(c, rows.b, rows.kv_head, t.first_key + j), c.value_dim, rows.v_rows);
      if (all_finite<S>(x, c.value_dim)) continue;
      for (std::int64_t d = 0; d < c.value_dim; ++d)
        for (std::int64_t r = 0; !is_finite(x[d]) && r < rows.count; ++r)
          // fault: poison-found-late-in-hidden-keys
          if (!partly_hidden || rows.unseen[j * t.width + r] == 0) {
            float& sum = out[r * rows.at.dims + d];
            sum = __builtin_fmaf(t.s[j * t.width + r], x[d], sum);
          }
    }
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const AmxKeys keys;
  AmxValues values;
  AmxTiles tiles;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
