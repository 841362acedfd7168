// SPDX-License-Identifier: Apache-2.0
// See console.hpp.
#include "console.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "arguments.hpp"

namespace heed::tool {
namespace {

// https://no-color.org: any value but the empty one.
bool environment_refuses_color() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return (no_color && *no_color) || (terminal && std::string_view(terminal) == "dumb");
}

const char* escape_of(Style style) {
  switch (style) {
    case Style::bold:
      return "\x1b[1m";
    case Style::dim:
      return "\x1b[2m";
    case Style::good:
      return "\x1b[32m";
    case Style::bad:
      return "\x1b[31m";
  }
  return "";
}

std::string painted(Style style, const std::string& text) { return escape_of(style) + text + "\x1b[0m"; }

}  // namespace

void Console::add_options(CLI::App& app) {
  const std::string group = "Output";
  add_switch(app, {.name = "--json", .help = "Print one JSON object on stdout", .group = group}, json_);
  add_switch(app, {.name = "--quiet", .help = "Print nothing but errors", .group = group}, quiet_);
  const std::vector<Choice<Color>> colors = {
      {"auto", Color::automatic}, {"always", Color::always}, {"never", Color::never}};
  add_choice(app,
             {.name = "--color", .help = "When to use colour; auto also honours NO_COLOR", .group = group},
             colors, [this](Color color) { color_ = color; });
}

bool Console::colors(Output output) const {
  if (color_ != Color::automatic) return color_ == Color::always;
  return is_terminal(output) && !environment_refuses_color();
}

void Console::print(const std::string& text) const {
  if (!json_ && !quiet_) fmt::print("{}\n", text);
}

void Console::result(const nlohmann::ordered_json& object) const {
  // File names need not be UTF-8; JSON must be.
  if (json_) fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void Console::warn(const std::string& sentence) const {
  if (!json_ && !quiet_) fmt::print(stderr, "heed: warning: {}\n", sentence);
}

void Console::error(const std::string& sentence) const {
  progress("");
  const std::string name = colors(Output::error) ? painted(Style::bad, "heed:") : "heed:";
  fmt::print(stderr, "{} {}\n", name, sentence);
}

void Console::refuse(const std::string& sentence) const {
  error(sentence);
  result({{"error", sentence}});
}

void Console::progress(const std::string& what) const {
  if (quiet_ || !is_terminal(Output::error)) return;
  fmt::print(stderr, "\r\x1b[K{}", what);
  std::fflush(stderr);
}

bool Console::has_colors() const { return colors(Output::standard); }

std::string Console::paint(Style style, const std::string& text) const {
  return colors(Output::standard) ? painted(style, text) : text;
}

}  // namespace heed::tool
