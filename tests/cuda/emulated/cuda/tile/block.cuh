// SPDX-License-Identifier: Apache-2.0
// The verbs of src/cuda/tile/block.cuh for threads that a CPU emulates: each is a fiber that runs until it
// must wait for others. Found before the real one by the order of include folders.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cuda/call.hpp"
#include "emulated/fibers.hpp"
#include "heed/half.hpp"

#define __device__
#define __noinline__
#define HEED_DEVICE inline

namespace heed::cuda {

using std::copysign;
inline float fmaf(float a, float b, float c) { return std::fma(a, b, c); }
inline float fmaxf(float a, float b) { return std::fmax(a, b); }
inline float fabsf(float x) { return std::fabs(x); }
inline float copysignf(float x, float sign) { return std::copysign(x, sign); }
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

struct float4 {
  float x, y, z, w;
};
struct float2 {
  float x, y;
};

inline int thread_index() { return emulated::current_thread(); }
inline std::int64_t block_index() { return emulated::current_block(); }
inline void sync() { emulated::sync_block(); }
inline bool any(bool one) { return emulated::any(one); }
inline void named_sync(int barrier, int threads) { emulated::named_sync(barrier, threads); }
inline void named_arrive(int barrier, int threads) { emulated::named_arrive(barrier, threads); }
inline void wait_for_prior_launches() {}
inline void launch_dependents() {}
inline float shuffle_xor(float x, int bits) { return emulated::exchange(x, bits); }

inline void copy16(float* to, const void* from, bool is_valid) {
  if (is_valid)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
inline void copy4(float* to, const float* from, bool is_valid) { *to = is_valid ? *from : 0.0f; }
inline void copy16_if(float* to, const void* from, bool is_valid) { copy16(to, from, is_valid); }
inline void copy4_if(float* to, const float* from, bool is_valid) { copy4(to, from, is_valid); }
inline void commit_copies() {}
template <int n>
void wait_for_copies() {}

inline void load4(float* to, const float* from) { std::memcpy(to, from, 16); }
inline void load2(float* to, const float* from) { std::memcpy(to, from, 8); }
inline void store4(float* to, const float* from) { std::memcpy(to, from, 16); }
template <class Array>
void force_to_memory(Array&) {}
inline float max_or_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline float min_or_nan(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b; }
inline unsigned count_arrival(unsigned* arrivals) { return (*arrivals)++; }
inline unsigned load_acquire(const unsigned* from) { return *from; }
inline void store_release(unsigned* to, unsigned x) { *to = x; }
using Signal = std::uint64_t;  // how many have been given
inline void init_signal(Signal* signal) { *signal = 0; }
inline void give_signal(Signal* signal) { ++*signal; }
inline void wait_for_signal(Signal* signal, int n) {
  while (*static_cast<volatile Signal*>(signal) % 2 == static_cast<Signal>(n % 2)) emulated::step_aside();
}
inline void add4_in_memory(float* to, const float (&x)[4]) {
  for (int n = 0; n < 4; ++n) to[n] += x[n];
}
inline float load_l2(const float* from) { return *from; }

inline int min_of(int x, int y) { return x < y ? x : y; }
inline int max_of(int x, int y) { return x > y ? x : y; }

inline float from_bf16(std::uint16_t bits) { return to_float(bf16{bits}); }
inline float from_f16(std::uint16_t bits) { return to_float(f16{bits}); }
inline std::uint16_t to_bf16(float x) { return from_float<bf16>(x).bits; }
inline std::uint16_t to_f16(float x) { return from_float<f16>(x).bits; }

// All threads of a block, where others may be a part of one.
template <int count>
struct WholeBlock {
  static constexpr int threads = count;
  int thread() const { return thread_index(); }
  void sync() const { cuda::sync(); }
  bool any(bool one) const { return cuda::any(one); }
};

// Warps: matrices out of shared memory, and products of 16 rows times 8 columns, 16 deep, whose sums are
// rounded once.

struct uint4 {
  std::uint32_t x, y, z, w;
};

// Addresses count from here: what a launch calls its shared memory.
using SharedAddress = std::uint32_t;
inline unsigned char* shared_memory = nullptr;
inline SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(static_cast<const unsigned char*>(p) - shared_memory);
}
inline void store_shared16(SharedAddress to, const uint4& x) { std::memcpy(shared_memory + to, &x, 16); }
inline void clear_shared16(SharedAddress to) { std::memset(shared_memory + to, 0, 16); }
inline uint4 load_shared16(SharedAddress from) {
  uint4 x;
  std::memcpy(&x, shared_memory + from, 16);
  return x;
}

inline float __uint_as_float(std::uint32_t bits) { return __int_as_float(static_cast<int>(bits)); }
inline int block_in_column() { return 0; }
inline int lane_index() { return thread_index() % 32; }

// The 16-bit number in a row of matrix `n` of four, whose rows eight lanes each have the addresses of.
inline std::uint32_t number_of(const emulated::Shown& rows, int n, int row, int column) {
  const SharedAddress at = *static_cast<const SharedAddress*>(rows.of(8 * n + row));
  std::uint16_t x;
  std::memcpy(&x, shared_memory + at + 2 * column, 2);
  return x;
}
inline void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  const emulated::Shown rows(&row);
  const int r = lane_index() / 4, c = lane_index() % 4 * 2;
  for (int n = 0; n < 4; ++n) to[n] = number_of(rows, n, r, c) | number_of(rows, n, r, c + 1) << 16;
}
inline void load_matrices_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  const emulated::Shown rows(&row);
  const int c = lane_index() / 4, r = lane_index() % 4 * 2;
  for (int n = 0; n < 4; ++n) to[n] = number_of(rows, n, r, c) | number_of(rows, n, r + 1, c) << 16;
}

