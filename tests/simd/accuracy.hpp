// SPDX-License-Identifier: Apache-2.0
// How far exp2 and tanh are from the truth, over any set of floats. The truth is the C library's double.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "simd/operations.hpp"

namespace heed::simd {

constexpr double u = 0x1p-24;  // unit roundoff of f32
// What src/reference/bound.cpp assumes; CMakeLists.txt reads it there.
constexpr double exp2_error = HEED_EXP2_ERROR * u, tanh_error = HEED_TANH_ERROR * u;
constexpr std::uint32_t minus_zero = 0x80000000u, minus_127 = 0xc2fe0000u;
constexpr std::uint32_t plus_16 = 0x41800000u;
// Below this result exp2 is subnormal, and 0 from 2^-126.5 down.
constexpr double no_tail_above = 0x1p-126;

struct Accuracy {
  double relative =
      0;            // largest |computed - truth| / truth, in u; of exp2, among results above no_tail_above
  double tail = 0;  // of exp2's other results: what exceeds exp2_error * truth, in 2^-126
  float worst_at = 0, worst_tail_at = 0;

  void add(const Accuracy& other) {
    if (other.relative > relative) relative = other.relative, worst_at = other.worst_at;
    if (other.tail > tail) tail = other.tail, worst_tail_at = other.worst_tail_at;
  }
};

// x is padded by the caller to a multiple of granule.
inline Accuracy exp2_accuracy(const Operations& s, const std::vector<float>& x, std::vector<float>& out) {
  out.resize(x.size());
  s.exp2(x.data(), x.data(), x.data(), out.data(), static_cast<std::int64_t>(x.size()));
  Accuracy worst;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double truth = std::exp2(static_cast<double>(x[i])),
                 error = std::abs(static_cast<double>(out[i]) - truth);
    if (truth > no_tail_above) {
      if (error > worst.relative * u * truth) worst.relative = error / truth / u, worst.worst_at = x[i];
    } else if (error - exp2_error * truth > worst.tail * 0x1p-126) {
      worst.tail = (error - exp2_error * truth) / 0x1p-126, worst.worst_tail_at = x[i];
    }
  }
  return worst;
}

inline Accuracy tanh_accuracy(const Operations& s, const std::vector<float>& x, std::vector<float>& out) {
  out.resize(x.size());
  s.tanh(x.data(), x.data(), x.data(), out.data(), static_cast<std::int64_t>(x.size()));
  Accuracy worst;
  for (std::size_t i = 0; i < x.size(); ++i) {
    // Below 2^-13 tanh x is x (1 - x^2/3 ...), nearer than half a rounding to x; the library's tanh is slow
    // there.
    const double wide = static_cast<double>(x[i]), size = std::abs(wide);
    const double truth = size < 0x1p-13 ? wide - wide * wide * wide / 3 : std::tanh(wide);
    const double error = std::abs(static_cast<double>(out[i]) - truth);
    if (error > worst.relative * u * std::abs(truth))
      worst.relative = error / std::abs(truth) / u, worst.worst_at = x[i];
  }
  return worst;
}

}  // namespace heed::simd
