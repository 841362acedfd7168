// SPDX-License-Identifier: Apache-2.0
// Heads wider than registers and shared memory: queries and keys pass in pieces of some dimensions, whose
// products add up to the scores, and a launch has one slab of the values' dimensions. A ring carries what is
// needed next: the pieces of a tile, then its values.
#pragma once
#include <cstdint>

#include "cuda/general/end.cuh"
#include "cuda/general/kernel.cuh"

namespace heed::cuda::general {

// Values that are not finite: of a tile, bits of the keys that have one; and which rows see one.
template <class Shape>
struct PoisonFacts {
  std::uint32_t keys[(Shape::tile_keys + 31) / 32];
  unsigned char is_seen[Shape::rows];

  // They become 0 in a tile. By all threads, before any reads it.
  HEED_DEVICE void clear(SharedAddress values) {
    constexpr int words = sizeof keys / 4, pieces = Shape::value_dim / 8;
    if (thread_index() < words) keys[thread_index()] = 0;
    sync();
#pragma unroll 1
    for (int n = thread_index(); n < Shape::tile_keys * pieces; n += Shape::threads) {
      const SharedAddress at = values + n / pieces * Shape::value_pitch + n % pieces * 16;
      const uint4 x = load_shared16(at),
                  y{finite_or_zero<Shape::type>(x.x), finite_or_zero<Shape::type>(x.y),
                    finite_or_zero<Shape::type>(x.z), finite_or_zero<Shape::type>(x.w)};
      if (x.x == y.x && x.y == y.y && x.z == y.z && x.w == y.w) continue;
      store_shared16(at, y);
      const int key = n / pieces;
      atomicOr(&keys[key / 32], 1u << key % 32);
    }
    sync();
  }
  // Which of a warp's rows see one of them.
  template <class Stage>
  HEED_DEVICE void note(const Stage& stage, const Place<Shape>& place, int tile) {
    const int first = place.first_key(tile) - tile * Shape::tile_keys;
    std::uint32_t bits = 0;
    for (int n = 0; n < 2 * Shape::key_tiles; ++n) {
      const int key = first + n / 2 * 8 + n % 2;
      bits |= (keys[key / 32] >> key % 32 & 1) << n;
    }
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (bits & stage.seen_keys(m, r)) is_seen[place.row(m, r)] = 1;
  }
};

// Of the shape, `dim` is a piece and `value_dim` a slab.
template <class Shape>
struct SlabMemory {
  static constexpr int key_bytes = Shape::tile_keys * Shape::query_pitch,
                       piece_bytes = Shape::query_bytes + key_bytes,
                       slot_bytes = piece_bytes > Shape::value_bytes ? piece_bytes : Shape::value_bytes;
  static_assert(Shape::rows * Shape::value_pitch <= Shape::stages * slot_bytes);

  alignas(16) unsigned char ring[Shape::stages * slot_bytes];
  BlockFacts<Shape> block;
  DocumentTiles documents;
  PoisonFacts<Shape> poison;
};

// Pieces of queries and keys, and slabs of values, on their way into shared memory, out of any tensor or
// cache.
template <class Shape>
struct SlabLoads {
  const Call& c;
  const Plan& plan;
  const BlockFacts<Shape>& block;

