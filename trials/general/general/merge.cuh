// SPDX-License-Identifier: Apache-2.0
// Partial states of a row become its output: sums over units of keys, and of a unit over its warps, in order
// from key 0, whoever computed them.
#pragma once
#include <cstdint>

#include "general/end.cuh"

namespace heed::cuda::general {

// One warp for each row of the rows whose keys were cut; lanes have dimensions.
struct Merge {
  static constexpr int threads = 128, dims_at_once = 128;  // four of each lane

  template <Type type>
  HEED_DEVICE static void run(const Call& c, const Plan& plan) {
    __shared__ double scratch[threads];
    __shared__ int left[threads / 32];
    const int warp = warp_index(), lane = lane_index();
    const int rows = plan.partial_rows;
    const std::int64_t n = block_index() * (threads / 32) + warp;
    const int head = static_cast<int>(n / rows), row = static_cast<int>(n % rows);
    const int b = head / static_cast<int>(c.kv_heads), kv_head = head % static_cast<int>(c.kv_heads);
    bool is_row = head < plan.heads;
    Query q{};
    if (is_row) {
      const Sequence& s = c.sequence(b);
      const int group = static_cast<int>(c.group()), all = static_cast<int>(s.queries) * group;
      is_row = row < all && all <= plan.cut_rows && s.keys > plan.unit_keys;
      const int i = row / group;
      q = {b, c.head(kv_head, row - i * group), i, s.first_query + i};
    }
    const bool is_left = is_row && merge_row<type>(c, plan, q, head, row);
    if (lane == 0) left[warp] = is_left ? row + 1 : 0;
    if (!any(is_left)) return;
    for (int w = 0; w < threads / 32; ++w) {
      if (!left[w]) continue;
      const std::int64_t number = block_index() * (threads / 32) + w;
      const int at = static_cast<int>(number / rows), group = static_cast<int>(c.group()),
                i = (left[w] - 1) / group;
      const std::int64_t entry = at / c.kv_heads;
      const Query of{entry, c.head(at % c.kv_heads, left[w] - 1 - i * group), i,
                     c.sequence(entry).first_query + i};
      const WideEnd wide = complete_row(WholeBlock<threads>(), c, of, {0, c.value_dim}, scratch);
      if (plan.ends && thread_index() == 0) plan.ends[(of.b * c.heads + of.h) * c.queries + of.i].wide = wide;
    }
  }

 private:
  // Whether a number of the row is not finite.
  template <Type type>
  HEED_DEVICE static bool merge_row(const Call& c, const Plan& plan, const Query& q, int head, int row) {
    const int lane = lane_index(), dims = static_cast<int>(c.value_dim);
    const int all = static_cast<int>((c.keys + plan.unit_keys - 1) / plan.unit_keys),
              key_warps = plan.partial_units / all;
    const int units =
        static_cast<int>((c.sequence(q.b).keys + plan.unit_keys - 1) / plan.unit_keys) * key_warps;
    const Row out = row_of(c.out, q);
    // The largest of the maxima first, by all lanes.
    float max = minus_infinity;
    for (int u = lane; u < units; u += 32) max = fmaxf(max, partial_row(c, plan, head, u, row)[0]);
#pragma unroll
    for (int across = 1; across < 32; across *= 2) max = fmaxf(max, shuffle_xor(max, across));
    bool is_left = false;
    for (int first = 0; first < dims; first += dims_at_once) {
      const int d = first + lane * 4;
      float sum = 0, o[4] = {};
      for (int begin = 0; begin < units; begin += 32) {
        // Each lane knows one state's end, and all read the values of eight at a time.
        float2 end{minus_infinity, 0};
        if (begin + lane < units)
          end = *reinterpret_cast<const float2*>(partial_row(c, plan, head, begin + lane, row));
        const float factor = moved(end.x, max);
        const float* from = partial_row(c, plan, head, begin, row) + 4 + d;
        const std::int64_t stride = plan.partial_rows * partial_floats(c.value_dim);
        const int here = min(32, units - begin);
#pragma unroll 8
        for (int u = 0; u < here; ++u) {
          const float f = __shfl_sync(0xffffffffu, factor, u);
          sum = fmaf(__shfl_sync(0xffffffffu, end.y, u), f, sum);
          if (d >= dims) continue;
          const float4 x = *reinterpret_cast<const float4*>(from + u * stride);
          o[0] = fmaf(x.x, f, o[0]), o[1] = fmaf(x.y, f, o[1]), o[2] = fmaf(x.z, f, o[2]),
          o[3] = fmaf(x.w, f, o[3]);
        }
      }
      const float factor = close_row<type>(c, plan, q, {max, sum}, first == 0 && lane == 0);
      float poison = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (d + n >= dims) continue;
        const float x = fmaf(o[n], factor, 0.0f);
        poison = fmaf(x, 0.0f, poison);
        write(out, d + n, x);
      }
      is_left = is_left || any_of_warp(poison != 0);
    }
    return is_left;
  }
};

template <Type type>
__global__ void __launch_bounds__(Merge::threads)
    merge(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  Merge::run<type>(c, plan);
}

}  // namespace heed::cuda::general
