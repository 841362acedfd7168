// SPDX-License-Identifier: Apache-2.0
// The kernels of a projection, with the bits of the CPU (O2): every number is a sum of chains of fused
// multiply-adds, whose length and order depend on nothing but the number's own place.
#pragma once
#include <cstdint>

#include "cuda/projection/plan.hpp"
#include "cuda/projection/rows.cuh"

namespace heed::cuda {

// Stretches of both operands, the summed index first.
struct alignas(16) ProjectionMemory {
  static constexpr int pitch = projection_tile + 4;  // writes down a column lie in other banks
  float rows[projection_depth][pitch], columns[projection_depth][pitch];
};

// The 4 x 4 sums of a thread.
class ProjectionSums {
 public:
  HEED_DEVICE static int first_row() { return thread_index() / 16 * 4; }
  HEED_DEVICE static int first_column() { return thread_index() % 16 * 4; }

  // The chain goes on by `count` products.
  HEED_DEVICE void add(const ProjectionMemory& memory, int count) {
#pragma unroll 4
    for (int e = 0; e < count; ++e) {
      float a[4], b[4];
      load4(a, &memory.rows[e][first_row()]), load4(b, &memory.columns[e][first_column()]);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) chain[r][c] = fmaf(b[c], a[r], chain[r][c]);
    }
  }
  // The total, which is -0 before the first chain: a sum of one chain keeps the sign of a zero.
  HEED_DEVICE void end_chain() {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) total[r][c] = total[r][c] + chain[r][c], chain[r][c] = 0;
  }
  template <class Take>
  HEED_DEVICE void each(const Take& take) const {
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) take(first_row() + r, first_column() + c, total[r][c]);
  }

 private:
  float chain[4][4] = {};
  float total[4][4] = {{-0.0f, -0.0f, -0.0f, -0.0f},
                       {-0.0f, -0.0f, -0.0f, -0.0f},
                       {-0.0f, -0.0f, -0.0f, -0.0f},
                       {-0.0f, -0.0f, -0.0f, -0.0f}};
};

// A tile of y: tokens are its rows, outputs its columns.
class LinearMapTile {
  static constexpr int tile = projection_tile, depth = projection_depth;
  static constexpr int lines = projection_threads / depth, passes = tile / lines;
  static_assert(chain_terms % depth == 0 && tile % lines == 0);

 public:
  HEED_DEVICE LinearMapTile(const LinearMap& map, ProjectionMemory& memory)
      : m(map),
        shared(memory),
        first_row(block_index() % projection_tiles(m.rows) * tile),
        first_out(block_index() / projection_tiles(m.rows) * tile) {
#pragma unroll
    for (int n = 0; n < passes; ++n) row_at[n] = row_offset(m.x, first_row + line(n));
  }

  HEED_DEVICE void run() {
    const std::int64_t summed = (m.in + 1) / 2 * 2;  // as the CPU fills up an odd width: -0 becomes 0
    for (std::int64_t k = 0; k < summed; k += depth) {
      if (k > 0 && k % chain_terms == 0) sums.end_chain();
      load(k);
      sync();
      sums.add(shared, static_cast<int>(summed - k < depth ? summed - k : depth));
      sync();
    }
    sums.end_chain();
    write_tile();
  }

 private:
  // A thread loads one input of every `lines`-th row, and of every `lines`-th output.
  HEED_DEVICE static int input() { return thread_index() % depth; }
  HEED_DEVICE static int line(int n) { return thread_index() / depth + n * lines; }

  HEED_DEVICE void load(std::int64_t k) {
    const std::int64_t of = k + input(), column_at = column_offset(m.x, of);
    const bool is_input = of < m.in;
#pragma unroll
    for (int n = 0; n < passes; ++n) {
      const bool is_row = is_input && first_row + line(n) < m.rows,
                 is_output = is_input && first_out + line(n) < m.out;
      shared.rows[input()][line(n)] = is_row ? read_at(m.x.tensor, row_at[n] + column_at) : 0.0f;
      shared.columns[input()][line(n)] =
          is_output ? read({m.w, (first_out + line(n)) * m.w_row + of * m.w_step, 1, m.w_type, 16}, 0) : 0.0f;
    }
  }

