// SPDX-License-Identifier: Apache-2.0
// Where the attention layers are in a checkpoint: by prefix and naming scheme.
#pragma once
#include <string>
#include <vector>

#include "heed/files.hpp"
#include "heed/layer.hpp"

namespace heed::tool {

struct AttentionNames {
  std::string prefix;
  Naming naming;
};

// Every layer whose prefix matches `pattern`, in which * stands for any characters. Finding none is an error
// that says which prefixes there are.
std::vector<AttentionNames> find_attention(const Arrays&, const std::string& pattern);

// Takes the layer's tensors out and puts `instead` in, each name after the same prefix.
void replace_attention(Arrays&, const AttentionNames&, Arrays instead);

}  // namespace heed::tool
