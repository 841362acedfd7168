// SPDX-License-Identifier: Apache-2.0
// A second pass that writes weights or scores, only where they were asked for: a block has one tile of rows
// and one of keys, whose products are those of the pass before.
#pragma once
#include <cstdint>

#include "general/kernel.cuh"

namespace heed::cuda::general {

template <class Shape, template <class> class SourceOf>
struct Inspection {
  using Source = SourceOf<Shape>;
  using Stage = EveryOption<Shape>;
  using Shared = Memory<Shape, Source>;

  HEED_DEVICE static void run(const Call& c, const Plan& plan, Shared& shared) {
    BlockFacts<Shape>& block = shared.block;
    const int tile = block_in_column();
    block.find(c, plan);
    sync();
    if (thread_index() == 0) {  // scores are written for keys that nobody sees, too
      block.tile = RowTile(c, plan, static_cast<int>(block_index()), Shape::rows);
      block.keys = {0, block.tile.keys};
    }
    sync();
    if (block.tile.count == 0) return;
    const int warp = warp_index();
    const Place<Shape> place{warp % Shape::row_warps, warp / Shape::row_warps};
    const SharedAddress at = shared_address(shared.queries), ring = shared_address(shared.ring);
    Source source(c, plan, block, shared.extra);
    Stage stage(c, block, place);
    source.begin(tile), source.look_up(tile, tile + 1, 0);
    sync();
    prefetch_queries<Shape>(at, c, plan, block);
    source.prefetch(tile, 0, ring);
    commit_copies();
    stage.inspect(tile);
    wait_for_copies<0>();
    sync();
    const Operands operands = source.settle(ring);
    Queries<Shape> queries(at, place.warp_row);
    queries.hold();
    Scores<Shape> s;
    multiply_keys<Shape, Source>(s, queries, operands.keys, place.key_warp, [](int) {});
    if constexpr (Source::is_quantized) scale_keys<Shape>(s, operands.key_scales, place);
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

 private:
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
                    ? weight(c, q, j, fast_exp2(x - finite_max(max)) * factor, end.wide)
                    : 0.0f);
        };
      });
    }

    // Scores are of base 2, the caller's natural. One that f32 cannot hold is said in double precision.
    static __device__ __noinline__ float score(const Call& c, const Query& q, int j, float x, bool is_key) {
      const bool is_biased = c.stage == ScoreStage::biased;
      if (!is_key) return is_biased ? minus_infinity : 0.0f;
      if ((x == minus_infinity && is_biased) || (is_finite(x) && x != -max_finite)) return x * ln_2;
      const WideScore wide = wide_score(c, q, j);
      return static_cast<float>(c.stage == ScoreStage::raw ? wide.raw
                                : is_biased                ? wide.biased
                                                           : wide.softcapped);
    }
    static __device__ __noinline__ float weight(const Call& c, const Query& q, int j, float x,
                                                const WideEnd& end) {
      const float applied = after_dropout(c, q, j, x);
      return is_finite(applied) ? applied
                                : static_cast<float>(wide_weight(c, q, end, j, wide_score(c, q, j).biased));
    }
  };
};

template <class Shape, template <class> class SourceOf>
__global__ void __launch_bounds__(Shape::threads, 1)
    inspect(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Inspection<Shape, SourceOf>;
  Kernel::run(c, plan, *reinterpret_cast<typename Kernel::Shared*>(memory));
}

}  // namespace heed::cuda::general
