// SPDX-License-Identifier: Apache-2.0
// The gradients by the bias and by the sink, which batch entries, heads, queries and keys may share. An
// element is computed by one task, which goes through all that share it: batch entry by batch entry, head by
// head, query by query, with the keys of each query summed first (G8).
#pragma once
#include <cstdint>

#include "cpu/backward/backward.hpp"
#include "cpu/tile/finish.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Batch entries, or heads, that an element gets gradients from.
struct Sharing {
  std::int64_t begin, end;

  static Sharing only(std::int64_t own) { return {own, own + 1}; }
  static Sharing all(std::int64_t count) { return {0, count}; }
};

// Element `at` of a gradient, which is number 0 of `row`.
template <Vector S>
inline void write_element(const GradientCall& g, const SharedGradient& to, const Row& row, std::int64_t at,
                          float x) {
  if (!write_gradient<S>(row, &x, 1, {1.0f, g.accumulates})) to.marks[at] = 1;
}

template <GradientOperands O>
class BiasGradient {
  using S = typename O::S;
  static constexpr int panel_rows = O::rows;

 public:
  static std::int64_t scratch_floats(const GradientCall& g) {
    Cutter nothing{nullptr};
    const BiasGradient sized(nothing, g, {});
    return nothing.floats;
  }

  BiasGradient(const GradientCall& call, const BiasPart& task, Cutter memory)
      : BiasGradient(memory, call, task) {}

  void run() {
    [[maybe_unused]] const typename O::Use use{};
    fill(sums, row_count * key_count, 0.0f);
    // Packed sequences have rows of their own; otherwise a batch extent of 1 is shared.
    const bool shares_batch = g.bias.batch == 1 && !(g.is_packed && !shares_rows);
    const Sharing entries = shares_batch ? Sharing::all(c.batch) : Sharing::only(part.batch_entry),
                  heads = g.bias.heads == 1 ? Sharing::all(c.heads) : Sharing::only(part.head);
    for (std::int64_t b = entries.begin; b < entries.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end; ++h) add_head(b, h);  // fault: gradient-of-one-head
    write();
  }

 private:
  BiasGradient(Cutter& memory, const GradientCall& call, const BiasPart& task)
      : g(call),
        c(call.forward),
        part(task),
        shares_rows(call.bias.length == 1),
        shares_keys(call.bias.dim == 1),
        row_count(shares_rows ? 1 : gradient_rows),
        key_count(shares_keys ? 1 : gradient_keys),
        pairs(call, {}, {1, memory}, {1, memory}, memory) {
    sums = memory.cut(row_count * key_count);
    of_rows = memory.cut(gradient_rows);
  }

  void add_head(std::int64_t b, std::int64_t h) {
    const Sequence& s = c.sequences[b];
    // The rows of one head, where Queries would have those of a group.
    kv_head = c.tiled_heads ? h % c.kv_heads : h / c.group();
    Queries query(c, {b, kv_head, 0, s.queries});
    query.group = 1, query.first_head = h, query.head_step = 0;
    pairs.rows.clear(0, gradient_rows);
    const std::int64_t end = shares_rows ? s.queries : min(s.queries, part.first_row + gradient_rows);
    for (std::int64_t first = shares_rows ? 0 : part.first_row; first < end; first += gradient_rows)
      add_rows(query, first, min(gradient_rows, end - first));
  }

  void add_rows(const Queries& query, std::int64_t first, std::int64_t count) {
    const RowBlock<O>& block = pairs.use_rows(query, first, count);
    const std::int64_t keys = c.sequences[query.b].keys,
                       end = shares_keys ? keys : min(keys, part.first_key + gradient_keys);
    fill(of_rows, gradient_rows, 0.0f);
    const Seen seen = seen_by(c, query.b, first, first + count - 1);
    for (std::int64_t begin = shares_keys ? 0 : part.first_key; begin < end; begin += gradient_keys) {
      const KeyRange wanted = seen.within({begin, min(begin + gradient_keys, end)});
      if (wanted.end <= wanted.begin) continue;
      pairs.keys.clear(begin, gradient_keys);
      const KeyBlock<O>& keys_of_block = pairs.use_keys({query.b, kv_head, begin, wanted});
      for (std::int64_t p = 0; p * panel_rows < count; ++p)
        add_panel(panel_of(block, query, p), keys_of_block);
    }
    if (!shares_keys) return;
    for (std::int64_t r = 0; r < count; ++r) sums[shares_rows ? 0 : r] += of_rows[r];
  }

