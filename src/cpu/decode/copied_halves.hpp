// SPDX-License-Identifier: Apache-2.0
// Rows of bf16 that do not lie as tiles are loaded, copied.
#pragma once
#include <cstdint>

#include "cpu/tile/pack.hpp"
#include "cpu/call.hpp"
#include "cpu/isa/amx.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

using Half = std::uint16_t;

// n halves of a row, and zeros up to `width`, a multiple of 32. In whole lines, as tiles are loaded: those
// need not wait for the stores.
inline void copy_halves(const Row& row, std::int64_t n, std::int64_t width, Half* to) {
  const Half* from = static_cast<const Half*>(row.data) + row.first;
  std::int64_t d = 0;
  if (is_contiguous(row))
    for (; d < n; d += 32) _mm512_storeu_si512(to + d, first_halves(from + d, n - d));
  for (; d < n; ++d) to[d] = from[d / 16 * row.block + d % 16 * row.step];
  for (; d < width; ++d) to[d] = 0;
}

}  // namespace heed::cpu::HEED_THIS_TARGET
