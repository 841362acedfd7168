// SPDX-License-Identifier: Apache-2.0
// The operands of the five products of the backward pass in f32, packed as pack.hpp has it: a block of rows and a
// block of keys, each once for sums over dimensions and once for sums over rows or keys. What holds NaN or an
// infinity is packed as zeros and marked, so that it reaches nobody who does not see it (G6).
#pragma once
#include <cstdint>

#include "cpu/algorithm/mask.hpp"
#include "cpu/algorithm/operands.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/algorithm/range.hpp"
#include "cpu/algorithm/score.hpp"
#include "cpu/gradient_call.hpp"
#include "cpu/simd/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Extents of the packed operands: summed dimensions are even, dimensions of a result whole tiles.
template <Vector S>
struct GradientExtents {
  static constexpr int rows = Tile<S>::rows, step = Tile<S>::columns;
  static_assert(gradient_rows % rows == 0 && gradient_keys % rows == 0 && gradient_keys % step == 0);

  std::int64_t dim, value_dim, depth, value_depth, dims, value_dims;

  explicit GradientExtents(const Call& c)
      : dim(c.dim),
        value_dim(c.value_dim),
        depth(round_up(dim, 2)),
        value_depth(round_up(value_dim, 2)),
        dims(round_up(dim, step)),
        value_dims(round_up(value_dim, step)) {}
};

// Rows side by side, (length, columns) for each tile of columns, for sums over them: row n of `count`, and zeros
// from there to dims.
template <Vector S>
inline void pack_lines(const RowAt auto& row_at, KeyRange wanted, std::int64_t length, std::int64_t dim,
                       float* widened, float* to) {
  constexpr std::int64_t step = Tile<S>::columns;
  const std::int64_t whole = dim / step * step;
  for (std::int64_t n = wanted.begin; n < wanted.end; ++n) {
    const float* x = widen<S>(row_at(n), dim, widened);
    float* line = to + n * step;
    for (std::int64_t d = 0; d < whole; d += step, line += length * step)
      __builtin_memcpy(line, x + d, step * sizeof(float));
    if (whole < dim)
      for (std::int64_t d = whole; d < whole + step; ++d) line[d - whole] = d < dim ? x[d] : 0.0f;
  }
}

template <Vector S>
inline void clear_lines(KeyRange lines, std::int64_t length, std::int64_t dims, float* to) {
  constexpr std::int64_t step = Tile<S>::columns;
  for (std::int64_t d = 0; d < dims; d += step)
    fill(to + d * length + lines.begin * step, most(0, lines.end - lines.begin) * step, 0.0f);
}

// Element r of every line of a (depth, width) panel or tile.
inline void clear_column(float* column, std::int64_t width, std::int64_t depth) {
  for (std::int64_t d = 0; d < depth; ++d) column[d * width] = 0;
}

inline bool is_finite_column(const float* column, std::int64_t width, std::int64_t depth) {
  float sum = 0;
  for (std::int64_t d = 0; d < depth; ++d) sum += column[d * width] * 0.0f;
  return sum == 0;
}

// Whether no sum of products can leave the range of f32, by the squares of its operands (Cauchy and Schwarz).
inline bool stays_in_range(float squares, float others) {
  return static_cast<double>(squares) * static_cast<double>(others) < 0x1p250;
}

struct RowBlock {
  std::int64_t first, count;  // rows of the KV head
  float *q, *g;               // panels: queries, scaled to base 2; gradients of out
  float *q_tiles, *g_tiles;   // lines: the same, unscaled
  float *lse, *delta;         // base 2; delta less the gradient of the log-sum-exp
  unsigned char* state;       // of each row: 0, or why it is packed as zeros
  float q_squares, g_squares;
};

// A row that holds no number, or one that base 2 cannot; and one that sees no key, of which nothing is read.
enum : unsigned char { bad_row = 1, hollow_row = 2 };

template <Vector S>
class PackedRows {
  using Extents = GradientExtents<S>;
  static constexpr int rows = Extents::rows;

