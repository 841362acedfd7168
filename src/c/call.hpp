// SPDX-License-Identifier: Apache-2.0
// The three structs of a call: everything read, written, chosen.
#pragma once
#include "heed/attention.hpp"
#include "heed/c.h"

namespace heed::c {

Inputs to_inputs(const heed_inputs*);
Outputs to_outputs(const heed_outputs&);
Options to_options(const heed_options*);  // NULL: the defaults
HeadMap to_head_map(const char* name, heed_head_map);
heed_head_map from_head_map(HeadMap);

}  // namespace heed::c
