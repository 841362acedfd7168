// SPDX-License-Identifier: Apache-2.0
// The backward pass: five products for every block of rows and block of keys. Scores and gradients by them
// exist for one such pair of blocks at a time; sums over keys (dQ) and over rows (dK, dV) are chains whose
// blocks are added in order, so that it cannot show how the work was cut (O1).
#pragma once
#include <cstdint>

#include "cpu/backward/gradient_pairs.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// sums * factor, added to what is there or in place of it; x is overwritten. Where that is no number nothing
// is written, and false is returned. Adding +0 gives every zero one sign.
template <Vector S>
inline bool write_gradient(const Row& to, float* x, std::int64_t n, float factor, bool accumulates) {
  for (std::int64_t d = 0; d < n; ++d) x[d] = x[d] * factor + 0.0f;
  if (!all_finite<S>(x, n)) return false;
  if (to.type == Type::f32 && to.step == 1) {
    auto* out = static_cast<float*>(const_cast<void*>(to.data)) + to.first;
    if (accumulates)
      for (std::int64_t d = 0; d < n; ++d) out[d] += x[d];
    else
      __builtin_memcpy(out, x, static_cast<std::size_t>(n) * sizeof(float));
    return true;
  }
  for (std::int64_t d = 0; d < n; ++d) write(to, d, accumulates ? read(to, d) + x[d] : x[d]);
  return true;
}

template <GradientOperands O>
class Backward {
  using S = typename O::S;
  using Pairs = GradientPairs<O>;
  static constexpr int rows = O::rows;

 public:
  static GradientFloats floats(const GradientCall& g, const GradientPart& part) {
    Cutter scratch{nullptr}, kept{nullptr};
    const Backward sized(scratch, kept, g, part);
    return {scratch.floats, kept.floats};
  }

  Backward(const GradientCall& call, const GradientPart& task, Cutter scratch, Cutter kept)
      : Backward(scratch, kept, call, task) {}

  void run() {
    [[maybe_unused]] const typename O::Use use{};
    if (!keeps_rows || begins_rows()) packed_rows.forget(part.first_row, part.rows);
    if (part.of_rows && begins_rows())
      fill(row_sums(part.first_row), panels_of(part.rows) * rows * dims, 0.0f);
    for (std::int64_t begin = part.first_key; begin < part.first_key + part.keys; begin += gradient_keys) {
      if (begins_keys()) pairs.keys.forget(begin);
      for (KeySums* sums : {&dk, &dv}) {
        sums->block = sums->kept + (part.is_shared ? begin * sums->products.dims : 0);
        if (sums->is_wanted && begins_keys()) fill(sums->block, gradient_keys * sums->products.dims, 0.0f);
      }
      attend(begin);
      if (ends_keys()) write_keys(dk, begin), write_keys(dv, begin);
    }
    if (part.of_rows && ends_rows()) write_rows();
  }

 private:
  Backward(Cutter& memory, Cutter& kept, const GradientCall& call, const GradientPart& task)
      : g(call),
        c(call.forward),
        part(task),
        head_rows(c.sequences[task.batch_entry].queries * c.group()),
        head_keys(c.sequences[task.batch_entry].keys),
        query(c, {task.batch_entry, task.kv_head, 0, 0}),
        pairs(call, task, task.is_shared ? max(1, blocks_of(head_keys, gradient_keys)) : 1,
              task.is_shared ? kept : memory, memory),
        keeps_rows(fits_rows() && (task.is_shared || task.keys > gradient_keys)),
        packed_rows(call, pairs.products, keeps_rows ? row_blocks() : 1, task.of_keys,
                    keeps_rows ? kept : memory, memory),
        dims(pairs.products.scores.dims),
        // fault: gradient-without-scale
        dk{pairs.products.q_sums, g.k, c.dim, g.scale, g.unfinished_k, part.of_keys && g.k.data},
        dv{pairs.products.g_sums, g.v, c.value_dim, 1.0f, g.unfinished_v, part.of_keys && g.v.data} {
    transposed = memory.cut(part.of_rows ? rows * dims : 0);
    dq = kept.cut(part.of_rows ? panels_of(kept_rows()) * rows * dims : 0);
    const std::int64_t keys = part.is_shared ? round_up(head_keys, gradient_keys) : gradient_keys;
    for (KeySums* sums : {&dk, &dv}) sums->kept = kept.cut(sums->is_wanted ? keys * sums->products.dims : 0);
  }

  static std::int64_t blocks_of(std::int64_t n, std::int64_t length) { return (n + length - 1) / length; }
  static std::int64_t panels_of(std::int64_t n) { return blocks_of(n, rows); }

  // Whether no part before this one, or none after it, has sums of its rows, or of its keys.
  bool begins_rows() const { return !part.is_shared || part.first_key == 0; }
  bool ends_rows() const { return !part.is_shared || part.first_key + part.keys == head_keys; }
  bool begins_keys() const { return !part.is_shared || part.first_row == 0; }
  bool ends_keys() const { return !part.is_shared || part.first_row + part.rows == head_rows; }

  std::int64_t kept_rows() const { return part.is_shared ? head_rows : part.rows; }
  std::int64_t row_blocks() const { return max(1, blocks_of(kept_rows(), gradient_rows)); }
  float* row_sums(std::int64_t row) const {
    return dq + (part.is_shared ? row : row - part.first_row) * dims;
  }

