// SPDX-License-Identifier: Apache-2.0
// attention_backward() of some heads of a larger call.
#pragma once
#include <optional>

#include "heed/gradient.hpp"
#include "heed/stream.hpp"

namespace heed::planning {

// `place` says which heads of it they are, for dropout; they have all of its queries.
void attention_backward(const Inputs&, const Saved&, const Gradients&, const Options&,
                        const std::optional<Place>& place);

}  // namespace heed::planning
