// SPDX-License-Identifier: Apache-2.0
// For whoever looked in the wrong place: after which prefixes a checkpoint has attention weights.
#pragma once
#include <string>
#include <vector>

namespace heed::layer {

// A name out of a file, fit to print: short, and nothing a terminal would obey.
std::string shown_name(const std::string& name);

// `there are some after "model.layers.0.self_attn." and 31 more`; empty where there are none.
std::string attention_prefixes(const std::vector<std::string>& names);

}  // namespace heed::layer
