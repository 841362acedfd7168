// SPDX-License-Identifier: Apache-2.0
// Whether numbers stay within the range of f32: NaN and infinities found a vector at a time, and sums of
// squares that rule them out for products to come.
#pragma once
#include <cstdint>

#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Where one is NaN, too. In integers, which compilers compare all at once.
template <Vector S>
inline bool any_lane_differs(typename S::F x, float from) {
  float lanes[S::lanes];
  S::store(lanes, x);
  int any = 0;
  for (int lane = 0; lane < S::lanes; ++lane) any |= lanes[lane] != from ? 1 : 0;
  return any != 0;
}

template <Vector S>
inline float sum_of_lanes(typename S::F x) {
  float lanes[S::lanes], sum = 0;
  S::store(lanes, x);
  for (int lane = 0; lane < S::lanes; ++lane) sum += lanes[lane];
  return sum;
}
template <Vector S>
inline float sum_of_eight(const typename S::F (&x)[8]) {
  const auto low = S::add(S::add(x[0], x[1]), S::add(x[2], x[3])),
             high = S::add(S::add(x[4], x[5]), S::add(x[6], x[7]));
  return sum_of_lanes<S>(S::add(low, high));
}

constexpr bool is_finite(float x) { return x * 0.0f == 0.0f; }

template <Vector S>
inline bool all_finite(const float* x, std::int64_t n) {
  const auto zero = S::fill(0.0f);  // 0 * x is 0 for every finite x, and NaN for the others
  typename S::F poison[4] = {zero, zero, zero, zero};
  std::int64_t d = 0;
  for (; d + 4 * S::lanes <= n; d += 4 * S::lanes)
    for (int v = 0; v < 4; ++v) poison[v] = S::fma(S::load(x + d + v * S::lanes), zero, poison[v]);
  for (; d + S::lanes <= n; d += S::lanes) poison[0] = S::fma(S::load(x + d), zero, poison[0]);
  float rest = 0;
  for (; d < n; ++d) rest += x[d] * 0.0f;
  return rest == 0 &&
         !any_lane_differs<S>(S::add(S::add(poison[0], poison[1]), S::add(poison[2], poison[3])), 0.0f);
}

// x *= factor; returns x * x summed over the n floats, a multiple of S::lanes: NaN or infinity where one of
// them is. Eight sums, because each waits four cycles for the last.
template <Vector S>
inline float scale_and_square(float* x, std::int64_t n, float factor) {
  const auto times = S::fill(factor);
  typename S::F sums[8];
  for (auto& sum : sums) sum = S::fill(0.0f);
  const auto step = [&](float* at, typename S::F& sum) {
    const auto scaled = S::mul(S::load(at), times);
    S::store(at, scaled);
    sum = S::fma(scaled, scaled, sum);
  };
  std::int64_t i = 0;
  for (; i + 8 * S::lanes <= n; i += 8 * S::lanes)
    for (int v = 0; v < 8; ++v) step(x + i + v * S::lanes, sums[v]);
  for (; i < n; i += S::lanes) step(x + i, sums[0]);
  return sum_of_eight<S>(sums);
}

template <Vector S>
inline float sum_of_squares(const float* x, std::int64_t n) {
  typename S::F sums[8];
  for (auto& sum : sums) sum = S::fill(0.0f);
  const auto step = [](typename S::F one, typename S::F& sum) { sum = S::fma(one, one, sum); };
  std::int64_t i = 0;
  for (; i + 8 * S::lanes <= n; i += 8 * S::lanes)
    for (int v = 0; v < 8; ++v) step(S::load(x + i + v * S::lanes), sums[v]);
  for (; i < n; i += S::lanes) step(S::load(x + i), sums[0]);
  return sum_of_eight<S>(sums);
}

}  // namespace heed::cpu::HEED_THIS_TARGET
