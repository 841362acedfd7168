// SPDX-License-Identifier: Apache-2.0
// Units of a tile's keys become outputs in shared memory: the blocks that did one each are a cluster, and
// each gets some of the rows of all. What launch_partial_merge() does by way of the device's memory, with the
// same bits: 128 queries of 32 heads over 8192 keys took 42 us by that way, of which 12 came after the last
// product (H200, November 2026).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/general/end.cuh"
#include "cuda/prefill/launch.hpp"
#include "cuda/prefill/plan.hpp"
#include "cuda/prefill/producer.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Sixteen rows, of a warp of consumers, are sent to one block. A lane's {max, sum} of its two rows come
// first, then its four values of every eight dimensions, each for all lanes.
template <class Shape>
class PrefillJoin {
  static constexpr Type type = Shape::type;
  static constexpr int warps = 4 * Shape::groups, eighths = Shape::value_dim / 8;
  using Layout = JoinLayout<Shape>;

 public:
  HEED_DEVICE PrefillJoin(const Call& call, const PrefillPlan& launch, const PrefillShared<Shape>& memory)
      : c(call),
        plan(launch),
        shared(memory),
        tile(*memory.slot(0)),
        units(launch.partials.units),
        rank(tile.unit),
        received(memory.at + Shape::queries_at) {}

  // Rows without a sum that see keys must be marked as such (without_sum()).
  HEED_DEVICE void send(const float (&o)[Shape::value_dim / 2], const RowEnd (&ends)[2]) const {
    if (warp() == 0 && lane_index() == 0)
      barrier_arrive_expecting(shared.joined(), Layout::own_warps(units, rank) * units * Layout::warp_bytes);
    // The others' operands, which they are done with, make room.
    cluster_arrive_released();
    cluster_wait();
    const int to = warp() % units;
    const SharedAddress barrier = map_to_rank(shared.joined(), to),
                        at = place(map_to_rank(received, to), rank, warp() / units);
    store_remote(at, {ends[0].max, ends[0].sum, ends[1].max, ends[1].sum}, barrier);
#pragma unroll
    for (int n = 0; n < eighths; ++n)
      store_remote(at + (n + 1) * 512, {o[4 * n], o[4 * n + 1], o[4 * n + 2], o[4 * n + 3]}, barrier);
  }

  // Outputs of the block's own rows.
  HEED_DEVICE void receive() const {
    barrier_wait(shared.joined(), 0);
    bool any_poisoned = false;
    const int pairs = Layout::own_warps(units, rank) * eighths;
#pragma unroll 1
    for (int n = warp(); n < pairs; n += warps)
      if (n % eighths * 8 < c.value_dim) any_poisoned |= finish_eighth(n / eighths, n % eighths);
    if (named_any(4, 32 * warps, any_poisoned)) complete();
  }

 private:
  // Of the rows in a tile: warp w's rows go to block w % units, as its w / units-th.
  HEED_DEVICE int warp() const { return thread_index() / 32 - 4; }
  HEED_DEVICE SharedAddress place(SharedAddress first, int unit, int own_warp) const {
    return first + (unit * Layout::max_own_warps(units) + own_warp) * Layout::warp_bytes + lane_index() * 16;
  }

  // Two rows' state in all units, merged in order: as Merge does.
  struct Merged {
    float max[2] = {minus_infinity, minus_infinity}, sum[2] = {}, o[4] = {};
  };
  HEED_DEVICE Merged merged(int own_warp, int eighth) const {
    Merged all;
    for (int u = 0; u < units; ++u) {
      const float4 end = as_floats(load_shared16(place(received, u, own_warp)));
      all.max[0] = fmaxf(all.max[0], end.x), all.max[1] = fmaxf(all.max[1], end.z);
    }
#pragma unroll 1
    for (int u = 0; u < units; ++u) {
      const SharedAddress at = place(received, u, own_warp);
      const float4 end = as_floats(load_shared16(at)), x = as_floats(load_shared16(at + (eighth + 1) * 512));
      const float f[2] = {general::moved(end.x, all.max[0]), general::moved(end.z, all.max[1])};
      all.sum[0] = fmaf(end.y, f[0], all.sum[0]), all.sum[1] = fmaf(end.w, f[1], all.sum[1]);
      all.o[0] = fmaf(x.x, f[0], all.o[0]), all.o[1] = fmaf(x.y, f[0], all.o[1]);
      all.o[2] = fmaf(x.z, f[1], all.o[2]), all.o[3] = fmaf(x.w, f[1], all.o[3]);
    }
    return all;
  }
  HEED_DEVICE static float4 as_floats(const uint4& x) {
    return {__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w)};
  }

  // Eight dimensions of sixteen rows; returns whether a number of this thread's is not finite.
  HEED_DEVICE bool finish_eighth(int own_warp, int eighth) const {
    const Merged all = merged(own_warp, eighth);
    bool any_poisoned = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = (own_warp * units + rank) * 16 + r * 8 + lane_index() / 4;
      const Query q = query(row);
      if (q.i < 0) continue;
      const float times = general::close_row<type>(c, nullptr, q, {all.max[r], all.sum[r]},
                                                   eighth == 0 && lane_index() % 4 == 0);
      const float x = fmaf(all.o[2 * r], times, 0.0f), y = fmaf(all.o[2 * r + 1], times, 0.0f);
      const Row out = row_of(c.out, q);
      auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(out.data)) + out.first;
      *reinterpret_cast<std::uint32_t*>(to + eighth * 8 + lane_index() % 4 * 2) = pack2<type>(x, y);
      if (fmaf(x, 0.0f, y * 0.0f) == 0) continue;  // 0 * x is 0 for every finite x
      *shared.is_poisoned(row) = 1, any_poisoned = true;
    }
    return any_poisoned;
  }

  // Of the n-th row of the tile; i < 0: there is none.
  HEED_DEVICE Query query(int row) const {
    const int of_head = Shape::rows / plan.tile_heads, member = row / of_head, n = row - member * of_head;
    if (n >= tile.rows) return {tile.b, tile.h, -1, 0};
    return {tile.b, tile.h + member * (c.tiled_heads ? plan.kv_heads : 1), tile.first_query + n,
            tile.first_row + n};
  }

  // Rows that f32 could not finish, once more in double precision.
  HEED_DEVICE void complete() const {
    const int group = warpgroup_index() - 1;
    const Warpgroup team{5 + group};
    double* const scratch = static_cast<double*>(__cvta_shared_to_generic(received + group * 1024));
    for (int row = group; row < Shape::rows; row += Shape::groups)
      if (*shared.is_poisoned(row)) complete_row(team, c, query(row), {0, c.value_dim}, scratch);
  }

  const Call& c;
  const PrefillPlan& plan;
  const PrefillShared<Shape>& shared;
  const RowTile& tile;  // the block's only one
  const int units, rank;
  const SharedAddress received;
};

// When all tiles are done. A function of its own: inlined, its registers make products of heads of 64 wait
// (C7511).
template <class Shape>
__device__ __noinline__ void receive_joined(const Call& c, const PrefillPlan& plan, unsigned char* memory) {
  const PrefillShared<Shape> shared(memory);
  PrefillJoin<Shape>(c, plan, shared).receive();
}

}  // namespace heed::cuda
