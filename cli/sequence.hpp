// SPDX-License-Identifier: Apache-2.0
// Token vectors from an .npy file: (batch, length, width), or (length, width) for a batch of one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "buffer.hpp"
#include "heed/files.hpp"

namespace heed::tool {

struct Sequence {
  std::int64_t batch = 1, length = 0, width = 0;
  std::vector<float> values{};
  Buffer rounded_to(DType) const;  // (batch, 1, length, width)
};

// `flag` is the option that named the file, for the sentence that refuses it.
Sequence read_sequence(const std::string& flag, const std::string& path);

std::vector<float> floats_of(const std::string& flag, const Array&);
std::string text_of(const std::vector<std::int64_t>& shape);  // "(2, 7)"

}  // namespace heed::tool
