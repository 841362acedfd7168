// SPDX-License-Identifier: Apache-2.0
// The backward pass: five products for every block of rows and block of keys. Scores and gradients by them exist for
// one such pair of blocks at a time; sums over keys (dQ) and over rows (dK, dV) are chains whose blocks are added
// in order, so that it cannot show how the work was cut (O1).
#pragma once
#include <cstdint>

#include "cpu/algorithm/gradient_pairs.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// sums * factor, added to what is there or in place of it; x is overwritten. Where that is no number nothing is
// written, and false is returned. Adding +0 gives every zero one sign.
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

// (dims, rows) becomes (rows, dims).
template <Vector S>
inline void turn_panel(const float* from, std::int64_t dims, float* to) {
  constexpr int rows = Tile<S>::rows;
  for (std::int64_t d = 0; d < dims; d += 4)
    for (int r = 0; r < rows; r += 4) {
      const float* corner = from + d * rows + r;
      const float* const four[4] = {corner, corner + rows, corner + 2 * rows, corner + 3 * rows};
      S::transpose(four, to + r * dims + d, dims);
    }
}

template <GradientOperands O>
class Backward {
  using S = typename O::S;
  using Pairs = GradientPairs<O>;
  static constexpr int rows = O::rows, step = O::key_step;
  static constexpr std::int64_t key_panels = gradient_keys / rows, panel_block = gradient_rows * rows,
                                panels_together = summed_rows<O> / rows;

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
      dk = kept_dk + (part.is_shared ? begin * dims : 0);
      dv = kept_dv + (part.is_shared ? begin * value_dims : 0);
      if (part.of_keys && begins_keys()) {
        fill(dk, gradient_keys * dims, 0.0f);
        fill(dv, gradient_keys * value_dims, 0.0f);
      }
      attend(begin);
      if (part.of_keys && ends_keys()) write_keys(begin);
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
        pairs(call, task, memory),
        keeps_rows(fits_rows() && (task.is_shared || task.keys > gradient_keys)),
        packed_rows(call, pairs.products, keeps_rows ? row_blocks() : 1, task.of_keys,
                    keeps_rows ? kept : memory, memory),
        dims(pairs.products.q_sums.dims),
        value_dims(pairs.products.g_sums.dims) {
    const std::int64_t keys = part.is_shared ? round_up(head_keys, gradient_keys) : gradient_keys;
    weights = memory.cut(part.of_keys ? key_panels * panel_block : 0);
    gradients = memory.cut(part.of_keys ? key_panels * panel_block : 0);
    turned = memory.cut(rows * most(dims, value_dims));
    dq = kept.cut(part.of_rows ? panels_of(kept_rows()) * rows * dims : 0);
    kept_dk = kept.cut(part.of_keys ? keys * dims : 0);
    kept_dv = kept.cut(part.of_keys ? keys * value_dims : 0);
  }

  static std::int64_t panels_of(std::int64_t n) { return (n + rows - 1) / rows; }

  // Whether no part before this one, or none after it, has sums of its rows, or of its keys.
  bool begins_rows() const { return !part.is_shared || part.first_key == 0; }
  bool ends_rows() const { return !part.is_shared || part.first_key + part.keys == head_keys; }
  bool begins_keys() const { return !part.is_shared || part.first_row == 0; }
  bool ends_keys() const { return !part.is_shared || part.first_row + part.rows == head_rows; }

  std::int64_t kept_rows() const { return part.is_shared ? head_rows : part.rows; }
  std::int64_t row_blocks() const { return most(1, (kept_rows() + gradient_rows - 1) / gradient_rows); }
  float* row_sums(std::int64_t row) const {
    return dq + (part.is_shared ? row : row - part.first_row) * dims;
  }

  // Packed rows are kept for the next block of keys where 16 MB hold them all.
  bool fits_rows() const {
    return row_blocks() * PackedRows<O>::bytes_of_slot(pairs.products) <= (std::int64_t{1} << 24);
  }

  Seen seen_by_rows(std::int64_t first, std::int64_t count) const {
    return seen_by(c, part.batch_entry, query(first).i, query(first + count - 1).i);
  }

  // One block of keys with every block of rows that sees some of it.
  void attend(std::int64_t begin) {
    if (part.rows == 0) return;
    const KeyRange block{begin, least(begin + gradient_keys, part.first_key + part.keys)},
        wanted = seen_by_rows(part.first_row, part.rows).within(block);
    if (wanted.end <= wanted.begin) return;
    pairs.keys.pack(part.batch_entry, part.kv_head, begin, wanted);
    const std::int64_t end = part.first_row + part.rows;
    for (std::int64_t first = part.first_row; first < end; first += gradient_rows) {
      const std::int64_t count = least(gradient_rows, end - first);
      const KeyRange seen = seen_by_rows(first, count).within(wanted);
      if (seen.begin < seen.end) multiply(packed_rows(query, first, count), begin, seen);
    }
  }

