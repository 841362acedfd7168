// SPDX-License-Identifier: Apache-2.0
// What a file is that is not what it was taken for: told by how it begins.
#pragma once
#include <string>

#include "files/input_file.hpp"

namespace heed::files {

// "w.npy: is an .npy file, not a safetensors file"; where the beginning tells nothing, `otherwise` instead.
Error not_a(const char* wanted, const InputFile&, const std::string& otherwise);

}  // namespace heed::files
