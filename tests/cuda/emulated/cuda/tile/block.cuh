// SPDX-License-Identifier: Apache-2.0
// The verbs of src/cuda/tile/block.cuh for threads that a CPU pretends to have: each is a fiber, and those of
// a block take turns wherever they meet. Found before the real one by the order of include folders.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulated/fibers.hpp"

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
inline void sync() { emulated::meet(); }
inline bool any(bool one) { return emulated::any(one); }
inline void meet(int barrier, int threads) { emulated::meet(barrier, threads); }
inline void let_go(int barrier, int threads) { emulated::let_go(barrier, threads); }
inline float from_lane_across(float x, int bits) { return emulated::exchange(x, bits); }

inline void copy16(float* to, const void* from, bool is_there) {
  if (is_there)
    std::memcpy(to, from, 16);
  else
    std::memset(to, 0, 16);
}
inline void copy4(float* to, const float* from, bool is_there) { *to = is_there ? *from : 0.0f; }
inline void close_copies() {}
template <int n>
void wait_for_copies() {}

inline void load4(float* to, const float* from) { std::memcpy(to, from, 16); }
inline void load2(float* to, const float* from) { std::memcpy(to, from, 8); }
inline void store4(float* to, const float* from) { std::memcpy(to, from, 16); }
template <class Array>
void keep_in_memory(Array&) {}
inline float max_or_nan(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline unsigned arrive(unsigned* arrivals) { return (*arrivals)++; }
inline float written_elsewhere(const float* from) { return *from; }

// All threads of a block, where others may be a part of one.
template <int count>
struct WholeBlock {
  static constexpr int threads = count;
  int thread() const { return thread_index(); }
  void sync() const { cuda::sync(); }
  bool any(bool one) const { return cuda::any(one); }
};

}  // namespace heed::cuda
