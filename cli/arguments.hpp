// SPDX-License-Identifier: Apache-2.0
// The options of a command, and refusals that are sentences of ours: the flag, the rule and what was found.
// Only this and main.cpp know the parser behind it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace heed::tool {

// How --help shows an option.
struct Flag {
  std::string name, help;
  std::string value{"N"};  // what stands for its value
  std::string group{"Options"};
  bool required = false;
};

void describe(CLI::App&, const std::string& summary, const std::string& footer);
void add_switch(CLI::App&, const Flag&, bool& into);
// `use` sees the text and throws Error if it does not like it.
void add_value(CLI::App&, const Flag&, const std::function<void(const std::string&)>& use);
// As add_value, but the value may be left out; `use` then sees "".
void add_optional_value(CLI::App&, const Flag&, const std::function<void(const std::string&)>& use);
// A file name or other text that may not be empty: an unset shell variable is a mistake, not a wish.
void add_text(CLI::App&, const Flag&, std::string& into);
// An integer of at least `minimum`.
void add_integer(CLI::App&, const Flag&, std::int64_t minimum, std::optional<std::int64_t>& into);
// Threads or processes: from 1 to 4096.
void add_workers(CLI::App&, const Flag&, std::optional<int>& into);

struct ChoiceName {
  std::string name, alias;  // an alias is understood and shown nowhere
};
// One of `names`; `use` sees its index.
void add_choice(CLI::App&, const Flag&, const std::vector<ChoiceName>& names,
                const std::function<void(std::size_t)>& use);

template <class T>
struct Choice {
  std::string name;
  T value;
  std::string alias{};
};

template <class T, class Use>
void add_choice(CLI::App& app, const Flag& flag, const std::vector<Choice<T>>& choices, Use use) {
  std::vector<ChoiceName> names;
  for (const Choice<T>& choice : choices) names.push_back({choice.name, choice.alias});
  add_choice(app, flag, names, [choices, use](std::size_t chosen) { use(choices[chosen].value); });
}

// The whole text is a number, or Error::value.
std::int64_t parse_integer(const std::string& flag, const std::string& text);
std::uint64_t parse_unsigned(const std::string& flag, const std::string& text);
float parse_float(const std::string& flag, const std::string& text);
double parse_double(const std::string& flag, const std::string& text);

// Refuses what no option took, and says which flag may have been meant.
void refuse_leftovers(const CLI::App&);

}  // namespace heed::tool
