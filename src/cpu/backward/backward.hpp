// SPDX-License-Identifier: Apache-2.0
// The backward pass:
//
//   S = Q K^T      P = 2^(S - log-sum-exp)      dP = dO V^T      dS = P * (dP - delta)
//   dQ += dS K     dK += dS^T Q                 dV += P^T dO
//
// five products for every block of rows and block of keys. S, P, dP and dS exist for one such pair of blocks
// at a time. A block of a sum, over keys for dQ and over rows for dK and dV, is one chain; blocks are added
// in order, so that the bits do not depend on how the work was cut (O1).
#pragma once
#include <cstdint>

#include "cpu/backward/blocks.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// What lies between the products, for a panel of rows and some keys: scores S become weights P, and gradients
// dP by the weights become gradients dS by the scores. All are laid out as prefill's scores are, (keys,
// rows).

// The log-sum-exps of a panel's rows in base 2, and what floats do not hold of them.
struct LogSums {
  const float *of, *rest;
};

// A panel of rows, with what each of them has to itself.
struct RowPanel {
  Queries queries;
  std::int64_t p;  // of its block
  LogSums lse;
  const float* delta;
  const RowState* state;
};

template <GradientOperands O>
RowPanel panel_of(const RowBlock<O>& block, const Queries& query, std::int64_t p) {
  const std::int64_t first = p * O::rows;
  return {query.some(block.first + first, min(O::rows, block.count - first)),
          p,
          {block.lse + first, block.lse_rest + first},
          block.delta + first,
          block.state + first};
}

// c * tanh(s / c) less the row's log-sum-exp in place of s, and the slope of tanh. Both are much larger than
// their difference wherever a weight counts: it is computed of all that is known of them, and rounded once.
// Only what is hidden afterwards is -inf.
template <Vector S>
inline void apply_softcap_with_slope(const Call& c, const LogSums& lse, const Scores& t, float* slope) {
  const auto cap = S::fill(c.softcap.cap), cap_rest = S::fill(c.softcap.rest), zero = S::fill(0.0f),
             argument = S::fill(c.softcap.argument);
  typename S::F less[S::panel_vectors], less_rest[S::panel_vectors];
  for (int v = 0; v < S::panel_vectors; ++v) {
    less[v] = S::sub(zero, S::load(lse.of + v * S::lanes));
    less_rest[v] = S::sub(zero, S::load(lse.rest + v * S::lanes));
  }
  float *s = t.s, *const end = t.s + t.keys * t.width;
  while (s < end)
    for (int v = 0; v < S::panel_vectors; ++v, s += S::lanes, slope += S::lanes) {
      const auto [value, of_tanh] = tanh_with_slope<S>(S::mul(S::load(s), argument));
      const auto x = S::add(S::fma(value, cap, less[v]), S::fma(value, cap_rest, less_rest[v]));
      S::store(s, S::max(S::fill(-max_finite), x));
      S::store(slope, of_tanh);
    }
}

// What dS is the gradient by: the score, or the product before the softcap.
enum class By : std::uint8_t { score, product };

// What of a panel and a block of keys may be no number.
template <GradientOperands O>
struct Marks {
  const KeyBlock<O>& keys;
  bool may_overflow;  // a product
  bool any;           // a product, a key or a row

  Marks(const RowPanel& panel, const KeyBlock<O>& block, const GradientProducts<O>& products)
      : keys(block), may_overflow(products.may_overflow()), any(may_overflow || block.has_bad) {
    for (int r = 0; r < O::rows; ++r) any |= panel.state[r] != RowState::good;
  }
};

template <GradientOperands O>
class PairSteps {
  using S = typename O::S;
  static constexpr int rows = O::rows;

 public:
  // For up to `keys` keys at a time.
  PairSteps(const Call& call, std::int64_t keys, Cutter& memory)
      : c(call),
        unseen(memory.cut(keys * rows)),
        slope(memory.cut(c.softcap ? keys * rows : 0)),
        dropout(memory.cut(c.drop_below ? keys * rows : 0)) {}

