// SPDX-License-Identifier: Apache-2.0
// The kernels of a projection, with the bits of the CPU (O2): every number is a sum of chains of fused
// multiply-adds, whose length and order depend on nothing but the number's own place.
#pragma once
#include <cstdint>

#include "cuda/projection/plan.hpp"
#include "cuda/projection/rows.cuh"

namespace heed::cuda {

// Two stretches of both operands, the summed index first; and what threads have beside their chains.
template <class Shape>
struct alignas(16) ProjectionMemory {
  static constexpr int pitch = Shape::tile + 4;  // writes down a column lie in other banks
  struct Stretch {
    float rows[Shape::depth][pitch], columns[Shape::depth][pitch];
  };
  Stretch stretch[2];
  float totals[Shape::side * Shape::squares][Shape::threads][4];
};

// The sums of a thread: squares of 4 x 4 that lie 64 rows and 64 columns apart. Chains are in registers,
// totals of chains in shared memory, so that two blocks of a gradient run on a multiprocessor.
template <class Shape>
class ProjectionSums {
  static constexpr int side = Shape::side, depth = Shape::depth, squares = Shape::squares;
  using Memory = ProjectionMemory<Shape>;

 public:
  // A total is -0 before the first chain: a sum of one chain keeps the sign of a zero.
  HEED_DEVICE explicit ProjectionSums(Memory& memory) : shared(memory) {
#pragma unroll
    for (int r = 0; r < side; ++r)
#pragma unroll
      for (int c = 0; c < side; ++c) chain[r][c] = 0;
    const float nothing[] = {-0.0f, -0.0f, -0.0f, -0.0f};
#pragma unroll
    for (int n = 0; n < side * squares; ++n) store4(total(n), nothing);
  }

  // The chain goes on by `count` products.
  HEED_DEVICE void add(const typename Memory::Stretch& from, int count) {
    if (count == depth) {
#pragma unroll 8
      for (int e = 0; e < depth; ++e) add_products(from, e);
    } else {
#pragma unroll 1
      for (int e = 0; e < count; ++e) add_products(from, e);
    }
  }
  HEED_DEVICE void end_chain() {
#pragma unroll
    for (int n = 0; n < side * squares; ++n) {
      float sum[4];
      load4(sum, total(n));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& own = chain[n / squares][n % squares * 4 + e];
        sum[e] = sum[e] + own, own = 0;
      }
      store4(total(n), sum);
    }
  }
  // With their rows and columns in the tile.
  template <class Take>
  HEED_DEVICE void each(const Take& take) const {
#pragma unroll 1
    for (int n = 0; n < side * squares; ++n) {
      float sum[4];
      load4(sum, total(n));
      for (int e = 0; e < 4; ++e)
        take(first_row() + place(n / squares), first_column() + place(n % squares * 4 + e), sum[e]);
    }
  }

 private:
  // The threads of a warp are four above each other and eight side by side: a quarter of them reads 128 bytes
  // of columns, and 16 of rows.
  HEED_DEVICE static int first_row() { return thread_index() / 64 * 16 + lane_index() / 8 * 4; }
  HEED_DEVICE static int first_column() { return thread_index() / 32 % 2 * 32 + lane_index() % 8 * 4; }
  HEED_DEVICE static constexpr int place(int n) { return n / 4 * 64 + n % 4; }

  // Of four columns that lie side by side, row after row.
  HEED_DEVICE float* total(int n) const { return shared.totals[n][thread_index()]; }

  HEED_DEVICE void add_products(const typename Memory::Stretch& from, int e) {
    float a[side], b[side];
#pragma unroll
    for (int n = 0; n < side; n += 4)
      load4(a + n, &from.rows[e][first_row() + place(n)]),
          load4(b + n, &from.columns[e][first_column() + place(n)]);
#pragma unroll
    for (int r = 0; r < side; ++r)
#pragma unroll
      for (int c = 0; c < side; ++c) chain[r][c] = fmaf(b[c], a[r], chain[r][c]);
  }

  Memory& shared;
  float chain[side][side];
};

// A tile of y: tokens are its rows, outputs its columns.
template <class Shape>
class LinearMapTile {
  static constexpr int tile = Shape::tile, depth = Shape::depth, squares = Shape::squares;
  static_assert(chain_terms % depth == 0 && tile * depth == 4 * Shape::threads * squares);

