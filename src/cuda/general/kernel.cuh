// SPDX-License-Identifier: Apache-2.0
// Attention in 16 bits for every call, on the matrix units of every GPU since Ampere.
//
// A block has a tile of rows and walks the tiles of keys that these see, in order from key 0, while copies of
// the next ones are in flight. Where rows are few, a row's keys are cut into units of a fixed length whose
// partial states merge in order (merge.cu). Which rows, sequences or blocks run beside it changes no bit
// of a row.
#pragma once
#include <cstdint>
#include <type_traits>

#include "cuda/general/end.cuh"
#include "cuda/general/scores.cuh"
#include "cuda/general/sources.cuh"
#include "cuda/general/tiles.cuh"

namespace heed::cuda::general {

// Shared memory of a block.
template <class Shape, class Source>
struct Memory {
  static constexpr int ring_at = Shape::query_bytes, ring_end = ring_at + Shape::stages * Source::slot_bytes;
  static_assert(Shape::rows * Shape::value_pitch <= ring_end, "outputs wait where queries and keys were");

  alignas(16) unsigned char queries[Shape::query_bytes];
  unsigned char ring[Shape::stages * Source::slot_bytes];
  static constexpr int extra_bytes = Source::extra_bytes + passed_on_bytes<Shape>;
  alignas(16) unsigned char extra[extra_bytes > 0 ? extra_bytes : 16];
  BlockFacts<Shape> block;
  DocumentTiles documents;
};

// Copies queries of a tile of rows to shared memory.
template <class Shape>
HEED_DEVICE void prefetch_queries(SharedAddress to, const Call& c, const Plan& plan,
                                  const BlockFacts<Shape>& block) {
  using Rows = RowCopy<Shape::threads, Shape::rows, Shape::dim, Shape::query_pitch>;
  if (plan.q_in_16 && c.dim == Shape::dim) {
    const auto* from = static_cast<const std::uint16_t*>(c.q.data) + Rows::piece() * 8;
#pragma unroll
    for (int n = 0; n < Rows::copies; ++n)
      if (Rows::has(n)) prefetch16(to + Rows::place(n), from + block.rows[Rows::row(n)].query, true);
    return;
  }
  Rows::run(
      to, static_cast<int>(c.dim), plan.q_in_16,
      [&](int r) -> Row { return {c.q.data, block.rows[max_of(r, 0)].query, c.q.stride.dim, c.q.type, 0}; },
      [](int) { return true; });
}

template <class Shape, template <class> class SourceOf, template <class> class StageOf>
struct Attention {
  using Source = SourceOf<Shape>;
  using Stage = StageOf<Shape>;
  using Shared = Memory<Shape, Source>;
  static constexpr bool is_plain = Shape::key_warps == 1 && std::is_same_v<Source, Arrays<Shape>> &&
                                   std::is_same_v<Stage, RangesOnly<Shape>>;

  HEED_DEVICE static void run(const Call& c, const Plan& plan, Shared& shared) {
    BlockFacts<Shape>& block = shared.block;
    launch_dependents();
    // What is found is of the launch's arguments, but for lists.
    if (!is_plain || c.sequences || c.document_count > 0) wait_for_prior_launches();
    const RowTile tile(c, plan, static_cast<int>(block_index()), Shape::rows);
    wait_for_prior_launches();
    // The first keys are on their way while the block finds out what its rows are.
    bool is_begun = false;
    if constexpr (is_plain) is_begun = begin(c, plan, tile, shared);
    block.find(c, plan, tile);
    sync();
    if (block.tile.count == 0) return;
    bool is_poisoned;
    if constexpr (is_plain) {
      is_poisoned = attend_tiles(c, plan, shared, is_begun);
    } else {
      shared.documents.find(c, block);
      is_poisoned = attend(c, plan, shared);
    }
    if (any(is_poisoned)) list_unfinished(plan, block);
  }

