// SPDX-License-Identifier: Apache-2.0
// The words of a sequence, one on each line of a text file.
#pragma once
#include <string>
#include <vector>

namespace heed::tool {

// `flag` is the option that named the file, for the sentence that refuses it. "" is no file: no words.
std::vector<std::string> read_token_list(const std::string& flag, const std::string& path);

}  // namespace heed::tool
