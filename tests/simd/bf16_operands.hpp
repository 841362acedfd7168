// SPDX-License-Identifier: Apache-2.0
// Operands of bf16 matrix instructions as a table of functions, filled like operations.hpp's by a file that
// is compiled with the instructions' flags.
#pragma once
#include <cstdint>

#include "cpu/algorithm/operands.hpp"

namespace heed::simd {

// What prefill hands over for one panel and one block of keys: where each row lies.
struct Bf16Block {
  cpu::Call call;
  const cpu::Row *q, *k, *v;
  std::int64_t queries, keys;
  float* scratch;
};

struct Bf16Operands {
  const char* target;
  int rows, key_step, dim_step;
  std::int64_t (*scratch_floats)(const cpu::Call&);
  // s(keys, rows) of keys [first, first + count).
  void (*score)(const Bf16Block&, std::int64_t first, std::int64_t count, float* s);
  // out(dims, rows) += their values, weighted by s; says whether values were taken for 0.
  bool (*add_values)(const Bf16Block&, std::int64_t first, std::int64_t count, const float* s, float* out);
};

template <class Operands>
constexpr Bf16Operands make_bf16_operands(const char* target) {
  return {
      .target = target,
      .rows = Operands::rows,
      .key_step = Operands::key_step,
      .dim_step = Operands::dim_step,
      .scratch_floats =
          [](const cpu::Call& c) {
            cpu::Cutter nothing{nullptr};
            const Operands sized(c, 1, nothing);
            return nothing.floats;
          },
      .score =
          [](const Bf16Block& t, std::int64_t first, std::int64_t count, float* s) {
            cpu::Cutter memory{t.scratch};
            Operands operands(t.call, 1, memory);
            operands.pack_queries(
                0, [&](std::int64_t r) { return t.q[r]; }, t.queries, t.call.scale_log2e);
            operands.pack_keys([&](std::int64_t j) { return t.k[j]; }, t.keys);
            operands.score(0, first, count, s);
          },
      .add_values =
          [](const Bf16Block& t, std::int64_t first, std::int64_t count, const float* s, float* out) {
            cpu::Cutter memory{t.scratch};
            Operands operands(t.call, 1, memory);
            const bool poisoned = operands.pack_values([&](std::int64_t j) { return t.v[j]; }, t.keys);
            operands.add_values(first, count, s, out);
            return poisoned;
          },
  };
}

}  // namespace heed::simd
