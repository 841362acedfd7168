// SPDX-License-Identifier: Apache-2.0
// A rotary scaling as Python has it: a dict with the names of Hugging Face's configurations.
#pragma once
#include <optional>
#include <string>

#include "heed/rotary.hpp"
#include "refusal.hpp"

namespace heed::python {

std::optional<RotaryScaling> read_scaling(nb::handle object);  // None or {"rope_type": "default"}: none
nb::object scaling_as_dict(const std::optional<RotaryScaling>& scaling);

}  // namespace heed::python
