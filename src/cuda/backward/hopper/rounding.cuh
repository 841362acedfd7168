// SPDX-License-Identifier: Apache-2.0
// dQ of tiles of queries whose sums are done, in 16 bits while products run: by the warp of every block that
// has nothing else to do, so that the launch behind (rows.cuh) has less to.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/backward/hopper/rows.cuh"
#include "cuda/backward/hopper/shared.cuh"
#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// Blocks take tiles in turns, in the order in which sums are done. Nobody waits for this warp, and it waits
// no longer than its block adds: tiles that it has not come to, whose last rows are nobody's, or that have
// what is no number are left to the launch behind, which finds the others by their count. A tile may be
// written by both, with the same bits.
template <class Shape>
class BackwardRounder {
  static constexpr Type type = Shape::type;

 public:
  HEED_DEVICE BackwardRounder(const GradientCall& call, const BackwardPlan& launch,
                              BackwardShared<Shape> memory)
      : g(call), plan(launch), shared(memory) {}

  HEED_DEVICE void run() const {
    const int tiles = plan.of_queries.heads * plan.of_queries.tiles;
    for (int n = static_cast<int>(block_index()); n < tiles; n += static_cast<int>(gridDim.x)) {
      const QueryTile tile = QueryTile::in_order(g, plan, n);
      if (!tile.has(Shape::rows - 1)) continue;
      const unsigned adds = tile.adds(g, Shape::rows);
      if (adds == 0) continue;
      // Every lane, for what it reads itself.
      while (!all_of_warp(load_acquire(plan.adds + tile.number) == adds))
        if (is_over(1000)) return;
      if (is_over(0)) return;
      if (!round(tile)) continue;
      sync_warp();
      if (lane_index() == 0) store_release(plan.adds + tile.number, adds + 1);
    }
  }

 private:
  // Whether the block has added its last sum, waiting for that at most so long.
  HEED_DEVICE bool is_over(unsigned nanoseconds) const {
    return warp_any(barrier_is_complete_within(shared.adds_over(), 0, nanoseconds));
  }

  // False: it is left. A warp's part of the sum is 16 rows by 64 dimensions as one of a consumer's warps had
  // them, two times 8 dimensions at a time.
  HEED_DEVICE bool round(const QueryTile& tile) const {
    const float* from = plan.sums + tile.number * (Shape::rows * Shape::dim) + lane_index() * 4;
    const float factor = g.scale * lowered<type>;
    const Row first = row_of(g.q, tile.query(lane_index() / 4));
    auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(first.data)) + first.first +
                     lane_index() % 2 * 8 + lane_index() / 2 % 2 * 4;
    std::uint32_t poison = 0;
#pragma unroll 1
    for (int part = 0; part < Shape::rows * Shape::dim / 1024; ++part) {
      if (is_over(0)) return false;
      const int row = Shape::dim == 64 ? part * 16 : part % 4 * 16;
      auto* const at = to + row * g.q.stride.length + (Shape::dim == 64 ? 0 : part / 4 * 64);
#pragma unroll
      for (int n = 0; n < 8; n += 2)
        round_eights(at + n * 8, from + part / 4 * 4096 + part % 4 * 128 + n * 512, factor, poison);
    }
    return !warp_any(has_no_number(poison));
  }

  // Two neighbouring eights of two rows. Lanes with an odd number write the second.
  HEED_DEVICE void round_eights(std::uint16_t* to, const float* from, float factor,
                                std::uint32_t& poison) const {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from)),
                 y = __ldcg(reinterpret_cast<const float4*>(from + 512));
    const bool is_odd = lane_index() % 2 != 0;
    const std::uint32_t of_x[2] = {two(x.x, x.y, factor), two(x.z, x.w, factor)},
                        of_y[2] = {two(y.x, y.y, factor), two(y.z, y.w, factor)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      poison = poisoned(poisoned(poison, of_x[r]), of_y[r]);
      const std::uint32_t taken = shuffle_xor(is_odd ? of_x[r] : of_y[r], 1);
      *reinterpret_cast<uint2*>(to + r * 8 * g.q.stride.length) =
          is_odd ? uint2{taken, of_y[r]} : uint2{of_x[r], taken};
    }
  }
  // As write_slab() does it.
  HEED_DEVICE static std::uint32_t two(float x, float y, float factor) {
    return pack2<type>(fmaf(x, factor, 0.0f) + 0.0f, fmaf(y, factor, 0.0f) + 0.0f);
  }

  // Two numbers of which one is none once an infinity or NaN has come: a sum of zeros.
  HEED_DEVICE static std::uint32_t poisoned(std::uint32_t poison, std::uint32_t two) {
    if constexpr (type == Type::bf16)
      asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(poison) : "r"(two), "r"(0));
    else
      asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(poison) : "r"(two), "r"(0));
    return poison;
  }
  HEED_DEVICE static bool has_no_number(std::uint32_t poison) { return (poison & 0x7fff7fffu) != 0; }

  const GradientCall& g;
  const BackwardPlan& plan;
  const BackwardShared<Shape> shared;
};

}  // namespace heed::cuda
