// SPDX-License-Identifier: Apache-2.0
#include "plan/projection.hpp"

namespace heed::planning {

Projection::Projection(const View& w, std::span<const float> bias)
    : packed_(w), bias_(bias.begin(), bias.end()) {}

void Projection::operator()(const View& x, const MutableView& y) const { cpu::project(packed_, bias_, x, y); }

}  // namespace heed::planning
