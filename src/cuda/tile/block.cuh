// SPDX-License-Identifier: Apache-2.0
// What kernels ask of every GPU since sm_80: barriers, shuffles, asynchronous copies into shared memory,
// 16-bit elements, and the matrix instructions of a warp. tests/cuda/emulated has the same verbs for threads
// that are fibers on a CPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/call.hpp"

#define HEED_DEVICE __device__ __forceinline__

namespace heed::cuda {

HEED_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
HEED_DEVICE std::int64_t block_index() { return blockIdx.x; }
HEED_DEVICE int block_in_column() { return static_cast<int>(blockIdx.y); }

HEED_DEVICE void sync() { __syncthreads(); }
// True in every thread where it is true in one.
HEED_DEVICE bool any(bool one) { return __syncthreads_or(one) != 0; }

// On Hopper a launch may begin before those ahead of it on the stream have ended (launch_early.cuh). Until
// they have, with all they wrote:
HEED_DEVICE void wait_for_prior_launches() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next launch may begin when every block has called this: it waits by itself for what it reads.
HEED_DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

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
// The same, where the compiler cannot know what is valid: a predicate in place of a number of bytes, over
// which it branches in 70 instructions a copy.
HEED_DEVICE void copy16_if(float* to, const void* from, bool is_valid) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, ignored;\n}\n" ::"r"(
          static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(static_cast<std::uint32_t>(is_valid))
      : "memory");
}
HEED_DEVICE void copy4_if(float* to, const float* from, bool is_valid) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, ignored;\n}\n" ::"r"(
          static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(static_cast<std::uint32_t>(is_valid))
      : "memory");
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

// The larger of two numbers, or the smaller, and NaN if either is.
HEED_DEVICE float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
HEED_DEVICE float min_or_nan(float a, float b) {
  float smaller;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
  return smaller;
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

// A signal in shared memory from one thread of a block to others, with all that it knew before: given again
// when all have seen the last one. compute-sanitizer knows barriers in memory; a word that is waited for it
// takes for a race.
using Signal = std::uint64_t;
HEED_DEVICE void init_signal(Signal* signal) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(signal)) : "memory");
}
HEED_DEVICE void give_signal(Signal* signal) {
  asm volatile(
      "{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(shared_address(signal))
      : "memory");
}
// For the n-th, from 0 on.
HEED_DEVICE void wait_for_signal(Signal* signal, int n) {
  std::uint32_t is_given;
  do
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(is_given)
        : "r"(shared_address(signal)), "r"(n % 2)
        : "memory");
  while (!is_given);
}

// Adds to four numbers in memory without waiting for them.
HEED_DEVICE void add4_in_memory(float* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
#else
#pragma unroll
  for (int n = 0; n < 4; ++n)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + n), "f"(x[n]) : "memory");
#endif
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

// Products of one warp's matrix instructions, 16 rows times 8 columns, 16 deep: bf16 or f16 in, sums in f32.
// Lane l holds of the sums rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.

// Four 8 x 8 matrices, one row of 16 bytes for each lane; or their transposes.
HEED_DEVICE void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
HEED_DEVICE void load_matrices_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
// An 8 x 8 matrix that lies in the lanes' registers.
HEED_DEVICE std::uint32_t transposed(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <Type type>
HEED_DEVICE void add_product(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (type == Type::bf16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 bytes into shared memory past the first-level cache, or zeros.
HEED_DEVICE void stream16(SharedAddress to, const void* from, bool is_valid) {
  const int bytes = is_valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// What another block wrote, into shared memory that only this thread reads: 8 bytes or some times 16, or
// zeros.
template <class Numbers>
HEED_DEVICE void stream_own(Numbers* to, const float* from, bool is_valid) {
  const SharedAddress at = shared_address(to);
  constexpr int size = sizeof(Numbers);
  if constexpr (size == 8) {
    const int bytes = is_valid ? size : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
  } else {
    const int bytes = is_valid ? 16 : 0;
#pragma unroll
    for (int n = 0; n < size; n += 16)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + n), "l"(from + n / 4),
                   "r"(bytes)
                   : "memory");
  }
}

HEED_DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
HEED_DEVICE void sync_warp() { __syncwarp(); }
HEED_DEVICE bool warp_any(bool one) { return __any_sync(0xffffffffu, one); }

// Two 16-bit numbers in one register, as operands have them.
template <Type type>
HEED_DEVICE std::uint32_t pack2(float low, float high) {
  std::uint32_t both;
  if constexpr (type == Type::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// An f16 below 2^-14 has fewer bits, and none is above 2^16: weights, which are at most 2^8, and their sums
// are scaled by 2^lift.
template <Type type>
constexpr float lift = type == Type::f16 ? 7.0f : 0.0f;
template <Type type>
constexpr float lowered = type == Type::f16 ? 0x1p-7f : 1.0f;

// 1 / x to within a unit of the last place.
HEED_DEVICE float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 2^x to within two units of the last place, 0 below 2^-126.
HEED_DEVICE float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Verbs of a warp: copies of 16 bytes under a predicate, words of shared memory, votes, and int8 as 16-bit
// floats.

// 16 bytes into shared memory past the first-level cache, or zeros: then `from` is not read.
HEED_DEVICE void prefetch16(SharedAddress to, const void* from, bool is_valid) {
  asm volatile(
      "{\n.reg .pred ignored;\n"
      "setp.eq.u32 ignored, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignored;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<std::uint32_t>(is_valid))
      : "memory");
}
// 16 bytes, or nothing happens.
HEED_DEVICE void prefetch16_if(bool is_wanted, SharedAddress to, const void* from) {
  asm volatile(
      "{\n.reg .pred wanted;\n"
      "setp.ne.u32 wanted, %2, 0;\n"
      "@wanted cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<std::uint32_t>(is_wanted))
      : "memory");
}

HEED_DEVICE void store_shared4(SharedAddress to, std::uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
}
HEED_DEVICE std::uint32_t load_shared4(SharedAddress from) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
  return x;
}
HEED_DEVICE float2 load_shared_floats(SharedAddress from) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
  return x;
}
HEED_DEVICE float load_shared_float(SharedAddress from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}

HEED_DEVICE int lane_index() { return thread_index() % 32; }
// The same in all threads of a warp, so that the compiler knows it.
HEED_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, thread_index() / 32, 0); }
HEED_DEVICE bool all_of_warp(bool each) { return __all_sync(0xffffffffu, each) != 0; }
HEED_DEVICE std::uint32_t shuffle_xor(std::uint32_t x, int bits) {
  return __shfl_xor_sync(0xffffffffu, x, bits);
}