  // P = 2^(S - log-sum-exp) in place of S; 0 where a mask hides the key.
  void weigh(const Scores& s, const RowPanel& panel, const Marks<O>& marks) const {
    if (marks.may_overflow) spoil_beyond<S>(max_finite, s);
    if (c.softcap) apply_softcap_with_slope<S>(c, panel.lse, s, slope);
    bias_and_mask<S>(c, s, panel.queries);
    if (marks.any) mark_unseen<S>(s, unseen);
    typename S::F base[S::panel_vectors], sum[S::panel_vectors];
    for (int n = 0; n < S::panel_vectors; ++n) {
      base[n] = c.softcap ? S::fill(0.0f) : S::load(panel.lse.of + n * S::lanes);  // a softcap subtracted it
      sum[n] = S::fill(0.0f);
    }
    cpu::HEED_THIS_TARGET::weigh<S, S::panel_vectors>(s.s, rows, s.keys, {base, sum, Exponential<S>(1.0f)});
  }

  // dS = P * (dP - delta) in place of dP. Dropout is that of the forward pass: dP is under it, and so is P
  // afterwards.
  void differentiate(const Scores& p, const Scores& ds, const RowPanel& panel, const Marks<O>& marks,
                     By by) const {
    if (c.drop_below) drop(ds, panel.queries);
    combine(panel.delta, p, ds);
    if (c.drop_below) scale_by(dropout, p);                   // fault: gradient-of-dropped-values
    if (c.softcap && by == By::product) scale_by(slope, ds);  // fault: gradient-without-slope
    if (marks.any) correct(panel.state, marks.keys, p, ds);
  }

 private:
  // The pattern of the forward pass, as factors; and dP under it.
  void drop(const Scores& dp, const Queries& queries) const {
    const Scores factors{dropout, rows, dp.first_key, dp.keys};
    fill(dropout, dp.keys * rows, 1.0f);
    for (std::int64_t r = 0; r < queries.count; ++r)
      apply_dropout(c, queries(r), static_cast<int>(r), factors);
    scale_by(dropout, dp);
  }

  static void combine(const float* delta, const Scores& p, const Scores& ds) {
    typename S::F less[S::panel_vectors];
    for (int n = 0; n < S::panel_vectors; ++n) less[n] = S::load(delta + n * S::lanes);
    const float *w = p.s, *const end = p.s + p.keys * rows;
    for (float* x = ds.s; w < end;)
      for (int n = 0; n < S::panel_vectors; ++n, w += S::lanes, x += S::lanes)
        S::store(x, S::mul(S::load(w), S::sub(S::load(x), less[n])));  // fault: gradient-without-delta
  }

  static void scale_by(const float* factor, const Scores& t) {
    for (std::int64_t n = 0; n < t.keys * rows; n += S::lanes)
      S::store(t.s + n, S::mul(S::load(t.s + n), S::load(factor + n)));
  }

  // What is not seen is 0, whatever it was multiplied with. What is seen and bad needs repair, and so does
  // all that it reaches.
  void correct(const RowState* state, const KeyBlock<O>& keys, const Scores& p, const Scores& ds) const {
    const unsigned char* is_bad = keys.is_bad + (p.first_key - keys.packed.begin);
    for (std::int64_t j = 0; j < p.keys; ++j)
      for (int r = 0; r < rows; ++r) {
        float &w = p.s[j * rows + r], &x = ds.s[j * rows + r];
        if (unseen[j * rows + r] != 0 || state[r] == RowState::hollow)  // fault: gradient-of-hidden-pairs
          w = x = 0;
        // fault: gradient-of-a-bad-row
        else if (state[r] == RowState::bad || (keys.has_bad && is_bad[j]))
          w = x = __builtin_nanf("");
      }
  }

  const Call& c;
  float *const unseen, *const slope, *const dropout;  // (keys, rows)
};

// Whether packed rows are prefetched between the products of the block before them.
template <GradientOperands O>
constexpr bool prefetches_rows =
    requires { O::S::prefetches_rows; } && std::is_same_v<typename O::Element, float>;

// Memory that will be read soon, prefetched a little at a time: all at once would keep the loads of the
// products waiting.
class Prefetch {
 public:
  Prefetch() = default;
  // All floats are prefetched after `steps` steps.
  Prefetch(const float* from, std::int64_t floats, std::int64_t steps)
      : at_(from), end_(from + floats), step_((floats / steps / line + 1) * line) {}

  bool is_over() const { return at_ >= end_; }

  template <class S>
  void step() {
    const float* const end = end_ - at_ > step_ ? at_ + step_ : end_;
    for (; at_ < end; at_ += line) S::prefetch(at_);
  }

 private:
  static constexpr std::int64_t line = 16;  // floats

  const float *at_ = nullptr, *end_ = nullptr;
  std::int64_t step_ = 0;
};

