// SPDX-License-Identifier: Apache-2.0
// Attention for a few rows over many keys: keys and values are read where they lie, once for all query heads
// that share them. Every sum has the chains of prefill's in the same order: the bits agree (O1).
#pragma once
#include <cstdint>

#include "cpu/decode/decode_state.hpp"
#include "cpu/tile/dropout.hpp"
#include "cpu/tile/finish.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/row_weights.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Products score keys and add weighted values, in whatever way the instructions like; everything else is the
// same for all.
template <class Products>
class Decode {
  using S = typename Products::S;

 public:
  static constexpr std::int64_t panel_rows = S::lanes;

  static std::int64_t scratch_floats(const Call& c) {
    return DecodeRows<S>::scratch_floats(c) + Products::scratch_floats(c);
  }
  static PartialLayout partial(const Call& c) {
    const StateLayout at = decode_layout<S>(c);
    return {at.rows, at.dims, 1};
  }

  Decode(const Call& call, const Rows& task, float* memory)
      : rows(call, task, Products::min_width, memory),
        c(call),
        at(rows.at),
        products(rows, memory + DecodeRows<S>::scratch_floats(call)) {}

  // Attends to keys [chunk, chunk + chunk_keys) and writes the state they leave.
  void run(std::int64_t chunk, float* partial) {
    const State state = at.in(partial);
    fill(state.max, at.rows, minus_infinity);
    fill(state.sum, at.rows, 0.0f);
    fill(state.out, rows.count * at.dims, 0.0f);  // of rows that are real
    products.begin();
    const Seen seen = seen_by(c, rows.b, 0, c.sequences[rows.b].queries - 1);
    for (std::int64_t block = chunk; block < chunk + chunk_keys; block += block_keys) {
      KeyRange keys = trim_hidden<S>(c, seen.within({block, block + block_keys}), rows.query);
      if (keys.end <= keys.begin) keys = {block, block};
      const std::int64_t step = Products::key_step(c);  // whole tiles from the left
      keys.begin = keys.begin / step * step;
      const Scores t{rows.s, rows.width, keys.begin, keys.end - keys.begin};
      if (t.keys > 0) attend(t, state);
      if (c.weights.data) keep_hidden(block, t);
    }
  }

  // Merges the chunks' states in order and writes the rows. The first chunk is the total so far: merging it
  // into an empty state changes nothing.
  void finish(float* partials, std::int64_t chunks) {
    const State total = at.in(partials);
    // fault: chunk-forgotten
    for (std::int64_t n = 1; n < chunks; ++n) merge_rows<S>(rows, total, at.in(partials + n * at.floats()));
    WriteOut<S> write_out;
    for (int r = 0; r < rows.count; ++r) {
      const Query n = rows.query(r);
      const RowEnd end{total.max[r], total.sum[r]};
      const float factor = close_row<S>(c, n, end);
      write_out(row_of(c.out, n), total.out + r * at.dims, c.value_dim, factor);
      if (c.weights.data) finish_weights(n, end);
    }
    if (!write_out.wrote_only_numbers()) leave_to_reference(c);  // fault: overflow-unnoticed-in-decode
  }

 private:
  void attend(const Scores& t, const State& state) {
    products.score(t);
    spoil_beyond<S>(max_product(c), t);
    if (c.softcap) apply_softcap<S>(c, t);
    const bool partly_hidden = bias_and_mask<S>(c, t, rows.query) && note_unseen(t);
    if (c.weights.data) keep_scores(t);
    advance_rows<S>(rows, t, state);
    if (c.drop_below)
      for (int r = 0; r < rows.count; ++r) apply_dropout(c, rows.query(r), r, t);
    products.add_values(t, partly_hidden, state.out);
  }

  // Every score is compared, because a minimum could lose an infinity to a NaN beside it. Four vectors at a
  // time, each with its own sum, which stays 0 where every score is above -inf.
  bool any_hidden(const Scores& t) const {
    typename S::F found[4];
    for (auto& of : found) of = S::fill(0.0f);
    const std::int64_t all = t.keys * t.width, step = 4 * S::lanes;
    std::int64_t n = 0;
    for (; n + step <= all; n += step)
      for (int v = 0; v < 4; ++v) found[v] = hidden_or(S::load(t.s + n + v * S::lanes), found[v]);
    for (; n < all; n += S::lanes) found[0] = hidden_or(S::load(t.s + n), found[0]);
    float lanes[S::lanes], sum = 0;
    S::store(lanes, S::add(S::add(found[0], found[1]), S::add(found[2], found[3])));
    for (int lane = 0; lane < S::lanes; ++lane) sum += lanes[lane];
    return sum != 0;
  }
  static typename S::F hidden_or(typename S::F score, typename S::F found) {
    return S::less(S::fill(minus_infinity), score, found, S::fill(1.0f));
  }

  // Whether any score is -inf; if so, marks which, because weights do not tell a key that is unseen from one
  // that is faint.
  bool note_unseen(const Scores& t) {
    const bool any = any_hidden(t);
    if (any) mark_unseen<S>(t, rows.unseen);
    return any;
  }

  // -inf for keys of the block that were not scored.
  [[gnu::noinline]] void keep_hidden(std::int64_t block, const Scores& t) {
    const std::int64_t end = min(block + block_keys, c.sequences[rows.b].keys);
    for (int r = 0; r < rows.count; ++r) {
      float* const kept = kept_scores(c, rows.query(r));
      fill(kept + block, max(0, min(end, t.first_key) - block), minus_infinity);
      const std::int64_t last = max(block, t.first_key + t.keys);
      fill(kept + last, max(0, end - last), minus_infinity);
    }
  }

  [[gnu::noinline]] void keep_scores(const Scores& t) {
    for (int r = 0; r < rows.count; ++r) {
      float* const kept = kept_scores(c, rows.query(r)) + t.first_key;
      for (std::int64_t j = 0; j < t.keys; ++j) kept[j] = t.s[j * t.width + r];
    }
  }

  // Chunks that no row sees were left alone.
  [[gnu::noinline]] void finish_weights(const Query& n, const RowEnd& end) {
    const Seen seen = seen_by(c, n.b, 0, c.sequences[n.b].queries - 1);
    const RowWeights<S> weights(c, n, end, rows.power);
    float* const kept = kept_scores(c, n);
    for (std::int64_t chunk = 0; chunk < c.sequences[n.b].keys; chunk += chunk_keys) {
      const std::int64_t count = min(chunk_keys, c.sequences[n.b].keys - chunk);
      const KeyRange part = seen.within({chunk, chunk + chunk_keys});
      if (part.begin < part.end)
        weights.make(kept + chunk, chunk, count);
      else
        fill(kept + chunk, count, 0.0f);
    }
    write_beyond(c, n);
  }

  const DecodeRows<S> rows;
  const Call& c;
  const StateLayout& at;
  Products products;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
