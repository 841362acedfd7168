// SPDX-License-Identifier: Apache-2.0
// What happens to arrays beside attention, on a stream: element by element, and the layer's linear maps.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/launch/launch.hpp"

namespace heed::cuda {

struct ArrayShape {
  std::int64_t batch, heads, length, dim;
  constexpr std::int64_t elements() const { return batch * heads * length * dim; }
};

void launch_copy(const Tensor& from, const Tensor& into, const ArrayShape&, Stream);
// `into` has this shape with one head, the average of so many.
void launch_average(const Tensor& from, const Tensor& into, const ArrayShape&, std::int64_t heads, Stream);
void launch_fill(const Tensor& into, const ArrayShape&, float, Stream);

// A finished row: its output and log-sum-exp.
struct FinishedRows {
  Tensor out, log_sum_exp;
};
void launch_merge(const FinishedRows& into, const FinishedRows& other, const ArrayShape&, Stream);

// A pair of a token turns by (cosine, sine).
struct Rotation {
  float cosine, sine;
};
// Turns lie on the device, (batch, length, pairs), or (length, pairs) where entries share them.
struct Rotations {
  const Rotation* first;
  bool are_shared;
  std::int64_t pairs;
  std::int64_t next, apart;  // dimensions from a pair to the next, and within one
};
void launch_rotate(const Tensor& x, const ArrayShape&, const Rotations&, Stream);

// y = x * w^T + bias, rows being the concatenation of heads: chains of fused multiply-adds, as on the CPU.
struct LinearMap {
  Tensor x, y;
  std::int64_t x_dim, y_dim, length, rows;
  const void* w;  // (out, in), row after row
  Type w_type;
  std::int64_t in, out;
  const float* bias;  // or null
};
void launch_linear_map(const LinearMap&, Stream);

}  // namespace heed::cuda
