// SPDX-License-Identifier: Apache-2.0
// Decode's products in f32: every sum is a chain of multiply-adds.
#pragma once
#include <cstdint>

#include "cpu/decode/decode_cache.hpp"
#include "cpu/decode/decode_state.hpp"
#include "cpu/decode/decode_views.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector Lanes>
class DecodeF32 {
 public:
  using S = Lanes;
  static constexpr int min_width = 4;

  static std::int64_t scratch_floats(const Call&) { return 0; }

  DecodeF32(const DecodeRows<S>& task_rows, float*)
      : rows(task_rows), c(rows.c), at(rows.at), views(rows), cache(rows) {}

  // Whole tiles from the left.
  static std::int64_t key_step(const Call& c) { return c.cached ? PageLayout::tile : 1; }

  void begin() {
    // Rows that are not real are never scored.
    const std::int64_t keys = min(block_keys, round_up(c.sequences[rows.b].keys, PageLayout::tile));
    if (c.cached || views.transposes_keys()) fill(rows.s, keys * rows.width, 0.0f);
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
  void add_values(const Scores& t, bool partly_hidden, float* out) {
    if (c.layout.is_quantized)
      apply_scales<S>(t, t.first_key + t.keys,
                      [&](std::int64_t j) { return value_scales(c, rows.b, rows.kv_head, j); });
    if (!has_sums) {
      has_sums = true;  // fault: blocks-of-decode-in-one-chain
      return add_block(t, partly_hidden, out);
    }
    fill(rows.values, rows.count * at.dims, 0.0f);
    add_block(t, partly_hidden, rows.values);
    for (std::int64_t n = 0; n < rows.count * at.dims; n += S::lanes)
      S::store(out + n, S::add(S::load(out + n), S::load(rows.values + n)));
  }

 private:
  void add_block(const Scores& t, bool partly_hidden, float* sums) const {
    if (c.cached && !partly_hidden)
      cache.add_values(t, sums);
    else
      views.add_values(t, partly_hidden, sums);
  }

  // (depth, rows), scaled: one vector of rows per dimension.
  void pack_queries() const {
    const auto row_at = [query = rows.query, q = c.q](std::int64_t r) { return row_of(q, query(r)); };
    pack_rows<S>(row_at, rows.count, at.rows, c.dim, rows.depth, rows.k_rows, rows.q);
    scale_all<S>(rows.q, rows.depth * at.rows, c.scaling.query);  // by 1, too, as prefill: a mode may flush
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
  const DecodeViews<S> views;
  const DecodeCache<S> cache;
  bool has_sums = false;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