  // Dimensions [d, d + Shape::dim) of the block's queries and a tile's keys.
  HEED_DEVICE void prefetch_piece(int tile, int d, SharedAddress to) const {
    const int first = tile * Shape::tile_keys, dims = static_cast<int>(c.dim) - d;
    const auto* queries = static_cast<const std::uint16_t*>(c.q.data);
    if (plan.q_in_16 && dims >= Shape::dim)
      copy_in_16<QueryRows>(to, [&](int r) { return queries + block.rows[r].query + d; });
    else
      copy<QueryRows>(
          to, plan.q_in_16, dims, [&](int r) { return moved_by(row_of(c.q, block.query(r)), d); },
          [](int) { return true; });
    if (plan.k_in_16 && dims >= Shape::dim && is_whole(tile))
      copy_in_16<Keys>(to + Shape::query_bytes, [&](int r) {
        return block.first_key + std::int64_t{first + r} * plan.key_stride + d;
      });
    else
      copy<Keys>(
          to + Shape::query_bytes, plan.k_in_16, dims,
          [&](int r) { return moved_by(key_row(c, block.tile.b, block.tile.kv_head, first + r), d); },
          [&](int r) { return is_seen(first + r); });
  }
  HEED_DEVICE void prefetch_values(int tile, SharedAddress to) const {
    const int first = tile * Shape::tile_keys;
    if (plan.v_in_16 && c.value_dim - plan.first_dim >= Shape::value_dim && is_whole(tile))
      copy_in_16<Values>(to, [&](int r) {
        return block.first_value + std::int64_t{first + r} * plan.value_stride + plan.first_dim;
      });
    else
      copy<Values>(
          to, plan.v_in_16, static_cast<int>(c.value_dim) - plan.first_dim,
          [&](int r) {
            return moved_by(value_row(c, block.tile.b, block.tile.kv_head, first + r), plan.first_dim);
          },
          [&](int r) { return is_seen(first + r); });
  }
  HEED_DEVICE bool is_seen(int j) const { return j >= block.keys.begin && j < block.keys.end; }
  HEED_DEVICE bool is_whole(int tile) const {
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
                               const IsThere& is_valid) {
    const int d = Rows::piece() * 8;
#pragma unroll 1
    for (int n = 0; n < Rows::copies; ++n) {
      if (!Rows::has(n)) continue;
      const SharedAddress at = to + Rows::place(n);
      if (d >= dims || !is_valid(Rows::row(n)))
        clear_shared16(at);
      else if (const Row from = row(Rows::row(n)); in_16)
        prefetch16(at, static_cast<const std::uint16_t*>(from.data) + from.first + d, true);
      else
        copy_numbers(at, from, d, dims);
    }
  }
  // Of whatever type and order; integers as the numbers they are.
  static __device__ __noinline__ void copy_numbers(SharedAddress to, const Row& from, int d, int dims) {
    const auto pair = [&](int e) {
      return pack2<Shape::type>(e < dims ? read(from, e) : 0.0f, e + 1 < dims ? read(from, e + 1) : 0.0f);
    };
    store_shared16(to, {pair(d), pair(d + 2), pair(d + 4), pair(d + 6)});
  }

  enum class Scales : std::uint8_t { of_keys, of_values };
  HEED_DEVICE void scale_by(Scales scales, Scores<Shape>& s, int tile, const Place<Shape>& place) const {
#pragma unroll
    for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int j = place.first_key(tile) + 8 * n + e;
        const float x = j >= block.keys.end         ? 0.0f
                        : scales == Scales::of_keys ? key_scale(c, block.tile.b, block.tile.kv_head, j)
                                                    : value_scale(c, block.tile.b, block.tile.kv_head, j);
#pragma unroll
        for (int m = 0; m < Shape::row_tiles; ++m)
          s[m][n][e] = scaled(s[m][n][e], x), s[m][n][2 + e] = scaled(s[m][n][2 + e], x);
      }
  }
  // A weight of 0 stays 0, whatever the scale of a key that nobody sees is.
  HEED_DEVICE static float scaled(float x, float scale) { return x == 0 ? 0.0f : x * scale; }

 private:
  using QueryRows = RowCopy<Shape::threads, Shape::rows, Shape::dim, Shape::query_pitch>;
  using Keys = RowCopy<Shape::threads, Shape::tile_keys, Shape::dim, Shape::query_pitch>;
  using Values = RowCopy<Shape::threads, Shape::tile_keys, Shape::value_dim, Shape::value_pitch>;
};

template <class Shape>
struct SlabAttention {
  using Shared = SlabMemory<Shape>;
  using Stage = EveryOption<Shape>;
  using Source = Arrays<Shape>;  // as products read it
  using Loads = SlabLoads<Shape>;

  HEED_DEVICE static void run(const Call& c, const Plan& plan, Shared& shared) {
    BlockFacts<Shape>& block = shared.block;
    launch_dependents();
    wait_for_prior_launches();
    block.find(c, plan);
    sync();
    if (block.tile.count == 0) return;
    shared.documents.find(c, block);
    attend<Poison::stays>(c, plan, shared, [&](int row) { return row < block.tile.count; });
    if (block.units.begin < 0) list_unfinished(plan, block);
  }

  // Walks the keys of tiles whose rows hold a number that is not finite once more. A value that is not finite
  // has made NaN of rows that do not see it, since their weight of 0 was multiplied with it: now it is 0, and
  // these rows have the bits that they would have beside any other value, if their tiles of keys were of this
  // length. Rows that see one, and those that f32 cannot hold, are done in double precision (S13).
  HEED_DEVICE static void finish(const Call& c, const Plan& plan, Shared& shared) {
    static_assert(Shape::rows == unfinished_rows);
    launch_dependents();
    wait_for_prior_launches();
    const unsigned count = *const_cast<const volatile unsigned*>(plan.unfinished_count);
    if (count == 0) return;
    for (unsigned n = blockIdx.x; n < count; n += gridDim.x) finish_tile(c, plan, shared, plan.unfinished[n]);
    sync();
    // The list is empty again afterwards: the last block to arrive sees to that.
    unsigned* const arrivals = plan.unfinished_count + 1;
    if (thread_index() == 0 && count_arrival(arrivals) + 1 == gridDim.x)
      *plan.unfinished_count = *arrivals = 0;
  }

