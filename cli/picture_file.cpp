// SPDX-License-Identifier: Apache-2.0
// See picture_file.hpp.
#include "picture_file.hpp"

#include <fmt/core.h>

#include <fstream>

#include "heed/error.hpp"

namespace heed::tool {

void PictureFile::add_to(CLI::App& app, const Flag& picture) {
  add_text(app, picture, path);
  add_choice<view::Theme>(
      app,
      {.name = "--theme",
       .help = "The picture's colours (default light); print is in greys",
       .group = picture.group},
      {{"light", view::Theme::light}, {"dark", view::Theme::dark}, {"print", view::Theme::print}},
      [this](view::Theme chosen) { theme = chosen; });
}

void PictureFile::check() const {
  if (theme && !is_wanted()) throw Error(Error::value, "--theme: means nothing without --picture");
  if (!is_wanted() || path.ends_with(".png") || path.ends_with(".svg") || path.ends_with(".pdf")) return;
  throw Error(Error::value, fmt::format("--picture: '{}' ends in neither .png, .svg nor .pdf", path));
}

void PictureFile::write(const view::Picture& picture, const std::filesystem::path& beside) const {
  const std::string bytes = path.ends_with(".png")   ? picture.png()
                            : path.ends_with(".svg") ? picture.svg()
                                                     : picture.pdf();
  std::ofstream file(beside, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw Error(Error::file, fmt::format("--picture: '{}' cannot be written", path));
}

}  // namespace heed::tool
