// SPDX-License-Identifier: Apache-2.0
// Decode's products in f32: every sum is a chain of multiply-adds.
#pragma once
#include <cstdint>

#include "cpu/algorithm/decode_cache.hpp"
#include "cpu/algorithm/decode_state.hpp"
#include "cpu/algorithm/decode_views.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <Vector Lanes>
class DecodeF32 {
 public:
  using S = Lanes;
  static constexpr int least_width = 4;

  static std::int64_t scratch_floats(const Call&) { return 0; }

  DecodeF32(const DecodeRows<S>& task_rows, float*)
      : rows(task_rows), c(rows.c), at(rows.at), views(rows), cache(rows) {}

  // Whole tiles from the left.
  static std::int64_t key_step(const Call& c) { return c.cached ? PageLayout::tile : 1; }

  void begin() const {
    // Rows that are not real are never scored.
    if (c.cached || views.turns_keys()) fill(rows.s, block_keys * rows.width, 0.0f);
    pack_queries();
  }

  void score(const Scores& t) const {
    if (c.cached)
      cache.score(t);
    else
      views.score(t);
  }

  void add_values(const Scores& t, bool partly_hidden, float* out) const {
    if (c.layout.is_quantized)
      apply_scales<S>(t, t.first_key + t.keys,
                      [&](std::int64_t j) { return value_scales(c, rows.b, rows.kv_head, j); });
    fill(rows.values, rows.count * at.dims, 0.0f);
    if (c.cached && !partly_hidden)
      cache.add_values(t, rows.values);
    else
      views.add_values(t, partly_hidden, rows.values);
    for (std::int64_t n = 0; n < rows.count * at.dims; n += S::lanes)
      S::store(out + n, S::add(S::load(out + n), S::load(rows.values + n)));
  }

 private:
  // (depth, rows), scaled: one vector of rows per dimension.
  void pack_queries() const {
    const auto row_at = [query = rows.query, q = c.q](std::int64_t r) { return row_of(q, query(r)); };
    pack_rows<S>(row_at, rows.count, at.rows, c.dim, rows.depth, rows.k_rows, rows.q);
    scale_all<S>(rows.q, rows.depth * at.rows, c.scaling.query);
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const StateLayout& at;
  const DecodeViews<S> views;
  const DecodeCache<S> cache;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
