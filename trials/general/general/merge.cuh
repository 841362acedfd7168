// SPDX-License-Identifier: Apache-2.0
// Partial states of a row become its output: sums over units of keys, and of a unit over its warps, in order from key 0, whoever computed them.
#pragma once
#include <cstdint>

#include "general/end.cuh"

namespace heed::cuda::general {

// One warp for each row of the rows whose keys were cut; lanes have dimensions.
struct Merge {
  static constexpr int threads = 128, most_dims = 8;  // of a lane, at a time

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
      const int at = static_cast<int>(number / rows), group = static_cast<int>(c.group()), i = (left[w] - 1) / group;
      const std::int64_t entry = at / c.kv_heads;
      const Query of{entry, c.head(at % c.kv_heads, left[w] - 1 - i * group), i, c.sequence(entry).first_query + i};
      const WideEnd wide = complete_row(WholeBlock<threads>(), c, of, {0, c.value_dim}, scratch);
      if (plan.ends && thread_index() == 0) plan.ends[(of.b * c.heads + of.h) * c.queries + of.i].wide = wide;
    }
  }

 private:
  // Whether a number of the row is not finite.
  template <Type type>
  HEED_DEVICE static bool merge_row(const Call& c, const Plan& plan, const Query& q, int head, int row) {
    const int lane = lane_index(), dims = static_cast<int>(c.value_dim);
    const int all = static_cast<int>((c.keys + plan.unit_keys - 1) / plan.unit_keys), key_warps = plan.partial_units / all;
    const int units = static_cast<int>((c.sequence(q.b).keys + plan.unit_keys - 1) / plan.unit_keys) * key_warps;
    const Row out = row_of(c.out, q);
    // The largest of the maxima first, by all lanes.
    float max = minus_infinity;
    for (int u = lane; u < units; u += 32) max = fmaxf(max, partial_row(c, plan, head, u, row)[0]);
#pragma unroll
    for (int across = 1; across < 32; across *= 2) max = fmaxf(max, from_lane_across(max, across));
    bool is_left = false;
    for (int first = 0; first < dims; first += 32 * most_dims) {
      float sum = 0, o[most_dims] = {};
#pragma unroll 4
      for (int u = 0; u < units; ++u) {
        const float* from = partial_row(c, plan, head, u, row);
        const float factor = moved(from[0], max);
        sum = fmaf(from[1], factor, sum);
#pragma unroll
        for (int n = 0; n < most_dims; ++n) {
          const int d = first + n * 32 + lane;
          if (d < dims) o[n] = fmaf(from[2 + d], factor, o[n]);
        }
      }
      const float factor = close_row<type>(c, plan, q, {max, sum}, first == 0 && lane == 0);
      float poison = 0;
#pragma unroll
      for (int n = 0; n < most_dims; ++n) {
        const int d = first + n * 32 + lane;
        if (d >= dims) continue;
        const float x = fmaf(o[n], factor, 0.0f);
        poison = fmaf(x, 0.0f, poison);
        write(out, d, x);
      }
      is_left = is_left || any_of_warp(poison != 0);
    }
    return is_left;
  }
};

template <Type type>
__global__ void __launch_bounds__(Merge::threads) merge(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  Merge::run<type>(c, plan);
}

}  // namespace heed::cuda::general
