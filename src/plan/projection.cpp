// SPDX-License-Identifier: Apache-2.0
#include "plan/projection.hpp"

namespace heed {

Projection::Projection(std::span<const float> w, std::span<const float> bias, std::int64_t out,
                       std::int64_t in)
    : packed_(w, out, in), bias_(bias.begin(), bias.end()) {}

void Projection::operator()(const View& x, const MutableView& y) const { cpu::project(packed_, bias_, x, y); }

}  // namespace heed
