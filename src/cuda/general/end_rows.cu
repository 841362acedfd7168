// SPDX-License-Identifier: Apache-2.0
// What rows of the general kernel need when its blocks have ended: partial states of a row become its output,
// sums over units of keys, and of a unit over its warps, in order from key 0, whoever computed them; and rows
// that f32 cannot hold are done in double precision (S13). One kernel for all types, heads and sources, so that
// no other carries this code: it was most of a kernel's size.
#include <cuda_runtime.h>

#include "cuda/general/end.cuh"

namespace heed::cuda::general {
namespace {

constexpr int end_threads = 128, end_warps = end_threads / 32;
constexpr int dims_at_once = 128;  // four of each lane

// Row `number` of the call.
HEED_DEVICE Query query_of(const Call& c, std::int64_t number) {
  const std::int64_t i = number % c.queries, h = number / c.queries % c.heads, b = number / c.queries / c.heads;
  return {b, h, i, c.sequence(b).first_query + i};
}

// By all threads of a block.
HEED_DEVICE void complete(const Call& c, const Plan& plan, std::int64_t number, double* scratch) {
  const Query q = query_of(c, number);
  const std::int64_t end = plan.first_dim + slab_dims < c.value_dim ? plan.first_dim + slab_dims : c.value_dim;
  const bool is_whole = plan.partials || c.value_dim <= slab_dims;
  const WideEnd wide = complete_row(WholeBlock<end_threads>(), c, q,
                                    {is_whole ? 0 : plan.first_dim, is_whole ? c.value_dim : end}, scratch);
  if (plan.ends && thread_index() == 0) plan.ends[number].wide = wide;
}

// One warp for each row whose keys were cut; lanes have dimensions.
template <Type type>
struct Merge {
  const Call& c;
  const Plan& plan;

  // The number of the row in the call if f32 cannot finish it, else -1.
  HEED_DEVICE std::int64_t run() const {
    const std::int64_t n = block_index() * end_warps + warp_index();
    const int head = static_cast<int>(n / plan.partial_rows), row = static_cast<int>(n % plan.partial_rows);
    if (head >= plan.heads) return -1;
    const int b = head / static_cast<int>(c.kv_heads), kv_head = head % static_cast<int>(c.kv_heads);
    const Sequence& s = c.sequence(b);
    const int group = static_cast<int>(c.group()), rows = static_cast<int>(s.queries) * group;
    if (row >= rows || rows > plan.cut_rows || s.keys <= plan.unit_keys) return -1;
    const int i = row / group;
    const Query q{b, c.head(kv_head, row - i * group), i, s.first_query + i};
    return merge_row(q, head, row) ? -1 : (q.b * c.heads + q.h) * c.queries + q.i;
  }

 private:
  // Whether every number of the row is finite.
  HEED_DEVICE bool merge_row(const Query& q, int head, int row) const {
    const int lane = lane_index(), dims = static_cast<int>(c.value_dim);
    const int units =
        static_cast<int>((c.sequence(q.b).keys + plan.unit_keys - 1) / plan.unit_keys) * plan.key_warps;
    const Row out = row_of(c.out, q);
    // The largest of the maxima first, by all lanes.
    float max = minus_infinity;
    for (int u = lane; u < units; u += 32) max = fmaxf(max, partial_row(c, plan, head, u, row)[0]);
#pragma unroll
    for (int across = 1; across < 32; across *= 2) max = fmaxf(max, shuffle_xor(max, across));
    bool is_finished = true;
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
        const int here = min_of(32, units - begin);
#pragma unroll 8
        for (int u = 0; u < here; ++u) {
          const float f = shuffle(factor, u);
          sum = fmaf(shuffle(end.y, u), f, sum);
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
      is_finished = is_finished && !warp_any(poison != 0);
    }
    return is_finished;
  }
};

// The list is empty again afterwards: the last block to arrive sees to that.
HEED_DEVICE void complete_list(const Call& c, const Plan& plan, double* scratch) {
  const unsigned count = *const_cast<volatile unsigned*>(plan.unfinished_count);
  if (count == 0) return;
  for (unsigned n = blockIdx.x; n < count; n += gridDim.x) complete(c, plan, plan.unfinished[n], scratch);
  sync();
  if (thread_index() > 0) return;
  unsigned* const arrivals = plan.unfinished_count + 1;
  if (count_arrival(arrivals) + 1 == gridDim.x) *plan.unfinished_count = *arrivals = 0;
}

template <Type type>
__global__ void __launch_bounds__(end_threads)
    end_rows(const __grid_constant__ Call c, const __grid_constant__ Plan plan) {
  __shared__ double scratch[end_threads];
  __shared__ std::int64_t unfinished[end_warps];
  if (plan.partials) {
    const int warp = warp_index();
    const std::int64_t number = Merge<type>{c, plan}.run();
    if (lane_index() == 0) unfinished[warp] = number;
    if (any(number >= 0))
      for (int w = 0; w < end_warps; ++w)
        if (unfinished[w] >= 0) complete(c, plan, unfinished[w], scratch);
  }
  complete_list(c, plan, scratch);
}

}  // namespace

void launch_end_rows(const Call& c, const Plan& plan, Stream stream) {
  const std::int64_t rows = plan.partials ? std::int64_t{plan.heads} * plan.partial_rows : 0,
                     enough = device_facts().multiprocessors * std::int64_t{2},
                     wanted = (rows + end_warps - 1) / end_warps;
  // Where all sequences are alike, either all rows were cut or none.
  const auto blocks = static_cast<unsigned>(wanted > 0 && !c.sequences ? wanted
                                            : wanted > enough           ? wanted
                                                                        : enough);
  const auto kernel = c.q.type == Type::bf16 ? end_rows<Type::bf16> : end_rows<Type::f16>;
  kernel<<<blocks, end_threads, 0, stream>>>(c, plan);
  check(cudaGetLastError(), "cuda.general: the end of rows");
}

}  // namespace heed::cuda::general