 private:
  HEED_DEVICE static bool attend(const Call& c, const Plan& plan, Shared& shared) {
    BlockFacts<Shape>& block = shared.block;
    const int warp = warp_index();
    const Place<Shape> place{warp % Shape::row_warps, warp / Shape::row_warps};
    const SharedAddress at = shared_address(shared.queries), ring = shared_address(shared.ring);
    Source source(c, plan, block, shared.extra);
    const typename Stage::Walk walk(c, block, shared.documents);
    State<Shape> state;
    state.clear();

    clear_ring(c, shared);

    // The ring fills.
    int loading = walk.first(), number = 0;
    source.begin(loading), source.look_up(loading, walk.next(loading), 0);
    prefetch_queries<Shape>(at, c, plan, block);
#pragma unroll
    for (int n = 0; n < Shape::stages - 1; ++n) {
      if constexpr (Source::keys_are_transposed) sync();  // for what was looked up
      if (!walk.is_end(loading)) {
        const SharedAddress to = ring + number * Source::slot_bytes;
        if (source.aim(loading, number, to) && loading * Shape::tile_keys >= block.keys.begin)
          copy_all(source);
        else
          source.prefetch(loading, number, to);
        loading = walk.next(loading), ++number;
        source.look_up(loading, walk.next(loading), number);
      }
      commit_copies();
    }

    Queries<Shape> queries(at, place.warp_row);
    Stage stage(c, block, place);
    const RowsEnd<Shape> end{c, plan, block, place};
    const float scale = Stage::scale(c), eight = 8.0f / scale;
    int slot = 0, loading_slot = Shape::stages - 1;
    bool is_first = true;
    int unit = block.units.begin;
    const bool is_cut = unit >= 0;
#pragma unroll 1
    for (int t = walk.first(); !walk.is_end(t); t = walk.next(t)) {
      if constexpr (Shape::key_warps > 1)
        while (is_cut && t * Shape::tile_keys >= (unit + 1) * plan.partials.unit_keys)
          end_unit(state, stage, end, unit++, scale);
      const bool is_seen = stage.sees(t);
      wait_for_copies<Shape::stages - 2>();
      sync();
      if (Shape::held_steps > 0 && is_first) queries.hold(), is_first = false;
      bool streams = false;
      if (!walk.is_end(loading)) {
        const SharedAddress to = ring + loading_slot * Source::slot_bytes;
        const bool is_whole = source.aim(loading, number, to);
        streams = is_whole && is_seen && Shape::streams;
        if (!is_whole)
          source.prefetch(loading, number, to);
        else if (!streams)
          copy_all(source);
        loading = walk.next(loading), ++number;
        source.look_up(loading, walk.next(loading), number);
      }
      loading_slot = loading_slot + 1 == Shape::stages ? 0 : loading_slot + 1;
      const Operands operands = source.settle(ring + slot * Source::slot_bytes);
      slot = slot + 1 == Shape::stages ? 0 : slot + 1;
      if (!is_seen) {
        commit_copies();
        continue;
      }
      Scores<Shape> s;
      // Copies in a few groups: the compiler puts three idle loads before each.
      constexpr int groups = Shape::dim_steps >= 8 ? 4 : 2, apart = (Shape::dim_steps + groups - 1) / groups;
      multiply_keys<Shape, Source>(s, queries, operands.keys, place.key_warp, [&](int k) {
        if constexpr (Shape::streams)
#pragma unroll
          for (int n = k / apart * Source::copies / groups;
               k % apart == 0 && n < (k / apart + 1) * Source::copies / groups; ++n)
            source.copy(n, streams);
      });
      commit_copies();
      if constexpr (Source::is_quantized) scale_keys<Shape>(s, operands.key_scales, place);
      stage.apply(s, t);
      state.weigh(s, scale, eight);
      if constexpr (Stage::drops) stage.drop(s, t);
      if constexpr (Source::is_quantized) scale_values<Shape>(s, operands.value_scales, place);
      state.add_values(s, operands.values, place.key_warp);
    }
    wait_for_copies<0>();
    if constexpr (Shape::key_warps > 1)
      while (is_cut && unit + 1 < block.units.end) end_unit(state, stage, end, unit++, scale);
    close(state, stage, scale);
    bool is_poisoned = false;
    if (is_cut) {
      end.write_partial(state, unit);
    } else {
      merge_key_warps(state, reinterpret_cast<float*>(shared.ring), place);
      sync();
      if (place.key_warp == 0)
        is_poisoned = end.write_out(state, shared_address(shared.queries),
                                    [&](int row) { return row < block.tile.count; });
    }
    return is_poisoned;
  }

