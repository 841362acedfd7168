// SPDX-License-Identifier: Apache-2.0
// The launch that merges partial states.
#include <cuda_runtime.h>

#include "cuda/general/merge.cuh"
#include "cuda/runtime/launch_early.cuh"

namespace heed::cuda {
namespace general {
namespace {

constexpr int merge_blocks = 8;        // of a multiprocessor
constexpr int bytes_of_others = 4096;  // of its shared memory: static, and the system's

template <Type type>
__global__ void __launch_bounds__(merge_threads, merge_blocks)
    merge(const __grid_constant__ Call c, const __grid_constant__ Partials partials, MergeGrid grid,
          SavedEnd* ends) {
  __shared__ double scratch[merge_threads];
  __shared__ bool is_finished[merge_warps];
  launch_dependents();
  if (c.sequences) wait_for_prior_launches();
  const Merge<type> rows(c, partials, grid, ends);
  if (!rows.has_rows()) return wait_for_prior_launches();
  const int warp = warp_index();
  const bool is_own_finished = rows.run(warp);
  if (lane_index() == 0) is_finished[warp] = is_own_finished;
  if (!any(!is_own_finished)) return;
  for (int w = 0; w < merge_warps; ++w)
    if (!is_finished[w]) complete(c, ends, rows.query(w), scratch);
}

// Blocks that wait for the launch before them would fill the first multiprocessors that it leaves; with so
// much memory each has its share: 32 queries of 32 heads over 8192 keys take 24.4 us, not 27 (H200, November
// 2026). The driver keeps 1 KB of every block's, and a block has 1 KB of its own.
std::size_t bytes_of_share(std::int64_t blocks) {
  const DeviceFacts facts = device_facts();
  const std::int64_t each = (blocks + facts.multiprocessors - 1) / facts.multiprocessors;
  return each >= merge_blocks ? 0 : static_cast<std::size_t>(facts.shared_bytes / each - bytes_of_others);
}

}  // namespace
}  // namespace general

void launch_partial_merge(const Call& c, const Partials& partials, SavedEnd* ends, Stream stream) {
  using namespace general;
  const MergeGrid grid{static_cast<int>(c.group()), static_cast<int>(c.kv_heads),
                       (partials.rows + merge_warps - 1) / merge_warps};
  const auto kernel = c.q.type == Type::bf16 ? merge<Type::bf16> : merge<Type::f16>;
  const std::int64_t blocks = c.batch * c.kv_heads * grid.head_blocks;
  // The most that any call asks for: the limit is the kernel's, and another thread may be launching it.
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(device_facts().shared_bytes - bytes_of_others)),
        "cudaFuncSetAttribute");
  launch_early(kernel, {static_cast<unsigned>(blocks), merge_threads, bytes_of_share(blocks)}, stream, c,
               partials, grid, ends);
}

}  // namespace heed::cuda
