// SPDX-License-Identifier: Apache-2.0
// Partial states of a row of the general kernel become its output: sums over units of keys, and of a unit
// over its warps, in order from key 0, whoever computed them. Rows that f32 cannot hold, and those that share
// a unit with a value that is not finite, are done in double precision (S13).
#pragma once
#include "cuda/general/end.cuh"

namespace heed::cuda::general {

constexpr int merge_threads = 128, merge_warps = merge_threads / 32;
constexpr int dims_at_once = 128;  // four of each lane
constexpr int states_at_once = 8;  // whose values a lane asks for before it adds the first

// Blocks of a KV head of a sequence. 32 bits, and divided once: with c.group(), a division of 64 bits,
// wherever it is asked for, 4096 rows of four units took 17 us (H200, November 2026).
struct MergeGrid {
  int group, kv_heads, head_blocks;
};

// One warp for each row whose keys were cut; lanes have dimensions.
template <Type type>
struct Merge {
  const Call& c;
  const Partials& partials;
  SavedEnd* const ends;
  const int group, kv_heads;
  int b, kv_head, first;  // first: row of the block's
  Sequence s;

  HEED_DEVICE Merge(const Call& call, const Partials& of, const MergeGrid& grid, SavedEnd* saved)
      : c(call), partials(of), ends(saved), group(grid.group), kv_heads(grid.kv_heads) {
    const int block = static_cast<int>(block_index()), head = block / grid.head_blocks;
    b = head / kv_heads, kv_head = head - b * kv_heads;
    first = (block - head * grid.head_blocks) * merge_warps;
    // Not c.sequence(b), which would find the call's own by its address.
    s = c.each;
    if (c.sequences) s = c.sequences[b];
  }

  HEED_DEVICE bool has_rows() const { return first < s.queries * group && partials.cuts(group, s); }
  // Row first + n, if there is one; whether it is finished.
  HEED_DEVICE bool run(int n) const {
    if (first + n >= s.queries * group) return true;
    return merge_row(query(n), partials.of_head(c, group, s, b, kv_head), first + n);
  }
  HEED_DEVICE Query query(int n) const {
    const int i = (first + n) / group, member = first + n - i * group;
    return {b, c.tiled_heads ? member * kv_heads + kv_head : kv_head * group + member, i, s.first_query + i};
  }

 private:
  // Whether every number of the row is finite.
  HEED_DEVICE bool merge_row(const Query& q, const Partials::OfHead& of, int row) const {
    const int lane = lane_index(), dims = static_cast<int>(c.value_dim);
    const int units = partials.units_of(group, s);  // there may be room for those of a longer sequence
    const Row out = row_of(c.out, q);
    // {max, sum} of one state in each lane; the largest of all maxima first.
    const auto end_of = [&](int u) {
      return u < units ? *reinterpret_cast<const float2*>(of.at(u, row)) : float2{minus_infinity, 0};
    };
    const float* const first_values = of.at(0, row) + partial_head;
    // All of the above is done before they have ended: 500 instructions, slow to fetch the first time.
    wait_for_prior_launches();
    // The first values are on their way while the maximum is found.
    float4 x[states_at_once];
    const int stored = partials.is_in_pairs ? (dims + 15) / 16 * 16 : dims;
    load(x, first_values + lane * 4, lane * 4 < stored ? units : 0, of.unit_floats);
    const float2 first_end = end_of(lane);
    float max = first_end.x;
#pragma unroll 1  // code that has not run yet is slow to fetch
    for (int u = lane + 32; u < units; u += 32) max = fmaxf(max, end_of(u).x);
#pragma unroll
    for (int across = 1; across < 32; across *= 2) max = fmaxf(max, shuffle_xor(max, across));
    bool is_finished = true;
#pragma unroll 1
    for (int first = 0; first < dims; first += dims_at_once) {
      const int d = first + lane * 4;
      float sum = 0, o[4] = {};
#pragma unroll 1
      for (int begin = 0; begin < units; begin += 32) {
        const float2 end = begin == 0 ? first_end : end_of(begin + lane);
        const float factor = moved(end.x, max);
        const int end_unit = min_of(begin + 32, units);
#pragma unroll 1
        for (int u = begin; u < end_unit; u += states_at_once) {
          if (first + u > 0)
            load(x, first_values + d + u * of.unit_floats, d < stored ? units - u : 0, of.unit_floats);
#pragma unroll
          for (int n = 0; n < states_at_once; ++n) {
            if (u + n >= end_unit) break;
            const float f = shuffle(factor, u + n - begin);
            sum = fmaf(shuffle(end.y, u + n - begin), f, sum);
            o[0] = fmaf(x[n].x, f, o[0]), o[1] = fmaf(x[n].y, f, o[1]), o[2] = fmaf(x[n].z, f, o[2]),
            o[3] = fmaf(x[n].w, f, o[3]);
          }
        }
      }
      const float factor = close_row<type>(c, ends, q, {max, sum}, first == 0 && lane == 0);
      const int column = partials.is_in_pairs ? d / 16 * 16 + d % 16 / 2 : d,
                apart = partials.is_in_pairs ? 8 : 2;
      float poison = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        o[n] = fmaf(o[n], factor, 0.0f);
        if (column + n / 2 * apart + n % 2 < dims) poison = fmaf(o[n], 0.0f, poison);
      }
      write_out(out, column, o[0], o[1]), write_out(out, column + apart, o[2], o[3]);
      is_finished = is_finished && !warp_any(poison != 0);
    }
    return is_finished;
  }

  // Values of up to `count` states, zeros behind them.
  HEED_DEVICE static void load(float4 (&x)[states_at_once], const float* from, int count,
                               std::int64_t unit_floats) {
#pragma unroll
    for (int n = 0; n < states_at_once; ++n)
      x[n] = n < count ? *reinterpret_cast<const float4*>(from + n * unit_floats) : float4{};
  }

  HEED_DEVICE void write_out(const Row& out, int d, float x, float y) const {
    auto* const to = static_cast<std::uint16_t*>(const_cast<void*>(out.data)) + out.first + d;
    const bool is_whole = out.type == type && out.step == 1 && d + 2 <= c.value_dim &&
                          reinterpret_cast<std::uintptr_t>(to) % 4 == 0;
    if (is_whole)
      *reinterpret_cast<std::uint32_t*>(to) = pack2<type>(x, y);
    else
      write_two(out, d, static_cast<int>(c.value_dim), x, y);
  }
};

// Rare, and so not where the rest of the code is: its registers would leave room for fewer rows at once.
inline __device__ __noinline__ void complete(const Call& c, SavedEnd* ends, const Query& q, double* scratch) {
  const DoubleEnd in_double = complete_row(WholeBlock<merge_threads>(), c, q, {0, c.value_dim}, scratch);
  if (ends && thread_index() == 0) ends[(q.b * c.heads + q.h) * c.queries + q.i].in_double = in_double;
}

}  // namespace heed::cuda::general
