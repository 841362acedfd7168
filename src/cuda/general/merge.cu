// SPDX-License-Identifier: Apache-2.0
// Partial states of a row of the general kernel become its output: sums over units of keys, and of a unit
// over its warps, in order from key 0, whoever computed them. Rows that f32 cannot hold, and those that share
// a unit with a value that is not finite, are done in double precision (S13).
#include <cuda_runtime.h>

#include "cuda/general/end.cuh"

namespace heed::cuda {
namespace general {
namespace {

constexpr int merge_threads = 128, merge_warps = merge_threads / 32;
constexpr int dims_at_once = 128;  // four of each lane

// One warp for each row whose keys were cut; lanes have dimensions.
template <Type type>
struct Merge {
  const Call& c;
  const Partials& partials;
  SavedEnd* const ends;

  struct Merged {
    Query query;
    bool is_finished;
  };
  HEED_DEVICE Merged run() const {
    const std::int64_t n = block_index() * merge_warps + warp_index();
    const int head = static_cast<int>(n / partials.rows), row = static_cast<int>(n % partials.rows);
    if (head >= c.batch * c.kv_heads) return {{}, true};
    const int b = head / static_cast<int>(c.kv_heads), kv_head = head % static_cast<int>(c.kv_heads);
    const Sequence& s = c.sequence(b);
    const int group = static_cast<int>(c.group());
    if (row >= s.queries * group || !partials.cuts(c, s)) return {{}, true};
    const int i = row / group;
    const Query q{b, c.head(kv_head, row - i * group), i, s.first_query + i};
    return {q, merge_row(q, partials.of_head(c, b, kv_head), row)};
  }

 private:
  // Whether every number of the row is finite.
  HEED_DEVICE bool merge_row(const Query& q, const Partials::OfHead& of, int row) const {
    const int lane = lane_index(), dims = static_cast<int>(c.value_dim);
    const int units = partials.units_of(c.sequence(q.b));
    const Row out = row_of(c.out, q);
    // The largest of the maxima first, by all lanes.
    float max = minus_infinity;
    for (int u = lane; u < units; u += 32) max = fmaxf(max, of.at(u, row)[0]);
#pragma unroll
    for (int across = 1; across < 32; across *= 2) max = fmaxf(max, shuffle_xor(max, across));
    bool is_finished = true;
    for (int first = 0; first < dims; first += dims_at_once) {
      const int d = first + lane * 4;
      float sum = 0, o[4] = {};
      for (int begin = 0; begin < units; begin += 32) {
        // Each lane knows one state's end, and all read the values of eight at a time.
        float2 end{minus_infinity, 0};
        if (begin + lane < units) end = *reinterpret_cast<const float2*>(of.at(begin + lane, row));
        const float factor = moved(end.x, max);
        const float* from = of.at(begin, row) + 4 + d;
        const int here = min_of(32, units - begin);
#pragma unroll 8
        for (int u = 0; u < here; ++u) {
          const float f = shuffle(factor, u);
          sum = fmaf(shuffle(end.y, u), f, sum);
          if (d >= dims) continue;
          const float4 x = *reinterpret_cast<const float4*>(from + u * of.unit_floats);
          o[0] = fmaf(x.x, f, o[0]), o[1] = fmaf(x.y, f, o[1]), o[2] = fmaf(x.z, f, o[2]),
          o[3] = fmaf(x.w, f, o[3]);
        }
      }
      const float factor = close_row<type>(c, ends, q, {max, sum}, first == 0 && lane == 0);
      float poison = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (d + n >= dims) continue;
        const float x = fmaf(o[n], factor, 0.0f);
        poison = fmaf(x, 0.0f, poison);
        write(out, d + n, x);
      }
      is_finished = is_finished && !warp_any(poison != 0);
    }
    return is_finished;
  }
};

template <Type type>
__global__ void __launch_bounds__(merge_threads)
    merge(const __grid_constant__ Call c, const __grid_constant__ Partials partials, SavedEnd* ends) {
  __shared__ double scratch[merge_threads];
  __shared__ typename Merge<type>::Merged merged[merge_warps];
  const int warp = warp_index();
  const auto row = Merge<type>{c, partials, ends}.run();
  if (lane_index() == 0) merged[warp] = row;
  if (!any(!row.is_finished)) return;
  for (int w = 0; w < merge_warps; ++w) {
    if (merged[w].is_finished) continue;
    const Query q = merged[w].query;
    const WideEnd wide = complete_row(WholeBlock<merge_threads>(), c, q, {0, c.value_dim}, scratch);
    if (ends && thread_index() == 0) ends[(q.b * c.heads + q.h) * c.queries + q.i].wide = wide;
  }
}

}  // namespace
}  // namespace general

void launch_partial_merge(const Call& c, const Partials& partials, SavedEnd* ends, Stream stream) {
  using namespace general;
  const std::int64_t rows = c.batch * c.kv_heads * partials.rows;
  const auto kernel = c.q.type == Type::bf16 ? merge<Type::bf16> : merge<Type::f16>;
  kernel<<<static_cast<unsigned>((rows + merge_warps - 1) / merge_warps), merge_threads, 0, stream>>>(
      c, partials, ends);
  check(cudaGetLastError(), "cuda.general: partial states");
}

}  // namespace heed::cuda
