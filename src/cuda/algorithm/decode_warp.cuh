// SPDX-License-Identifier: Apache-2.0
// A warp's own state {max, sum, out} of its rows over its team's tiles of a unit of keys. Keys are the first
// operand of a product and rows the second, so no row of a matrix instruction is idle.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_thread.cuh"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

template <class Shape>
class DecodeWarp : public DecodeThread<Shape> {
  using Thread = DecodeThread<Shape>;
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, eights = Shape::eights;

 protected:
  using Thread::c, Thread::shared, Thread::b, Thread::count, Thread::lane, Thread::warp, Thread::all_see;
  using Thread::Thread;

  // Eight e of this warp's rows: lanes have one of them in products, two where scores are.
  HEED_DEVICE int first_row(int e) const { return 8 * (warp % Shape::team_warps * eights + e); }

  HEED_DEVICE void load_queries() {
#pragma unroll
    for (int e = 0; e < eights; ++e) {
      const int r = first_row(e) + lane / 4;
      const bool is_there = r < count;
      const Row row = row_of(c.q, Thread::query(is_there ? r : 0));
      const auto* from = static_cast<const std::uint16_t*>(row.data) + row.first + lane % 4 * 2;
#pragma unroll
      for (int k = 0; k < dim / 8; ++k)
        q[e][k / 2][k % 2] = is_there ? *reinterpret_cast<const std::uint32_t*>(from + 8 * k) : 0u;
    }
  }

  // The keys that ranges let this thread's rows see.
  HEED_DEVICE void find_ranges() {
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int r = first_row(e) + lane % 4 * 2 + n;
        const KeyRange range =
            r < count ? visible_keys(Thread::sequence, Thread::query_of(r)) : KeyRange{0, 0};
        begin[e][n] = static_cast<int>(range.begin), end[e][n] = static_cast<int>(range.end);
      }
  }

  HEED_DEVICE void clear_own() {
#pragma unroll
    for (int e = 0; e < eights; ++e) {
      max[e][0] = max[e][1] = minus_infinity, sum[e][0] = sum[e][1] = 0;
#pragma unroll
      for (int d = 0; d < dim / 16; ++d)
#pragma unroll
        for (int n = 0; n < 4; ++n) o[d][e][n] = 0;
    }
  }

  // 16 keys for all rows.
  HEED_DEVICE void attend_tile(typename DecodeLoads<Shape>::Tile tile, int first_key) {
    float s[eights][4];
    find_scores(s, tile, first_key);
    std::uint32_t p[eights][2];
    float factor[eights][2];
#pragma unroll
    for (int e = 0; e < eights; ++e) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float top = fmaxf(s[e][n], s[e][n + 2]);
#pragma unroll
        for (int across = 4; across < 32; across *= 2) top = fmaxf(top, from_lane_across(top, across));
        const float now = fmaxf(max[e][n], top);
        factor[e][n] = fast_exp2(max[e][n] - finite_max(now));
        max[e][n] = now;
        const float subtract = finite_max(now) - lift<type>;
        s[e][n] = fast_exp2(s[e][n] - subtract), s[e][n + 2] = fast_exp2(s[e][n + 2] - subtract);
        sum[e][n] = fmaf(sum[e][n], factor[e][n], s[e][n] + s[e][n + 2]);
      }
      p[e][0] = transposed(side_by_side<type>(s[e][0], s[e][1])),
      p[e][1] = transposed(side_by_side<type>(s[e][2], s[e][3]));
    }
    rescale(factor);
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      std::uint32_t a[4];
      tile.load_values(a, d, lane);
#pragma unroll
      for (int e = 0; e < eights; ++e) add_product<type>(o[d][e], a, p[e][0], p[e][1]);
    }
  }

  // What the warp found, for all to see.
  HEED_DEVICE void put_state() {
    const int team = warp / Shape::team_warps;
    TeamStates<Shape>& found = shared.found[0];
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int across = 4; across < 32; across *= 2) sum[e][n] += from_lane_across(sum[e][n], across);
        const int r = first_row(e) + lane % 4 * 2 + n;
        if (lane / 4 == 0) found.ends[team][r] = {max[e][n], sum[e][n]};
        float* const to = found.out[team][r] + lane / 4;
#pragma unroll
        for (int d = 0; d < dim / 16; ++d) to[16 * d] = o[d][e][n], to[16 * d + 8] = o[d][e][n + 2];
      }
  }

 private:
  HEED_DEVICE void find_scores(float (&s)[eights][4], typename DecodeLoads<Shape>::Tile tile, int first_key) {
    // Of few rows, even and odd steps are summed apart: each product would wait for the last.
    constexpr int chains = eights == 1 ? 2 : 1;
    float product[chains][eights][4] = {};
#pragma unroll
    for (int k = 0; k < dim / 16; ++k) {
      std::uint32_t a[4];
      tile.load_keys(a, k, lane);
#pragma unroll
      for (int e = 0; e < eights; ++e) add_product<type>(product[k % chains][e], a, q[e][k][0], q[e][k][1]);
    }
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float all = chains == 1 ? product[0][e][n] : product[0][e][n] + product[chains - 1][e][n];
        s[e][n] = spoil_infinity(all * c.scale_log2e);
      }
    if (c.softcap_log2e != 0) cap(s);
    if (first_key < all_see.begin || first_key + Shape::tile_keys > all_see.end) hide_unseen(s, first_key);
  }

  HEED_DEVICE void cap(float (&s)[eights][4]) const {
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 4; ++n) s[e][n] = softcapped_score(c.softcap_log2e, s[e][n]);
  }
  HEED_DEVICE void hide_unseen(float (&s)[eights][4], int first_key) const {
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = first_key + lane / 4 + n / 2 * 8;
        if (j < begin[e][n % 2] || j >= end[e][n % 2]) s[e][n] = minus_infinity;
      }
  }

  // What was summed against the old maxima; where none of a warp's has moved, there is nothing to do.
  HEED_DEVICE void rescale(const float (&factor)[eights][2]) {
    bool moved = false;
#pragma unroll
    for (int e = 0; e < eights; ++e) moved = moved || factor[e][0] != 1.0f || factor[e][1] != 1.0f;
    if (!any_of_warp(moved)) return;
#pragma unroll
    for (int d = 0; d < dim / 16; ++d)
#pragma unroll
      for (int e = 0; e < eights; ++e)
#pragma unroll
        for (int n = 0; n < 4; ++n) o[d][e][n] *= factor[e][n % 2];
  }

  std::uint32_t q[eights][dim / 16][2];
  int begin[eights][2], end[eights][2];
  float max[eights][2], sum[eights][2], o[dim / 16][eights][4];
};

}  // namespace heed::cuda
