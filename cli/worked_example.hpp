// SPDX-License-Identifier: Apache-2.0
// A sentence and a layer whose heads were made by hand, each to do one thing that can be seen.
#pragma once
#include <string>
#include <vector>

#include "layer_job.hpp"

namespace heed::tool {

std::vector<std::string> example_sentence();

// The layer over the sentence with 6, 3 or 1 KV heads; fewer come about by averaging, as `heed convert` does
// it.
LayerJob example_job(std::int64_t kv_heads);

}  // namespace heed::tool
