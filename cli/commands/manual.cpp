// SPDX-License-Identifier: Apache-2.0
// heed manual: the manual pages, heed(1) and one for each command, in the language of man.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "command.hpp"
#include "heed/error.hpp"
#include "heed/version.hpp"
#include "tool_words.hpp"

namespace heed::tool {
namespace {

// A line of text in roff: no character of it is an instruction.
std::string roff(const std::string& text) {
  std::string line = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
  for (const char c : text) {
    if (c == '\\')
      line += "\\(rs";
    else if (c == '-')
      line += "\\-";
    else if (c == '\'')
      line += "\\(aq";
    else if (c == '`')
      line += "\\(ga";
    else
      line += c;
  }
  return line;
}

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::vector<std::string> split_at(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find(separator, begin)) != std::string::npos;
       begin = end + separator.size())
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

// What a footer holds: prose, and lists like "Examples:", whose lines stay as they are.
struct Footer {
  std::string prose{}, sections{};
};

Footer footer_of(const CommandWords& words) {
  Footer footer;
  for (const std::string& paragraph : split_at(words.footer, "\n\n")) {
    std::vector<std::string> lines = split_at(paragraph, "\n");
    const bool is_section = lines.size() > 1 && lines.front().ends_with(':');
    std::string& into = is_section ? footer.sections : footer.prose;
    if (is_section) {
      into += fmt::format(".SH {}\n.nf\n", upper_case(lines.front().substr(0, lines.front().size() - 1)));
      lines.erase(lines.begin());
    } else if (!paragraph.empty()) {
      into += ".PP\n";
    }
    for (const std::string& line : lines)
      if (!line.empty()) into += roff(is_section ? line.substr(line.find_first_not_of(' ')) : line) + "\n";
    if (is_section) into += ".fi\n";
  }
  return footer;
}

std::string options_of(const CommandWords& words) {
  std::vector<std::string> groups;
  for (const OptionWords& option : words.options)
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) groups.push_back(option.group);
  std::string text;
  for (const std::string& group : groups) {
    text += group == "Options" ? ".SH OPTIONS\n" : fmt::format(".SS {}\n", roff(group));
    for (const OptionWords& option : words.options) {
      if (option.group != group) continue;
      text += fmt::format(".TP\n\\fB{}\\fR", roff(option.name));
      if (option.takes_value()) text += fmt::format(" \\fI{}\\fR", roff(option.value));
      text += fmt::format("\n{}\n", roff(option.help + (option.is_required ? " (required)" : "")));
    }
  }
  return text;
}

// "heed convert [OPTIONS] IN OUT"
std::string synopsis_of(const CommandWords& words, const std::string& shown_name) {
  std::string text = fmt::format(".SH SYNOPSIS\n\\fB{}\\fR [\\fIOPTIONS\\fR]", roff(shown_name));
  for (const OptionWords& option : words.options) {
    if (!option.is_positional) continue;
    const std::string name = "\\fI" + roff(option.name) + "\\fR";
    text += option.is_required ? " " + name : " [" + name + "]";
  }
  return text + (shown_name == "heed" ? " [\\fICOMMAND\\fR]\n" : "\n");
}

std::string heading_of(const std::string& page, const std::string& summary) {
  return fmt::format(".TH {} 1 \"\" \"heed {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n",
                     roff(upper_case(page)), version(), roff(page), roff(summary));
}

std::string page_of_command(const CommandWords& words) {
  const Footer footer = footer_of(words);
  return heading_of("heed-" + words.name, words.summary) + synopsis_of(words, "heed " + words.name) +
         ".SH DESCRIPTION\n" + roff(words.summary) + ".\n" + footer.prose + options_of(words) +
         footer.sections + ".SH SEE ALSO\n\\fBheed\\fR(1)\n";
}

std::string page_of_tool(const ToolWords& words) {
  const Footer footer = footer_of(words.tool);
  const std::string summary = words.tool.summary.substr(words.tool.summary.find(": ") + 2);
  std::string text = heading_of("heed", summary) + synopsis_of(words.tool, "heed") + ".SH DESCRIPTION\n" +
                     roff(words.tool.summary) + ".\n" + footer.prose + ".SH COMMANDS\n",
              others;
  for (const CommandWords& command : words.commands) {
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", command.name, roff(command.summary));
    others += fmt::format("{}\\fBheed\\-{}\\fR(1)", others.empty() ? "" : ",\n", command.name);
  }
  return text + options_of(words.tool) + footer.sections + ".SH SEE ALSO\n" + others + "\n";
}

std::string page_of(const ToolWords& words, const std::string& name) {
  if (name.empty()) return page_of_tool(words);
  for (const CommandWords& command : words.commands)
    if (command.name == name) return page_of_command(command);
  throw Error(Error::value, fmt::format("COMMAND: '{}' is no command of heed", name));
}

}  // namespace

Action add_manual(CLI::App& app) {
  describe(app, "The manual page of heed or of one of its commands, for man to read",
           "Examples:\n"
           "  heed manual | man -l -\n"
           "  heed manual bench | man -l -\n\n"
           "An installed heed has them where man looks: man heed, man heed-bench.");
  auto command = std::make_shared<std::string>();
  add_text(app, {.name = "COMMAND", .help = "Whose page; without it that of heed", .value = "NAME"},
           *command);
  return [command, &app](Console& console) {
    std::string page = page_of(words_of_tool(app), *command);
    console.result({{"name", command->empty() ? "heed.1" : "heed-" + *command + ".1"}, {"page", page}});
    page.pop_back();  // the console ends the line
    console.print(page);
    return done;
  };
}

}  // namespace heed::tool
