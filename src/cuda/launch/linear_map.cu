// SPDX-License-Identifier: Apache-2.0
// y = x * w^T + bias with the bits of the CPU (O2): every number is a sum of chains of fused multiply-adds in
// the order of the inputs, then the bias, then one rounding. A block of threads does 64 rows and 64 outputs,
// a thread 4 x 4.
#include <cuda_runtime.h>

#include "cuda/algorithm/element.cuh"
#include "cuda/launch/arrays.hpp"

namespace heed::cuda {
namespace {

constexpr int tile = 64, depth = 16, threads = 256;
static_assert(chain_terms % depth == 0);

HEED_DEVICE float x_at(const LinearMap& m, std::int64_t row, std::int64_t k) {
  if (row >= m.rows || k >= m.in) return 0;
  return read(row_of(m.x, row / m.length, k / m.x_dim, row % m.length), k % m.x_dim);
}
HEED_DEVICE float w_at(const LinearMap& m, std::int64_t n, std::int64_t k) {
  if (n >= m.out || k >= m.in) return 0;
  return read({m.w, n * m.in, 1, m.w_type, 16}, k);
}

// The first chain is the total so far: -0 stays.
HEED_DEVICE void end_chain(float (&total)[4][4], float (&sum)[4][4], bool is_first) {
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      total[r][c] = is_first ? sum[r][c] : total[r][c] + sum[r][c];
      sum[r][c] = 0;
    }
}

__global__ void __launch_bounds__(threads) map_linearly(const __grid_constant__ LinearMap m) {
  __shared__ __align__(16) float x[depth][tile + 4], w[depth][tile + 4];
  const std::int64_t first_row = block_index() * tile, first_out = std::int64_t{blockIdx.y} * tile;
  const int t = thread_index(), across = t % 16 * 4, down = t / 16 * 4;
  const std::int64_t summed = (m.in + 1) / 2 * 2;  // as the CPU fills up an odd width: -0 becomes 0
  float total[4][4] = {}, sum[4][4] = {};
  for (std::int64_t k = 0; k < summed; k += depth) {
    if (k > 0 && k % chain_terms == 0) end_chain(total, sum, k == chain_terms);
    for (int n = t; n < tile * depth; n += threads) {
      x[n % depth][n / depth] = x_at(m, first_row + n / depth, k + n % depth);
      w[n % depth][n / depth] = w_at(m, first_out + n / depth, k + n % depth);
    }
    sync();
    const int here = static_cast<int>(summed - k < depth ? summed - k : depth);
#pragma unroll 4
    for (int e = 0; e < here; ++e) {
      float a[4], b[4];
      load4(a, &x[e][down]), load4(b, &w[e][across]);
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[r][c] = fmaf(b[c], a[r], sum[r][c]);
    }
    sync();
  }
  end_chain(total, sum, summed <= chain_terms);
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) {
      const std::int64_t row = first_row + down + r, n = first_out + across + c;
      if (row >= m.rows || n >= m.out) continue;
      const float result = m.bias ? total[r][c] + m.bias[n] : total[r][c];
      write(row_of(m.y, row / m.length, n / m.y_dim, row % m.length), n % m.y_dim, result);
    }
}

}  // namespace

void launch_linear_map(const LinearMap& m, Stream stream) {
  if (m.rows == 0 || m.out == 0) return;
  const auto tiles = [](std::int64_t n) { return static_cast<unsigned>((n + tile - 1) / tile); };
  map_linearly<<<dim3(tiles(m.rows), tiles(m.out)), threads, 0, stream>>>(m);
  check(cudaGetLastError(), "cuda: project");
}

}  // namespace heed::cuda
