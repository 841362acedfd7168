// SPDX-License-Identifier: Apache-2.0
// Fused attention for many rows. Keys and values are packed block by block into the second-level cache and
// read by every panel of rows that shares the KV head. Scores exist for one panel and one block at a time.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/prefill/shared_mask.hpp"
#include "cpu/tile/finish.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Prefetches the bias of the next panel while a panel is worked on, where no other panel reads it. A little
// at a time, or the loads of products wait. 12 heads of 1024 x 64 in bf16, each with a bias of its own, as
// multiples of the time without bias (AMX, November 2026):
//                                          2 threads   16 threads of a Xeon
//   like this                                   1.28         1.21
//   all of it between a panel's products        1.35         1.26
//   nothing                                     1.48         1.28
//   each strip prefetches the next              1.55         1.30
template <Vector S>
class BiasPrefetch {
 public:
  BiasPrefetch() = default;

  // The bias of these queries over `keys`, in `steps` steps. Rows of several heads do not lie the same
  // distance apart: for them it does nothing.
  BiasPrefetch(const Tensor& mask, const Queries& queries, KeyRange keys, std::int64_t steps) {
    if (queries.group != 1 || mask.stride.dim != 1 || mask.stride.length == 0 || keys.end <= keys.begin)
      return;
    with_type(mask.type, [&](auto type) {
      constexpr std::int64_t bytes = bytes_of_type<type.value>;
      const std::int64_t width = round_up((keys.end - keys.begin) * bytes, line);
      const auto* rows = static_cast<const char*>(mask.data) + row_of(mask, queries(0)).first * bytes;
      rows_ = {{rows + keys.begin * bytes, width, mask.stride.length * bytes}};
      remaining_ = width / line * queries.count;
    });
    in_step_ = (remaining_ + steps - 1) / steps;
  }

  void step() {
    const std::int64_t lines = min(in_step_, remaining_);
    remaining_ -= lines;
    rows_.lines(lines);
  }

 private:
  static constexpr std::int64_t line = 64;  // bytes

  RowPrefetch<S> rows_{};
  std::int64_t in_step_ = 0, remaining_ = 0;  // lines
};

// One task. run() goes through chunks of keys, attend_chunk() through their blocks, and attend() through the
// panels of rows: it loads the block, makes a panel's scores, weighs them and adds the values. finish()
// writes a panel. Operands hold queries, keys and values as their products read them; everything else is the
// same for all instruction sets.
template <Operands O>
class Prefill {
  using S = typename O::S;
  static constexpr int rows = O::rows;

  static OperandExtents extents_of(const Call& c, std::int64_t panels) {
    return {c.dim, c.value_dim, panels, block_keys, block_keys};
  }

  // The memory of a task besides its operands'.
  struct Scratch {
    float *s, *unseen;         // (block_keys, rows)
    float* value;              // one that was widened
    std::int64_t* stored;      // how many scores of each panel are stored (PanelWeights)
    SoftmaxState part, total;  // of the chunk and of all chunks so far: one panel after another

    Scratch(const Call& c, std::int64_t panels, std::int64_t dims, Cutter& memory)
        : s(memory.cut(block_keys * rows)),
          unseen(memory.cut(block_keys * rows)),
          value(memory.cut(c.value_dim)),
          stored(reinterpret_cast<std::int64_t*>(memory.cut(2 * panels))),
          part(cut_state(panels * rows, dims, memory)),
          total(cut_state(panels * rows, dims, memory)) {}

    static SoftmaxState cut_state(std::int64_t all, std::int64_t dims, Cutter& memory) {
      float *max = memory.cut(all), *sum = memory.cut(all), *out = memory.cut(all * dims);
      return {max, sum, out};
    }
  };

 public:
  static std::int64_t scratch_floats(const Call& c, std::int64_t count) {
    Cutter nothing{nullptr};
    const O measured(extents_of(c, panels_of(count)), nothing);
    Scratch(c, panels_of(count), measured.dims, nothing);
    return nothing.floats;
  }

