// SPDX-License-Identifier: Apache-2.0
// What a call over ranks means, in numbers that must be the same on all of them.
#pragma once
#include <optional>
#include <span>

#include "heed/distributed.hpp"
#include "heed/rotary.hpp"
#include "ranks/agreement.hpp"

namespace heed::ranks {

// A rank without heads knows nothing of the inputs and the options: null.
void describe(Agreement&, const Group&, const Split&, const Inputs*, const Options&);

// For a list that must be the same.
std::int64_t number_of(std::span<const std::int64_t>);
std::int64_t number_of(const std::optional<Rotary>&);

// What the options of any call over ranks have in common.
void describe_options(Agreement&, const Options&);

}  // namespace heed::ranks
