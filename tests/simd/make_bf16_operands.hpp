// SPDX-License-Identifier: Apache-2.0
// Fills the table of bf16_operands.hpp, as make_operations.hpp does its own.
#pragma once
#include <cstdint>

#include "cpu/tile/operands.hpp"
#include "simd/bf16_operands.hpp"

namespace heed::simd {

namespace kernels = cpu::HEED_THIS_TARGET;

inline kernels::OperandExtents one_block(const cpu::Call& c) {
  return {c.dim, c.value_dim, 1, cpu::block_keys, cpu::block_keys};
}

template <kernels::Operands O>
constexpr Bf16Operands make_bf16_operands(const char* target) {
  return {
      .target = target,
      .rows = O::rows,
      .key_step = O::key_step,
      .dim_step = O::dim_step,
      .scratch_floats =
          [](const cpu::Call& c) {
            kernels::Cutter nothing{nullptr};
            const O measured(one_block(c), nothing);
            return nothing.floats;
          },
      .score =
          [](const Bf16Block& t, std::int64_t first, std::int64_t count, float* s) {
            kernels::Cutter memory{t.scratch};
            O operands(one_block(t.call), memory);
            operands.pack_queries(0, [&](std::int64_t r) { return t.q[r]; }, t.queries, t.call.scaling.query);
            operands.pack_keys([&](std::int64_t j) { return t.k[j]; }, t.keys);
            operands.score(0, first, count, s);
          },
      .add_values =
          [](const Bf16Block& t, std::int64_t first, std::int64_t count, const float* s, float* out) {
            kernels::Cutter memory{t.scratch};
            O operands(one_block(t.call), memory);
            const bool poisoned = operands.pack_values([&](std::int64_t j) { return t.v[j]; }, t.keys);
            operands.add_values(first, count, s, out);
            return poisoned;
          },
  };
}

}  // namespace heed::simd
