// SPDX-License-Identifier: Apache-2.0
// The gradient of a projection's matrix and bias as kernels read it: plain data only.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"

namespace heed::cpu {

// Sums over tokens are chains of so many, added in order.
constexpr std::int64_t gradient_tokens = 256;  // fault: weight-gradient-in-other-blocks

// w += y^T * x and bias += y summed. Rows of x and y are (batch, length), each the concatenation of its
// heads.
struct WeightGradientCall {
  Tensor x, y;
  std::int64_t x_dim, y_dim;  // numbers of a row that lie together: a head's, or all
  std::int64_t length, tokens;
  std::int64_t inputs, outputs;
  float* w;                              // (outputs, inputs)
  float* bias;                           // null: not wanted
  std::int64_t max_inputs, max_outputs;  // of a part
};

// One task of it.
struct WeightPart {
  std::int64_t first_input, inputs, first_output, outputs;
  bool has_bias() const { return first_input == 0; }
};

}  // namespace heed::cpu
