// SPDX-License-Identifier: Apache-2.0
// Fused attention for many rows: keys and values are packed block by block into the second-level cache and
// read by every panel of rows that shares the KV head; scores exist only as one (keys, rows) stretch per
// panel.
#pragma once
#include <cstdint>

#include "cpu/algorithm/dropout.hpp"
#include "cpu/algorithm/finish.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/product.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/algorithm/softmax.hpp"
#include "cpu/call.hpp"

namespace heed::cpu {

// One task's memory, cut from one allocation. Sizes in floats.
template <class S>
struct PrefillScratch {
  std::int64_t panels, depth, dims;  // depth: dim made even; dims: value_dim in whole tiles
  float *q, *k, *v, *s, *unseen, *widened, *max, *sum, *out, *total_max, *total_sum, *total_out;
  std::int64_t floats = 0;

  PrefillScratch(const Call& c, std::int64_t rows, float* memory)
      : panels((rows + Tile<S>::rows - 1) / Tile<S>::rows),
        depth(round_up(c.dim, 2)),
        dims(round_up(c.value_dim, Tile<S>::columns)) {
    const std::int64_t all_rows = panels * Tile<S>::rows;
    const auto cut = [&](std::int64_t n) {
      float* p = memory + floats;
      floats += round_up(n, 16);
      return p;
    };
    q = cut(all_rows * depth);
    k = cut(block_keys * depth);
    v = cut(block_keys * dims);
    s = cut(block_keys * Tile<S>::rows);
    unseen = cut(block_keys * Tile<S>::rows);
    widened = cut(4 * most(c.dim, c.value_dim));
    max = cut(all_rows), sum = cut(all_rows), out = cut(all_rows * dims);
    total_max = cut(all_rows), total_sum = cut(all_rows), total_out = cut(all_rows * dims);
  }
};

template <class S>
class Prefill {
  static constexpr int rows = Tile<S>::rows, columns = Tile<S>::columns;

 public:
  Prefill(const Call& call, const Rows& task_rows, float* memory)
      : c(call),
        task(task_rows),
        group(call.group()),
        count(task_rows.queries * call.group()),
        m(c, count, memory) {}

  void run() {
    pack_queries();
    const std::int64_t last = task.first_query + task.queries - 1;
    const KeyRange seen{visible_keys<S>(c, task.batch_entry, task.first_query).begin,
                        visible_keys<S>(c, task.batch_entry, last).end};
    for (std::int64_t p = 0; p < m.panels; ++p) clear<S>(total(p), m.dims);
    for (std::int64_t chunk = seen.begin / chunk_keys * chunk_keys; chunk < seen.end; chunk += chunk_keys) {
      for (std::int64_t p = 0; p < m.panels; ++p) clear<S>(part(p), m.dims);
      for (std::int64_t block = chunk; block < least(chunk + chunk_keys, seen.end); block += block_keys)
        attend({most(block, seen.begin), least(block + block_keys, seen.end)});
      for (std::int64_t p = 0; p < m.panels; ++p) merge<S>(total(p), part(p), m.dims);
    }
    for (std::int64_t p = 0; p < m.panels; ++p) finish(p);
    if (c.weights.data || c.scores.data) inspect();
  }

 private:
  State part(std::int64_t p) const { return {m.max + p * rows, m.sum + p * rows, m.out + p * rows * m.dims}; }
  State total(std::int64_t p) const {
    return {m.total_max + p * rows, m.total_sum + p * rows, m.total_out + p * rows * m.dims};
  }
  // Rows of panel p that are real; the rest repeat nothing and are never written.
  int rows_of(std::int64_t p) const { return static_cast<int>(least(rows, count - p * rows)); }
  Query query(std::int64_t p, int r) const {
    const std::int64_t n = p * rows + r;
    return {task.batch_entry, c.head(task.kv_head, n % group), task.first_query + n / group};
  }

  void pack_queries() {
    for (std::int64_t p = 0; p < m.panels; ++p) {
      const auto row_at = [&](std::int64_t r) {
        const Query n = query(p, static_cast<int>(r));
        return row_of<S>(c.q, n.b, n.h, n.i);
      };
      pack_rows<S>(row_at, rows_of(p), rows, c.dim, m.depth, m.widened, m.q + p * rows * m.depth);
    }
    const auto scale = S::fill(c.scale_log2e);
    for (float* x = m.q; x < m.q + m.panels * rows * m.depth; x += S::lanes)
      S::store(x, S::mul(S::load(x), scale));
  }

  void pack_keys(KeyRange keys) {
    for (std::int64_t j = keys.begin; j < keys.end; j += columns) {
      const auto row_at = [&](std::int64_t n) {
        return row_of<S>(c.k, task.batch_entry, task.kv_head, j + n);
      };
      pack_rows<S>(row_at, least(columns, keys.end - j), columns, c.dim, m.depth, m.widened,
                   m.k + (j - keys.begin) * m.depth);
    }
  }

  // Whether all values of the block are finite; with a NaN or an infinity 0 * v would not be 0.
  bool pack_values(KeyRange keys) {
    const std::int64_t padded = round_up(keys.end - keys.begin, columns),
                       whole = c.value_dim / columns * columns;
    bool finite = true;
    for (std::int64_t n = 0; n < padded; ++n) {
      float* to = m.v + n * columns;
      if (keys.begin + n >= keys.end) {
        for (std::int64_t d = 0; d < m.dims; d += columns, to += padded * columns) fill<S>(to, columns, 0.0f);
        continue;
      }
      const Row row = row_of<S>(c.v, task.batch_entry, task.kv_head, keys.begin + n);
      const float* x = widen<S>(row, c.value_dim, m.widened);
      finite &= all_finite<S>(x, c.value_dim);
      for (std::int64_t d = 0; d < whole; d += columns, to += padded * columns)
        __builtin_memcpy(to, x + d, columns * sizeof(float));
      for (std::int64_t d = whole; d < m.dims; ++d) to[d - whole] = d < c.value_dim ? x[d] : 0.0f;
    }
    return finite;
  }

