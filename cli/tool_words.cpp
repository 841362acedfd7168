// SPDX-License-Identifier: Apache-2.0
// See tool_words.hpp.
#include "tool_words.hpp"

#include <CLI/CLI.hpp>

namespace heed::tool {
namespace {

std::vector<std::string> split_choices(const std::string& value) {
  if (value.find('|') == std::string::npos) return {};
  return CLI::detail::split(value, '|');
}

OptionWords words_of(const CLI::Option& option) {
  const bool is_positional = option.get_positional(), takes_value = option.get_items_expected_max() > 0;
  const std::string value = takes_value ? option.get_type_name() : "";
  return {.name = is_positional ? option.get_name(true) : "--" + option.get_lnames().front(),
          .value = value,
          .help = option.get_description(),
          .group = option.get_group(),
          .choices = split_choices(value),
          .is_positional = is_positional,
          .is_required = option.get_required()};
}

CommandWords words_of(const CLI::App& app) {
  CommandWords words{.name = app.get_name(), .summary = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) words.options.push_back(words_of(*option));
  return words;
}

}  // namespace

bool OptionWords::takes_file() const {
  return value == "FILE" || value == "FOLDER" || value.find('.') != std::string::npos;
}

ToolWords words_of_tool(const CLI::App& command) {
  const CLI::App& tool = *command.get_parent();
  ToolWords words{.tool = words_of(tool)};
  for (const CLI::App* each : tool.get_subcommands([](const CLI::App*) { return true; }))
    words.commands.push_back(words_of(*each));
  return words;
}

}  // namespace heed::tool
