// SPDX-License-Identifier: Apache-2.0
// Where words go: results to stdout, messages to stderr, progress only to a terminal, colour only where it is
// wanted.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "system.hpp"

namespace CLI {
class App;
}

namespace heed::tool {

enum class Style : std::uint8_t { bold, dim, good, bad };

class Console {
 public:
  // --json, --quiet and --color, on the tool itself and on each command.
  void add_options(CLI::App&);
  void use_json() { json_ = true; }

  void print(const std::string& text) const;         // for people: silent under --json and --quiet
  void result(const nlohmann::ordered_json&) const;  // for programs: only under --json
  void warn(const std::string& sentence) const;      // silent under --quiet and --json: the object has it
  void error(const std::string& sentence) const;     // never silent
  void refuse(const std::string& sentence) const;    // an error that is all there is: under --json the object
  void progress(const std::string& what) const;      // replaces the previous one; "" clears it
  std::string paint(Style, const std::string&) const;  // as stdout's colour allows
  bool has_colors() const;                             // on stdout

 private:
  enum class Color : std::uint8_t { automatic, always, never };
  bool colors(Output) const;

  bool json_ = false, quiet_ = false;
  Color color_ = Color::automatic;
};

}  // namespace heed::tool