  // Asks for the first tile where nothing but whole keys is in it; whether it did.
  HEED_DEVICE static bool begin(const Call& c, const Plan& plan, const RowTile& tile, Shared& shared) {
    if (!plan.begins_at_0 || block_in_column() > 0 ||
        visible_keys(tile.sequence, tile.query_of(Shape::rows - 1)).end < Shape::tile_keys)
      return false;
    const SharedAddress ring = shared_address(shared.ring);
    Source::copy_first_keys(plan, BlockFacts<Shape>::first_of(c.k, tile), ring);
    if (Shape::stages > 1)
      Source::copy_first_values(plan, BlockFacts<Shape>::first_of(c.v, tile),
                                ring + Shape::stages * Source::key_bytes);
    return true;
  }

  // The same of arrays under ranges alone.
  HEED_DEVICE static bool attend_tiles(const Call& c, const Plan& plan, Shared& shared, bool is_begun) {
    BlockFacts<Shape>& block = shared.block;
    prefetch_queries<Shape>(shared_address(shared.queries), c, plan, block);
    const int warp = warp_index();
    const Place<Shape> place{warp / Shape::sharing, 0, warp % Shape::sharing};
    const auto team = [&] {
      if constexpr (Shape::sharing > 1)
        return RowTeam<Shape>(place, reinterpret_cast<PassedOn<Shape>*>(shared.extra));
      else
        return OneWarp();
    }();
    const SharedAddress at = shared_address(shared.queries);
    Source source(c, plan, block, shared.extra);
    Stage stage(c, block, place);
    State<Shape> state;
    state.clear();
    clear_ring(c, shared);
    const float scale = Stage::scale(c);
    Tiles<Shape, Source, Stage, decltype(team)> tiles(block, source, stage, state, team, place,
                                                      shared_address(shared.ring), scale);
    if (!is_begun) tiles.load_first();
    commit_copies();
    Queries<Shape> queries(at, place.warp_row);
    tiles.walk(queries);
    close(state, stage, scale, team);
    const RowsEnd<Shape> end{c, plan, block, place};
    sync();
    if (block.units.begin < 0)
      return end.write_out(state, at, [&](int row) { return row < block.tile.count; });
    end.write_partial(state, block.units.begin);
    return false;
  }

  // Sums are the rows', and maxima of base 2.
  HEED_DEVICE static void close(State<Shape>& state, Stage& stage, float scale) {
    close(state, stage, scale, OneWarp());
  }
  template <class Team>
  HEED_DEVICE static void close(State<Shape>& state, Stage& stage, float scale, const Team& team) {
    state.add_up();
    team.join_sums(state.sum);
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m) state.max[m][0] *= scale, state.max[m][1] *= scale;
    stage.close(state);
  }

  HEED_DEVICE static void end_unit(State<Shape>& state, Stage& stage, const RowsEnd<Shape>& end, int unit,
                                   float scale) {
    close(state, stage, scale);
    end.write_partial(state, unit);
    state.clear();
  }

  HEED_DEVICE static void copy_all(Source& source) {
#pragma unroll
    for (int n = 0; n < Source::copies; ++n) source.copy(n, true);
  }

  // Where the shape has dimensions that the call has not.
  HEED_DEVICE static void clear_ring(const Call& c, Shared& shared) {
    if (c.dim == Shape::dim && c.value_dim == Shape::value_dim) return;
    for (int n = thread_index() * 16; n < Shape::stages * Source::slot_bytes; n += Shape::threads * 16)
      clear_shared16(shared_address(shared.ring) + n);
    sync();
  }
};

// A block has at most 99 KB on 8.6 and 8.9, 163 on 8.0 and 8.7, 227 on 9.0: what needs more is never
// launched, and not compiled, for them.
template <class Shared>
constexpr bool fits_architecture(int architecture) {
  const bool is_small = architecture == 860 || architecture == 890;
  return sizeof(Shared) <= (is_small ? 99 : architecture < 900 ? 163 : 227) * std::size_t{1024};
}

template <class Shape, template <class> class SourceOf, template <class> class StageOf>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    attend(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
#ifdef __CUDA_ARCH__
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Attention<Shape, SourceOf, StageOf>;
  if constexpr (fits_architecture<typename Kernel::Shared>(__CUDA_ARCH__))
    Kernel::run(c, plan, *reinterpret_cast<typename Kernel::Shared*>(memory));
#endif
}

}  // namespace heed::cuda::general