// How sums become a gradient: times a factor, written or added.
struct GradientWrite {
  float factor;
  bool accumulates;
};

// Overwrites x. Where a result is no number nothing is written, and false is returned. Adding +0 gives every
// zero one sign.
template <Vector S>
inline bool write_gradient(const Row& to, float* x, std::int64_t n, const GradientWrite& how) {
  for (std::int64_t d = 0; d < n; ++d) x[d] = x[d] * how.factor + 0.0f;
  if (!all_finite<S>(x, n)) return false;
  if (to.type == Type::f32 && to.step == 1) {
    auto* out = static_cast<float*>(const_cast<void*>(to.data)) + to.first;
    if (how.accumulates)
      for (std::int64_t d = 0; d < n; ++d) out[d] += x[d];
    else
      __builtin_memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
    return true;
  }
  for (std::int64_t d = 0; d < n; ++d) write(to, d, how.accumulates ? read(to, d) + x[d] : x[d]);
  return true;
}

// The rows and keys of a KV head, of which a part has some or all.
struct HeadExtents {
  std::int64_t rows, keys;

  HeadExtents(const Call& c, const GradientPart& part)
      : rows(c.sequences[part.batch_entry].queries * c.group()), keys(c.sequences[part.batch_entry].keys) {}

  // Blocks of rows, or of keys, whose sums the part's memory holds.
  std::int64_t row_blocks(const GradientPart& part) const {
    return blocks_of(part.is_shared ? rows : part.rows, gradient_rows);
  }
  std::int64_t key_blocks(const GradientPart& part) const {
    return part.is_shared ? blocks_of(keys, gradient_keys) : 1;
  }

 private:
  static std::int64_t blocks_of(std::int64_t n, std::int64_t length) {
    return max(1, (n + length - 1) / length);
  }
};

// P, after dropout, and dS of a panel of rows and the keys of a block that it sees: (keys, rows).
struct PanelPairs {
  Stretch at{};
  float *weights = nullptr, *gradients = nullptr;
};

// The gradients by the scores. Owns all that a task packs and multiplies: rows, keys, products and pairs.
template <GradientOperands O>
class ScoreGradients {
  using S = typename O::S;
  static constexpr int panel_rows = O::rows, step = O::key_step;

 public:
  GradientProducts<O> products;
  PackedBlocks<RowBlock<O>, O> rows;
  PackedBlocks<KeyBlock<O>, O> keys;
  Prefetch prefetch{};

  ScoreGradients(const GradientCall& g, const GradientPart& part, const Slots& row_slots,
                 const Slots& key_slots, Cutter& memory)
      : products(g.forward, part, memory),
        rows({g.forward, part}, row_slots),
        keys({g.forward, part}, key_slots),
        c(g.forward),
        row_packer(g, memory),
        key_packer(g.forward, memory),
        steps(g.forward, piece_keys, memory),
        weights(memory.cut(RowSums<O>::panels_at_once * panel_floats)),
        gradients(memory.cut(RowSums<O>::panels_at_once * panel_floats)) {}

  // Rows [first, first + count) of some queries, for the products to use.
  const RowBlock<O>& use_rows(const Queries& query, std::int64_t first, std::int64_t count) {
    RowBlock<O>& block = rows.at(first);
    const bool is_packed = block.first == first;  // fault: gradient-of-rows-packed-before
    if (!is_packed) block.first = first, block.count = count, block.q_known = block.g_known = {};
    products.use(block);
    if (!is_packed) row_packer.pack(query, block, products);
    return block;
  }

  const KeyBlock<O>& use_keys(const WantedKeys& wanted) {
    KeyBlock<O>& block = keys.at(wanted.begin);
    products.use(block);
    if (block.first != wanted.begin) key_packer.pack(wanted, block, products);
    return block;
  }

 private:
  static constexpr std::int64_t panel_floats = gradient_keys * panel_rows;
  // Keys whose scores take up to 9 KB.
  static constexpr std::int64_t piece_keys =
      min(gradient_keys, max(1, 9216 / static_cast<std::int64_t>(sizeof(float)) / panel_rows / step) * step);