  // The size of a block that tasks share.
  static std::int64_t block_floats(const Call& c) {
    Cutter nothing{nullptr};
    return SharedBlock<O>::floats(O(extents_of(c, 0), nothing));
  }

  Prefill(const Call& call, const Rows& task_rows, float* memory)
      : Prefill(call, task_rows, Cutter{memory}) {}

  void run() {
    for (std::int64_t p = 0; p < panels; ++p) at.stored[p] = 0;
    pack_queries();
    const Seen seen = seen_by_all();
    bool has_total = false;
    // fault: chunk-not-merged, block-not-anchored
    for (std::int64_t chunk = seen.front > 0 ? 0 : seen.begin / chunk_keys * chunk_keys; chunk < seen.end;
         chunk += chunk_keys) {
      const KeyRange keys = wanted(seen, {chunk, chunk + chunk_keys});
      if (keys.end <= keys.begin) continue;
      attend_chunk(chunk, seen);
      has_total ? merge_part() : part_becomes_total();
      has_total = true;
    }
    if (!has_total) clear_total();
    for (std::int64_t p = 0; p < panels; ++p) finish(p);
    if (c.weights.data || c.scores.data) inspect();
  }

  // A stream attends to some chunks at a time. `total` is the state that goes from one call to the next.
  static std::int64_t total_floats(const Call& c, std::int64_t count) { return layout_of(c, count).floats(); }

  void stream(const ChunkRange& range, float* total) {
    at.total = layout_of(c, queries.count).in(total);
    if (range.is_first) clear_total();
    const Seen seen = seen_by_all();
    bool has_queries = false;
    for (std::int64_t chunk = range.begin; chunk < range.end; chunk += chunk_keys) {
      const KeyRange keys = wanted(seen, {chunk, chunk + chunk_keys});
      if (keys.end <= keys.begin) continue;
      if (!has_queries) pack_queries();
      has_queries = true;
      attend_chunk(chunk, seen);
      merge_part();
    }
  }

  void finish_stream(float* total) {
    at.total = layout_of(c, queries.count).in(total);
    for (std::int64_t p = 0; p < panels; ++p) finish(p);
  }