// An 8 x 8 matrix that lies in the lanes' registers.
inline std::uint32_t transposed(std::uint32_t x) {
  const emulated::Shown rows(&x);
  const int c = lane_index() / 4, r = lane_index() % 4 * 2;
  const auto number = [&](int row) {
    const auto both = *static_cast<const std::uint32_t*>(rows.of(4 * row + c / 2));
    return both >> c % 2 * 16 & 0xffffu;
  };
  return number(r) | number(r + 1) << 16;
}

// A lane's operands, widened once for all lanes that read them: a product of 16 rows times 8 columns, 16
// deep, in parts that are 4 deep. An instruction multiplies such a part.
using FourDeep = double __attribute__((vector_size(32)));

template <Type type>
struct ProductOperands {
  FourDeep a[2], b;  // of two rows, and of a column

  ProductOperands(const std::uint32_t (&of_rows)[4], std::uint32_t b0, std::uint32_t b1) {
    for (int half = 0; half < 2; ++half) a[half] = widened(of_rows[half], of_rows[half + 2]);
    b = widened(b0, b1);
  }

 private:
  static double one(std::uint32_t bits) {
    const auto x = static_cast<std::uint16_t>(bits);
    return static_cast<double>(type == Type::bf16 ? from_bf16(x) : from_f16(x));
  }
  static FourDeep widened(std::uint32_t x, std::uint32_t y) {
    return FourDeep{one(x), one(x >> 16), one(y), one(y >> 16)};
  }
};
template <Type type>
void add_product(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const emulated::FromWarp<ProductOperands<type>> operands({a, b0, b1});
  FourDeep products[4] = {};
  for (int n = 0; n < 4; ++n) {  // of the lanes that have a row, and of those that have a column
    const auto &row = operands.of(lane_index() / 4 * 4 + n), &column = operands.of(lane_index() % 4 * 8 + n),
               &next = operands.of(lane_index() % 4 * 8 + 4 + n);
    for (int half = 0; half < 2; ++half) {
      products[2 * half] += row.a[half] * column.b;
      products[2 * half + 1] += row.a[half] * next.b;
    }
  }
  for (int n = 0; n < 4; ++n) {
    const double product = (products[n][0] + products[n][1]) + (products[n][2] + products[n][3]);
    sums[n] = static_cast<float>(static_cast<double>(sums[n]) + product);
  }
}

template <Type type>
std::uint32_t pack2(float low, float high) {
  const auto bits = [](float x) -> std::uint32_t { return type == Type::bf16 ? to_bf16(x) : to_f16(x); };
  return bits(low) | bits(high) << 16;
}

template <Type type>
constexpr float lift = type == Type::f16 ? 7.0f : 0.0f;
template <Type type>
constexpr float lowered = type == Type::f16 ? 0x1p-7f : 1.0f;