  // Packed rows are kept for the next block of keys where 16 MB hold them all; or 32, where they are asked
  // for ahead.
  bool fits_rows() const {
    constexpr std::int64_t max_bytes = std::int64_t{1} << (asks_ahead<O> ? 25 : 24);
    return row_blocks() * PackedRows<O>::bytes_of_slot(pairs.products) <= max_bytes;
  }

  // Whether the next block of rows may lie in no cache of this core: another task packed it, or there are too
  // many.
  bool asks_for_rows_after(std::int64_t first) const {
    if (!asks_ahead<O>) return false;
    if (!part.is_shared) return packed_rows.outgrows_a_cache();
    return first + gradient_rows < part.first_row + part.rows;
  }

  Seen seen_by_rows(std::int64_t first, std::int64_t count) const {
    return seen_by(c, part.batch_entry, query(first).i, query(first + count - 1).i);
  }

  // One block of keys with every block of rows that sees some of it.
  void attend(std::int64_t begin) {
    if (part.rows == 0) return;
    const KeyRange block{begin, min(begin + gradient_keys, part.first_key + part.keys)},
        wanted = seen_by_rows(part.first_row, part.rows).within(block);
    if (wanted.end <= wanted.begin) return;
    pairs.keys.use(part.batch_entry, part.kv_head, begin,
                   part.is_shared ? seen_by_rows(0, head_rows).within(block) : wanted);
    const std::int64_t end = part.first_row + part.rows;
    for (std::int64_t first = part.first_row; first < end; first += gradient_rows) {
      const std::int64_t count = min(gradient_rows, end - first);
      const KeyRange seen = seen_by_rows(first, count).within(wanted);
      if (seen.end <= seen.begin) continue;
      const RowBlock<O>& rows_there = packed_rows(query, first, count);
      if (asks_for_rows_after(first)) pairs.ahead = packed_rows.after(first);
      multiply(rows_there, begin, seen);
    }
  }

  void multiply(const RowBlock<O>& block, std::int64_t begin, KeyRange seen) {
    for (KeySums* sums : {&dk, &dv}) sums->products.begin({seen.begin - begin, seen.end - begin});
    // fault: gradient-of-an-odd-panel
    for (std::int64_t p = 0; p * rows < round_up(block.count, summed_rows<O>); ++p) {
      const bool is_there = p * rows < block.count;
      const Stretch at = is_there ? pairs.differentiate(query, block, p, Pairs::By::product) : Stretch{};
      const Reach<S> reach = reach_of(at, block, p);
      if (at.keys > 0 && part.of_rows) add_keys(at, block.first + p * rows, reach);
      if (dk.is_wanted) dk.products.take(pairs.gradients, at, p, reach);
      if (dv.is_wanted) dv.products.take(pairs.weights, at, p, reach);
    }
    for (KeySums* sums : {&dk, &dv})
      if (sums->is_wanted) sums->products.add_to(sums->block);
  }

  // How far panel p of the rows sees.
  Reach<S> reach_of(const Stretch& at, const RowBlock<O>& block, std::int64_t p) const {
    if constexpr (GoesByReach<O>)
      if (at.keys > 0)
        return {c,
                query.some(block.first + p * rows, min(rows, block.count - p * rows)),
                {pairs.gradients, rows, pairs.keys.here->first + at.first, at.keys}};
    return Reach<S>(at.keys);
  }

  // dQ of a panel of rows.
  void add_keys(const Stretch& at, std::int64_t row, const Reach<S>& reach) {
    const std::int64_t first = pairs.keys.here->first + at.first - pairs.keys.here->packed.begin;
    // fault: gradient-of-the-last-block
    add_reached(pairs.products.scores, first, at.keys, pairs.gradients, row_sums(row), reach);
  }

  void write_rows() {
    for (std::int64_t row = 0; row < part.rows; row += rows) {
      transpose_panel<S>(row_sums(part.first_row + row), dims, transposed);
      for (std::int64_t r = 0; r < min(rows, part.rows - row); ++r) {
        const Query q = query(part.first_row + row + r);
        if (!write_gradient<S>(row_of(g.q, q), transposed + r * dims, c.dim, g.scale, g.accumulates))
          g.unfinished_row(q.b, q.h, q.i) = 1;
      }
    }
  }

  // Gradients by keys, or by values.
  struct KeySums {
    RowSums<O>& products;
    const Tensor& to;
    std::int64_t dim;
    float factor;
    unsigned char* left;
    bool is_wanted;
    float *kept = nullptr, *block = nullptr;  // all; of the present block of keys
  };

  void write_keys(KeySums& sums, std::int64_t begin) {
    const std::int64_t b = part.batch_entry, end = min(begin + gradient_keys, part.first_key + part.keys);
    for (std::int64_t j = begin; sums.is_wanted && j < end; ++j) {
      const Row row = row_of(sums.to, b, part.kv_head, c.sequences[b].first_key + j);
      float* const line = sums.products.line_of(sums.block, j - begin);
      if (!write_gradient<S>(row, line, sums.dim, sums.factor, g.accumulates))
        sums.left[g.key(b, part.kv_head, j)] = 1;
    }
  }

  const GradientCall& g;
  const Call& c;
  const GradientPart part;
  const std::int64_t head_rows, head_keys;  // of the KV head
  const Queries query;
  Pairs pairs;
  const bool keeps_rows;  // packed, from one block of keys to the next
  PackedRows<O> packed_rows;
  const std::int64_t dims;  // of a row of dQ
  float *transposed, *dq;
  KeySums dk, dv;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
