// SPDX-License-Identifier: Apache-2.0
// Operands of bf16 matrix instructions as a table of functions.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"

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

}  // namespace heed::simd
