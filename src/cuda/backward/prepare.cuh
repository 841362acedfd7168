// SPDX-License-Identifier: Apache-2.0
// What rows of q have to themselves, 32 rows a warp. Each lane has a row; eight lanes at a time multiply dO
// and out of one, in pieces of eight numbers. A warp for each row, with a lane's row and its numbers asked of
// 32 lanes, took 174 us for 4 x 64 heads x 1024 rows of 64 dimensions (H200, November 2026).
#pragma once
#include <cstdint>

#include "cuda/backward/rows.cuh"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

// Eight numbers of a row.
template <Type type>
struct EightNumbers {
  uint4 bits;

  HEED_DEVICE float operator[](int n) const {
    const std::uint32_t both = n / 2 == 0 ? bits.x : n / 2 == 1 ? bits.y : n / 2 == 2 ? bits.z : bits.w;
    if (type == Type::bf16) return __uint_as_float(n % 2 == 0 ? both << 16 : both & 0xffff0000u);
    return from_f16(static_cast<std::uint16_t>(n % 2 == 0 ? both : both >> 16));
  }
};

// Of rows of up to 64 * `pieces` dimensions that lie in pieces of 16 bytes; 0: of any. The order of a sum is
// the same: of every 64 dimensions a lane has eight.
template <Type type, int pieces>
class RowPreparation {
  static constexpr int lanes = 8, rows_at_once = 32 / lanes, rounds = 32 / rows_at_once;

 public:
  HEED_DEVICE static void run(const GradientCall& g) {
    const Call& c = g.forward;
    const std::int64_t rows = g.all_rows(),
                       n = (block_index() * (gradient_threads / 32) + warp_index()) * 32 + lane_index();
    const RowOfQueries of(g, min(n, rows - 1));
    const bool is_real = n < rows && of.is_real;
    const Row gradient = row_of(g.out_gradient, of.q), out = row_of(c.out, of.q);
    const unsigned real = __ballot_sync(~0u, is_real);
    float delta = 0;
#pragma unroll(pieces == 0 ? 1 : 4 / pieces)
    for (int round = 0; round < rounds; ++round) {
      const int lane = round * rows_at_once + lane_index() / lanes;
      const bool is_read = (real >> lane & 1) != 0;
      float sum =
          product(moved_to(gradient, lane), moved_to(out, lane), static_cast<int>(c.value_dim), is_read);
#pragma unroll
      for (int bits = lanes / 2; bits > 0; bits /= 2) sum = sum + shuffle_xor(sum, bits);
      const float of_row = shuffle(sum, lane_index() % rows_at_once * lanes);
      if (lane_index() / rows_at_once == round) delta = of_row;
    }
    if (n >= rows) return;
    if (is_real)
      write_row_numbers(g, n, of.q, delta, true);
    else
      write_no_row(g, n, of.q);
  }

 private:
  // The row that a lane has.
  HEED_DEVICE static Row moved_to(Row row, int lane) {
    row.first = __shfl_sync(~0u, static_cast<long long>(row.first), lane);
    return row;
  }

  HEED_DEVICE static float product(const Row& x, const Row& y, int dim, bool is_read) {
    const int first = lane_index() % lanes * 8;
    float sum = 0;
    if constexpr (pieces == 0) {
      for (int d = first; is_read && d < dim; d += 8 * lanes)
        for (int e = d; e < min_of(d + 8, dim); ++e) sum = fmaf(read(x, e), read(y, e), sum);
    } else {
      EightNumbers<type> of_x[pieces], of_y[pieces];
#pragma unroll
      for (int piece = 0; piece < pieces; ++piece) {
        const int d = first + piece * 8 * lanes;
        const bool is_there = is_read && d < dim;
        of_x[piece].bits = is_there ? *at(x, d) : uint4{};
        of_y[piece].bits = is_there ? *at(y, d) : uint4{};
      }
#pragma unroll
      for (int piece = 0; piece < pieces; ++piece)
#pragma unroll
        for (int e = 0; e < 8; ++e) sum = fmaf(of_x[piece][e], of_y[piece][e], sum);
    }
    return sum;
  }
  HEED_DEVICE static const uint4* at(const Row& row, int d) {
    return reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(row.data) + row.first + d);
  }
};

}  // namespace heed::cuda
