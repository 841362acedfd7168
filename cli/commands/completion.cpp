// SPDX-License-Identifier: Apache-2.0
// heed completion: a script by which a shell completes the tool's commands, flags, choices and file names.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "command.hpp"
#include "tool_words.hpp"

namespace heed::tool {
namespace {

// `text` with `escape` before each of `characters`.
std::string escaped(const std::string& text, std::string_view characters, const std::string& escape) {
  std::string result;
  for (const char c : text) {
    if (characters.find(c) != std::string_view::npos) result += escape;
    result += c;
  }
  return result;
}

std::vector<std::string> names_of(const std::vector<CommandWords>& commands) {
  std::vector<std::string> names;
  for (const CommandWords& command : commands) names.push_back(command.name);
  return names;
}

std::vector<std::string> flags_of(const CommandWords& command) {
  std::vector<std::string> flags;
  for (const OptionWords& option : command.options)
    if (!option.is_positional) flags.push_back(option.name);
  return flags;
}

// What follows a flag: its choices, files by the shell's own completion, or nothing for a number.
std::string bash_action(const OptionWords& option) {
  if (!option.choices.empty()) return fmt::format("words=\"{}\"", fmt::join(option.choices, " "));
  return option.takes_file() ? "return" : "compopt +o default 2>/dev/null; return";
}

// One case for all flags of a command that are followed by the same.
std::string bash_values(const CommandWords& command, const std::string& shown_name) {
  std::map<std::string, std::vector<std::string>> flags_by_action;
  for (const OptionWords& option : command.options)
    if (option.takes_value() && !option.is_positional && !option.value_is_optional())
      flags_by_action[bash_action(option)].push_back(fmt::format("\"{} {}\"", shown_name, option.name));
  std::string cases;
  for (const auto& [action, flags] : flags_by_action)
    cases += fmt::format("    {}) {} ;;\n", fmt::join(flags, " | "), action);
  return cases;
}

// The flags, and the choices of arguments by position.
std::string bash_words(const CommandWords& command) {
  std::vector<std::string> words = flags_of(command);
  for (const OptionWords& option : command.options)
    if (option.is_positional) words.insert(words.begin(), option.choices.begin(), option.choices.end());
  return fmt::format("{}", fmt::join(words, " "));
}

bool takes_files(const CommandWords& command) {
  for (const OptionWords& option : command.options)
    if (option.is_positional && option.takes_file()) return true;
  return false;
}

std::string bash_script(const ToolWords& words) {
  std::string values = bash_values(words.tool, ""), flags, takers;
  for (const CommandWords& command : words.commands) {
    values += bash_values(command, command.name);
    flags += fmt::format("    {}) words=\"{}\" ;;\n", command.name, bash_words(command));
    if (takes_files(command))
      takers += fmt::format("    {}:-*) ;;\n    {}:*) return ;;\n", command.name, command.name);
  }
  return fmt::format(R"(# bash completion for heed: source <(heed completion bash)
_heed() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} command= words= word
  COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in {0}) command=$word; break ;; esac
  done
  case "$command $previous" in
{1}  esac
  [ -n "$words" ] || case $command:$current in
{2}  esac
  [ -n "$words" ] || case $command in
{3}    *) words="{4} {5}" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ ${{#COMPREPLY[@]}} -gt 0 ] || compopt +o default 2>/dev/null
}}
complete -o default -F _heed heed)",
                     fmt::join(names_of(words.commands), "|"), values, takers, flags,
                     fmt::join(names_of(words.commands), " "), fmt::join(flags_of(words.tool), " "));
}

// In a single-quoted word of _arguments.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : escaped(text, "[]:\\", "\\")) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result;
}

std::string zsh_option(const OptionWords& option, int& position) {
  const std::string action = !option.choices.empty() ? fmt::format("({})", fmt::join(option.choices, " "))
                             : option.takes_file()   ? "_files"
                                                     : " ";
  if (option.is_positional) return fmt::format("'{}:{}:{}'", ++position, option.name, action);
  const std::string flag = fmt::format("{}[{}]", option.name, zsh_text(option.help));
  if (!option.takes_value()) return fmt::format("'{}'", flag);
  return fmt::format("'{}{}{}:{}'", flag, option.value_is_optional() ? "::" : ":",
                     option.choices.empty() ? zsh_text(option.value) : "value", action);
}

