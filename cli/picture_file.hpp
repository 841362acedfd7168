// SPDX-License-Identifier: Apache-2.0
// A picture of attention in a file whose name says its kind: --picture and --theme of a command.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "arguments.hpp"
#include "heed/view.hpp"

namespace heed::tool {

struct PictureFile {
  std::string path{};                  // "": no picture is drawn
  std::optional<view::Theme> theme{};  // light unless given

  // `picture` is how --help shows --picture; --theme stands in its group.
  void add_to(CLI::App&, const Flag& picture);
  // Refuses a path that ends in neither .png, .svg nor .pdf, and a theme without a path.
  void check() const;

  bool is_wanted() const { return !path.empty(); }
  view::Theme chosen_theme() const { return theme.value_or(view::Theme::light); }
  // Writes what `path` asks for to `beside`.
  void write(const view::Picture&, const std::filesystem::path& beside) const;
};

}  // namespace heed::tool
