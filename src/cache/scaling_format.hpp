// SPDX-License-Identifier: Apache-2.0
// A rotary scaling as named arrays: config.rotary.scaling is its place in the variant, and each field is an
// array of its own, config.rotary.scaling.factor and so on.
#pragma once
#include <optional>

#include "cache/format.hpp"
#include "heed/rotary.hpp"

namespace heed::cache {

void put_scaling(Arrays&, const RotaryScaling&);
std::optional<RotaryScaling> take_scaling(CacheFields&);  // none where the file has none; not yet checked

}  // namespace heed::cache
