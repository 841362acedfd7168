// SPDX-License-Identifier: Apache-2.0
// The heed tool: picks the command, runs it, and says whatever goes wrong in one sentence and an
// exit status.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "arguments.hpp"
#include "command.hpp"
#include "heed/error.hpp"
#include "heed/version.hpp"

// A new command is one file in commands/ that defines add_<name>, and one line here.
#define HEED_COMMANDS(COMMAND) \
  COMMAND(demo)                \
  COMMAND(run)                 \
  COMMAND(check)               \
  COMMAND(bench)               \
  COMMAND(convert)             \
  COMMAND(view)                \
  COMMAND(explain)             \
  COMMAND(doctor)              \
  COMMAND(completion)          \
  COMMAND(manual)

namespace heed::tool {

#define HEED_DECLARE(name) Action add_##name(CLI::App&);
HEED_COMMANDS(HEED_DECLARE)

namespace {

struct Command {
  CLI::App* app;
  Action action;
};

// An option of the library's as the tool spells it.
std::string in_words_of_the_tool(std::string problem) {
  constexpr std::string_view of_library = "options.kernel:";
  if (problem.starts_with(of_library)) problem.replace(0, of_library.size(), "--kernel:");
  return problem;
}

int run_tool(int argc, char** argv, Console& console) {
  CLI::App app("heed: attention, exact and fast", "heed");
  app.set_version_flag("--version", fmt::format("heed {}", version()));
  app.footer(
      "`heed COMMAND --help` shows a command's options and examples.\n\n"
      "Environment:\n"
      "  HEED_NUM_THREADS  how many threads; --threads goes before it. Never changes a bit\n"
      "  HEED_TARGET       the one instruction set to compute with, as in the kernels' names: scalar, avx2, "
      "...\n"
      "  NO_COLOR          no colour");
  app.require_subcommand(0, 1);
  app.allow_extras();
  console.add_options(app);
  std::vector<Command> commands;
  const auto add = [&](const char* name, Action (*add_command)(CLI::App&)) {
    CLI::App* sub = app.add_subcommand(name);
    sub->allow_extras();
    commands.push_back({sub, add_command(*sub)});
    console.add_options(*sub);
  };
#define HEED_ADD(name) add(#name, add_##name);
  HEED_COMMANDS(HEED_ADD)

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  }
  refuse_leftovers(app);
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    refuse_leftovers(*command.app);
    return command.action(console);
  }
  fmt::print(stderr, "{}", app.help());
  return bad_input;
}

int guarded_main(int argc, char** argv) {
  Console console;
  // Also where another argument is refused before the parser comes to it.
  if (std::find(argv, argv + argc, std::string_view("--json")) != argv + argc) console.use_json();
  try {
    const int status = run_tool(argc, argv, console);
    if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return status;
    console.error("standard output: cannot be written");
  } catch (const std::bad_alloc&) {
    console.refuse("there is not enough memory");
  } catch (const std::exception& problem) {
    console.refuse(in_words_of_the_tool(problem.what()));
  }
  return bad_input;
}

}  // namespace
}  // namespace heed::tool

int main(int argc, char** argv) { return heed::tool::guarded_main(argc, argv); }
