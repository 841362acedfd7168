// SPDX-License-Identifier: Apache-2.0
// The verbs of src/cuda/tile/warp.cuh for warps that a CPU emulates. A copy arrives at once, so that one into
// memory that is still read is seen.
#pragma once
#include <cstdint>

#include "cuda/tile/mma.cuh"

namespace heed::cuda {

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
inline int max_of_warp(int x) { return joined(x, max_of); }
inline int min_of_warp(int x) { return joined(x, min_of); }
inline std::uint32_t shuffle_xor(std::uint32_t x, int bits) {
  const emulated::Shown all(&x);
  return *static_cast<const std::uint32_t*>(all.of(lane_index() ^ bits));
}

template <Type type>
void widen_bytes(std::uint32_t (&to)[2], std::uint32_t bytes);  // of caches: not emulated

inline void atomicMin(std::int32_t* at, std::int32_t x) { *at = std::min(*at, x); }
inline void atomicMax(std::int32_t* at, std::int32_t x) { *at = std::max(*at, x); }
inline void atomicOr(std::uint32_t* at, std::uint32_t x) { *at |= x; }

}  // namespace heed::cuda
