// SPDX-License-Identifier: Apache-2.0
// How far a result may lie from the oracle: the forward error bound P1, computed per row in double precision
// from the inputs. The only tolerance of these tests; the fixtures carry their own, computed where they are
// made.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cases/oracle.hpp"

namespace heed::cases {

inline constexpr double f32_roundoff = 0x1p-24;

inline double roundoff(DType dtype) {
  return dtype == DType::f32 ? f32_roundoff : dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}

// n roundings, each of relative size u.
inline double gamma(double n, double u) { return n * u / (1 - n * u); }

// Those that a term of a sum of n passes through: its chain, and the addition of every chain.
inline double roundings(std::int64_t n, std::int64_t chain) {
  return n == 0 ? 0 : static_cast<double>(std::min(n, chain) + n / chain);
}

// u is the unit roundoff of the arithmetic: f32_roundoff for kernels, less for the reference.
struct RowTolerance {
  double score = 0;     // absolute error of a score
  double relative = 0;  // relative error of a weight
  double operand =
      0;  // rounding of weights to bf16, where matrix instructions multiply them with bf16 values
  double u = f32_roundoff;
  double largest_score = 0, dim_roundings = 0;

  RowTolerance(const Call& call, const OracleRow& row, double unit) : u(unit) {
    // Kernels cut their sums into chains of 128 dimensions and 256 keys, but for those of 16-bit types; the
    // reference does not.
    const bool is_cut = u == f32_roundoff && call.q.dtype() == DType::f32;
    dim_roundings = roundings(call.q.shape().dim, is_cut ? 128 : call.q.shape().dim);
    double magnitude = 0;
    for (std::size_t j = 0; j < row.raw.size(); ++j) {
      if (std::isinf(row.biased[j])) continue;
      magnitude = std::max(magnitude, row.magnitude[j]);
      largest_score = std::max(largest_score, row.magnitude[j] + std::abs(row.biased[j] - row.softcapped[j]));
    }
    const auto keys = static_cast<double>(call.keys());
    const double key_roundings = roundings(call.keys(), is_cut ? 256 : call.keys());
    // The default scale 1/sqrt(dim) may itself be a rounded f32 number in any arithmetic (S13).
    score = gamma(dim_roundings + 4, u) * magnitude + f32_roundoff * magnitude;
    if (call.softcap) score += 8 * u * std::min<double>(magnitude, *call.softcap);
    score += 8 * u * (largest_score + (std::isfinite(row.log_sum_exp) ? std::abs(row.log_sum_exp) : 0.0));
    const double exponential = 8 * u;
    if (call.q.dtype() == DType::bf16 && u == f32_roundoff) operand = roundoff(DType::bf16);
    relative =
        std::expm1(2 * score) + exponential * (2 + keys / 64) + 2 * gamma(key_roundings + keys / 64 + 8, u);
  }
  // Weights that underflow next to the row's largest are lost whatever the arithmetic.
  double out(const OracleRow& row, std::size_t d, DType dtype) const {
    return (relative + operand + 2 * roundoff(dtype)) * row.out_magnitude[d] + smallest(dtype) +
           static_cast<double>(row.raw.size()) * 0x1p-120 * row.largest_value[d];
  }
  // Of one key's own score at any stage, seen or not.
  double score_of(const OracleRow& row, std::size_t j) const {
    const double finite = std::isinf(row.biased[j]) ? 0.0 : std::abs(row.biased[j]);
    return (gamma(dim_roundings + 4, u) + 16 * f32_roundoff) * row.magnitude[j] + 4 * f32_roundoff * finite +
           0x1p-140;
  }
  double weight(const OracleRow& row, std::size_t j) const {
    return (relative + 2 * f32_roundoff) * row.weight[j] + 0x1p-120;
  }
  double log_sum_exp(const OracleRow& row) const {
    if (std::isinf(row.log_sum_exp)) return 0;  // -inf is exact
    return score + relative + 4 * f32_roundoff * (largest_score + std::abs(row.log_sum_exp) + 1);
  }

  static double smallest(DType dtype) {  // of the subnormals
    return dtype == DType::f16 ? 0x1p-24 : 0x1p-133;
  }
};

}  // namespace heed::cases
