// SPDX-License-Identifier: Apache-2.0
// What the kernels of a projection read. A block of threads makes a tile of 64 x 64 sums, a thread 4 x 4.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

// Rows of tokens, each the concatenation of its heads: row n is token n % length of batch entry n / length.
struct TokenRows {
  Tensor tensor;
  std::int64_t dim, length;  // of a head; of a batch entry
};

// y = x * w^T + bias
struct LinearMap {
  TokenRows x, y;
  std::int64_t rows;
  const void* w;  // (out, in), row after row
  Type w_type;
  std::int64_t in, out;
  const float* bias;  // or null
};

// w += y^T * x, bias += the sum of all rows of y
struct WeightGradient {
  TokenRows x, y;
  std::int64_t rows, in, out;
  float* w;     // (out, in), row after row
  float* bias;  // or null
};

constexpr int projection_threads = 256, projection_tile = 64, projection_depth = 16;

constexpr std::int64_t projection_tiles(std::int64_t n) {
  return (n + projection_tile - 1) / projection_tile;
}
// A block for every tile of y, and of w.
constexpr std::int64_t blocks_of(const LinearMap& m) {
  return projection_tiles(m.rows) * projection_tiles(m.out);
}
constexpr std::int64_t blocks_of(const WeightGradient& g) {
  return g.rows > 0 ? projection_tiles(g.out) * projection_tiles(g.in) : 0;
}

void launch(const LinearMap&, Stream);
void launch(const WeightGradient&, Stream);

}  // namespace heed::cuda
