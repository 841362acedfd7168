// SPDX-License-Identifier: Apache-2.0
// Fused attention for many rows: keys and values are packed block by block into the second-level cache and
// read by every panel of rows that shares the KV head; scores exist only as one (keys, rows) stretch per
// panel.
#pragma once
#include <cstdint>

#include "cpu/algorithm/dropout.hpp"
#include "cpu/algorithm/finish.hpp"
#include "cpu/algorithm/mask.hpp"
#include "cpu/algorithm/operands.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/range.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/algorithm/shared_mask.hpp"
#include "cpu/algorithm/softmax.hpp"
#include "cpu/call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Operands hold queries, keys and values as their products like them; everything else is the same for all.
template <Operands O>
class Prefill {
  using S = typename O::S;
  static constexpr int rows = O::rows;

  static OperandExtents extents_of(const Call& c, std::int64_t panels) {
    return {c.dim, c.value_dim, panels, block_keys, block_keys};
  }

  // The scratch of a task.
  struct Parts {
    typename O::Parts operands;
    float *s, *unseen;  // (block_keys, rows)
    State part, total;  // of all panels, one after another

    Parts(const Call& c, std::int64_t panels, Cutter& memory)
        : operands(extents_of(c, panels), memory),
          s(memory.cut(block_keys * rows)),
          unseen(memory.cut(block_keys * rows)),
          part(cut_state(panels * rows, operands.dims, memory)),
          total(cut_state(panels * rows, operands.dims, memory)) {}

    static State cut_state(std::int64_t all, std::int64_t dims, Cutter& memory) {
      float *max = memory.cut(all), *sum = memory.cut(all), *out = memory.cut(all * dims);
      return {max, sum, out};
    }
  };

 public:
  static std::int64_t scratch_floats(const Call& c, std::int64_t count) {
    Cutter nothing{nullptr};
    const Parts measured(c, panels_of(count), nothing);
    return nothing.floats;
  }

  Prefill(const Call& call, const Rows& task_rows, float* memory)
      : Prefill(call, task_rows, Cutter{memory}) {}

  void run() {
    pack_queries();
    const Seen seen = seen_by_all();
    bool is_first = true;
    for (std::int64_t chunk = seen.front > 0 ? 0 : seen.begin / chunk_keys * chunk_keys; chunk < seen.end;
         chunk += chunk_keys) {
      const KeyRange keys = wanted(seen, {chunk, chunk + chunk_keys});
      if (keys.end <= keys.begin) continue;
      attend_chunk(chunk, seen);
      add_part(is_first);
      is_first = false;
    }
    if (is_first) clear_total();
    for (std::int64_t p = 0; p < panels; ++p) finish(p);
    if (c.weights.data || c.scores.data) inspect();
  }

  // A stream's: what these chunks leave is merged into the total that is kept from one go to the next.
  static std::int64_t kept_floats(const Call& c, std::int64_t count) { return layout_of(c, count).floats(); }

  void stream(const ChunkRange& range, float* kept) {
    at.total = layout_of(c, queries.count).in(kept);
    if (range.is_first) clear_total();
    const Seen seen = seen_by_all();
    bool has_queries = false;
    for (std::int64_t chunk = range.begin; chunk < range.end; chunk += chunk_keys) {
      const KeyRange keys = wanted(seen, {chunk, chunk + chunk_keys});
      if (keys.end <= keys.begin) continue;
      if (!has_queries) pack_queries();
      has_queries = true;
      attend_chunk(chunk, seen);
      add_part(false);
    }
  }

  void finish_stream(float* kept) {
    at.total = layout_of(c, queries.count).in(kept);
    for (std::int64_t p = 0; p < panels; ++p) finish(p);
  }

  // Decode's cut along the keys: what keys [chunk, chunk + chunk_keys) leave behind goes to `partial`.
  static PartialLayout partial(const Call& c) {
    const StateLayout all = layout_of(c, c.group() * c.queries);
    return {all.rows, all.dims, rows};
  }