  // Where the pairs of a panel go; none where no row of it sees a key of the block.
  PanelPairs pairs_of(const RowPanel& panel, const KeyBlock<O>& block) const {
    const Queries& queries = panel.queries;
    const Query first = queries(0), last = queries(queries.count - 1);
    const Seen seen = seen_by(c, first.b, first.i, last.i);
    const KeyRange wanted = trim_hidden<S>(c, seen.within(block.packed), queries);
    if (wanted.end <= wanted.begin) return {};
    const std::int64_t begin = (wanted.begin - block.first) / step * step,
                       at = panel.p % RowSums<O>::panels_at_once * panel_floats;
    return {{begin, round_up(wanted.end - block.first - begin, step)}, weights + at, gradients + at};
  }

  // Scores of keys from place `first` of the packed ones on: a step of keys at a time, while something is to
  // be prefetched in between.
  void score(const O& operands, const RowPanel& panel, std::int64_t first, const Scores& t) {
    if constexpr (GoesByReach<O>)
      if (const Reach<S> reach(c, panel.queries, t); !reach.is_whole())
        return operands.score(panel.p, first, t.keys, t.s, reach);
    std::int64_t done = 0;
    for (; done < t.keys && !prefetch.is_over(); done += step) {
      operands.score(panel.p, first + done, step, t.s + done * panel_rows);
      prefetch.template step<S>();
    }
    if (done < t.keys) operands.score(panel.p, first + done, t.keys - done, t.s + done * panel_rows);
  }

  const Call& c;
  RowPacker<O> row_packer;
  KeyPacker<O> key_packer;
  PairSteps<O> steps;
  float *const weights, *const gradients;  // of as many panels as sums over rows want at once

 public:
  // P and dS of a panel of the rows with the keys in use. A piece of the keys at a time: what one step has
  // written is in the first-level cache for the next.
  PanelPairs differentiate(const RowPanel& panel, const KeyBlock<O>& block, By by) {
    const PanelPairs all = pairs_of(panel, block);
    const Marks<O> marks(panel, block, products);
    for (std::int64_t done = 0; done < all.at.keys; done += piece_keys) {
      const std::int64_t first_key = block.first + all.at.first + done,
                         first = first_key - block.packed.begin, count = min(piece_keys, all.at.keys - done);
      const Scores p{all.weights + done * panel_rows, panel_rows, first_key, count},
          ds{all.gradients + done * panel_rows, panel_rows, first_key, count};
      score(products.qk, panel, first, p);           // S = Q K^T
      steps.weigh(p, panel, marks);                  // P = 2^(S - log-sum-exp)
      score(products.gv, panel, first, ds);          // dP = dO V^T
      steps.differentiate(p, ds, panel, marks, by);  // dS = P * (dP - delta)
    }
    return all;
  }
};

// A part of the pass: `memory` is the task's own, `head_memory` that of its KV head.
template <GradientOperands O>
class Backward {
  using S = typename O::S;
  static constexpr int panel_rows = O::rows;

  // The products of a block of rows and a block of keys; of the keys the rows see `seen`.
  void multiply(const RowBlock<O>& rows, const KeyBlock<O>& keys, KeyRange seen) {
    pairs.products.dk.begin({seen.begin - keys.first, seen.end - keys.first});
    pairs.products.dv.begin({seen.begin - keys.first, seen.end - keys.first});
    // fault: gradient-of-an-odd-panel
    for (std::int64_t p = 0; p * panel_rows < round_up(rows.count, summed_rows<O>); ++p) {
      PanelPairs pair{};  // nothing, for a panel that only fills up the rows of a sum
      Reach<S> reach(0);
      if (p * panel_rows < rows.count) {
        const RowPanel panel = panel_of(rows, query, p);
        pair = pairs.differentiate(panel, keys, By::product);  // S, P, dP, dS
        reach = reach_of(panel, keys, pair);
        if (part.of_rows) add_to_rows(panel, keys, pair, reach);  // dQ += dS K
      }
      if (dk.is_wanted) pairs.products.dk.take(pair.gradients, pair.at, p, reach);
      if (dv.is_wanted) pairs.products.dv.take(pair.weights, pair.at, p, reach);
    }
    if (dk.is_wanted) pairs.products.dk.add_to(dk.block(keys.first));  // dK += dS^T Q
    if (dv.is_wanted) pairs.products.dv.add_to(dv.block(keys.first));  // dV += P^T dO
  }

 public:
  static GradientFloats floats(const GradientCall& g, const GradientPart& part) {
    Cutter memory{nullptr}, head_memory{nullptr};
    const Backward sized(memory, head_memory, g, part);
    return {memory.floats, head_memory.floats};
  }

