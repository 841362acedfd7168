// SPDX-License-Identifier: Apache-2.0
// Where the numbers of a projection's rows lie.
#pragma once
#include <cstdint>

#include "cuda/projection/plan.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// 32 bits are divided in a quarter of the time.
HEED_DEVICE std::int64_t quotient(std::int64_t n, std::int64_t by) {
  return (n | by) >> 32 ? n / by : static_cast<std::uint32_t>(n) / static_cast<std::uint32_t>(by);
}

// A number of row n lies at the sum of both.
HEED_DEVICE std::int64_t row_offset(const TokenRows& t, std::int64_t n) {
  const std::int64_t entry = quotient(n, t.length);
  return entry * t.tensor.stride.batch + (n - entry * t.length) * t.tensor.stride.length;
}
HEED_DEVICE std::int64_t column_offset(const TokenRows& t, std::int64_t column) {
  const std::int64_t head = quotient(column, t.dim);
  return head * t.tensor.stride.heads + (column - head * t.dim) * t.tensor.stride.dim;
}
HEED_DEVICE float read_at(const Tensor& t, std::int64_t offset) {
  return read({t.data, offset, 1, t.type, 16}, 0);
}

// Whether the numbers of a row lie one step apart, from head to head too.
HEED_DEVICE bool is_run(const TokenRows& t, std::int64_t width) {
  return t.dim == width || t.tensor.stride.heads == t.dim * t.tensor.stride.dim;
}
HEED_DEVICE void widen_four(float (&to)[4], std::uint64_t halves, Type type) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const auto half = static_cast<std::uint16_t>(halves >> 16 * e);
    to[e] = type == Type::bf16 ? from_bf16(half) : from_f16(half);
  }
}
// Four of them, the first `count` of which there are: zeros for the others.
HEED_DEVICE void read_four(const Row& row, std::int64_t count, float (&to)[4]) {
  const float* const floats = static_cast<const float*>(row.data) + row.first;
  if (row.type == Type::f32 && row.step == 1 && count >= 4 &&
      reinterpret_cast<std::uintptr_t>(floats) % 16 == 0)
    return load4(to, floats);
  const std::uint16_t* const halves = static_cast<const std::uint16_t*>(row.data) + row.first;
  if ((row.type == Type::bf16 || row.type == Type::f16) && row.step == 1 && count >= 4 &&
      reinterpret_cast<std::uintptr_t>(halves) % 8 == 0)
    return widen_four(to, *reinterpret_cast<const std::uint64_t*>(halves), row.type);
#pragma unroll
  for (int e = 0; e < 4; ++e) to[e] = e < count ? read(row, e) : 0.0f;
}
// From number `first` on, of the row at an offset.
HEED_DEVICE void read_four(const TokenRows& rows, bool is_run, std::int64_t at, std::int64_t first,
                           std::int64_t count, float (&to)[4]) {
  const Tensor& t = rows.tensor;
  if (is_run)
    return read_four({t.data, at + first * t.stride.dim, t.stride.dim, t.type, 16 * t.stride.dim}, count, to);
#pragma unroll
  for (int e = 0; e < 4; ++e) to[e] = e < count ? read_at(t, at + column_offset(rows, first + e)) : 0.0f;
}
// Four numbers of one row after another, without a division for each.
class FourColumns {
 public:
  HEED_DEVICE FourColumns(const TokenRows& t, std::int64_t width, std::int64_t column, std::int64_t row)
      : first(static_cast<int>(column)),
        count(column < width ? static_cast<int>(width - column) : 0),
        token(static_cast<int>(row - quotient(row, t.length) * t.length)),
        at(row_offset(t, row)) {}

  HEED_DEVICE void read(const TokenRows& t, bool has_one_step, bool is_row, float (&to)[4]) const {
    read_four(t, has_one_step, at, first, is_row ? count : 0, to);
  }
  HEED_DEVICE void advance(const TokenRows& t, int rows) {
    const TensorStrides& s = t.tensor.stride;
    at += rows * s.length, token += rows;
    for (; token >= t.length; token -= static_cast<int>(t.length)) at += s.batch - t.length * s.length;
  }

 private:
  int first, count, token;  // token: of its batch entry
  std::int64_t at;
};

// Inputs k to k + 3 of an output, if there is one.
HEED_DEVICE void read_four_weights(const LinearMap& m, std::int64_t out, std::int64_t k, float (&to)[4]) {
  read_four({m.w, out * m.w_row + k * m.w_step, m.w_step, m.w_type, 16 * m.w_step},
            out < m.out ? m.in - k : 0, to);
}

}  // namespace heed::cuda
