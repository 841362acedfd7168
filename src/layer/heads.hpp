// SPDX-License-Identifier: Apache-2.0
// What a call of the layer makes on the way: Q, K and V as heads, and what attention makes of them.
#pragma once
#include "layer/call.hpp"
#include "layer/floats.hpp"

namespace heed::layer {

struct Heads {
  Floats q, k, v, attended;
  Floats log_sum_exp{};  // where backward() will ask for it
};

// (batch, heads, length, dim) as a projection writes it: heads side by side in each token's row. Of one
// dtype, but for the log-sum-exp, which is f32. Not initialised.
Heads make_heads(const LayerConfig&, const Backend&, const LayerInputs&, DType);
Floats make_log_sum_exp(const LayerConfig&, const Backend&, const LayerInputs&);

// A bias or sink need not have the dtype of the heads, so one that is not f32 is read through an f32 copy.
class FloatOptions {
 public:
  FloatOptions(const Backend&, const Options& given);
  Options options;

 private:
  Floats bias_, sink_;
};

}  // namespace heed::layer