 public:
  HEED_DEVICE LinearMapTile(const LinearMap& map, ProjectionMemory<Shape>& memory, std::int64_t tile_number)
      : m(map),
        shared(memory),
        first_row(tile_number % tiles_of(m.rows, tile) * tile),
        first_out(tile_number / tiles_of(m.rows, tile) * tile),
        x_is_run(is_run(m.x, m.in)),
        sums(memory) {
#pragma unroll
    for (int n = 0; n < squares; ++n) row_at[n] = row_offset(m.x, first_row + line(n));
  }

  HEED_DEVICE void run() {
    const std::int64_t summed = (m.in + 1) / 2 * 2;  // as the CPU fills up an odd width: -0 becomes 0
    add_inputs(0, summed);
    each_number([&](std::int64_t row, std::int64_t n, float sum) {
      const Row to{m.y.tensor.data, row_offset(m.y, row) + column_offset(m.y, n), 1, m.y.tensor.type, 16};
      write(to, 0, m.bias ? sum + m.bias[n] : sum);
    });
  }

  // One chain of inputs, for ChainSum.
  HEED_DEVICE void run_chain(std::int64_t chain, float* chains) {
    const std::int64_t summed = (m.in + 1) / 2 * 2, begin = chain * chain_terms, end = begin + chain_terms;
    add_inputs(begin, end < summed ? end : summed);
    each_number([&](std::int64_t row, std::int64_t n, float sum) {
      chains[(chain * m.rows + row) * m.out + n] = sum;
    });
  }

 private:
  // The next stretch is on its way while one is multiplied.
  HEED_DEVICE void add_inputs(std::int64_t begin, std::int64_t end) {
    fetch(begin);
    int at = 0;
    for (std::int64_t k = begin; k < end; k += depth, at ^= 1) {
      if (k > begin && k % chain_terms == 0) sums.end_chain();
      put(shared.stretch[at]);
      sync();
      if (k + depth < end) fetch(k + depth);
      sums.add(shared.stretch[at], static_cast<int>(end - k < depth ? end - k : depth));
    }
    sums.end_chain();
  }

  // A thread brings four inputs of every 64th row, and of every 64th output.
  HEED_DEVICE static int input() { return thread_index() % 4 * 4; }
  HEED_DEVICE static int line(int n) { return thread_index() / 4 + n * 64; }

  HEED_DEVICE void fetch(std::int64_t k) {
    const std::int64_t of = k + input();
#pragma unroll
    for (int n = 0; n < squares; ++n) {
      read_four(m.x, x_is_run, row_at[n], of, first_row + line(n) < m.rows ? m.in - of : 0, x[n]);
      read_four_weights(m, first_out + line(n), of, w[n]);
    }
  }
  HEED_DEVICE void put(typename ProjectionMemory<Shape>::Stretch& to) const {
#pragma unroll
    for (int n = 0; n < squares; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        to.rows[input() + e][line(n)] = x[n][e], to.columns[input() + e][line(n)] = w[n][e];
  }

  template <class Take>
  HEED_DEVICE void each_number(const Take& take) const {
    sums.each([&](int r, int c, float sum) {
      const std::int64_t row = first_row + r, n = first_out + c;
      if (row < m.rows && n < m.out) take(row, n, sum);
    });
  }

  const LinearMap& m;
  ProjectionMemory<Shape>& shared;
  const std::int64_t first_row, first_out;
  const bool x_is_run;
  std::int64_t row_at[squares];        // of x, for the rows that this thread brings
  float x[squares][4], w[squares][4];  // of the next stretch
  ProjectionSums<Shape> sums;
};

// A number of y: its chains, in their order.
struct ChainSum {
  HEED_DEVICE static void run(const LinearMap& m, const float* chains, std::int64_t number) {
    if (number >= m.rows * m.out) return;
    float total = -0.0f;
    for (std::int64_t n = 0; n < chains_of(m); ++n) total = total + chains[n * m.rows * m.out + number];
    const std::int64_t row = quotient(number, m.out), out = number - row * m.out;
    const Row to{m.y.tensor.data, row_offset(m.y, row) + column_offset(m.y, out), 1, m.y.tensor.type, 16};
    write(to, 0, m.bias ? total + m.bias[out] : total);
  }
};

// NaN and infinities of a token whose gradient is 0 are not read. Rare, and so not where the rest of the code
// is.
inline __device__ __noinline__ bool has_gradient(const WeightGradient& g, std::int64_t row) {
  for (std::int64_t n = 0; n < g.out; ++n)
    if (read_at(g.y.tensor, row_offset(g.y, row) + column_offset(g.y, n)) != 0) return true;
  return false;
}

// A tile of w: outputs are its rows, inputs its columns. Tokens run in blocks of one length from the first,
// each a chain, blocks are added in order, and then their sum to what was there (G10).
template <class Shape>
class WeightGradientTile {
  static constexpr int tile = Shape::tile, depth = Shape::depth, squares = Shape::squares;
  // fault: cuda-weight-gradient-chain
  static constexpr std::int64_t block = 256;  // tokens
  static_assert(block % depth == 0 && tile * depth == 4 * Shape::threads * squares);

