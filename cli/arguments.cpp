// SPDX-License-Identifier: Apache-2.0
// See arguments.hpp.
#include "arguments.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <numeric>

#include "heed/error.hpp"

namespace heed::tool {
namespace {

template <class Number>
bool reads_whole(const std::string& text, Number& number) {
  const char* end = text.data() + text.size();
  const auto [stopped, problem] = std::from_chars(text.data(), end, number);
  return problem == std::errc{} && stopped == end;
}

// Insertions, deletions and replacements that make one word the other.
std::size_t edit_distance(const std::string& from, const std::string& to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const std::size_t replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> known_words(const CLI::App& app) {
  std::vector<std::string> words = commands_of(app);
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  return words;
}

// The word that was meant, or "". Two slips are a typing error, and more letters another form of the word:
// benchmark for bench. More is another word.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
  constexpr std::size_t max_slips = 2, shortest_stem = 3;
  std::string meant;
  std::size_t nearest = max_slips + 1;
  for (const std::string& each : known) {
    const bool is_form = std::min(word.size(), each.size()) >= shortest_stem &&
                         (word.starts_with(each) || each.starts_with(word));
    const std::size_t distance = is_form ? max_slips : edit_distance(word, each);
    if (distance >= nearest) continue;
    nearest = distance;
    meant = each;
  }
  return meant;
}

void show_as(CLI::Option* option, const Flag& flag) {
  option->group(flag.group)->type_name(flag.value);
  if (flag.required) option->required();
}

template <class Number>
Number parse_whole(const std::string& flag, const std::string& text, const char* what) {
  Number number{};
  if (!reads_whole(text, number))
    throw Error(Error::value, fmt::format("{}: '{}' is not {}", flag, text, what));
  return number;
}

}  // namespace

void describe(CLI::App& app, const std::string& summary, const std::string& footer) {
  app.description(summary);
  app.footer(footer);
}

void add_switch(CLI::App& app, const Flag& flag, bool& into) {
  app.add_flag(flag.name, into, flag.help)->group(flag.group);
}

void add_value(CLI::App& app, const Flag& flag, const std::function<void(const std::string&)>& use) {
  show_as(app.add_option_function<std::string>(flag.name, use, flag.help), flag);
}

void add_optional_value(CLI::App& app, const Flag& flag, const std::function<void(const std::string&)>& use) {
  const auto use_first = [use](const std::vector<std::string>& values) {
    use(values.empty() ? std::string() : values.front());
  };
  CLI::Option* option = app.add_option_function<std::vector<std::string>>(flag.name, use_first, flag.help);
  show_as(option->expected(0, 1), flag);
}

void add_text(CLI::App& app, const Flag& flag, std::string& into) {
  add_value(app, flag, [name = flag.name, &into](const std::string& text) {
    if (text.empty()) throw Error(Error::value, name + ": is empty");
    into = text;
  });
}

void add_integer(CLI::App& app, const Flag& flag, std::int64_t minimum, std::optional<std::int64_t>& into) {
  add_value(app, flag, [name = flag.name, minimum, &into](const std::string& text) {
    const std::int64_t number = parse_integer(name, text);
    if (number < minimum)
      throw Error(Error::value, fmt::format("{}: {} is less than {}", name, number, minimum));
    into = number;
  });
}

void add_workers(CLI::App& app, const Flag& flag, std::optional<int>& into) {
  add_value(app, flag, [name = flag.name, &into](const std::string& text) {
    const std::int64_t number = parse_integer(name, text);
    if (number < 1 || number > 4096)
      throw Error(Error::value, fmt::format("{}: {} is outside [1, 4096]", name, number));
    into = static_cast<int>(number);
  });
}

void add_choice(CLI::App& app, const Flag& flag, const std::vector<ChoiceName>& names,
                const std::function<void(std::size_t)>& use) {
  Flag shown = flag;
  std::string list = shown.value = names.front().name;
  for (std::size_t i = 1; i < names.size(); ++i) {
    shown.value += "|" + names[i].name;
    list += (i + 1 == names.size() ? " or " : ", ") + names[i].name;
  }
  add_value(app, shown, [name = flag.name, names, use, list](const std::string& text) {
    const auto found = std::find_if(names.begin(), names.end(), [&](const ChoiceName& choice) {
      return choice.name == text || (!text.empty() && choice.alias == text);
    });
    if (found == names.end()) throw Error(Error::value, fmt::format("{}: '{}' is not {}", name, text, list));
    use(static_cast<std::size_t>(found - names.begin()));
  });
}

std::int64_t parse_integer(const std::string& flag, const std::string& text) {
  return parse_whole<std::int64_t>(flag, text, "a whole number");
}

std::uint64_t parse_unsigned(const std::string& flag, const std::string& text) {
  return parse_whole<std::uint64_t>(flag, text, "a whole number from 0 to 2^64 - 1");
}

float parse_float(const std::string& flag, const std::string& text) {
  return parse_whole<float>(flag, text, "a number");
}

double parse_double(const std::string& flag, const std::string& text) {
  return parse_whole<double>(flag, text, "a number");
}

void refuse_leftovers(const CLI::App& app) {
  const std::vector<std::string> leftovers = app.remaining();
  if (leftovers.empty()) return;
  const std::string& word = leftovers.front();
  const bool is_command = !word.starts_with("-") && !app.get_parent();
  std::string sentence = fmt::format("{}: unknown {}", word,
                                     word.starts_with("-") ? "flag"
                                     : is_command          ? "command"
                                                           : "argument");
  const std::string meant = nearest_word(word.substr(0, word.find('=')), known_words(app));
  if (!meant.empty())
    sentence += fmt::format("; did you mean {}?", meant);
  else if (is_command)
    sentence += fmt::format("; there are {}", fmt::join(commands_of(app), ", "));
  throw Error(Error::value, sentence);
}

}  // namespace heed::tool