  void run_chunk(std::int64_t chunk, float* partial) {
    pack_queries();
    at.part = layout_of(c, queries.count).in(partial);
    attend_chunk(chunk, seen_by_all());
  }

  // Merges the chunks' states in order and writes the rows.
  void finish_chunks(float* partials, std::int64_t chunks) {
    for (std::int64_t n = 0; n < chunks; ++n) {
      at.part = layout_of(c, queries.count).in(partials + n * partial(c).floats());
      add_part(n == 0);
    }
    for (std::int64_t p = 0; p < panels; ++p) finish(p);
  }

 private:
  static std::int64_t panels_of(std::int64_t count) { return (count + rows - 1) / rows; }
  static StateLayout layout_of(const Call& c, std::int64_t count) {
    return {panels_of(count) * rows, round_up(c.value_dim, O::dim_step)};
  }

  // total = total merged with part. The first part is the total so far: merging it into an empty state would
  // change nothing.
  void add_part(bool is_first) {
    if (is_first) {
      const State part_now = at.part;
      at.part = at.total, at.total = part_now;
    } else {
      for (std::int64_t p = 0; p < panels; ++p) merge<S>(total(p), part(p), dims, power);
    }
  }
  void clear_total() const {
    for (std::int64_t p = 0; p < panels; ++p) clear<S>(total(p), dims);
  }

  Seen seen_by_all() const {
    return seen_by(c, task.batch_entry, task.first_query, task.first_query + task.queries - 1);
  }

  // The part of `keys` that some row of the task may see.
  KeyRange wanted(const Seen& seen, KeyRange keys) const {
    return trim_documents(c, seen.within(keys), queries);
  }

  void attend_chunk(std::int64_t chunk, const Seen& seen) {
    for (std::int64_t p = 0; p < panels; ++p) clear<S>(part(p), dims);
    for (std::int64_t block = chunk; block < chunk + chunk_keys; block += block_keys) {
      const KeyRange keys = wanted(seen, {block, block + block_keys});
      if (keys.begin < keys.end) attend(keys);
    }
  }

  Prefill(const Call& call, const Rows& task_rows, Cutter memory)
      : c(call),
        task(task_rows),
        queries(call, task_rows),
        panels(panels_of(queries.count)),
        at(call, panels, memory),
        dims(at.operands.dims),
        operands(extents_of(call, panels), at.operands),
        power(call.scaling.exponent) {}

  State panel(const State& all, std::int64_t p) const {
    return {all.max + p * rows, all.sum + p * rows, all.out + p * rows * dims};
  }
  State part(std::int64_t p) const { return panel(at.part, p); }
  State total(std::int64_t p) const { return panel(at.total, p); }
  // Rows of panel p that are real; the rest are zero and never written.
  int rows_of(std::int64_t p) const { return static_cast<int>(least(rows, queries.count - p * rows)); }
  Query query(std::int64_t p, int r) const { return queries(p * rows + r); }
  Queries queries_of(std::int64_t p) const { return queries.some(p * rows, rows_of(p)); }
  Row value(std::int64_t j) const { return value_row(c, task.batch_entry, task.kv_head, j); }
  std::int64_t keys_there_are() const { return c.sequences[task.batch_entry].keys; }

  void pack_queries() {
    for (std::int64_t p = 0; p < panels; ++p) {
      const auto row_at = [query = queries, q = c.q, p](std::int64_t r) {
        return row_of(q, query(p * rows + r));
      };
      operands.pack_queries(p, row_at, rows_of(p), c.scaling.query);
    }
  }

  void pack_keys(KeyRange keys) {
    const RowsFrom<key_row> row_at{c, task.batch_entry, task.kv_head, keys.begin, c.k.stride.length};
    operands.pack_keys(row_at, keys.end - keys.begin);
  }

