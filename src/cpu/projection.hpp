// SPDX-License-Identifier: Apache-2.0
// y = x * W^T + b on the CPU, with W packed once into the micro-kernel's panels.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/target/target.hpp"
#include "heed/tensor.hpp"

namespace heed::cpu {

// W (out, in) as panels of `panel_rows` outputs, each (in made even, panel_rows); the last is filled up with
// zeros. In its own dtype: a single row of x reads every weight once, so 16 bits take half the time.
struct PackedWeights {
  explicit PackedWeights(const View& w);  // (1, 1, out, in), row after row

  const Target* target;
  std::int64_t out, in, depth;
  DType dtype;
  std::vector<std::byte> panels;
};

// x and y are (batch, heads, length, dim), their rows the concatenation of the heads.
void project(const PackedWeights&, std::span<const float> bias, const View& x, const MutableView& y);

}  // namespace heed::cpu
