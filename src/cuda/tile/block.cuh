// SPDX-License-Identifier: Apache-2.0
// What the exact kernels ask of a GPU: barriers, shuffles, asynchronous copies into shared memory, 16-bit
// elements. tests/cuda/emulated has the same verbs for threads that are fibers on a CPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#define HEED_DEVICE __device__ __forceinline__

namespace heed::cuda {

HEED_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
HEED_DEVICE std::int64_t block_index() { return blockIdx.x; }
HEED_DEVICE int block_in_column() { return static_cast<int>(blockIdx.y); }

HEED_DEVICE void sync() { __syncthreads(); }
// True in every thread where it is true in one.
HEED_DEVICE bool any(bool one) { return __syncthreads_or(one) != 0; }

// Named barriers, 1 to 15, for some of a block's threads: arrive and wait, or arrive and go on.
HEED_DEVICE void named_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
HEED_DEVICE void named_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The value of the lane whose index differs by these bits.
HEED_DEVICE float shuffle_xor(float x, int bits) { return __shfl_xor_sync(0xffffffffu, x, bits); }

// 16 bytes into shared memory, or zeros where they are not valid; `from` is 16-byte aligned, and read only
// where valid.
HEED_DEVICE void copy16(float* to, const void* from, bool is_valid) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = is_valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
// One float, or zero.
HEED_DEVICE void copy4(float* to, const float* from, bool is_valid) {
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = is_valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
}
// Ends a group of copies, which may be empty.
HEED_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last n groups of this thread have arrived.
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

// Addresses in shared memory are 32 bits.
using SharedAddress = std::uint32_t;

HEED_DEVICE SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(__cvta_generic_to_shared(p));
}
HEED_DEVICE uint4 load_shared16(SharedAddress from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(from));
  return x;
}
HEED_DEVICE float2 load_shared8(SharedAddress from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from));
  return x;
}
HEED_DEVICE void store_shared_floats(SharedAddress to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}
HEED_DEVICE void clear_shared16(SharedAddress to) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}
HEED_DEVICE void store_shared16(SharedAddress to, const uint4& x) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

// Frees registers for what is used more often: the compiler no longer knows who else may touch this array.
template <class Array>
HEED_DEVICE void force_to_memory(Array& array) {
  asm volatile("" : : "l"(&array) : "memory");
}

// The larger of two numbers, and NaN if either is.
HEED_DEVICE float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// Publishes what this block wrote to every other block, and returns how many arrived before. For one thread,
// after sync().
HEED_DEVICE unsigned count_arrival(unsigned* arrivals) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
  return before;
}

// A word from one thread to another, with all that it wrote before.
HEED_DEVICE unsigned load_acquire(const unsigned* from) {
  unsigned x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
HEED_DEVICE void store_release(unsigned* to, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

// What another block wrote before it arrived: past the first-level cache.
HEED_DEVICE float load_l2(const float* from) { return __ldcg(from); }

HEED_DEVICE int min_of(int x, int y) { return x < y ? x : y; }
HEED_DEVICE int max_of(int x, int y) { return x > y ? x : y; }

// Elements of 16 bits: widening is exact, narrowing rounds once, to nearest even.
HEED_DEVICE float from_bf16(std::uint16_t bits) { return __uint_as_float(std::uint32_t{bits} << 16); }
HEED_DEVICE float from_f16(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
HEED_DEVICE std::uint16_t to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
HEED_DEVICE std::uint16_t to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

// A team that is the whole block. Others are a part of one (Warpgroup).
template <int count>
struct WholeBlock {
  static constexpr int threads = count;
  HEED_DEVICE int thread() const { return thread_index(); }
  HEED_DEVICE void sync() const { cuda::sync(); }
  HEED_DEVICE bool any(bool one) const { return cuda::any(one); }
};

}  // namespace heed::cuda
