// SPDX-License-Identifier: Apache-2.0
// The sums of a panel lie (dims, rows), and its outputs (rows, dims): transposed as they are, or, where an
// instruction set rounds two vectors to pairs of bf16, after they are rounded, half as many. A panel of 32
// rows by 64 dimensions is finished in half the time so, which is 4 % of 12 heads of 1024 x 64 on a Xeon's 16
// threads, and 5 of 128 x 64 (November 2026).
#pragma once
#include <cstdint>

#include "cpu/tile/pack.hpp"
#include "cpu/tile/product.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// The first `count` rows of a panel become (rows, dims).
template <Vector S>
inline void transpose_sums(const float* sums, std::int64_t dims, int count, float* transposed) {
  constexpr std::int64_t rows = Tile<S>::rows;
  std::int64_t d = 0;
  if constexpr (transposes_sixteen<S>)
    for (; d + 16 <= dims; d += 16)
      for (int r = 0; r < count; r += 16) {
        typename S::F x[16];
        for (int n = 0; n < 16; ++n) x[n] = S::load(sums + (d + n) * rows + r);
        S::transpose_sixteen(x, transposed + r * dims + d, dims);
      }
  for (; d < dims; d += 4)
    for (int r = 0; r < count; r += 4) {
      const float* corner = sums + d * rows + r;
      const float* const four[4] = {corner, corner + rows, corner + 2 * rows, corner + 3 * rows};
      S::transpose(four, transposed + r * dims + d, dims);
    }
}

template <class S>
concept RoundsPairs = Vector<S> && requires(typename S::F x, std::uint16_t* to, std::int64_t n) {
  S::store_halves(to, S::bf16_pairs(x, x), n);
};

// Where the rows of a panel go, and what they are multiplied with.
template <RoundsPairs S>
class RoundedRows {
  using F = typename S::F;
  static constexpr std::int64_t rows = Tile<S>::rows;

 public:
  // The sums have `dims`, a multiple of sixteen, and the outputs value_dim.
  RoundedRows(std::int64_t dims, std::int64_t value_dim) : dims_(dims), value_dim_(value_dim) {}

  void add(std::uint16_t* to, float factor) {
    to_[count_] = to;
    factor_[count_++] = factor;
  }

  // Returns whether all that was written are numbers: NaN is not rounded as it should be.
  bool write(const float* sums) const {
    bool are_numbers = true;
    for (int r = 0; r < count_; r += 16) are_numbers &= write_sixteen(sums + r, r);
    return are_numbers;
  }

 private:
  bool write_sixteen(const float* sums, int first) const {
    const std::int64_t count = min(16, count_ - first);
    const F zero = S::fill(0.0f), factor = S::load(factor_ + first);
    F poison[2] = {zero, zero};
    for (std::int64_t d = 0; d < value_dim_; d += 32) {
      typename S::Dwords pairs[16];
      for (int n = 0; n < 16; ++n) {
        F x[2] = {zero, zero};
        for (int i = 0; i < 2 && d + 2 * n < dims_; ++i) {
          x[i] = S::add(S::mul(S::load(sums + (d + 2 * n + i) * rows), factor), zero);  // one sign for zeros
          poison[i] = S::fma(x[i], zero, poison[i]);  // 0 * x is 0 for every finite x, and NaN for the others
        }
        pairs[n] = S::bf16_pairs(x[0], x[1]);
      }
      S::turn(pairs);
      for (std::int64_t n = 0; n < count; ++n) S::store_halves(to_[first + n] + d, pairs[n], value_dim_ - d);
    }
    float poisons[16];
    S::store(poisons, S::add(poison[0], poison[1]));
    bool are_numbers = true;
    for (std::int64_t n = 0; n < count; ++n) are_numbers &= poisons[n] == 0;
    return are_numbers;
  }

  const std::int64_t dims_, value_dim_;
  int count_ = 0;
  float factor_[rows] = {};  // 0 for rows that are none
  std::uint16_t* to_[rows];
};

}  // namespace heed::cpu::HEED_THIS_TARGET
