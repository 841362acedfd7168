// SPDX-License-Identifier: Apache-2.0
// What the threads of a block do together: meet, exchange numbers within a warp, copy into shared memory
// while they compute, and count blocks.
#pragma once
#include <cstdint>

#define HEED_DEVICE __device__ __forceinline__

namespace heed::cuda {

HEED_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
HEED_DEVICE std::int64_t block_index() { return blockIdx.x; }
HEED_DEVICE int block_in_column() { return static_cast<int>(blockIdx.y); }  // of those with that index

HEED_DEVICE void sync() { __syncthreads(); }
// Whether any thread of the block says so.
HEED_DEVICE bool any(bool one) { return __syncthreads_or(one) != 0; }

// Named barriers, 1 to 15, for some of a block's threads: to meet there, or to let others go on.
HEED_DEVICE void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
HEED_DEVICE void let_go(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The number of the lane whose index differs by these bits.
HEED_DEVICE float from_lane_across(float x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }

// 16 bytes into shared memory, or zeros; `from` must be 16-byte aligned, and is not read where nothing is
// there.
HEED_DEVICE void copy16(float* to, const void* from, bool is_there) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
// One float, or zero.
HEED_DEVICE void copy4(float* to, const float* from, bool is_there) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = is_there ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
// Ends a group of copies, which may be empty.
HEED_DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last n groups of this thread are there.
template <int n>
HEED_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

HEED_DEVICE void load4(float* to, const float* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}
HEED_DEVICE void load2(float* to, const float* from) {
  *reinterpret_cast<float2*>(to) = *reinterpret_cast<const float2*>(from);
}
HEED_DEVICE void store4(float* to, const float* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

// Leaves the registers to what is used more often: the compiler does not know who else may touch this array.
template <class Array>
HEED_DEVICE void keep_in_memory(Array& array) {
  asm volatile("" : : "l"(&array) : "memory");
}

// The larger of two numbers, and NaN if either is.
HEED_DEVICE float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// Tells every block what this one wrote before, and returns how many said so earlier. For one thread, after
// sync().
HEED_DEVICE unsigned arrive(unsigned* arrivals) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
  return before;
}

// What another block wrote before it arrived.
HEED_DEVICE float written_elsewhere(const float* from) { return __ldcg(from); }

// All threads of a block, where others may be a part of one.
template <int count>
struct WholeBlock {
  static constexpr int threads = count;
  HEED_DEVICE int thread() const { return thread_index(); }
  HEED_DEVICE void sync() const { cuda::sync(); }
  HEED_DEVICE bool any(bool one) const { return cuda::any(one); }
};

}  // namespace heed::cuda