inline float fast_exp2(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }
inline float fast_reciprocal(float x) { return 1.0f / x; }

// A copy arrives at once, so that one into memory that is still read is seen.

inline void prefetch16(SharedAddress to, const void* from, bool is_valid) {
  if (is_valid)
    std::memcpy(shared_memory + to, from, 16);
  else
    std::memset(shared_memory + to, 0, 16);
}
inline void prefetch16_if(bool is_wanted, SharedAddress to, const void* from) {
  if (is_wanted) std::memcpy(shared_memory + to, from, 16);
}
inline float load_shared_float(SharedAddress from) {
  float x;
  std::memcpy(&x, shared_memory + from, 4);
  return x;
}

inline std::uint32_t load_shared4(SharedAddress from) {
  std::uint32_t x;
  std::memcpy(&x, shared_memory + from, 4);
  return x;
}
inline float2 load_shared8(SharedAddress from) {
  float2 x;
  std::memcpy(&x, shared_memory + from, 8);
  return x;
}
inline float2 load_shared_floats(SharedAddress from) { return load_shared8(from); }
inline void* __cvta_shared_to_generic(SharedAddress at) { return shared_memory + at; }
inline void store_shared4(SharedAddress to, std::uint32_t x) { std::memcpy(shared_memory + to, &x, 4); }
inline void sync_warp() {
  const int mine = 0;
  const emulated::Shown all(&mine);
}

inline void __syncwarp() { sync_warp(); }
inline int warp_index() { return thread_index() / 32; }

template <class T, class Join>
T joined(T mine, const Join& join) {
  const emulated::Shown all(&mine);
  T result = *static_cast<const T*>(all.of(0));
  for (int lane = 1; lane < 32; ++lane) result = join(result, *static_cast<const T*>(all.of(lane)));
  return result;
}
inline bool all_of_warp(bool each) {
  return joined(each, [](bool a, bool b) { return a && b; });
}
inline bool warp_any(bool each) {
  return joined(each, [](bool a, bool b) { return a || b; });
}
inline float shuffle(float x, int lane) {
  const emulated::Shown all(&x);
  return *static_cast<const float*>(all.of(lane));
}
inline std::uint32_t shuffle_xor(std::uint32_t x, int bits) {
  const emulated::Shown all(&x);
  return *static_cast<const std::uint32_t*>(all.of(lane_index() ^ bits));
}

template <Type type>
void widen_bytes(std::uint32_t (&to)[2], std::uint32_t bytes);  // of caches: not emulated

template <Type type>
std::uint32_t finite_or_zero(std::uint32_t both) {
  constexpr std::uint32_t exponent = type == Type::bf16 ? 0x7f80u : 0x7c00u;
  if ((both & exponent) == exponent) both &= 0xffff0000u;
  if ((both >> 16 & exponent) == exponent) both &= 0x0000ffffu;
  return both;
}

inline struct {
  unsigned x = 1;
} gridDim;
inline std::uint32_t __shfl_xor_sync(unsigned, std::uint32_t x, int bits) { return shuffle_xor(x, bits); }
inline std::uint32_t __vmaxu2(std::uint32_t a, std::uint32_t b) {
  return std::max(a & 0xffffu, b & 0xffffu) | std::max(a >> 16, b >> 16) << 16;
}
inline std::uint32_t __byte_perm(std::uint32_t x, std::uint32_t y, std::uint32_t which) {
  const std::uint64_t both = std::uint64_t{y} << 32 | x;
  std::uint32_t made = 0;
  for (int n = 0; n < 4; ++n)
    made |= static_cast<std::uint32_t>(both >> (which >> 4 * n & 7) * 8 & 0xff) << 8 * n;
  return made;
}
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned atomicAdd(unsigned* at, unsigned x) {
  const unsigned before = *at;
  *at += x;
  return before;
}
inline void atomicMin(std::int32_t* at, std::int32_t x) { *at = std::min(*at, x); }
inline void atomicMax(std::int32_t* at, std::int32_t x) { *at = std::max(*at, x); }
inline void atomicOr(std::uint32_t* at, std::uint32_t x) { *at |= x; }
inline void atomicAnd(std::uint32_t* at, std::uint32_t x) { *at &= x; }

}  // namespace heed::cuda