// (x & mask) | bits, in one instruction: of two constants the compiler makes two.
HEED_DEVICE std::uint32_t and_or(std::uint32_t x, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "r"(mask), "r"(bits));
  return y;
}

// Signed bytes as 16-bit floats, exactly: a bf16 has 8 bits, an f16 more. Of two halves of a word, the lower
// byte of each: a power of two plus the low seven bits, less that power, and less 128 where the sign is set.
template <Type type>
HEED_DEVICE std::uint32_t widen_halves(std::uint32_t bytes) {
  using Two = std::conditional_t<type == Type::bf16, __nv_bfloat162, __half2>;
  constexpr std::uint32_t power = type == Type::bf16 ? 0x43004300u : 0x64006400u;  // 128, 1024
  const std::uint32_t size = and_or(bytes, 0x007f007fu, power), sign = and_or(bytes, 0x00800080u, power);
  Two a, b;
  memcpy(&a, &size, 4), memcpy(&b, &sign, 4);
  a = __hsub2(a, b);
  std::uint32_t both;
  memcpy(&both, &a, 4);
  return both;
}
// The same in two instructions, divided by `lowering`. Numbers of bf16 below 2^-125 are multiples of 2^-133,
// as their bits count, so that a byte is 2^-133 times 128 + x once its sign is flipped; those of f16 from
// 1024 on are whole, and 1152 + x.
template <Type type>
constexpr float lowering = type == Type::bf16 ? 64.0f : 1.0f;
template <Type type>
HEED_DEVICE std::uint32_t widen_lowered(std::uint32_t bytes) {
  using Two = std::conditional_t<type == Type::bf16, __nv_bfloat162, __half2>;
  constexpr bool is_bf16 = type == Type::bf16;
  std::uint32_t both;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;"  // (bytes & mask) ^ bits
      : "=r"(both)
      : "r"(bytes), "r"(0x00ff00ffu), "r"(is_bf16 ? 0x00800080u : 0x64806480u));
  constexpr std::uint32_t power = is_bf16 ? 0x7f007f00u : 0x3c003c00u,  // 2^127, 1
      zero = is_bf16 ? 0xc000c000u : 0xe480e480u;                       // -2, -1152
  Two x, a, b;
  memcpy(&x, &both, 4), memcpy(&a, &power, 4), memcpy(&b, &zero, 4);
  x = __hfma2(x, a, b);
  memcpy(&both, &x, 4);
  return both;
}
// Two numbers times `lowering`.
template <Type type>
HEED_DEVICE std::uint32_t raised(std::uint32_t both) {
  if constexpr (lowering<type> == 1) return both;
  __nv_bfloat162 x;
  memcpy(&x, &both, 4);
  x = __hmul2(x, __float2bfloat162_rn(lowering<type>));
  memcpy(&both, &x, 4);
  return both;
}
// Four in order.
template <Type type>
HEED_DEVICE void widen_bytes(std::uint32_t (&to)[2], std::uint32_t bytes) {
  to[0] = widen_halves<type>(__byte_perm(bytes, 0, 0x4140));
  to[1] = widen_halves<type>(__byte_perm(bytes, 0, 0x4342));
}

// Two 16-bit numbers, those that are not finite replaced by 0.
template <Type type>
HEED_DEVICE std::uint32_t finite_or_zero(std::uint32_t both) {
  constexpr std::uint32_t exponent = type == Type::bf16 ? 0x7f80u : 0x7c00u;
  if ((both & exponent) == exponent) both &= 0xffff0000u;
  if ((both >> 16 & exponent) == exponent) both &= 0x0000ffffu;
  return both;
}

}  // namespace heed::cuda
