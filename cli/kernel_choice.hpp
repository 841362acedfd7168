// SPDX-License-Identifier: Apache-2.0
// Which kernel the plan takes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "call_options.hpp"
#include "heed/attention.hpp"
#include "shape_options.hpp"

namespace heed::tool {

// Whether heed computes with this instruction set: the processor has it, the system lets a process use it,
// and HEED_TARGET names no other.
bool computes_with(std::string_view target);

std::string taken_kernel(const std::vector<Verdict>&);  // empty if none

// The plan of the attention inside a layer with these extents: queries as a projection lays them out.
std::vector<Verdict> plan_extents(const ShapeOptions&, const Extents&, const Options&);

// The kernel that attention over these extents runs on.
std::string chosen_kernel(const ShapeOptions&, const Extents&, const Options&);

}  // namespace heed::tool