std::string zsh_options(const CommandWords& command) {
  std::vector<std::string> options;
  int position = 0;
  for (const OptionWords& option : command.options) options.push_back(zsh_option(option, position));
  return fmt::format("{}", fmt::join(options, " \\\n        "));
}

std::string zsh_script(const ToolWords& words) {
  std::string commands, cases;
  for (const CommandWords& command : words.commands) {
    commands += fmt::format("    '{}:{}'\n", command.name, zsh_text(command.summary));
    cases += fmt::format("      {}) _arguments \\\n        {} ;;\n", command.name, zsh_options(command));
  }
  return fmt::format(R"(#compdef heed
# zsh completion for heed: source <(heed completion zsh), or as a file _heed in a folder of $fpath
_heed() {{
  local curcontext=$curcontext state line
  local -a commands=(
{0}  )
  _arguments -C \
        {1} \
        '1: :->command' '*:: :->rest'
  case $state in
    command) _describe -t commands command commands ;;
    rest) case $words[1] in
{2}    esac ;;
  esac
}}
if [ "$funcstack[1]" = _heed ]; then _heed "$@"; else compdef _heed heed; fi)",
                     commands, zsh_options(words.tool), cases);
}

std::string fish_text(const std::string& text) { return "'" + escaped(text, "'\\", "\\") + "'"; }

std::string fish_option(const OptionWords& option, const std::string& condition) {
  std::string line = fmt::format("complete -c heed -n '{}'", condition);
  if (!option.is_positional) line += " -l " + option.name.substr(2);
  if (!option.choices.empty())
    line += fmt::format(" {} '{}'", option.is_positional ? "-a" : "-x -a", fmt::join(option.choices, " "));
  else if (option.takes_file())
    line += option.is_positional ? " -F" : " -r -F";
  else if (option.takes_value() && !option.value_is_optional())
    line += " -x";
  return line + " -d " + fish_text(option.help) + "\n";
}

std::string fish_script(const ToolWords& words) {
  const std::string first = "__fish_use_subcommand";
  std::string script =
      "# fish completion for heed: heed completion fish | source\n"
      "complete -c heed -f\n";
  for (const OptionWords& option : words.tool.options) script += fish_option(option, first);
  for (const CommandWords& command : words.commands) {
    script +=
        fmt::format("complete -c heed -n {} -a {} -d {}\n", first, command.name, fish_text(command.summary));
    for (const OptionWords& option : command.options)
      script += fish_option(option, "__fish_seen_subcommand_from " + command.name);
  }
  script.pop_back();  // the console ends the line
  return script;
}

struct Shell {
  std::string name;
  std::string (*script)(const ToolWords&) = nullptr;
};

}  // namespace

Action add_completion(CLI::App& app) {
  describe(app, "A script by which bash, zsh or fish completes heed's commands and flags",
           "Examples:\n"
           "  source <(heed completion bash)\n"
           "  source <(heed completion zsh)\n"
           "  heed completion fish | source\n\n"
           "An installed heed has them where the shells look: nothing need be done.");
  auto shell = std::make_shared<Shell>();
  const std::vector<Choice<Shell>> shells = {
      {"bash", {"bash", bash_script}}, {"zsh", {"zsh", zsh_script}}, {"fish", {"fish", fish_script}}};
  add_choice(app, {.name = "SHELL", .help = "Whose script", .required = true}, shells,
             [shell](const Shell& chosen) { *shell = chosen; });
  return [shell, &app](Console& console) {
    const std::string script = shell->script(words_of_tool(app));
    console.print(script);
    console.result({{"shell", shell->name}, {"script", script + "\n"}});
    return done;
  };
}

}  // namespace heed::tool