  void add_panel(const RowPanel& panel, const KeyBlock<O>& keys) {
    const PanelPairs pair = pairs.differentiate(panel, keys, By::score);
    for (std::int64_t j = 0; j < pair.at.keys; ++j)
      for (std::int64_t r = 0; r < panel.queries.count; ++r)
        sum_of(panel.p * panel_rows + r, pair.at.first + j) += pair.gradients[j * panel_rows + r];
  }

  // Where a pair's gradient goes: row r of the block, key j of the block.
  float& sum_of(std::int64_t r, std::int64_t j) const {
    if (shares_keys) return of_rows[r];
    return sums[(shares_rows ? 0 : r * gradient_keys) + j];
  }

  void write() const {
    const SharedGradient& to = g.bias;
    const std::int64_t b = part.batch_entry,
                       first = c.sequences && g.is_packed && !shares_rows ? c.sequences[b].first_query : 0;
    const std::int64_t length = g.is_packed && !shares_rows ? c.sequences[b].queries : to.length;
    for (std::int64_t r = 0; r < min(row_count, length - part.first_row); ++r)
      for (std::int64_t j = 0; j < min(key_count, to.dim - part.first_key); ++j) {
        const std::int64_t row = first + part.first_row + r, key = part.first_key + j;
        Row at = row_of(to.tensor, b, part.head, row);
        at.first += key * to.tensor.stride.dim;
        write_element<S>(g, to, at, to.element(b, part.head, row, key), sums[r * key_count + j]);
      }
  }

  const GradientCall& g;
  const Call& c;
  const BiasPart part;
  const bool shares_rows, shares_keys;
  const std::int64_t row_count, key_count;
  std::int64_t kv_head = 0;
  ScoreGradients<O> pairs;
  float *sums, *of_rows;  // (rows, keys); of each row over all keys
};

// One element of the sink's gradient: a chain over the queries of all heads that share it.
template <Vector S>
class SinkGradient {
 public:
  SinkGradient(const GradientCall& call, std::int64_t batch_entry, std::int64_t head)
      : g(call), c(call.forward), own_b(batch_entry), own_h(head) {}

  void run() const {
    const Sharing entries = g.sink.batch == 1 ? Sharing::all(c.batch) : Sharing::only(own_b),
                  heads = g.sink.heads == 1 ? Sharing::all(c.heads) : Sharing::only(own_h);
    float sum = 0;
    for (std::int64_t b = entries.begin; b < entries.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end; ++h)
        for (std::int64_t i = 0; i < c.sequences[b].queries; ++i)
          add({b, h, i, c.sequences[b].first_query + i}, sum);
    write_element<S>(g, g.sink, row_of(g.sink.tensor, own_b, own_h, 0), g.sink.element(own_b, own_h, 0, 0),
                     sum);
  }

 private:
  void add(const Query& q, float& sum) const {
    const float of_lse = g.log_sum_exp_gradient.data ? read(row_of(g.log_sum_exp_gradient, q), 0) : 0.0f;
    const float lse = read(row_of(c.log_sum_exp, q), 0);
    if (lse == minus_infinity || !sees_any(c, q)) {  // fault: gradient-of-a-sink-unseen
      sum += of_lse;
      return;
    }
    const Row gradient = row_of(g.out_gradient, q), out = row_of(c.out, q);
    float delta = 0;
    for (std::int64_t d = 0; d < c.value_dim;) {
      float chain = 0;
      for (const std::int64_t end = min(d + chain_terms, c.value_dim); d < end; ++d)
        chain = __builtin_fmaf(read(gradient, d), read(out, d), chain);
      delta += chain;
    }
    const float sink = sink_of(c, q) * log2_e, base = lse * log2_e;
    // An infinity of base 2 that is none in natural numbers, and a weight beyond 1, need repair.
    const bool is_good = base < 0x1p126f && base > -0x1p126f && (sink == minus_infinity || is_finite(sink)) &&
                         sink - base < 64;
    const float weight = is_good ? one_exp2<S>(sink - base) : __builtin_nanf("");
    sum = __builtin_fmaf(weight, of_lse - delta, sum);
  }

  const GradientCall& g;
  const Call& c;
  const std::int64_t own_b, own_h;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
