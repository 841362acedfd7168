// SPDX-License-Identifier: Apache-2.0
// One linear map of the layer, y = x * W^T + b, over a weight matrix packed once.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/projection.hpp"
#include "heed/tensor.hpp"

namespace heed::planning {

class Projection {
 public:
  // w is (1, 1, out, in), row after row; bias has `out` entries or none.
  Projection(const View& w, std::span<const float> bias);

  // x is (batch, heads, length, dim) with heads * dim == in: row (b, t) is the concatenation of its heads. y
  // likewise with heads * dim == out, so splitting and concatenating heads is only a choice of strides. Any
  // dtype, any strides; the sum is one f32 FMA chain over `in`, then the bias, then one rounding to y's
  // dtype.
  void operator()(const View& x, const MutableView& y) const;

  std::int64_t out() const { return packed_.out; }
  std::int64_t in() const { return packed_.in; }

 private:
  cpu::PackedWeights packed_;
  std::vector<float> bias_;
};

}  // namespace heed::planning

namespace heed {
using planning::Projection;
}
