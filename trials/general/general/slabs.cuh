// SPDX-License-Identifier: Apache-2.0
// Heads wider than registers and shared memory: queries and keys pass in pieces of some dimensions, whose
// products add up to the scores, and a launch has one slab of the values' dimensions. A ring carries what is
// needed next: the pieces of a tile, then its values.
#pragma once
#include <cstdint>

#include "general/end.cuh"
#include "general/kernel.cuh"

namespace heed::cuda::general {

// Of the shape, `dim` is a piece and `value_dim` a slab.
template <class Shape>
struct SlabMemory {
  static constexpr int key_bytes = Shape::tile_keys * Shape::query_pitch,
                       piece_bytes = Shape::query_bytes + key_bytes,
                       slot_bytes = piece_bytes > Shape::value_bytes ? piece_bytes : Shape::value_bytes;
  static_assert(Shape::rows * Shape::value_pitch <= Shape::stages * slot_bytes &&
                Shape::threads * 8 <= slot_bytes);

  alignas(16) unsigned char ring[Shape::stages * slot_bytes];
  BlockFacts<Shape> block;
  DocumentTiles documents;
};

template <class Shape>
struct SlabAttention {
  using Shared = SlabMemory<Shape>;
  using Stage = EveryOption<Shape>;
  using Source = Arrays<Shape>;  // as products read it

  HEED_DEVICE static void run(const Call& c, const Plan& plan, Shared& shared) {
    BlockFacts<Shape>& block = shared.block;
    block.find(c, plan);
    sync();
    if (block.tile.count == 0) return;
    shared.documents.find(c, block);
    const Place<Shape> place{warp_index(), 0};
    const typename Stage::Walk walk(c, block, shared.documents);
    Stage stage(c, block, place);
    State<Shape> state;
    state.clear();
    const SharedAddress ring = shared_address(shared.ring);
    const int pieces = (static_cast<int>(c.dim) + Shape::dim - 1) / Shape::dim;
    const float scale = Stage::scale(c), eight = 8.0f / scale;

    // Step `step` of a tile: a piece, or the values after the last.
    int ahead = walk.first(), step_ahead = 0, slot_ahead = 0, slot = 0;
    const auto prefetch_next = [&] {
      if (!walk.is_end(ahead)) {
        const SharedAddress to = ring + slot_ahead * Shared::slot_bytes;
        step_ahead < pieces ? prefetch_piece(c, plan, block, ahead, step_ahead * Shape::dim, to)
                            : prefetch_values(c, plan, block, ahead, to);
        slot_ahead = slot_ahead + 1 == Shape::stages ? 0 : slot_ahead + 1;
        if (++step_ahead > pieces) step_ahead = 0, ahead = walk.next(ahead);
      }
      commit_copies();
    };
    const auto take = [&] {  // the slot that is there; the one before is free
      wait_for_copies<Shape::stages - 2>();
      sync();
      prefetch_next();
      const SharedAddress at = ring + slot * Shared::slot_bytes;
      slot = slot + 1 == Shape::stages ? 0 : slot + 1;
      return at;
    };
    for (int n = 0; n < Shape::stages - 1; ++n) prefetch_next();
#pragma unroll 1
    for (int t = walk.first(); !walk.is_end(t); t = walk.next(t)) {
      const bool is_seen = stage.sees(t);
      Scores<Shape> s;
      clear<Shape>(s);
#pragma unroll 1
      for (int piece = 0; piece < pieces; ++piece) {
        const SharedAddress at = take();
        if (is_seen)
          add_keys<Shape, Source>(s, Queries<Shape>(at, place.warp_row), at + Shape::query_bytes, 0,
                                  [](int) {});
      }
      const SharedAddress values = take();
      if (!is_seen) continue;
      if (c.layout.is_quantized) scale_by(s, t, c, block, place, true);
      stage.apply(s, t);
      state.weigh(s, scale, eight);
      stage.drop(s, t);
      if (c.layout.is_quantized) scale_by(s, t, c, block, place, false);
      state.add_values(s, values, 0);
    }
    wait_for_copies<0>();
    state.add_up();
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) state.max[m][0] *= scale, state.max[m][1] *= scale;
    stage.close(state);
    if (block.units.begin >= 0) return write_partial(state, c, plan, block, block.units.begin, place);
    sync();
    write_out(state, c, plan, block, ring, place);
    sync();
    const bool is_left = thread_index() < Shape::rows && block.left[thread_index()];
    if (any(is_left)) complete_rows<Shape>(c, plan, block, reinterpret_cast<double*>(shared.ring));
  }

 private:
  using Queries_ = RowCopy<Shape::threads, Shape::rows, Shape::dim, Shape::query_pitch>;
  using Keys = RowCopy<Shape::threads, Shape::tile_keys, Shape::dim, Shape::query_pitch>;
  using Values = RowCopy<Shape::threads, Shape::tile_keys, Shape::value_dim, Shape::value_pitch>;

