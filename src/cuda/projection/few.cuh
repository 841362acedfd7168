// SPDX-License-Identifier: Apache-2.0
// A projection of a few rows in f32, with the bits of the CPU (O2): every lane of a warp has a chain of
// inputs of its own, and the chains are added in their order. Weights are read once for eight rows.
#pragma once
#include <cstdint>

#include "cuda/projection/plan.hpp"
#include "cuda/projection/rows.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Outputs and rows of a warp.
class FewRows {
  static constexpr int outs = few_outs, rows = few_rows, step = 4;

 public:
  HEED_DEVICE explicit FewRows(const LinearMap& map) : m(map) {
    const std::int64_t across = tiles_of(m.out, outs * few_warps), block = block_index();
    first_row = block / across * rows;
    first_out = (block % across * few_warps + thread_index() / 32) * outs;
#pragma unroll
    for (int r = 0; r < rows; ++r) row_at[r] = row_offset(m.x, first_row + r);
    x_is_run = is_run(m.x, m.in);
  }

  HEED_DEVICE void run() {
    const std::int64_t summed = (m.in + 1) / 2 * 2;  // as the CPU fills up an odd width: -0 becomes 0
    float total[outs][rows];
    fill(total, -0.0f);  // a sum of one chain keeps the sign of a zero
#pragma unroll 1
    for (std::int64_t k = 0; k < summed; k += 32 * chain_terms) {
      float chain[outs][rows];
      fill(chain, 0.0f);
      const std::int64_t begin = k + lane_index() * chain_terms;
      const auto count = summed - begin < chain_terms ? static_cast<int>(summed - begin) : chain_terms;
#pragma unroll 1
      for (int e = 0; e < count; e += step) add(chain, begin + e, count - e);
      const auto chains = static_cast<int>((summed - k + chain_terms - 1) / chain_terms);
#pragma unroll 1
      for (int lane = 0; lane < 32 && lane < chains; ++lane)
#pragma unroll
        for (int o = 0; o < outs; ++o)
#pragma unroll
          for (int r = 0; r < rows; ++r) total[o][r] = total[o][r] + shuffle(chain[o][r], lane);
    }
    write_totals(total);
  }

 private:
  HEED_DEVICE static void fill(float (&x)[outs][rows], float value) {
#pragma unroll
    for (int o = 0; o < outs; ++o)
#pragma unroll
      for (int r = 0; r < rows; ++r) x[o][r] = value;
  }

  // The next `count` products of the lane's chain, four of them at most.
  HEED_DEVICE void add(float (&chain)[outs][rows], std::int64_t k, int count) const {
    float w[outs][step];
#pragma unroll
    for (int o = 0; o < outs; ++o) read_four_weights(m, first_out + o, k, w[o]);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (first_row + r >= m.rows) break;
      float x[step];
      read_four(m.x, x_is_run, row_at[r], k, m.in - k, x);
#pragma unroll
      for (int o = 0; o < outs; ++o)
#pragma unroll
        for (int e = 0; e < step; ++e)
          if (e < count) chain[o][r] = fmaf(w[o][e], x[e], chain[o][r]);
    }
  }

  // Each lane has all totals.
  HEED_DEVICE void write_totals(const float (&total)[outs][rows]) const {
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int o = 0; o < outs; ++o) {
        const std::int64_t row = first_row + r, out = first_out + o;
        if (lane_index() != r * outs + o || row >= m.rows || out >= m.out) continue;
        const Row to{m.y.tensor.data, row_offset(m.y, row) + column_offset(m.y, out), 1, m.y.tensor.type, 16};
        write(to, 0, m.bias ? total[o][r] + m.bias[out] : total[o][r]);
      }
  }

  const LinearMap& m;
  std::int64_t first_row, first_out;
  std::int64_t row_at[rows];  // of x
  bool x_is_run;
};

}  // namespace heed::cuda