 private:
  enum class Poison : std::uint8_t { stays, cleared };

  HEED_DEVICE static void finish_tile(const Call& c, const Plan& plan, Shared& shared,
                                      const Unfinished& tile) {
    BlockFacts<Shape>& block = shared.block;
    sync();  // nobody reads the tile before
    block.find(c, plan, RowTile(c, plan, tile.head, {tile.first, Shape::rows}));
    if (thread_index() < Shape::rows) shared.poison.is_seen[thread_index()] = 0;
    sync();
    shared.documents.find(c, block);
    const auto is_of_list = [&](int row) { return (tile.rows >> row & 1) != 0; };
    attend<Poison::cleared>(c, plan, shared,
                            [&](int row) { return is_of_list(row) && !shared.poison.is_seen[row]; });
    for (int r = 0; r < Shape::rows; ++r) {
      if (!is_of_list(r) || !(block.is_poisoned[r] || shared.poison.is_seen[r])) continue;
      const Query q = block.query(r);
      const DoubleEnd in_double =
          complete_row(WholeBlock<Shape::threads>(), c, q,
                       {plan.first_dim, min(plan.first_dim + Shape::value_dim, c.value_dim)},
                       reinterpret_cast<double*>(shared.ring));
      if (plan.ends && thread_index() == 0)
        plan.ends[(q.b * c.heads + q.h) * c.queries + q.i].in_double = in_double;
    }
  }

  template <Poison poison, class IsWritten>
  HEED_DEVICE static void attend(const Call& c, const Plan& plan, Shared& shared,
                                 const IsWritten& is_written) {
    BlockFacts<Shape>& block = shared.block;
    const Place<Shape> place{warp_index(), 0};
    const typename Stage::Walk walk(c, block, shared.documents);
    Stage stage(c, block, place);
    State<Shape> state;
    state.clear();
    const SharedAddress ring = shared_address(shared.ring);
    const Loads loads{c, plan, block};
    const RowsEnd<Shape> end{c, plan, block, place};
    const int pieces = (static_cast<int>(c.dim) + Shape::dim - 1) / Shape::dim;
    const float scale = Stage::scale(c), eight = 8.0f / scale;

    // Step `loading_step` of a tile: a piece, or the values after the last.
    int loading = walk.first(), loading_step = 0, loading_slot = 0, slot = 0;
    const auto prefetch_next = [&] {
      if (!walk.is_end(loading)) {
        const SharedAddress to = ring + loading_slot * Shared::slot_bytes;
        loading_step < pieces ? loads.prefetch_piece(loading, loading_step * Shape::dim, to)
                              : loads.prefetch_values(loading, to);
        loading_slot = loading_slot + 1 == Shape::stages ? 0 : loading_slot + 1;
        if (++loading_step > pieces) loading_step = 0, loading = walk.next(loading);
      }
      commit_copies();
    };
    const auto take = [&] {  // the slot that has arrived; the one before is free
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
      if constexpr (poison == Poison::cleared) shared.poison.clear(values);
      if (!is_seen) continue;
      if (c.layout.is_quantized) loads.scale_by(Loads::Scales::of_keys, s, t, place);
      stage.apply(s, t);
      if constexpr (poison == Poison::cleared) shared.poison.note(stage, place, t);
      state.weigh(s, scale, eight);
      stage.drop(s, t);
      if (c.layout.is_quantized) loads.scale_by(Loads::Scales::of_values, s, t, place);
      state.add_values(s, values, 0);
    }
    wait_for_copies<0>();
    state.add_up();
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) state.max[m][0] *= scale, state.max[m][1] *= scale;
    stage.close(state);
    sync();
    if (block.units.begin >= 0)
      end.write_partial(state, block.units.begin);
    else
      end.write_out(state, ring, is_written);
    sync();
  }
};

// A second pass that writes weights or scores, only where they were asked for: a block has one tile of rows
// and some of keys, whose products are those of the pass before.
template <class Shape>
struct Inspection {
  using Shared = SlabMemory<Shape>;
  using Stage = EveryOption<Shape>;
  using Source = Arrays<Shape>;
  using Loads = SlabLoads<Shape>;

  HEED_DEVICE static void run(const Call& c, const Plan& plan, Shared& shared) {
    BlockFacts<Shape>& block = shared.block;
    launch_dependents();
    wait_for_prior_launches();
    block.find(c, plan);
    sync();
    if (thread_index() == 0) {  // scores are written for keys that nobody sees, too
      block.tile = RowTile(c, plan, static_cast<int>(block_index()), Shape::rows);
      block.keys = {0, block.tile.keys};
    }
    sync();
    if (block.tile.count == 0) return;
    const int begin = block_in_column() * plan.units_each;
    for (int tile = begin; tile < begin + plan.units_each && tile * Shape::tile_keys < c.keys; ++tile)
      inspect(c, plan, shared, tile);
  }