  void multiply(const RowBlock<O>& block, std::int64_t begin, KeyRange seen) {
    const KeyRange panels{(seen.begin - begin) / step * step / rows, panels_of(round_up(seen.end - begin, step))};
    KeyRange of_panel[key_panels];  // the panels of rows that see it
    for (auto& range : of_panel) range = {gradient_rows, 0};
    for (std::int64_t p = 0; p * rows < round_up(block.count, summed_rows<O>); ++p) {
      const bool is_there = p * rows < block.count;
      const Stretch at = is_there ? pairs.differentiate(query, block, p, Pairs::By::product) : Stretch{};
      if (at.keys > 0 && part.of_rows) add_keys(at, block.first + p * rows);
      if (!part.of_keys) continue;
      for (std::int64_t n = panels.begin; n < panels.end; ++n) {
        turn(at, p, n);
        if (at.keys == 0 || n * rows >= at.first + at.keys || (n + 1) * rows <= at.first) continue;
        of_panel[n] = {least(of_panel[n].begin, p / panels_together * panels_together),
                       round_up(p + 1, panels_together)};
      }
    }
    if (!part.of_keys) return;
    for (std::int64_t n = panels.begin; n < panels.end; ++n)
      if (of_panel[n].begin < of_panel[n].end) add_rows(n, of_panel[n]);
  }

  // dQ of a panel of rows.
  void add_keys(const Stretch& at, std::int64_t row) {
    const std::int64_t first = pairs.keys.block + at.first - pairs.keys.packed.begin;
    pairs.products.scores.add_values(first, at.keys, pairs.gradients, row_sums(row));
  }

  // From (keys, rows) to (rows, keys) for panel n of the keys: zeros where the stretch does not reach.
  void turn(const Stretch& at, std::int64_t p, std::int64_t n) {
    const std::int64_t to = n * panel_block + p * rows * rows;
    for (int k = 0; k < rows; k += 4) {
      const std::int64_t j = n * rows + k - at.first;
      if (j < 0 || j >= at.keys) {
        for (int r = 0; r < rows; ++r)
          for (int x = k; x < k + 4; ++x) weights[to + r * rows + x] = gradients[to + r * rows + x] = 0;
        continue;
      }
      turn_four(pairs.weights + j * rows, weights + to + k);
      turn_four(pairs.gradients + j * rows, gradients + to + k);
    }
  }
  static void turn_four(const float* from, float* to) {
    for (int r = 0; r < rows; r += 4) {
      const float* const four[4] = {from + r, from + rows + r, from + 2 * rows + r, from + 3 * rows + r};
      S::transpose(four, to + r * rows, rows);
    }
  }

  // dK and dV of panel n of the keys, from those panels of rows that see it.
  void add_rows(std::int64_t n, KeyRange seeing) {
    const std::int64_t from = n * panel_block + seeing.begin * rows * rows, first = seeing.begin * rows,
                       count = (seeing.end - seeing.begin) * rows;
    const auto& products = pairs.products;
    if (g.v.data) products.g_sums.add_values(first, count, weights + from, dv + n * value_dims * rows);
    if (g.k.data) products.q_sums.add_values(first, count, gradients + from, dk + n * dims * rows);
  }

  void write_rows() {
    for (std::int64_t row = 0; row < part.rows; row += rows) {
      turn_panel<S>(row_sums(part.first_row + row), dims, turned);
      for (std::int64_t r = 0; r < least(rows, part.rows - row); ++r) {
        const Query q = query(part.first_row + row + r);
        if (!write_gradient<S>(row_of(g.q, q), turned + r * dims, c.dim, g.scale, g.accumulates))
          g.left_row(q.b, q.h, q.i) = 1;
      }
    }
  }

  void write_keys(std::int64_t begin) {
    const std::int64_t end = least(gradient_keys, part.first_key + part.keys - begin);
    if (g.k.data) write_keys(g.k, {begin, begin + end}, {dk, dims, c.dim, g.scale, g.left_k});
    if (g.v.data) write_keys(g.v, {begin, begin + end}, {dv, value_dims, c.value_dim, 1.0f, g.left_v});
  }

  struct KeySums {
    const float* sums;
    std::int64_t dims, dim;
    float factor;
    unsigned char* left;
  };
  void write_keys(const Tensor& to, KeyRange keys, const KeySums& from) {
    const std::int64_t b = part.batch_entry;
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const std::int64_t n = (j - keys.begin) / rows, k = (j - keys.begin) % rows;
      if (k == 0) turn_panel<S>(from.sums + n * from.dims * rows, from.dims, turned);
      const Row row = row_of(to, b, part.kv_head, c.sequences[b].first_key + j);
      if (!write_gradient<S>(row, turned + k * from.dims, from.dim, from.factor, g.accumulates))
        from.left[g.key(b, part.kv_head, j)] = 1;
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
  const std::int64_t dims, value_dims;
  float *weights, *gradients, *turned;
  float *dq, *kept_dk, *kept_dv;
  float *dk, *dv;  // of the present block of keys
};

}  // namespace heed::cpu::HEED_THIS_TARGET