  // The wanted part of the block, in whole tiles.
  Scores stretch(KeyRange block, KeyRange wanted) const {
    const std::int64_t step = O::key_step, first = most(0, wanted.begin - block.begin) / step * step;
    const std::int64_t keys = round_up(least(block.end, wanted.end) - block.begin - first, step);
    return {at.s, rows, block.begin + first, keys};
  }

  // The scores of panel p over it.
  Scores score(std::int64_t p, KeyRange block, KeyRange wanted) {
    const Scores t = stretch(block, wanted);
    operands.score(p, t.first_key - block.begin, t.keys, at.s);
    if (c.layout.is_quantized)
      apply_scales<S>(t, keys_there_are(),
                      [&](std::int64_t j) { return key_scales(c, task.batch_entry, task.kv_head, j); });
    if (const float most = most_product(c); c.layout.is_quantized || operands.may_exceed(most))
      spoil_beyond<S>(most, t);
    return t;
  }

  // The same with all that lies between the product and the softmax.
  Scores masked_scores(std::int64_t p, KeyRange block, KeyRange wanted) {
    const Scores t = score(p, block, wanted);
    if (c.softcap != 0) apply_softcap<S>(c, t);
    bias_and_mask<S>(c, t, queries_of(p));
    return t;
  }
  Scores masked_scores(std::int64_t p, KeyRange block, KeyRange wanted, const SharedPanel<S>& mask)
    requires ScoresInStrips<O>
  {
    const Scores t = stretch(block, wanted);
    operands.score_in_strips(p, t.first_key - block.begin, t.keys, t.s,
                             [&](std::int64_t j, std::int64_t count) {
                               mask.finish({t.s + j * rows, rows, t.first_key + j, count});
                             });
    hide_others(c, t, queries_of(p));
    return t;
  }

  SharedPanel<S> shared_panel(std::int64_t p) const
    requires ScoresInStrips<O>
  {
    return {c, task.batch_entry, (task.first_query - c.first_query) * c.group() / rows + p};
  }

  // Nothing where panel p sees no key of the block.
  Scores scores_of(std::int64_t p, KeyRange block) {
    const Seen seen = seen_by(c, task.batch_entry, query(p, 0).i, query(p, rows_of(p) - 1).i);
    const KeyRange keys = seen.within(block);
    if constexpr (ScoresInStrips<O>)
      if (const SharedPanel<S> mask = shared_panel(p); mask && !operands.may_exceed(most_product(c))) {
        const KeyRange wanted = mask.trimmed(trim_documents(c, keys, queries_of(p)));
        return wanted.begin < wanted.end ? masked_scores(p, block, wanted, mask) : Scores{};
      }
    const KeyRange wanted = trim_hidden<S>(c, keys, queries_of(p));
    return wanted.begin < wanted.end ? masked_scores(p, block, wanted) : Scores{};
  }

  void attend(KeyRange keys) {
    // Tiles are anchored at key 0, too, those of a cache as well.
    const std::int64_t step = c.cached ? most(O::key_step, PageLayout::tile) : O::key_step;
    keys.begin = keys.begin / step * step;
    pack_keys(keys);
    const RowsFrom<value_row> value_at{c, task.batch_entry, task.kv_head, keys.begin, c.v.stride.length};
    const bool poisoned = operands.pack_values(value_at, keys.end - keys.begin);
    for (std::int64_t p = 0; p < panels; ++p) {
      const Scores t = scores_of(p, keys);
      if (t.keys == 0) continue;
      if (poisoned) mark_unseen<S>(t, at.unseen);
      const State state = part(p);
      advance<S>(state, t, dims, power);
      if (c.drop_below)
        for (int r = 0; r < rows_of(p); ++r) apply_dropout(c, query(p, r), r, t);
      if (c.layout.is_quantized)
        apply_scales<S>(t, keys_there_are(),
                        [&](std::int64_t j) { return value_scales(c, task.batch_entry, task.kv_head, j); });
      operands.add_values(t.first_key - keys.begin, t.keys, at.s, state.out);
      if (poisoned) add_poison(t, state.out);
    }
  }

