// SPDX-License-Identifier: Apache-2.0
// Decode's micro-kernel: one vector of rows against eight keys that lie where the caller put them.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr int keys_per_dots = 8;

// The most rows of f32 that decode takes where all of them see all of a few keys: up to so many, reading the
// keys in place is faster than packing them. An instruction set may specialise it.
template <Vector S>
inline constexpr std::int64_t max_short_rows = max_decode_rows;

// Rows that will be read next, for a kernel to touch one after another while it works on the present ones:
// reading eight rows side by side defeats the hardware's prefetching, which follows single streams.
// Neoverse-N1, one core, f32 from DRAM: 7.2 GB/s without, 8.1 with a burst of touches first, 15.5 with
// touches spread between the products (November 2026); software prefetches are slower than plain loads. rows
// is null when there is nothing to touch.
struct Upcoming {
  const void* rows = nullptr;
  std::int64_t stride = 0;  // elements
};

// s(key, rows) = sum over d of q(d, rows) * k(key, d) for one vector of rows and eight keys, in FMA chains of
// chain_terms. Rows of q lie q_stride apart, keys k_stride, scores s_stride; depth is a multiple of 4.
struct Dots {
  const float* q;
  std::int64_t q_stride;
  const void* k;
  std::int64_t k_stride, depth;
  float* s;
  std::int64_t s_stride;
  Upcoming next{};  // eight keys
};

// What eight_dots reads in place; other keys are widened to f32 first. An instruction set may specialise
// both.
template <Vector S, Type type>
inline constexpr bool dots_take = type == Type::f32;

// The cache line with dimension d of each upcoming key of f32.
template <Vector S>
inline void touch_line(const Upcoming& next, std::int64_t d) {
  const auto* k = static_cast<const float*>(next.rows);
  for (int n = 0; k && n < keys_per_dots; ++n) S::touch(k + n * next.stride + d);
}

template <Vector S, Type type>
inline void eight_dots(const Dots& t) {
  static_assert(type == Type::f32);
  const auto* k = static_cast<const float*>(t.k);
  for (std::int64_t first = 0; first < t.depth; first += chain_terms) {
    const std::int64_t end = t.depth - first < chain_terms ? t.depth : first + chain_terms;
    typename S::F sum[keys_per_dots];
    for (auto& of : sum) of = S::fill(0.0f);
    for (std::int64_t d = first, line_end; d < end;) {
      touch_line<S>(t.next, d);
      for (line_end = end - d < 16 ? end : d + 16; d < line_end; ++d) {
        const auto x = S::load(t.q + d * t.q_stride);
        for (int n = 0; n < keys_per_dots; ++n) sum[n] = S::fma(x, S::fill(k[n * t.k_stride + d]), sum[n]);
      }
    }
    for (int n = 0; n < keys_per_dots; ++n) {
      float* const s = t.s + n * t.s_stride;
      S::store(s, first == 0 ? sum[n] : S::add(S::load(s), sum[n]));
    }
  }
}

// The same for two vectors of rows side by side. An instruction set that can keep their sums specialises it.
template <Vector S, Type type>
inline void eight_dots_twice(Dots t) {
  eight_dots<S, type>(t);
  t.q += S::lanes, t.s += S::lanes, t.next = {};
  eight_dots<S, type>(t);
}

}  // namespace heed::cpu::HEED_THIS_TARGET
