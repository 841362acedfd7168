// SPDX-License-Identifier: Apache-2.0
// Attention in 16 bits for every call, on the matrix units of every GPU since Ampere.
//
// A block has a tile of rows and walks the tiles of keys that these see, in order from key 0, while copies of the next ones
// run ahead. Where rows are few, a row's keys are cut into units of a fixed length whose partial states merge in order
// (merge.cuh). Which rows, sequences or blocks run beside it changes no bit of a row.
#pragma once
#include <cstdint>

#include "general/end.cuh"
#include "general/products.cuh"
#include "general/rows.cuh"
#include "general/shape.hpp"
#include "general/source.cuh"
#include "general/stage.cuh"
#include "general/state.cuh"
#include "general/visits.cuh"

namespace heed::cuda::general {

// Shared memory of a block.
template <class Shape, class Source>
struct Memory {
  static constexpr int ring_at = Shape::query_bytes, ring_end = ring_at + Shape::stages * Source::slot_bytes;
  static_assert(Shape::rows * Shape::value_pitch <= ring_end, "outputs wait where queries and keys were");
  static_assert(Shape::stages * Source::slot_bytes >= Shape::threads * 8, "as do doubles of rows that f32 cannot finish");

  alignas(16) unsigned char queries[Shape::query_bytes];
  unsigned char ring[Shape::stages * Source::slot_bytes];
  alignas(16) unsigned char extra[Source::extra_bytes > 0 ? Source::extra_bytes : 16];
  BlockFacts<Shape> block;
  DocumentTiles documents;
};

// Copies queries of a tile of rows to shared memory.
template <class Shape>
HEED_DEVICE void prefetch_queries(SharedAddress to, const Call& c, const Plan& plan, const BlockFacts<Shape>& block) {
  RowCopy<Shape::threads, Shape::rows, Shape::dim, Shape::query_pitch>::run(
      to, static_cast<int>(c.dim), plan.q_in_16, [&](int r) { return row_of(c.q, block.query(max(r, 0))); }, [](int) { return true; });
}

template <class Shape, template <class> class SourceOf, template <class> class StageOf>
struct Attention {
  using Source = SourceOf<Shape>;
  using Stage = StageOf<Shape>;
  using Shared = Memory<Shape, Source>;

  HEED_DEVICE static void run(const Call& c, const Plan& plan, Shared& shared) {
    BlockFacts<Shape>& block = shared.block;
    block.find(c, plan);
    sync();
    if (block.tile.count == 0) return;
    shared.documents.find(c, block);

    const int warp = warp_index();
    const Place<Shape> place{warp % Shape::row_warps, warp / Shape::row_warps};
    const SharedAddress at = shared_address(shared.queries), ring = shared_address(shared.ring);
    Source source(c, plan, block, shared.extra);
    const typename Stage::Walk walk(c, block, shared.documents);
    State<Shape> state;
    state.clear();

    // The ring fills.
    int ahead = walk.first(), number = 0;
    source.look_up(ahead, 0);
    prefetch_queries<Shape>(at, c, plan, block);
#pragma unroll
    for (int n = 0; n < Shape::stages - 1; ++n) {
      if constexpr (Source::keys_are_transposed) sync();  // for what was looked up
      if (!walk.is_end(ahead)) {
        source.prefetch(ahead, number, ring + number * Source::slot_bytes);
        ahead = walk.next(ahead), ++number;
        source.look_up(ahead, number);
      }
      close_copies();
    }

    Queries<Shape> queries(at, place.warp_row);
    Stage stage(c, block, place);
    const float scale = Stage::scale(c), eight = 8.0f / scale;
    int slot = 0, slot_ahead = Shape::stages - 1;
    bool is_first = true;
#pragma unroll 1
    for (int t = walk.first(); !walk.is_end(t); t = walk.next(t)) {
      const bool is_seen = stage.sees(t);
      wait_for_copies<Shape::stages - 2>();
      sync();
      if (Shape::held_steps > 0 && is_first) queries.hold(), is_first = false;
      bool streams = false;
      if (!walk.is_end(ahead)) {
        const SharedAddress to = ring + slot_ahead * Source::slot_bytes;
        streams = source.aim(ahead, number, to) && is_seen;
        if (!streams) source.prefetch(ahead, number, to);
        ahead = walk.next(ahead), ++number;
        source.look_up(ahead, number);
      }
      slot_ahead = slot_ahead + 1 == Shape::stages ? 0 : slot_ahead + 1;
      const Operands operands = source.settle(ring + slot * Source::slot_bytes);
      slot = slot + 1 == Shape::stages ? 0 : slot + 1;
      if (!is_seen) {
        close_copies();
        continue;
      }
      Scores<Shape> s;
      multiply_keys<Shape, Source>(s, queries, operands.keys, place.key_warp, [&](int k) {
#pragma unroll
        for (int n = k * Source::copies / Shape::dim_steps; n < (k + 1) * Source::copies / Shape::dim_steps; ++n) source.copy(n, streams);
      });
      close_copies();
      if constexpr (Source::is_quantized) scale_keys(s, operands.key_scales, place);
      stage.apply(s, t);
      state.weigh(s, scale, eight);
      if constexpr (Stage::drops) stage.drop(s, t);
      if constexpr (Source::is_quantized) scale_values(s, operands.value_scales, place);
      state.add_values(s, operands.values, place.key_warp);
    }
    wait_for_copies<0>();
    state.add_up();
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) state.max[m][0] *= scale, state.max[m][1] *= scale;
    stage.close(state);
    end(state, c, plan, shared, place);
  }

