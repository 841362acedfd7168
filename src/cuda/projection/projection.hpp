// SPDX-License-Identifier: Apache-2.0
// The layer's linear maps and the gradients of their weights, on the device's legacy stream, with the bits of
// the CPU (O2).
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.hpp"
#include "cuda/projection/plan.hpp"

namespace heed::cuda {

std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias);
void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias);

}  // namespace heed::cuda