  HEED_DEVICE void write_tile() const {
    sums.each([&](int r, int c, float sum) {
      const std::int64_t row = first_row + r, n = first_out + c;
      if (row >= m.rows || n >= m.out) return;
      const Row to{m.y.tensor.data, row_offset(m.y, row) + column_offset(m.y, n), 1, m.y.tensor.type, 16};
      write(to, 0, m.bias ? sum + m.bias[n] : sum);
    });
  }

  const LinearMap& m;
  ProjectionMemory& shared;
  const std::int64_t first_row, first_out;
  std::int64_t row_at[passes];  // of x, for the rows that this thread loads
  ProjectionSums sums;
};

// A tile of w: outputs are its rows, inputs its columns. Tokens run in blocks of one length from the first,
// each a chain, blocks are added in order, and then their sum to what was there (G10).
class WeightGradientTile {
  static constexpr int tile = projection_tile, depth = projection_depth;
  static constexpr int lines = projection_threads / tile, passes = depth / lines;
  // fault: cuda-weight-gradient-chain
  static constexpr std::int64_t block = 256;  // tokens
  static_assert(block % depth == 0 && depth % lines == 0);

 public:
  HEED_DEVICE WeightGradientTile(const WeightGradient& gradient, ProjectionMemory& memory)
      : g(gradient),
        shared(memory),
        first_in(block_index() % projection_tiles(g.in) * tile),
        first_out(block_index() / projection_tiles(g.in) * tile),
        x_at(column_offset(g.x, first_in + number())),
        y_at(column_offset(g.y, first_out + number())) {}

  HEED_DEVICE void run() {
    for (std::int64_t first = 0; first < g.rows; first += depth) {
      if (first > 0 && first % block == 0) end_block();
      load(first);
      sync();
      sums.add(shared, depth);
      if (has_bias())
        for (int e = 0; e < depth; ++e) bias_chain = bias_chain + shared.rows[e][number()];
      sync();
    }
    end_block();
    write_tile();
  }

 private:
  // A thread loads one input and one output of every `lines`-th token. The first ones have that of a bias.
  HEED_DEVICE static int number() { return thread_index() % tile; }
  HEED_DEVICE static int token(int n) { return thread_index() / tile + n * lines; }
  // fault: cuda-weight-gradient-of-a-bias
  HEED_DEVICE bool has_bias() const { return g.bias && first_in == 0 && thread_index() < tile; }

  HEED_DEVICE void load(std::int64_t first) {
#pragma unroll
    for (int n = 0; n < passes; ++n) {
      const std::int64_t row = first + token(n);
      const bool is_row = row < g.rows;
      float x = 0, y = 0;
      if (is_row && first_in + number() < g.in) x = read_at(g.x.tensor, row_offset(g.x, row) + x_at);
      if (is_row && first_out + number() < g.out) y = read_at(g.y.tensor, row_offset(g.y, row) + y_at);
      // fault: cuda-weight-gradient-of-padding
      if (!is_finite(x) && !has_gradient(row)) x = 0;
      shared.rows[token(n)][number()] = y, shared.columns[token(n)][number()] = x;
    }
  }
  // NaN and infinities of a token whose gradient is 0 are not read.
  HEED_DEVICE bool has_gradient(std::int64_t row) const {
    for (std::int64_t n = 0; n < g.out; ++n)
      if (read_at(g.y.tensor, row_offset(g.y, row) + column_offset(g.y, n)) != 0) return true;
    return false;
  }

  HEED_DEVICE void end_block() {
    sums.end_chain();
    bias_sum = bias_sum + bias_chain, bias_chain = 0;
  }

  HEED_DEVICE void write_tile() const {
    sums.each([&](int r, int c, float sum) {
      const std::int64_t output = first_out + r, input = first_in + c;
      if (output >= g.out || input >= g.in) return;
      float& to = g.w[output * g.in + input];
      to = to + (sum + 0.0f);  // -0 becomes 0
    });
    if (!has_bias() || first_out + number() >= g.out) return;
    float& to = g.bias[first_out + number()];
    to = to + bias_sum;
  }

  const WeightGradient& g;
  ProjectionMemory& shared;
  const std::int64_t first_in, first_out;
  const std::int64_t x_at, y_at;  // of the input and the output that this thread loads
  ProjectionSums sums;
  float bias_chain = 0, bias_sum = 0;
};

}  // namespace heed::cuda
