// SPDX-License-Identifier: Apache-2.0
// The layer's linear maps and the gradients of their weights, on the device's legacy stream: by matrix units
// where x and w have one type of 16 bits, else with the bits of the CPU (O2).
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.hpp"
#include "cuda/projection/plan.hpp"

namespace heed::cuda {

std::unique_ptr<const Projection> project(const View& w, std::span<const float> bias);
std::unique_ptr<const Projection> project_lent(const View& w, const Optional<View>& bias);
void project_all(std::span<const Projected>);
void add_weight_gradient(const View& x, const View& y, const MutableView& w, const MutableView& bias);

}  // namespace heed::cuda
