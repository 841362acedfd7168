// SPDX-License-Identifier: Apache-2.0
// What the matrix and the bias of a projection gain, on the CPU.
#pragma once
#include "heed/tensor.hpp"

namespace heed::cpu {

// w (1, 1, out, in) += y^T * x, and bias, where its data is given, += y summed; both f32, row after row.
void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias);

}  // namespace heed::cpu
