// SPDX-License-Identifier: Apache-2.0
// The verbs of src/cuda/tile/block.cuh for threads that a CPU emulates: each is a fiber that runs until it
// must wait for others. Found before the real one by the order of include folders.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

inline int thread_index() { return emulated::current_thread(); }
inline std::int64_t block_index() { return emulated::current_block(); }
inline void sync() { emulated::sync_block(); }
inline bool any(bool one) { return emulated::any(one); }
inline void named_sync(int barrier, int threads) { emulated::named_sync(barrier, threads); }
inline void named_arrive(int barrier, int threads) { emulated::named_arrive(barrier, threads); }
inline float shuffle_xor(float x, int bits) { return emulated::exchange(x, bits); }

inline void copy16(float* to, const void* from, bool is_valid) {
  if (is_valid)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
inline void copy4(float* to, const float* from, bool is_valid) { *to = is_valid ? *from : 0.0f; }
inline void commit_copies() {}
template <int n>
void wait_for_copies() {}

inline void load4(float* to, const float* from) { std::memcpy(to, from, 16); }
inline void load2(float* to, const float* from) { std::memcpy(to, from, 8); }
inline void store4(float* to, const float* from) { std::memcpy(to, from, 16); }
template <class Array>
void force_to_memory(Array&) {}
inline float max_or_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline unsigned count_arrival(unsigned* arrivals) { return (*arrivals)++; }
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

}  // namespace heed::cuda
