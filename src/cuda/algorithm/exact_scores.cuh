// SPDX-License-Identifier: Apache-2.0
// The scores of a block of keys, in the registers of their threads: products in the CPU's chains, then what
// options and masks do to them, and the maximum of each row.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_thread.cuh"
#include "cuda/algorithm/visible.cuh"

namespace heed::cuda {

template <int slabs, bool in_place>
class ExactScores : public ExactThread<slabs, in_place> {
  using Thread = ExactThread<slabs, in_place>;

 protected:
  using Thread::c, Thread::work, Thread::shared, Thread::loads, Thread::threads, Thread::rows;
  using Thread::max, Thread::own_max, Thread::own_sum;
  using Thread::row, Thread::key, Thread::row_group, Thread::column, Thread::own_row;
  using Thread::Thread;

  // Of tiles [first, last] of the block; the other, if there is one, is as if nobody saw it.
  HEED_DEVICE void score_block(std::int64_t block, int first, int last) {
    score_tile<0>(block, first <= 0 && 0 <= last);
    score_tile<1>(block, first <= 1 && 1 <= last);
    move_max();
  }

  // Writes change(score, n) of the tile to shared.p, n being the row of this thread.
  template <int tile, class Change>
  HEED_DEVICE void put_tile(const Change& change) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      float x[8];
#pragma unroll
      for (int n = 0; n < 8; ++n) x[n] = change(s[tile][m][n], n);
      store4(&shared.p[key(m)][row(0)], x);
      store4(&shared.p[key(m)][row(4)], x + 4);
    }
  }

 private:
  // Scores of keys [block + 128 * tile, + 128).
  template <int tile>
  HEED_DEVICE void score_tile(std::int64_t block, bool is_wanted) {
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) s[tile][m][n] = is_wanted ? 0.0f : minus_infinity;
    if (!is_wanted) return;
    for (std::int64_t d = 0; d < c.dim; d += exact_depth) {
      const float* keys = loads.take();
      if (d > 0 && d % chain_terms == 0) end_chain<tile>(d == chain_terms, false);
      multiply<tile>(loads.queries(d), keys, static_cast<int>(min(exact_depth, c.dim - d) + 3) / 4);
    }
    if (c.dim > chain_terms) end_chain<tile>(false, true);
    const std::int64_t first_key = block + tile * exact_tile;
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) s[tile][m][n] = spoil_infinity(s[tile][m][n]);
    if (!only_ranges(c))
      change_scores<tile>(first_key);
    else if (!work.all_see(c, {first_key, first_key + exact_tile}))
      hide_unseen<tile>(static_cast<int>(first_key));
  }

  // A chain has ended. What the chains so far come to waits in shared.p, each thread's where no other looks.
  template <int tile>
  HEED_DEVICE void end_chain(bool is_first, bool is_last) {
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        float* const kept = &shared.p[key(m)][row(half)];
        float so_far[4];
        load4(so_far, kept);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float& score = s[tile][m][half + n];
          so_far[n] = is_first ? score : so_far[n] + score;
          score = is_last ? so_far[n] : 0.0f;
        }
        store4(kept, so_far);
      }
  }

  // Adds the products of `fours` times four dimensions, one after the other.
  template <int tile>
  HEED_DEVICE void multiply(const float* queries, const float* keys, int fours) {
    const int turn = column % 8;  // how ExactLoads turns the pieces of a key
    keys += column * exact_depth;
    queries += row_group * 4;
#pragma unroll 2
    for (int piece = 0; piece < fours; ++piece, queries += 4 * rows) {
      const float* at = keys + (piece ^ turn) * 4;
      constexpr int together = slabs == 1 ? 4 : 2;  // dimensions whose keys wait in registers
#pragma unroll
      for (int d = 0; d < 4; d += together) {
        float y[8][together];
#pragma unroll
        for (int m = 0; m < 8; ++m) load_keys(y[m], at + m * 16 * exact_depth + d);
#pragma unroll
        for (int e = 0; e < together; ++e) {
          float x[8];
          load4(x, queries + (d + e) * rows), load4(x + 4, queries + (d + e) * rows + 32);
#pragma unroll
          for (int m = 0; m < 8; ++m)
#pragma unroll
            for (int n = 0; n < 8; ++n) s[tile][m][n] = fmaf(x[n], y[m][e], s[tile][m][n]);
        }
      }
    }
  }
  HEED_DEVICE static void load_keys(float (&to)[4], const float* from) { load4(to, from); }
  HEED_DEVICE static void load_keys(float (&to)[2], const float* from) { load2(to, from); }

  template <int tile>
  HEED_DEVICE void hide_unseen(int first_key) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int begin = shared.begin[row(n)] - first_key - column,
                end = shared.end[row(n)] - first_key - column;
#pragma unroll
      for (int m = 0; m < 8; ++m)
        if (16 * m < begin || 16 * m >= end) s[tile][m][n] = minus_infinity;
    }
  }

  // Everything else that happens to scores: one after the other, in shared memory.
  template <int tile>
  HEED_DEVICE void change_scores(std::int64_t first_key) {
    sync();
    put_tile<tile>([](float x, int) { return x; });
    sync();
    for (int n = thread_index(); n < exact_tile * rows; n += threads) {
      const int r = n % rows;
      const std::int64_t j = first_key + n / rows;
      float& score = shared.p[n / rows][r];
      if (!work.is_row(r) || j >= work.keys)
        score = minus_infinity;
      else
        score = biased_score(c, work.query(r), j,
                             softcapped_score(c.exact_softcap, raw_score(c, work.b, work.kv_head, j, score)));
    }
    sync();
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      load4(s[tile][m], &shared.p[key(m)][row(0)]);
      load4(s[tile][m] + 4, &shared.p[key(m)][row(4)]);
    }
  }

  // Finds the new maxima over the block's scores and rescales what was measured against the old ones.
  HEED_DEVICE void move_max() {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    float top[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      top[n] = s[0][0][n];
#pragma unroll
      for (int m = 0; m < 16; ++m) top[n] = fmaxf(top[n], s[m / 8][m % 8][n]);
      top[n] = fmaxf(top[n], from_lane_across(top[n], 8));
      top[n] = fmaxf(top[n], from_lane_across(top[n], 16));
    }
    if (lane < 8) {
      store4(&shared.warp_max[warp][row(0)], top);
      store4(&shared.warp_max[warp][row(4)], top + 4);
    }
    sync();
    float factor[8];
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      float of[4][4];
#pragma unroll
      for (int w = 0; w < 4; ++w) load4(of[w], &shared.warp_max[w][row(half)]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float now = fmaxf(max[half + n], fmaxf(fmaxf(of[0][n], of[1][n]), fmaxf(of[2][n], of[3][n])));
        factor[half + n] = rescaling(max[half + n], now, power_of(c));
        moved = moved || factor[half + n] != 1.0f;
        max[half + n] = now;
      }
    }
    if (moved) ExactState<slabs>::scale(factor);
    if (own_row < 0) return;
    const float before = own_max;
#pragma unroll
    for (int w = 0; w < 4; ++w) own_max = fmaxf(own_max, shared.warp_max[w][own_row]);
    own_sum = own_sum * rescaling(before, own_max, power_of(c));
  }

  float s[2][8][8];  // of two tiles, [key][row]
};

}  // namespace heed::cuda