 private:
  HEED_DEVICE static void end(State<Shape>& state, const Call& c, const Plan& plan, Shared& shared, const Place<Shape>& place) {
    BlockFacts<Shape>& block = shared.block;
    merge_key_warps(state, reinterpret_cast<float*>(shared.ring), place);
    if (block.unit >= 0) {
      if (place.key_warp == 0) write_partial(state, c, plan, block, place);
      return;
    }
    sync();
    if (place.key_warp == 0) write_out(state, c, plan, block, shared_address(shared.queries), place);
    sync();
    const bool is_left = thread_index() < Shape::rows && block.left[thread_index()];
    if (any(is_left)) complete_rows(c, plan, shared);
  }

  // What f32 could not finish, once more in double precision.
  static __device__ __noinline__ void complete_rows(const Call& c, const Plan& plan, Shared& shared) {
    for (int r = 0; r < shared.block.tile.count; ++r) {
      if (!shared.block.left[r]) continue;
      const Query q = shared.block.query(r);
      const WideEnd wide = complete_row(WholeBlock<Shape::threads>(), c, q, {0, c.value_dim}, reinterpret_cast<double*>(shared.ring));
      if (plan.ends && thread_index() == 0) plan.ends[(q.b * c.heads + q.h) * c.queries + q.i].wide = wide;
    }
  }

  HEED_DEVICE static void scale_keys(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place) {
    each_key(s, scales, place, [](float x, float scale) { return x * scale; });
  }
  // A weight of 0 stays 0, whatever the scale of a key that nobody sees is.
  HEED_DEVICE static void scale_values(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place) {
    each_key(s, scales, place, [](float x, float scale) { return x == 0 ? 0.0f : x * scale; });
  }
  template <class Change>
  HEED_DEVICE static void each_key(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place, const Change& change) {
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float scale = load_float(scales + (place.key_warp * Shape::warp_keys + 8 * n + lane_index() % 4 * 2 + e) * 4);
#pragma unroll
        for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
          for (int r = 0; r < 2; ++r) s[m][n][2 * r + e] = change(s[m][n][2 * r + e], scale);
      }
  }
};

template <class Shape, template <class> class SourceOf, template <class> class StageOf>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    attend(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Attention<Shape, SourceOf, StageOf>;
  Kernel::run(c, plan, *reinterpret_cast<typename Kernel::Shared*>(memory));
}

}  // namespace heed::cuda::general