 public:
  // As many blocks are kept as there are slots; `with_lines` where gradients by keys are wanted.
  PackedRows(const GradientCall& call, std::int64_t slot_count, bool with_lines, Cutter& memory)
      : g(call), c(call.forward), e(c), slots(slot_count), has_lines(with_lines) {
    blocks = reinterpret_cast<RowBlock*>(
        memory.cut(slots * static_cast<std::int64_t>(sizeof(RowBlock) / sizeof(float))));
    for (std::int64_t n = 0; n < slots; ++n) {
      RowBlock block{};
      block.first = -1;
      block.q = memory.cut(gradient_rows * e.depth);
      block.g = memory.cut(gradient_rows * e.value_depth);
      block.q_tiles = memory.cut(has_lines ? gradient_rows * e.dims : 0);
      block.g_tiles = memory.cut(has_lines ? gradient_rows * e.value_dims : 0);
      block.lse = memory.cut(gradient_rows), block.delta = memory.cut(gradient_rows);
      block.state = reinterpret_cast<unsigned char*>(memory.cut(gradient_rows / 4));
      if (memory.memory) blocks[n] = block;
    }
    out = memory.cut(rows * e.value_depth);
    widened = memory.cut(4 * most(e.dim, e.value_dim));
  }

  // Forgets what was packed, before rows of another head.
  void forget() {
    for (std::int64_t n = 0; n < slots; ++n) blocks[n].first = -1;
  }

  // The block whose first row this is.
  const RowBlock& operator()(const Queries& query, std::int64_t first, std::int64_t count) {
    RowBlock& block = blocks[first / gradient_rows % slots];
    if (block.first != first) pack(query, first, count, block);
    return block;
  }

 private:
  void pack(const Queries& query, std::int64_t first, std::int64_t count, RowBlock& block) {
    block.first = first, block.count = count;
    block.q_squares = block.g_squares = 0;
    for (std::int64_t r = 0; r < count; r += rows) pack_panel(query, r, block);
    if (!has_lines) return;
    const auto q_at = [&](std::int64_t r) { return row_of(c.q, query(first + r)); };
    const auto g_at = [&](std::int64_t r) { return row_of(g.out_gradient, query(first + r)); };
    const std::int64_t end = round_up(count, rows);
    pack_lines<S>(q_at, {0, count}, gradient_rows, e.dim, widened, block.q_tiles);
    pack_lines<S>(g_at, {0, count}, gradient_rows, e.value_dim, widened, block.g_tiles);
    const auto clear = [&](KeyRange lines) {
      clear_lines<S>(lines, gradient_rows, e.dims, block.q_tiles);
      clear_lines<S>(lines, gradient_rows, e.value_dims, block.g_tiles);
    };
    clear({count, end});
    for (std::int64_t r = 0; r < count; ++r)
      if (block.state[r] != 0) clear({r, r + 1});
  }

  void pack_panel(const Queries& query, std::int64_t first, RowBlock& block) {
    const std::int64_t count = least(rows, block.count - first);
    const auto rows_of = [&](const Tensor& t) {
      return [&](std::int64_t r) { return row_of(t, query(block.first + first + r)); };
    };
    float *q = block.q + first * e.depth, *gradient = block.g + first * e.value_depth;
    pack_rows<S>(rows_of(c.q), count, rows, e.dim, e.depth, widened, q);
    const float q_squares = scale_and_square<S>(q, rows * e.depth, c.scale_log2e);
    pack_rows<S>(rows_of(g.out_gradient), count, rows, e.value_dim, e.value_depth, widened, gradient);
    const float g_squares = sum_of_squares<S>(gradient, rows * e.value_depth);
    pack_rows<S>(rows_of(c.out), count, rows, e.value_dim, e.value_depth, widened, out);
    block.q_squares += q_squares, block.g_squares += g_squares;
    multiply_columns(gradient, block.delta + first);
    for (std::int64_t r = 0; r < rows; ++r) {
      if (r >= count) {
        block.state[first + r] = hollow_row;
        block.lse[first + r] = -minus_infinity, block.delta[first + r] = 0;
        continue;
      }
      const bool is_finite_row = (is_finite(q_squares) || is_finite_column(q + r, rows, e.depth)) &&
                                 (is_finite(g_squares) || is_finite_column(gradient + r, rows, e.value_depth));
      judge(query(block.first + first + r), is_finite_row, first + r, block);
      if (block.state[first + r] == 0) continue;
      clear_column(q + r, rows, e.depth);
      clear_column(gradient + r, rows, e.value_depth);
    }
  }

  // delta = the gradient of out times out, in chains as a score is.
  void multiply_columns(const float* gradient, float* delta) const {
    for (int v = 0; v < rows; v += S::lanes) {
      auto sum = S::fill(0.0f);
      for (std::int64_t d = 0; d < e.value_dim;) {
        auto chain = S::fill(0.0f);
        for (const std::int64_t end = least(d + chain_terms, e.value_dim); d < end; ++d)
          chain = S::fma(S::load(gradient + d * rows + v), S::load(out + d * rows + v), chain);
        sum = S::add(sum, chain);
      }
      S::store(delta + v, sum);
    }
  }

