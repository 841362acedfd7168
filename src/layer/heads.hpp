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

// (batch, heads, length, dim) as a projection writes it: heads side by side in each token's row. Not
// initialised.
Heads make_heads(const LayerConfig&, const Backend&, const LayerInputs&);
Floats make_log_sum_exp(const LayerConfig&, const Backend&, const LayerInputs&);

// attention() works on f32 heads in the layer, so a bias or sink of another dtype is read through an f32
// copy.
class FloatOptions {
 public:
  FloatOptions(const Backend&, const Options& given);
  Options options;

 private:
  Floats bias_, sink_;
};

}  // namespace heed::layer