  // Dimensions [d, d + Shape::dim) of the block's queries and a tile's keys.
  HEED_DEVICE static void prefetch_piece(const Call& c, const Plan& plan, const BlockFacts<Shape>& block,
                                         int tile, int d, SharedAddress to) {
    const int first = tile * Shape::tile_keys, left = static_cast<int>(c.dim) - d;
    const auto* queries = static_cast<const std::uint16_t*>(c.q.data);
    if (plan.q_in_16 && left >= Shape::dim)
      copy_in_16<Queries_>(to, [&](int r) { return queries + block.rows[r].query + d; });
    else
      copy<Queries_>(
          to, plan.q_in_16, left, [&](int r) { return moved_by(row_of(c.q, block.query(r)), d); },
          [](int) { return true; });
    if (plan.k_in_16 && left >= Shape::dim && is_whole(block, tile))
      copy_in_16<Keys>(to + Shape::query_bytes, [&](int r) {
        return block.first_key + std::int64_t{first + r} * plan.key_stride + d;
      });
    else
      copy<Keys>(
          to + Shape::query_bytes, plan.k_in_16, left,
          [&](int r) { return moved_by(key_row(c, block.tile.b, block.tile.kv_head, first + r), d); },
          [&](int r) { return is_seen(block, first + r); });
  }
  HEED_DEVICE static void prefetch_values(const Call& c, const Plan& plan, const BlockFacts<Shape>& block,
                                          int tile, SharedAddress to) {
    const int first = tile * Shape::tile_keys;
    if (plan.v_in_16 && c.value_dim - plan.first_dim >= Shape::value_dim && is_whole(block, tile))
      copy_in_16<Values>(to, [&](int r) {
        return block.first_value + std::int64_t{first + r} * plan.value_stride + plan.first_dim;
      });
    else
      copy<Values>(
          to, plan.v_in_16, static_cast<int>(c.value_dim) - plan.first_dim,
          [&](int r) {
            return moved_by(value_row(c, block.tile.b, block.tile.kv_head, first + r), plan.first_dim);
          },
          [&](int r) { return is_seen(block, first + r); });
  }
  HEED_DEVICE static bool is_seen(const BlockFacts<Shape>& block, int j) {
    return j >= block.keys.begin && j < block.keys.end;
  }
  HEED_DEVICE static bool is_whole(const BlockFacts<Shape>& block, int tile) {
    return tile * Shape::tile_keys >= block.keys.begin && (tile + 1) * Shape::tile_keys <= block.keys.end;
  }
  template <class Rows, class RowAt>
  HEED_DEVICE static void copy_in_16(SharedAddress to, const RowAt& row) {
#pragma unroll
    for (int n = 0; n < Rows::copies; ++n)
      if (Rows::has(n)) prefetch16_if(true, to + Rows::place(n), row(Rows::row(n)) + Rows::piece() * 8);
  }
  // From dimension d on, a multiple of 16.
  HEED_DEVICE static Row moved_by(Row row, int d) {
    row.first += d / 16 * row.block;
    return row;
  }

  template <class Rows, class RowAt, class IsThere>
  HEED_DEVICE static void copy(SharedAddress to, bool in_16, int dims, const RowAt& row,
                               const IsThere& is_there) {
    const int d = Rows::piece() * 8;
#pragma unroll 1
    for (int n = 0; n < Rows::copies; ++n) {
      if (!Rows::has(n)) continue;
      const SharedAddress at = to + Rows::place(n);
      if (d >= dims || !is_there(Rows::row(n)))
        store16(at, {0, 0, 0, 0});
      else if (const Row from = row(Rows::row(n)); in_16)
        prefetch16(at, static_cast<const std::uint16_t*>(from.data) + from.first + d, true);
      else
        copy_numbers(at, from, d, dims);
    }
  }
  // Of whatever type and order; integers as the numbers they are.
  static __device__ __noinline__ void copy_numbers(SharedAddress to, const Row& from, int d, int dims) {
    std::uint32_t x[4];
    for (int n = 0; n < 4; ++n) {
      const float low = d + 2 * n < dims ? read(from, d + 2 * n) : 0.0f,
                  high = d + 2 * n + 1 < dims ? read(from, d + 2 * n + 1) : 0.0f;
      x[n] = pack<Shape::type>(low, high);
    }
    store16(to, x);
  }

  HEED_DEVICE static void scale_by(Scores<Shape>& s, int tile, const Call& c, const BlockFacts<Shape>& block,
                                   const Place<Shape>& place, bool of_keys) {
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = place.first_key(tile) + 8 * n + e;
        const float x = j >= block.keys.end ? 0.0f
                        : of_keys           ? key_scale(c, block.tile.b, block.tile.kv_head, j)
                                            : value_scale(c, block.tile.b, block.tile.kv_head, j);
#pragma unroll
        for (int m = 0; m < Shape::row_tiles; ++m) s[m][n][e] *= x, s[m][n][2 + e] *= x;
      }
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    attend_slab(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  SlabAttention<Shape>::run(c, plan, *reinterpret_cast<SlabMemory<Shape>*>(memory));
}

}  // namespace heed::cuda::general
