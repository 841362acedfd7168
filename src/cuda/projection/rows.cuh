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

}  // namespace heed::cuda
