// SPDX-License-Identifier: Apache-2.0
// See picture_file.hpp.
#include "picture_file.hpp"

#include <fmt/core.h>

#include <fstream>

#include "heed/error.hpp"

namespace heed::tool {

void refuse_other_pictures(const std::string& path) {
  if (path.empty() || path.ends_with(".png") || path.ends_with(".svg") || path.ends_with(".pdf")) return;
  throw Error(Error::value, fmt::format("--picture: '{}' ends in neither .png, .svg nor .pdf", path));
}

void write_picture(const view::Picture& picture, const std::string& path,
                   const std::filesystem::path& beside) {
  const std::string bytes = path.ends_with(".png")   ? picture.png()
                            : path.ends_with(".svg") ? picture.svg()
                                                     : picture.pdf();
  std::ofstream file(beside, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw Error(Error::file, fmt::format("--picture: '{}' cannot be written", path));
}

}  // namespace heed::tool
