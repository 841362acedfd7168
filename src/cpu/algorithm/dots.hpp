// SPDX-License-Identifier: Apache-2.0
// Decode's micro-kernel: one vector of rows against eight keys that lie where the caller put them.
#pragma once
#include <cstdint>

namespace heed::cpu {

constexpr int keys_per_dots = 8;

// Rows that will be read next, for a kernel to touch one after another while it works on the present ones:
// reading eight rows side by side defeats the hardware's prefetching, which follows single streams.
// Neoverse-N1, one core, f32 from DRAM: 7.2 GB/s without, 8.1 with a burst of touches first, 15.5 with
// touches spread between the products (November 2026); software prefetches are slower than plain loads. rows
// is null when there is nothing to touch.
struct Upcoming {
  const float* rows = nullptr;
  std::int64_t stride = 0;
};

// s(key, rows) = sum over d of q(d, rows) * k(key, d) for one vector of rows and eight keys, each sum one FMA
// chain. Rows of q lie q_stride apart, keys k_stride, scores s_stride; depth is a multiple of 4. An
// instruction set may specialise it.
struct Dots {
  const float* q;
  std::int64_t q_stride;
  const float* k;
  std::int64_t k_stride, depth;
  float* s;
  std::int64_t s_stride;
  Upcoming next{};  // eight keys
};

template <class S>
inline void eight_dots(const Dots& t) {
  typename S::F sum[keys_per_dots];
  for (int n = 0; n < keys_per_dots; ++n) sum[n] = S::fill(0.0f);
  for (std::int64_t d = 0; d < t.depth; ++d) {
    const auto x = S::load(t.q + d * t.q_stride);
    for (int n = 0; n < keys_per_dots; ++n) sum[n] = S::fma(x, S::fill(t.k[n * t.k_stride + d]), sum[n]);
  }
  for (int n = 0; n < keys_per_dots; ++n) S::store(t.s + n * t.s_stride, sum[n]);
}

}  // namespace heed::cpu