 public:
  HEED_DEVICE WeightGradientTile(const WeightGradient& gradient, ProjectionMemory<Shape>& memory,
                                 std::int64_t tile_number)
      : g(gradient),
        shared(memory),
        first_in(tile_number % tiles_of(g.in, tile) * tile),
        first_out(tile_number / tiles_of(g.in, tile) * tile),
        x_is_run(is_run(g.x, g.in)),
        y_is_run(is_run(g.y, g.out)),
        next_x(g.x, g.in, first_in + number(), token()),
        next_y(g.y, g.out, first_out + number(), token()),
        sums(memory) {}

  HEED_DEVICE void run() {
    fetch(0);
    int at = 0;
    for (std::int64_t first = 0; first < g.rows; first += depth, at ^= 1) {
      if (first > 0 && first % block == 0) end_block();
      put(shared.stretch[at]);
      sync();
      if (first + depth < g.rows) fetch(first + depth);
      sums.add(shared.stretch[at], depth);
      if (has_bias())
        for (int e = 0; e < depth; ++e) bias_chain = bias_chain + shared.stretch[at].rows[e][thread_index()];
    }
    end_block();
    write_tile();
  }

 private:
  // A thread brings four inputs and four outputs of some tokens. The first ones have that of a bias.
  HEED_DEVICE static int number() { return thread_index() % (tile / 4) * 4; }
  HEED_DEVICE static int token() { return thread_index() / (tile / 4); }
  static constexpr int tokens_apart = depth / squares;
  // fault: cuda-weight-gradient-of-a-bias
  HEED_DEVICE bool has_bias() const { return g.bias && first_in == 0 && thread_index() < tile; }

  HEED_DEVICE void fetch(std::int64_t first) {
#pragma unroll
    for (int n = 0; n < squares; ++n) {
      const std::int64_t row = first + token() + n * tokens_apart;
      next_x.read(g.x, x_is_run, row < g.rows, x[n]), next_x.advance(g.x, tokens_apart);
      next_y.read(g.y, y_is_run, row < g.rows, y[n]), next_y.advance(g.y, tokens_apart);
      // fault: cuda-weight-gradient-of-padding
      if (!are_finite(x[n]) && !has_gradient(g, row)) clear_not_finite(x[n]);
    }
  }
  HEED_DEVICE static bool are_finite(const float (&of)[4]) {
    return is_finite(of[0]) && is_finite(of[1]) && is_finite(of[2]) && is_finite(of[3]);
  }
  HEED_DEVICE static void clear_not_finite(float (&of)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (!is_finite(of[e])) of[e] = 0;
  }
  HEED_DEVICE void put(typename ProjectionMemory<Shape>::Stretch& to) const {
#pragma unroll
    for (int n = 0; n < squares; ++n)
      store4(&to.rows[token() + n * tokens_apart][number()], y[n]),
          store4(&to.columns[token() + n * tokens_apart][number()], x[n]);
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
    if (!has_bias() || first_out + thread_index() >= g.out) return;
    float& to = g.bias[first_out + thread_index()];
    to = to + bias_sum;
  }

  const WeightGradient& g;
  ProjectionMemory<Shape>& shared;
  const std::int64_t first_in, first_out;
  const bool x_is_run, y_is_run;
  FourColumns next_x, next_y;
  float x[squares][4], y[squares][4];  // of the next stretch
  ProjectionSums<Shape> sums;
  float bias_chain = 0, bias_sum = 0;
};

}  // namespace heed::cuda