  // The scores of panel p over its part of the block, in m.s; empty when no row sees any of it.
  Scores score(std::int64_t p, KeyRange block, bool visible_only) {
    const int last = rows_of(p) - 1;
    const KeyRange low = visible_keys<S>(c, task.batch_entry, query(p, 0).i);
    const KeyRange high = visible_keys<S>(c, task.batch_entry, query(p, last).i);
    std::int64_t begin = block.begin, end = block.end;
    if (visible_only) {
      begin = block.begin + most(0, low.begin - block.begin) / columns * columns;
      end = least(block.end, high.end);
    }
    Scores t{m.s, rows, begin, most(0, round_up(end - begin, columns))};
    for (std::int64_t j = 0; j < t.keys; j += columns)
      tile_product<S, Start::zero>(m.q + p * rows * m.depth, m.k + (begin - block.begin + j) * m.depth,
                                   m.depth, m.s + j * rows);
    return t;
  }

  void refine(std::int64_t p, const Scores& t) {
    const KeyRange low = visible_keys<S>(c, task.batch_entry, query(p, 0).i);
    const KeyRange high = visible_keys<S>(c, task.batch_entry, query(p, rows_of(p) - 1).i);
    const bool full = high.begin <= t.first_key && t.first_key + t.keys <= low.end;
    if (full && !c.bias.data && !c.mask_count) return;
    for (int r = 0; r < rows_of(p); ++r) {
      const Query n = query(p, r);
      bias_and_mask<S>(c, n, visible_keys<S>(c, n.b, n.i), r, t);
    }
  }

  void attend(KeyRange keys) {
    keys.begin = keys.begin / columns * columns;  // tiles are anchored at key 0, too
    pack_keys(keys);
    const bool poisoned = !pack_values(keys);
    const std::int64_t padded = round_up(keys.end - keys.begin, columns);
    for (std::int64_t p = 0; p < m.panels; ++p) {
      const Scores t = score(p, keys, true);
      if (t.keys == 0) continue;
      if (c.softcap_log2e != 0) apply_softcap<S>(c, t);
      refine(p, t);
      if (poisoned)
        for (std::int64_t n = 0; n < t.keys * rows; ++n) m.unseen[n] = m.s[n] == minus_infinity ? 1.0f : 0.0f;
      const State state = part(p);
      advance<S>(state, m.s, t.keys, m.dims);
      if (c.drop_below)
        for (int r = 0; r < rows_of(p); ++r) apply_dropout<S>(c, query(p, r), r, t);
      const float* v = m.v + (t.first_key - keys.begin) * columns;
      for (std::int64_t d = 0; d < m.dims; d += columns, v += padded * columns)
        if (poisoned)
          careful_product(v, t.keys, state.out + d * rows);
        else
          tile_product<S, Start::sum>(m.s, v, t.keys, state.out + d * rows);
    }
  }

  // What tile_product computes, without touching the values of unseen keys (S4).
  void careful_product(const float* v, std::int64_t keys, float* out) const {
    for (int n = 0; n < columns; ++n)
      for (int r = 0; r < rows; ++r)
        for (std::int64_t j = 0; j < keys; ++j)
          if (m.unseen[j * rows + r] == 0)
            out[n * rows + r] = __builtin_fmaf(m.s[j * rows + r], v[j * columns + n], out[n * rows + r]);
  }

  void finish(std::int64_t p) {
    const State state = total(p);
    for (int r = 0; r < rows_of(p); ++r) {
      const Query n = query(p, r);
      const float factor = close_row<S>(c, n, state.max[r], state.sum[r]);
      const Row out = row_of<S>(c.out, n.b, n.h, n.i);
      // Adding +0 gives every zero one sign: which products with a weight of 0 took part must not show.
      for (std::int64_t d = 0; d < c.value_dim; ++d)
        write<S>(out, d, state.out[d * rows + r] * factor + 0.0f);
    }
  }

  // A second pass that writes the weights or the scores: only when they were asked for.
  void inspect() {
    for (std::int64_t begin = 0; begin < c.keys; begin += block_keys) {
      const KeyRange keys{begin, least(begin + block_keys, c.keys)};
      pack_keys(keys);
      for (std::int64_t p = 0; p < m.panels; ++p) {
        const Scores t = score(p, keys, false);
        if (c.stage == ScoreStage::raw) write_scores(p, t);
        if (c.softcap_log2e != 0) apply_softcap<S>(c, t);
        if (c.stage == ScoreStage::softcapped) write_scores(p, t);
        refine(p, t);
        if (c.stage == ScoreStage::biased) write_scores(p, t);
        for (int r = 0; c.weights.data && r < rows_of(p); ++r)
          write_weights<S>(c, query(p, r), {total(p).max[r], total(p).sum[r]}, r, t);
      }
    }
  }

  void write_scores(std::int64_t p, const Scores& t) const {
    for (int r = 0; r < rows_of(p); ++r) write_score_row<S>(c, query(p, r), r, t);
  }

  const Call& c;
  const Rows task;
  const std::int64_t group, count;
  const PrefillScratch<S> m;
};

}  // namespace heed::cpu