  // Decode runs chunks of keys apart: the state of keys [chunk, chunk + chunk_keys) goes to `partial`.
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
      n == 0 ? part_becomes_total() : merge_part();
    }
    for (std::int64_t p = 0; p < panels; ++p) finish(p);
  }

 private:
  static std::int64_t panels_of(std::int64_t count) { return (count + rows - 1) / rows; }
  static StateLayout layout_of(const Call& c, std::int64_t count) {
    return {panels_of(count) * rows, round_up(c.value_dim, O::dim_step)};
  }

  // The first part is the total so far: merging it into an empty state would change nothing.
  void part_becomes_total() {
    const SoftmaxState first = at.part;
    at.part = at.total, at.total = first;
  }
  // total = total merged with part.
  void merge_part() {
    for (std::int64_t p = 0; p < panels; ++p) merge<S>(total(p), part(p), dims, power);
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
        operands(extents_of(call, panels), memory),
        own_keys(operands.k),
        own_values(operands.v),
        dims(operands.dims),
        at(call, panels, dims, memory),
        power(call.scaling.exponent) {}

  SoftmaxState panel(const SoftmaxState& all, std::int64_t p) const {
    return {all.max + p * rows, all.sum + p * rows, all.out + p * rows * dims};
  }
  SoftmaxState part(std::int64_t p) const { return panel(at.part, p); }
  SoftmaxState total(std::int64_t p) const { return panel(at.total, p); }
  // The real rows of panel p; the others are zero and never written.
  int rows_of(std::int64_t p) const { return static_cast<int>(min(rows, queries.count - p * rows)); }
  Query query(std::int64_t p, int r) const { return queries(p * rows + r); }
  Queries queries_of(std::int64_t p) const { return queries.some(p * rows, rows_of(p)); }
  Row value(std::int64_t j) const { return value_row(c, task.batch_entry, task.kv_head, j); }
  std::int64_t key_count() const { return c.sequences[task.batch_entry].keys; }

  void pack_queries() {
    for (std::int64_t p = 0; p < panels; ++p) {
      const auto row_at = [query = queries, q = c.q, p](std::int64_t r) {
        return row_of(q, query(p * rows + r));
      };
      operands.pack_queries(p, row_at, rows_of(p), c.scaling.query);
    }
  }

  // Whether other tasks read what this one packs.
  bool shares_blocks() const { return SharesBlocks<O> && c.blocks.memory; }

  // The part of a block that some row of the sequence may see, and so what is packed of it for all of them.
  KeyRange seen_by_anyone(std::int64_t block) const {
    const std::int64_t end = c.end_query(c.sequences[task.batch_entry]);
    return seen_by(c, task.batch_entry, c.first_query, end - 1).within({block, block + block_keys});
  }

  // Brings keys and values where the products read them; returns whether a value is NaN or infinite.
  bool load(KeyRange keys) {
    if constexpr (SharesBlocks<O>)
      if (shares_blocks()) {
        const std::int64_t count = keys.end - keys.begin;
        auto& block = *reinterpret_cast<SharedBlock<O>*>(
            c.blocks.block(task.batch_entry * c.kv_heads + task.kv_head, keys.begin / block_keys));
        if (block.begin())
          block.pack_with(operands, count, [&] { return pack(keys); });
        else if (!block.is_done_soon())
          return pack_for_itself(keys);
        return block.use_in(operands, count);
      }
    return pack_for_itself(keys);
  }

  bool pack_for_itself(KeyRange keys) {
    use_own_memory();
    return pack(keys);
  }

  // Instead of a block that others read.
  void use_own_memory() {
    if constexpr (SharesBlocks<O>) operands.use_keys(own_keys, {}), operands.use_values(own_values, 0);
  }

  bool pack(KeyRange keys) {
    pack_keys(keys);
    const RowsFrom<value_row> value_at{c, task.batch_entry, task.kv_head, keys.begin, c.v.stride.length};
    return operands.pack_values(value_at, keys.end - keys.begin);
  }

  void pack_keys(KeyRange keys) {
    const RowsFrom<key_row> row_at{c, task.batch_entry, task.kv_head, keys.begin, c.k.stride.length};
    if constexpr (TakesKeys<O>)
      if (operands.take_keys(row_at, keys.end - keys.begin)) return;
    operands.pack_keys(row_at, keys.end - keys.begin);
  }

  // The wanted part of the block, in whole tiles.
  Scores stretch(KeyRange block, KeyRange wanted) const {
    const std::int64_t step = O::key_step, first = max(0, wanted.begin - block.begin) / step * step;
    const std::int64_t keys = round_up(min(block.end, wanted.end) - block.begin - first, step);
    return {at.s, rows, block.begin + first, keys};
  }

  // The same, its keys counted from the beginning of the block.
  static Scores in_block(const Scores& t, KeyRange block) {
    return {t.s, t.width, t.first_key - block.begin, t.keys};
  }

  // The scores of panel p over a stretch, as far as its rows reach.
  void score(std::int64_t p, KeyRange block, const Scores& t, const Reach<S>& reach) {
    score_reached(operands, p, in_block(t, block), reach);
    if (c.layout.is_quantized)
      apply_scales<S>(t, key_count(),
                      [&](std::int64_t j) { return key_scales(c, task.batch_entry, task.kv_head, j); });
    if (const float limit = max_product(c); c.layout.is_quantized || operands.may_exceed(limit))
      spoil_beyond<S>(limit, t);
  }

  // The same with all that lies between the product and the softmax; their maxima are taken.
  Scores masked_scores(std::int64_t p, KeyRange block, KeyRange wanted, Maxima<S>& highest) {
    const Scores t = stretch(block, wanted);
    score(p, block, t, {c, queries_of(p), t});
    if (c.softcap) apply_softcap<S>(c, t);
    bias_mask_and_take<S>(c, t, queries_of(p), highest);
    return t;
  }

  // The same where finish(strip, highest) makes scores of products and takes their maxima while the strip is
  // in the first-level cache, unless keys are still to be hidden. With weights that are rounded as they are
  // made, this takes 10 % off 12 heads of 1024 x 64 in bf16, and 5 off 16 of 512 x 80 (AMX, a Xeon's 16
  // threads, November 2026).
  template <class Finish>
  Scores scores_in_strips(std::int64_t p, KeyRange block, KeyRange wanted, Maxima<S>& highest,
                          const Finish& finish) {
    const Scores t = stretch(block, wanted);
    const bool hides = has_others(c, t, queries_of(p));
    operands.score_in_strips(p, t.first_key - block.begin, t.keys, t.s,
                             [&](std::int64_t j, std::int64_t count) {
                               const Scores strip{t.s + j * rows, rows, t.first_key + j, count};
                               finish(strip, hides ? nullptr : &highest);
                             });
    if (!hides) return t;
    hide_others<S>(c, t, queries_of(p));
    highest.take(t);
    return t;
  }

  SharedPanel<S> shared_panel(std::int64_t p) const
    requires ScoresInStrips<O>
  {
    return {c, (task.first_query - c.first_query) * c.group() / rows + p};
  }

  // Whether scores need no more than a scale and a bias, or a mask that is transposed: others are quicker
  // over more keys at a time.
  bool finishes_strips(const SharedPanel<S>& mask) const {
    return !c.softcap && !c.alibi.of_heads && (mask || c.mask_count == 0) &&
           !operands.may_exceed(max_product(c));
  }

  Scores strips_of(std::int64_t p, KeyRange block, KeyRange keys, const SharedPanel<S>& mask,
                   Maxima<S>& highest) {
    const KeyRange wanted = mask ? mask.trimmed(keys) : keys;
    if (wanted.end <= wanted.begin) return {};
    const auto scale = [&](const Scores& t) {
      if (c.scaling.query != 1) scale_all<S>(t.s, t.keys * rows, c.scaling.query);
    };
    if (mask)
      return scores_in_strips(p, block, wanted, highest,
                              [&](const Scores& t, Maxima<S>* taken) { mask.finish(t, taken); });
    if (!c.bias.data)
      return scores_in_strips(p, block, wanted, highest, [&](const Scores& t, Maxima<S>* taken) {
        scale(t);
        if (taken) taken->take(t);
      });
    const MaskRows<S> bias(c.bias, {0, key_count()}, rows, queries_of(p));
    bias_prefetch = bias_after(p, block);
    return scores_in_strips(p, block, wanted, highest, [&](const Scores& t, Maxima<S>* taken) {
      bias_prefetch.step();
      scale(t);
      NoMaxima<S> not_yet;
      taken ? add_bias<S>(c, bias, t, *taken) : add_bias<S>(c, bias, t, not_yet);
    });
  }

  // The bias that is read after panel p of a block. It is prefetched in steps: one for every chain of keys
  // that is scored, and one for every chain that is weighed.
  BiasPrefetch<S> bias_after(std::int64_t p, KeyRange block) const {
    const std::int64_t next_block = block.begin / block_keys * block_keys + block_keys;
    const std::int64_t next = p + 1 < panels ? p + 1 : 0;
    const Seen seen = seen_by(c, task.batch_entry, query(next, 0).i, query(next, rows_of(next) - 1).i);
    const KeyRange keys = seen.within(next > 0 ? block : KeyRange{next_block, next_block + block_keys});
    return {c.bias, queries_of(next), keys, 2 * block_keys / chain_keys};
  }

  // Nothing where panel p sees no key of the block.
  Scores scores_of(std::int64_t p, KeyRange block, Maxima<S>& highest) {
    const Seen seen = seen_by(c, task.batch_entry, query(p, 0).i, query(p, rows_of(p) - 1).i);
    const KeyRange keys = seen.within(block);
    if constexpr (ScoresInStrips<O>)
      if (const SharedPanel<S> mask = shared_panel(p); finishes_strips(mask))
        return strips_of(p, block, trim_documents(c, keys, queries_of(p)), mask, highest);
    const KeyRange wanted = trim_hidden<S>(c, keys, queries_of(p));
    return wanted.begin < wanted.end ? masked_scores(p, block, wanted, highest) : Scores{};
  }

  void attend(KeyRange keys) {
    // fault: block-of-one-task
    if (shares_blocks()) keys = seen_by_anyone(keys.begin / block_keys * block_keys);
    // Tiles are anchored at key 0, too, those of a cache as well.
    const std::int64_t step = c.cached ? max(O::key_step, PageLayout::tile) : O::key_step;
    keys.begin = keys.begin / step * step;
    const bool poisoned = load(keys);
    for (std::int64_t p = 0; p < panels; ++p) {
      Maxima<S> highest(part(p));
      const Scores t = scores_of(p, keys, highest);
      if (t.keys == 0) continue;
      if (stores_scores(c)) weights_of(p).store(t, at.stored[p]);
      if (poisoned) mark_unseen<S>(t, at.unseen);
      if (!poisoned && rounds_weights())
        add_rounded(p, t, keys, highest);
      else
        add_weighted(p, t, keys, highest);
      if (poisoned) add_poison(t, part(p).out);  // fault: poison-not-added
    }
  }

  // Whether weights are rounded as they are made.
  bool rounds_weights() const { return RoundsWeights<O> && !c.drop_below; }

  // Makes weights of the scores of panel p and adds the values they weigh, rounded.
  void add_rounded(std::int64_t p, const Scores& t, KeyRange block, const Maxima<S>& highest) {
    if constexpr (RoundsWeights<O>) {
      const SoftmaxState state = part(p);
      advance<S>(state, highest, dims, power, [&](const Weighing<S>& by) {
        operands.weigh(t.s, t.keys, by, [&] { bias_prefetch.step(); });
      });
      operands.add_rounded(t.first_key - block.begin, t.keys, state.out);
    }
  }

  // The same in f32, except for values that are not finite.
  void add_weighted(std::int64_t p, const Scores& t, KeyRange block, const Maxima<S>& highest) {
    const SoftmaxState state = part(p);
    advance<S>(state, highest, dims, power, [&](const Weighing<S>& by) {
      weigh_in_chains<S, S::panel_vectors>(t.s, rows, t.first_key, t.keys, by);
    });
    if (c.drop_below)
      for (int r = 0; r < rows_of(p); ++r) apply_dropout(c, query(p, r), r, t);
    if (c.layout.is_quantized)
      apply_scales<S>(t, key_count(),
                      [&](std::int64_t j) { return value_scales(c, task.batch_entry, task.kv_head, j); });
    add_reached(operands, in_block(t, block), state.out, Reach<S>(c, queries_of(p), t));
  }

  // The values that were packed as 0 because they are not finite, added to the rows that see them and to no
  // other (S4).
  void add_poison(const Scores& t, float* to) const {
    for (std::int64_t j = 0; j < t.keys && t.first_key + j < key_count(); ++j) {
      const float* x = widen<S>(value(t.first_key + j), c.value_dim, at.value);
      if (all_finite<S>(x, c.value_dim)) continue;
      for (int r = 0; r < rows; r += S::lanes) {
        const auto weight = S::load(at.s + j * rows + r), unseen = S::load(at.unseen + j * rows + r);
        for (std::int64_t d = 0; d < c.value_dim; ++d) {
          if (is_finite(x[d])) continue;
          float* const sum = to + d * rows + r;
          const auto before = S::load(sum), after = S::fma(weight, S::fill(x[d]), before);
          S::store(sum, S::less(unseen, S::fill(0.5f), after, before));  // fault: poison-seen-by-all
        }
      }
    }
  }

  // The sums are transposed where the last part was, which is in the total by now.
  void finish(std::int64_t p) {
    float factors[rows];
    close_rows(p, factors);
    if constexpr (RoundsPairs<S>)
      if (c.out.type == Type::bf16 && c.out.stride.dim == 1 && write_rounded(p, factors)) return;
    float* transposed = part(p).out;
    transpose_sums<S>(total(p).out, dims, rows_of(p), transposed);
    WriteOut<S> write_out;
    for (int r = 0; r < rows_of(p); ++r)
      write_out(row_of(c.out, query(p, r)), transposed + r * dims, c.value_dim, factors[r]);
    if (!write_out.wrote_only_numbers()) ask_for_repair(c);  // fault: overflow-unnoticed-in-prefill
  }

  // What the sums of each row are to be multiplied with.
  void close_rows(std::int64_t p, float* factors) const {
    const SoftmaxState state = total(p);
    if (needs_only_sums(c)) return reciprocals<S>(state.sum, rows, factors);
    for (int r = 0; r < rows_of(p); ++r)
      factors[r] = close_row<S>(c, query(p, r), {state.max[r], state.sum[r]});
  }

  // Writes rows of bf16 that lie side by side; returns whether they are numbers.
  bool write_rounded(std::int64_t p, const float* factors)
    requires RoundsPairs<S>
  {
    RoundedRows<S> out(dims, c.value_dim);
    for (int r = 0; r < rows_of(p); ++r) {
      const Row row = row_of(c.out, query(p, r));
      out.add(static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first, factors[r]);
    }
    return out.write(total(p).out);
  }

  PanelWeights<S> weights_of(std::int64_t p) const { return {c, queries_of(p), total(p), power, at.unseen}; }

  // Weights and scores, if the caller wants them. Scores that were not stored are made in a second pass.
  void inspect() {
    if (c.scores.data || !stores_scores(c)) score_again();
    for (std::int64_t p = 0; p < panels; ++p) {
      if (stores_scores(c)) weights_of(p).finish(at.stored[p]);
      for (int r = 0; r < rows_of(p); ++r) write_beyond(c, query(p, r));
    }
  }

  void score_again() {
    const std::int64_t end = key_count();  // fault: own-keys-over-shared-ones
    use_own_memory();
    for (std::int64_t begin = 0; begin < end; begin += block_keys) {
      const KeyRange keys{begin, min(begin + block_keys, end)};
      pack_keys(keys);
      for (std::int64_t p = 0; p < panels; ++p) {
        const Scores t = stretch(keys, keys);
        score(p, keys, t, Reach<S>(t.keys));  // those that a mask will hide, too
        if (c.stage == ScoreStage::raw) write_scores(p, t);
        if (c.softcap) apply_softcap<S>(c, t);
        if (c.stage == ScoreStage::softcapped) write_scores(p, t);
        bias_and_mask<S>(c, t, queries_of(p));
        if (c.stage == ScoreStage::biased) write_scores(p, t);
        if (c.weights.data && !stores_scores(c)) weights_of(p).write_stretch(t);
      }
    }
  }

  void write_scores(std::int64_t p, const Scores& t) const {
    for (int r = 0; r < rows_of(p); ++r) write_score_row(c, query(p, r), r, t);
  }

  const Call& c;
  const Rows task;
  const Queries queries;
  const std::int64_t panels;
  O operands;
  typename O::Element *const own_keys, *const own_values;  // where it packs a block for itself
  const std::int64_t dims;
  Scratch at;
  const Exponential<S> power;
  BiasPrefetch<S> bias_prefetch{};
  [[no_unique_address]] typename O::Use use{};
};

}  // namespace heed::cpu::HEED_THIS_TARGET