  Backward(const GradientCall& call, const GradientPart& task, Cutter memory, Cutter head_memory)
      : Backward(memory, head_memory, call, task) {}

  void run() {
    [[maybe_unused]] const typename O::Use use{};
    if (!keeps_rows || begins_rows()) pairs.rows.clear(part.first_row, part.rows);
    if (part.of_rows && begins_rows())
      fill(dq_of(part.first_row), panels_of(part.rows) * panel_rows * dims, 0.0f);
    for (std::int64_t begin = part.first_key; begin < part.first_key + part.keys; begin += gradient_keys) {
      if (begins_keys()) pairs.keys.clear(begin, gradient_keys), dk.clear(begin), dv.clear(begin);
      attend(begin);
      if (ends_keys()) write_keys(pairs.products.dk, dk, begin), write_keys(pairs.products.dv, dv, begin);
    }
    if (part.of_rows && ends_rows()) write_rows();
  }

 private:
  void add_to_rows(const RowPanel& panel, const KeyBlock<O>& keys, const PanelPairs& pair,
                   const Reach<S>& reach) {
    if (pair.at.keys == 0) return;
    float* const sums = dq_of(panel.queries.first);
    // fault: gradient-of-the-last-block
    const std::int64_t first = keys.first + pair.at.first - keys.packed.begin;
    add_reached(pairs.products.qk, {pair.gradients, O::rows, first, pair.at.keys}, sums, reach);
  }

  // How far a panel of the rows sees.
  Reach<S> reach_of(const RowPanel& panel, const KeyBlock<O>& keys, const PanelPairs& pair) const {
    if constexpr (GoesByReach<O>)
      if (pair.at.keys > 0)
        return {c, panel.queries, {pair.gradients, panel_rows, keys.first + pair.at.first, pair.at.keys}};
    return Reach<S>(pair.at.keys);
  }

  // The block of keys that begins here, with every block of rows that sees some of it.
  void attend(std::int64_t begin) {
    if (part.rows == 0) return;
    const KeyRange block{begin, min(begin + gradient_keys, part.first_key + part.keys)},
        wanted = seen_by_rows(part.first_row, part.rows).within(block);
    if (wanted.end <= wanted.begin) return;
    const KeyRange of_head = part.is_shared ? seen_by_rows(0, head.rows).within(block) : wanted;
    const KeyBlock<O>& keys = pairs.use_keys({part.batch_entry, part.kv_head, begin, of_head});
    const std::int64_t end = part.first_row + part.rows;
    for (std::int64_t first = part.first_row; first < end; first += gradient_rows) {
      const std::int64_t count = min(gradient_rows, end - first);
      const KeyRange seen = seen_by_rows(first, count).within(wanted);
      if (seen.end <= seen.begin) continue;
      const RowBlock<O>& rows = pairs.use_rows(query, first, count);
      if (prefetches_after(first)) pairs.prefetch = rows_after(first);
      multiply(rows, keys, seen);
    }
  }

  Seen seen_by_rows(std::int64_t first, std::int64_t count) const {
    return seen_by(c, part.batch_entry, query(first).i, query(first + count - 1).i);
  }

  // Whether the next block of rows may lie in no cache of this core: another task packed it, or a
  // second-level cache may not hold all blocks beside the sums and a block of keys, which is so from half a
  // MiB on. With 1.1 MB prefetched, 12 heads of 1024 x 64 take 3 % less on one thread and on two (Xeon, 2
  // MiB, November 2026).
  bool prefetches_after(std::int64_t first) const {
    if (!prefetches_rows<O>) return false;
    if (!part.is_shared) return pairs.rows.floats() >= std::int64_t{1} << 17;
    return first + gradient_rows < part.first_row + part.rows;
  }
  Prefetch rows_after(std::int64_t first) const {
    constexpr std::int64_t tiles = 2 * gradient_keys / O::key_step * gradient_rows / panel_rows;
    return {pairs.rows.floats_at(first + gradient_rows), pairs.rows.floats_of_block(), tiles / 4 * 3};
  }

  void write_rows() {
    for (std::int64_t row = 0; row < part.rows; row += panel_rows) {
      transpose_sums<S>(dq_of(part.first_row + row), dims, panel_rows, transposed);
      for (std::int64_t r = 0; r < min(panel_rows, part.rows - row); ++r) {
        const Query q = query(part.first_row + row + r);
        if (!write_gradient<S>(row_of(g.q, q), transposed + r * dims, c.dim, {g.scale, g.accumulates}))
          g.repair_mark(q.b, q.h, q.i) = 1;
      }
    }
  }