 private:
  HEED_DEVICE static void inspect(const Call& c, const Plan& plan, Shared& shared, int tile) {
    const BlockFacts<Shape>& block = shared.block;
    const Place<Shape> place{warp_index(), 0};
    const SharedAddress at = shared_address(shared.ring);
    const Loads loads{c, plan, block};
    Stage stage(c, block, place);
    stage.inspect(tile);
    Scores<Shape> s;
    clear<Shape>(s);
#pragma unroll 1
    for (int d = 0; d < static_cast<int>(c.dim); d += Shape::dim) {
      sync();  // the piece before was read
      loads.prefetch_piece(tile, d, at);
      commit_copies();
      wait_for_copies<0>();
      sync();
      add_keys<Shape, Source>(s, Queries<Shape>(at, place.warp_row), at + Shape::query_bytes, 0, [](int) {});
    }
    if (c.layout.is_quantized) loads.scale_by(Loads::Scales::of_keys, s, tile, place);
    const Writer writer{c, plan, block, place, tile};
    stage.scale_scores(s);
    if (c.stage == ScoreStage::raw) writer.scores(s);
    stage.cap_scores(s);
    if (c.stage == ScoreStage::softcapped) writer.scores(s);
    stage.bias_scores(s, tile);
    stage.hide(s);
    if (c.stage == ScoreStage::biased) writer.scores(s);
    if (c.weights.data) writer.weights(s);
  }

  struct Writer {
    const Call& c;
    const Plan& plan;
    const BlockFacts<Shape>& block;
    const Place<Shape> place;
    const int tile;

    // change(row, key, score) of every row and key that the call has.
    template <class Each>
    HEED_DEVICE void each(Scores<Shape>& s, const Each& each) const {
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int row = place.row(m, r);
          if (row >= block.tile.count) continue;
          const Query q = block.query(row);
          auto of_row = each(q);
#pragma unroll
          for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int j = place.first_key(tile) + 8 * n + e;
              if (j < c.keys) of_row(j, s[m][n][2 * r + e]);
            }
        }
    }

    HEED_DEVICE void scores(Scores<Shape>& s) const {
      each(s, [&](const Query& q) {
        return [&, q, to = row_of(c.scores, q)](int j, float x) {
          write(to, j, score(c, q, j, x, j < block.tile.keys));
        };
      });
    }
    HEED_DEVICE void weights(Scores<Shape>& s) const {
      each(s, [&](const Query& q) {
        const SavedEnd& end = plan.ends[(q.b * c.heads + q.h) * c.queries + q.i];
        const float factor = closed(c, q, end.row).out(), max = end.row.max;
        return [&, q, factor, max, to = row_of(c.weights, q)](int j, float x) {
          write(to, j,
                j < block.tile.keys && x != minus_infinity
                    ? weight(c, q, j, fast_exp2(x - finite_max(max)) * factor, end.in_double)
                    : 0.0f);
        };
      });
    }

    // Scores are of base 2, the caller's natural. One that f32 cannot hold is computed in double precision.
    static __device__ __noinline__ float score(const Call& c, const Query& q, int j, float x, bool is_key) {
      const bool is_biased = c.stage == ScoreStage::biased;
      if (!is_key) return is_biased ? minus_infinity : 0.0f;
      if ((x == minus_infinity && is_biased) || (is_finite(x) && x != -max_finite)) return x * ln_2;
      const DoubleScore in_double = double_score(c, q, j);
      return static_cast<float>(c.stage == ScoreStage::raw ? in_double.raw
                                : is_biased                ? in_double.biased
                                                           : in_double.softcapped);
    }
    static __device__ __noinline__ float weight(const Call& c, const Query& q, int j, float x,
                                                const DoubleEnd& end) {
      const float applied = after_dropout(c, q, j, x);
      return is_finite(applied)
                 ? applied
                 : static_cast<float>(double_weight(c, q, end, j, double_score(c, q, j).biased));
    }
  };
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    attend_slab(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  SlabAttention<Shape>::run(c, plan, *reinterpret_cast<SlabMemory<Shape>*>(memory));
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    finish(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  SlabAttention<Shape>::finish(c, plan, *reinterpret_cast<SlabMemory<Shape>*>(memory));
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    inspect(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  Inspection<Shape>::run(c, plan, *reinterpret_cast<SlabMemory<Shape>*>(memory));
}

}  // namespace heed::cuda::general
