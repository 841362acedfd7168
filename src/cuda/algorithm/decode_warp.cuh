// SPDX-License-Identifier: Apache-2.0
// A warp's own state {max, sum, out} of all rows over its tiles of a block of keys. Keys are the first
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

 protected:
  using Thread::c, Thread::shared, Thread::b, Thread::count, Thread::query_of, Thread::dim, Thread::eights;
  using Thread::Thread;

  // Eight rows stay in registers; more lie in shared memory as the registers would have them.
  HEED_DEVICE void load_queries(int lane, int warp) {
    if constexpr (eights == 1) {
#pragma unroll
      for (int k = 0; k < dim / 16; ++k)
#pragma unroll
        for (int half = 0; half < 2; ++half) q[k][half] = query_pair(0, k, half, lane);
    } else {
      for (int n = warp; n < eights * dim / 16; n += decode_warps)
        for (int half = 0; half < 2; ++half)
          shared.q[n / (dim / 16)][n % (dim / 16)][lane][half] =
              query_pair(n / (dim / 16), n % (dim / 16), half, lane);
      sync();
    }
  }

  // The keys that ranges let this thread's rows see.
  HEED_DEVICE void find_ranges(int lane) {
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int r = 8 * e + lane % 4 * 2 + n;
        const KeyRange range = r < count ? visible_keys(c, b, query_of(r)) : KeyRange{0, 0};
        begin[e][n] = static_cast<int>(range.begin), end[e][n] = static_cast<int>(range.end);
      }
  }

  HEED_DEVICE void clear_warp() {
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
  HEED_DEVICE void attend_tile(typename DecodeLoads<Shape>::Tile tile, int first_key, int lane) {
    // Of few rows, even and odd steps are summed apart: each product would wait for the last.
    constexpr int chains = eights == 1 ? 2 : 1;
    float s[eights][4] = {}, odd[eights][4] = {};
#pragma unroll
    for (int k = 0; k < dim / 16; ++k) {
      std::uint32_t a[4];
      tile.load_keys(a, k, lane);
#pragma unroll
      for (int e = 0; e < eights; ++e) multiply(k % chains == 0 ? s[e] : odd[e], a, e, k, lane);
    }
    std::uint32_t p[eights][2];
    float factor[eights][2];
#pragma unroll
    for (int e = 0; e < eights; ++e) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = first_key + lane / 4 + n / 2 * 8;
        const float product = chains == 1 ? s[e][n] : s[e][n] + odd[e][n];
        s[e][n] = j >= begin[e][n % 2] && j < end[e][n % 2] ? to_score(product) : minus_infinity;
      }
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

  float max[eights][2], sum[eights][2], o[dim / 16][eights][4];

 private:
  HEED_DEVICE std::uint32_t query_pair(int e, int k, int half, int lane) const {
    const int r = 8 * e + lane / 4;
    if (r >= count) return 0;
    const Row row = row_of(c.q, Thread::query(r));
    return *reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint16_t*>(row.data) + row.first +
                                                   16 * k + 8 * half + lane % 4 * 2);
  }
  HEED_DEVICE void multiply(float (&s)[4], const std::uint32_t (&a)[4], int e, int k, int lane) const {
    if constexpr (eights == 1)
      add_product<type>(s, a, q[k][0], q[k][1]);
    else
      add_product<type>(s, a, shared.q[e][k][lane][0], shared.q[e][k][lane][1]);
  }

  HEED_DEVICE float to_score(float product) const {
    const float s = spoil_infinity(product * c.scale_log2e);
    return c.softcap_log2e == 0 ? s : softcapped_score(c, s);
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

  std::uint32_t q[dim / 16][2];
  int begin[eights][2], end[eights][2];
};

}  // namespace heed::cuda
