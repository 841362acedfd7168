// SPDX-License-Identifier: Apache-2.0
// Which calls the exact kernels take, and their launches: one for plain problems first, where there is one,
// then the general one for what it leaves, then that which writes weights and scores.
#include <cuda_runtime.h>

#include <cmath>

#include "cuda/exact/few.cuh"
#include "cuda/exact/general.cuh"
#include "cuda/exact/inspect.cuh"
#include "cuda/exact/long.cuh"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {
namespace {

template <int slabs, bool in_place>
__global__ void __launch_bounds__(exact_threads, 2)
    attend(const __grid_constant__ Call c, const __grid_constant__ ExactPlan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Kernel = Exact<slabs, in_place>;
  Kernel(c, plan, *reinterpret_cast<typename Kernel::Shared*>(memory)).run();
}

__global__ void __launch_bounds__(long_threads, 1)
    attend_long_rows(const __grid_constant__ Call c, const __grid_constant__ ExactPlan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  attend_long(c, plan, *reinterpret_cast<ExactLongShared*>(memory));
}

template <int rows, bool paged>
__global__ void __launch_bounds__(few_threads, 2)
    attend_few_rows(const __grid_constant__ Call c, const __grid_constant__ ExactPlan plan) {
  extern __shared__ __align__(16) unsigned char memory[];
  ExactFew<rows, paged>(c, plan, *reinterpret_cast<ExactFewShared<rows>*>(memory)).run();
}

__global__ void __launch_bounds__(Inspection::threads)
    inspect(const __grid_constant__ Call c, const SavedEnd* ends) {
  Inspection(c, ends).run();
}

template <int slabs, bool in_place>
void launch(const Call& c, const ExactLaunch& launch, Stream stream) {
  constexpr int shared = sizeof(typename Exact<slabs, in_place>::Shared);
  const auto kernel = attend<slabs, in_place>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(launch.blocks()), exact_threads, shared, stream>>>(c, launch.plan);
  check(cudaGetLastError(), "cuda.exact");
}

using FirstKernel = void (*)(Call, ExactPlan);
template <class Shared>
void launch_first(FirstKernel kernel, int threads, const Call& c, const ExactLaunch& launch, Stream stream) {
  constexpr int shared = sizeof(Shared);
  static_assert(shared <= 232448);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
  kernel<<<static_cast<unsigned>(launch.first_blocks(c)), static_cast<unsigned>(threads), shared, stream>>>(
      c, launch.first());
  check(cudaGetLastError(), "cuda.exact: plain rows");
}
void launch_first(const Call& c, const ExactLaunch& launch, Stream stream) {
  const bool paged = launch.few_of_pages;
  if (launch.few == 4)
    launch_first<ExactFewShared<4>>(paged ? attend_few_rows<4, true> : attend_few_rows<4, false>, few_threads,
                                    c, launch, stream);
  else if (launch.few == 8)
    launch_first<ExactFewShared<8>>(paged ? attend_few_rows<8, true> : attend_few_rows<8, false>, few_threads,
                                    c, launch, stream);
  else
    launch_first<ExactLongShared>(attend_long_rows, long_threads, c, launch, stream);
}

std::int64_t rounded(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

std::size_t shared_bytes_of_first(const ExactLaunch& launch) {
  return launch.few == 4   ? sizeof(ExactFewShared<4>)
         : launch.few == 8 ? sizeof(ExactFewShared<8>)
                           : sizeof(ExactLongShared);
}

// Two blocks of threads fit one multiprocessor of 228 KB; the kernel for long problems fits no smaller one.
ExactLaunch plan(const Call& c, Cut cut) {
  const DeviceFacts device = device_facts();
  const std::int64_t at_once = planned_blocks(cut, 2 * device.multiprocessors);
  const ExactLaunch made = plan_exact(c, at_once);
  if (made.plan.first_tiles == 0 || device.fits_block(shared_bytes_of_first(made))) return made;
  return plan_exact(c, at_once, First::never);
}

}  // namespace

static_assert(Workspace::counter_bytes == exact_counters * 4);

const char* exact_refuses(const Call& c) {
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap.cap))
    return "options.softcap in units of the scores is beyond the range of f32";
  if (c.keys >= std::int64_t{1} << 31) return "there are 2^31 keys or more";
  if (c.alibi.of_heads && c.keys + c.queries > std::int64_t{1} << 24)
    return "options.alibi: there are more than 2^24 keys and queries";
  return nullptr;
}

std::int64_t exact_bytes(const Call& c) {
  const ExactLaunch made = plan(c, c.keys > chunk_keys ? Cut::apart : Cut::together);  // the most it may take
  return rounded(made.partial_floats * 4) + made.saved_ends * std::int64_t{sizeof(SavedEnd)};
}

void launch_exact(const Call& c, const Workspace& workspace, Stream stream, Cut cut) {
  ExactLaunch made = plan(c, cut);
  if (made.blocks() == 0) return;
  made.plan.arrivals = workspace.counters();
  made.plan.partials = reinterpret_cast<float*>(workspace.rest());
  if (made.saved_ends > 0)
    made.plan.ends = reinterpret_cast<SavedEnd*>(workspace.rest() + rounded(made.partial_floats * 4));
  if (made.plan.first_tiles > 0) launch_first(c, made, stream);
  if (made.slabs == 1)
    made.in_place ? launch<1, true>(c, made, stream) : launch<1, false>(c, made, stream);
  else
    made.in_place ? launch<2, true>(c, made, stream) : launch<2, false>(c, made, stream);
  if (made.plan.first_tiles > 0)
    check(cudaMemsetAsync(workspace.counters(), 0, Workspace::counter_bytes, stream), "cudaMemsetAsync");
  if (!c.weights.data && !c.scores.data) return;
  const std::int64_t parts = (c.keys + Inspection::threads - 1) / Inspection::threads;
  const std::int64_t blocks = c.batch * c.heads * c.queries * parts;
  if (blocks == 0) return;
  inspect<<<static_cast<unsigned>(blocks), Inspection::threads, 0, stream>>>(c, made.plan.ends);
  check(cudaGetLastError(), "cuda.exact: weights and scores");
}

}  // namespace heed::cuda