  // The values that were packed as 0 because they are not finite, added to the rows that see them and to no
  // other (S4).
  void add_poison(const Scores& t, float* to) const {
    for (std::int64_t j = 0; j < t.keys && t.first_key + j < keys_there_are(); ++j)
      for (std::int64_t d = 0; d < c.value_dim; ++d) {
        const float x = read(value(t.first_key + j), d);
        if (is_finite(x)) continue;
        for (int r = 0; r < rows; ++r)
          if (at.unseen[j * rows + r] == 0)
            to[d * rows + r] = __builtin_fmaf(at.s[j * rows + r], x, to[d * rows + r]);
      }
  }

  // The sums are transposed from (dims, rows) to (rows, dims) where the last part was, which is in the total
  // by now.
  void finish(std::int64_t p) {
    const State state = total(p);
    float* transposed = part(p).out;
    transpose_sums(state.out, rows_of(p), transposed);
    WriteOut<S> write_out;
    for (int r = 0; r < rows_of(p); ++r) {
      const Query n = query(p, r);
      const float factor = close_row<S>(c, n, {state.max[r], state.sum[r]});
      write_out(row_of(c.out, n), transposed + r * dims, c.value_dim, factor);
    }
    if (!write_out.wrote_only_numbers()) leave_to_reference(c);
  }

  void transpose_sums(const float* sums, int count, float* transposed) const {
    std::int64_t d = 0;
    if constexpr (turns_sixteen<S>)
      for (; d + 16 <= dims; d += 16)
        for (int r = 0; r < count; r += 16) {
          typename S::F x[16];
          for (int n = 0; n < 16; ++n) x[n] = S::load(sums + (d + n) * rows + r);
          S::turn_sixteen(x, transposed + r * dims + d, dims);
        }
    for (; d < dims; d += 4)
      for (int r = 0; r < count; r += 4) {
        const float* corner = sums + d * rows + r;
        const float* const four[4] = {corner, corner + rows, corner + 2 * rows, corner + 3 * rows};
        S::transpose(four, transposed + r * dims + d, dims);
      }
  }

  // A second pass that writes the weights or the scores: only when they were asked for.
  void inspect() {
    const std::int64_t end = keys_there_are();
    for (std::int64_t begin = 0; begin < end; begin += block_keys) {
      const KeyRange keys{begin, least(begin + block_keys, end)};
      pack_keys(keys);
      for (std::int64_t p = 0; p < panels; ++p) {
        const Scores t = score(p, keys, keys);
        if (c.stage == ScoreStage::raw) write_scores(p, t);
        if (c.softcap != 0) apply_softcap<S>(c, t);
        if (c.stage == ScoreStage::softcapped) write_scores(p, t);
        bias_and_mask<S>(c, t, queries_of(p));
        if (c.stage == ScoreStage::biased) write_scores(p, t);
        for (int r = 0; c.weights.data && r < rows_of(p); ++r)
          write_weights<S>(c, query(p, r), {total(p).max[r], total(p).sum[r]}, r, t);
      }
    }
    for (std::int64_t p = 0; p < panels; ++p)
      for (int r = 0; r < rows_of(p); ++r) write_beyond(c, query(p, r));
  }

  void write_scores(std::int64_t p, const Scores& t) const {
    for (int r = 0; r < rows_of(p); ++r) write_score_row(c, query(p, r), r, t);
  }

  const Call& c;
  const Rows task;
  const Queries queries;
  const std::int64_t panels;
  Parts at;
  const std::int64_t dims;
  O operands;
  const Exponential<S> power;
  [[no_unique_address]] typename O::Use use{};
};

}  // namespace heed::cpu::HEED_THIS_TARGET
