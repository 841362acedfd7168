// SPDX-License-Identifier: Apache-2.0
// The words of --help as data, read from the parser: completion and manual pages are made of them, so that
// they cannot say anything else.
#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace heed::tool {

struct OptionWords {
  std::string name;   // "--suite"; of an argument by position its name in --help: "IN"
  std::string value;  // what stands for its value in --help; empty if it takes none
  std::string help, group;
  std::vector<std::string> choices{};  // of "auto|always|never"
  bool is_positional = false, is_required = false;

  bool takes_value() const { return !value.empty(); }
  // "[BASE]": the value may be left out.
  bool value_is_optional() const { return value.starts_with("["); }
  // FILE, FOLDER, or an example of a file's name: "X.npy".
  bool takes_file() const;
};

struct CommandWords {
  std::string name, summary, footer;
  std::vector<OptionWords> options{};
};

struct ToolWords {
  CommandWords tool;
  std::vector<CommandWords> commands{};
};

// The words of the whole tool that `command` belongs to.
ToolWords words_of_tool(const CLI::App& command);

}  // namespace heed::tool