  // The gradients by keys, or by values.
  struct KeyGradients {
    const Tensor& to;
    std::int64_t dim;
    float factor;
    unsigned char* marks;
    bool is_wanted;
    std::int64_t width;           // of a key's sums
    float* sums = nullptr;        // of one block of keys, or of all keys of the head
    std::int64_t key_stride = 0;  // floats from one key to the next; 0 where there is one block

    float* block(std::int64_t begin) const { return sums + begin * key_stride; }
    void clear(std::int64_t begin) const {
      if (is_wanted) fill(block(begin), gradient_keys * width, 0.0f);
    }
  };

  void write_keys(RowSums<O>& sums, const KeyGradients& gradients, std::int64_t begin) {
    const std::int64_t b = part.batch_entry, end = min(begin + gradient_keys, part.first_key + part.keys);
    for (std::int64_t j = begin; gradients.is_wanted && j < end; ++j) {
      const Row row = row_of(gradients.to, b, part.kv_head, c.sequences[b].first_key + j);
      float* const line = sums.line_of(gradients.block(begin), j - begin);
      if (!write_gradient<S>(row, line, gradients.dim, {gradients.factor, g.accumulates}))
        gradients.marks[g.key(b, part.kv_head, j)] = 1;
    }
  }

  Backward(Cutter& memory, Cutter& head_memory, const GradientCall& call, const GradientPart& task)
      : g(call),
        c(call.forward),
        part(task),
        head(c, task),
        query(c, {task.batch_entry, task.kv_head, 0, 0}),
        keeps_rows((task.is_shared || task.keys > gradient_keys) && fits_rows()),
        pairs(call, task, {keeps_rows ? head.row_blocks(task) : 1, keeps_rows ? head_memory : memory},
              {head.key_blocks(task), task.is_shared ? head_memory : memory}, memory),
        dims(pairs.products.qk.dims),
        // fault: gradient-without-scale
        dk{g.k, c.dim, g.scale, g.repair_k, part.of_keys && g.k.data, pairs.products.dk.dims},
        dv{g.v, c.value_dim, 1.0f, g.repair_v, part.of_keys && g.v.data, pairs.products.dv.dims} {
    transposed = memory.cut(part.of_rows ? panel_rows * dims : 0);
    const std::int64_t rows = part.is_shared ? head.rows : part.rows;
    dq = head_memory.cut(part.of_rows ? panels_of(rows) * panel_rows * dims : 0);
    for (KeyGradients* gradients : {&dk, &dv}) {
      const std::int64_t keys = head.key_blocks(part) * gradient_keys;
      gradients->sums = head_memory.cut(gradients->is_wanted ? keys * gradients->width : 0);
      gradients->key_stride = part.is_shared ? gradients->width : 0;
    }
  }

  // Packed rows stay for the next block of keys where 16 MB hold them all; or 32, where they are prefetched.
  bool fits_rows() const {
    constexpr std::int64_t max_bytes = std::int64_t{1} << (prefetches_rows<O> ? 25 : 24);
    return head.row_blocks(part) * GradientWidths<O>(c, part).bytes_of_rows() <= max_bytes;
  }

  static std::int64_t panels_of(std::int64_t n) { return (n + panel_rows - 1) / panel_rows; }
  // The sums of rows from this one on, the first of a panel: (dims, rows).
  float* dq_of(std::int64_t row) const { return dq + (part.is_shared ? row : row - part.first_row) * dims; }

  // Whether no part before this one, or none after it, has sums of its rows, or of its keys.
  bool begins_rows() const { return !part.is_shared || part.first_key == 0; }
  bool ends_rows() const { return !part.is_shared || part.first_key + part.keys == head.keys; }
  bool begins_keys() const { return !part.is_shared || part.first_row == 0; }
  bool ends_keys() const { return !part.is_shared || part.first_row + part.rows == head.rows; }

  const GradientCall& g;
  const Call& c;
  const GradientPart part;
  const HeadExtents head;
  const Queries query;
  const bool keeps_rows;  // packed, from one block of keys to the next
  ScoreGradients<O> pairs;
  const std::int64_t dims;  // of a row of dQ
  float *transposed, *dq;   // a panel (rows, dims); the panels of all rows (dims, rows)
  KeyGradients dk, dv;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
