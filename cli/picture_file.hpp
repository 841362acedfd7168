// SPDX-License-Identifier: Apache-2.0
// A picture of attention in a file whose name says its kind.
#pragma once
#include <filesystem>
#include <string>

#include "heed/view.hpp"

namespace heed::tool {

// Refuses a path that ends in neither .png, .svg nor .pdf; "" is no file.
void refuse_other_pictures(const std::string& path);

// Writes what `path` asks for to `beside`.
void write_picture(const view::Picture&, const std::string& path, const std::filesystem::path& beside);

}  // namespace heed::tool