  void judge(const Query& q, bool is_finite_row, std::int64_t r, RowBlock& block) const {
    const float natural = read(row_of(c.log_sum_exp, q), 0), lse = natural * log2_e;
    const float of_lse =
        g.log_sum_exp_gradient.data ? read(row_of(g.log_sum_exp_gradient, q), 0) : 0.0f;
    const float delta = block.delta[r] - of_lse;
    const bool is_good = is_finite_row && is_finite(delta) && lse < 0x1p126f && lse > -0x1p126f;
    block.state[r] = 0;
    if (natural == minus_infinity)
      block.state[r] = hollow_row;
    else if (!is_good)
      block.state[r] = sees_any(c, q) ? bad_row : hollow_row;
    block.lse[r] = block.state[r] == 0 ? lse : -minus_infinity;  // its weights are 0
    block.delta[r] = block.state[r] == 0 ? delta : 0.0f;
  }

  const GradientCall& g;
  const Call& c;
  const Extents e;
  const std::int64_t slots;
  const bool has_lines;
  RowBlock* blocks;
  float *out, *widened;
};

template <Vector S>
class PackedKeys {
  using Extents = GradientExtents<S>;
  static constexpr int step = Extents::step;

 public:
  KeyRange range{0, 0};  // of the block; what of it is packed
  std::int64_t first = 0, end = 0;
  float *k, *v, *k_lines;  // tiles of keys, and of values; keys as lines
  unsigned char* is_bad;   // of each key of the block
  float k_squares = 0, v_squares = 0;
  bool has_bad = false;

  PackedKeys(const GradientCall& call, bool with_lines, Cutter& memory)
      : c(call.forward), e(c), has_lines(with_lines) {
    k = memory.cut(gradient_keys * e.depth);
    v = memory.cut(gradient_keys * e.value_depth);
    k_lines = memory.cut(has_lines ? gradient_keys * e.dims : 0);
    is_bad = reinterpret_cast<unsigned char*>(memory.cut(gradient_keys / 4));
    widened = memory.cut(4 * most(e.dim, e.value_dim));
  }

  // Those of the block from `begin` on that lie in `wanted`, in whole tiles.
  void pack(std::int64_t b, std::int64_t kv_head, std::int64_t begin, KeyRange wanted) {
    const RowsFrom<key_row> key_at{c, b, kv_head, begin, c.k.stride.length};
    const RowsFrom<value_row> value_at{c, b, kv_head, begin, c.v.stride.length};
    range = {begin, begin + gradient_keys};
    first = (wanted.begin - begin) / step * step, end = wanted.end - begin;
    for (std::int64_t j = first; j < end; j += step) {
      const std::int64_t count = least(step, end - j);
      pack_rows<S>([&](std::int64_t n) { return key_at(j + n); }, count, step, e.dim, e.depth, widened,
                   k + j * e.depth);
      pack_rows<S>([&](std::int64_t n) { return value_at(j + n); }, count, step, e.value_dim, e.value_depth,
                   widened, v + j * e.value_depth);
    }
    const std::int64_t padded = round_up(end, step);
    if (has_lines) {
      pack_lines<S>(key_at, {first, end}, gradient_keys, e.dim, widened, k_lines);
      clear_lines<S>({end, padded}, gradient_keys, e.dims, k_lines);
    }
    k_squares = sum_of_squares<S>(k + first * e.depth, (padded - first) * e.depth);
    v_squares = sum_of_squares<S>(v + first * e.value_depth, (padded - first) * e.value_depth);
    has_bad = false;
    if (!is_finite(k_squares) || !is_finite(v_squares)) clear_bad();
  }

 private:
  void clear_bad() {
    for (std::int64_t j = first; j < end; ++j) {
      float *key = k + j / step * step * e.depth + j % step,
            *value = v + j / step * step * e.value_depth + j % step;
      is_bad[j] =
          !is_finite_column(key, step, e.depth) || !is_finite_column(value, step, e.value_depth);
      if (!is_bad[j]) continue;
      has_bad = true;
      clear_column(key, step, e.depth);
      clear_column(value, step, e.value_depth);
      if (has_lines) clear_lines<S>({j, j + 1}, gradient_keys, e.dims, k_lines);
    }
    for (std::int64_t j = end; j < round_up(end, step); ++j) is_bad[j] = 0;
  }

  const Call& c;
  const Extents e;
  const bool has_lines;
  float* widened;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
