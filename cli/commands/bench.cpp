// SPDX-License-Identifier: Apache-2.0
// heed bench: how fast the kernels are, as a share of what this machine can do, each figure only after its
// result was compared with the reference.
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <utility>

#include "arguments.hpp"
#include "bench/measure.hpp"
#include "bench/ranks.hpp"
#include "bench/report.hpp"
#include "command.hpp"
#include "heed/error.hpp"
#include "heed/threads.hpp"
#include "interruption.hpp"

namespace heed::tool {
namespace {

struct BenchOptions {
  std::optional<Suite> chosen_suite{};
  std::vector<Case> own{};
  std::string filter{}, compare{};
  std::optional<int> threads{};
  double seconds = 1;
  std::optional<int> ranks{};
  bool oversubscribes = false;
  bool is_markdown = false, is_csv = false;
  bool is_quick = false, skips_limits = false, lists = false;

  void add_to(CLI::App&);
  Suite suite() const { return chosen_suite.value_or(Suite::heads); }
  Size size() const { return is_quick ? Size::quick : Size::full; }
  std::string command() const;
};

std::vector<Case> cases_in(const std::string& names) {
  std::vector<Case> cases;
  std::istringstream stream(names + ",");
  for (std::string name; std::getline(stream, name, ',');) try {
      cases.push_back(Case::parse_own(name));
    } catch (const Error& error) {
      throw Error(error.code, std::string("--case: ") + error.what());
    }
  return cases;
}

void BenchOptions::add_to(CLI::App& app) {
  const std::vector<Choice<Suite>> suites = {{"heads", Suite::heads, "seeds"},
                                             {"prefill", Suite::prefill},
                                             {"decode", Suite::decode},
                                             {"layer", Suite::layer},
                                             {"backward", Suite::backward},
                                             {"lengths", Suite::lengths},
                                             {"all", Suite::all},
                                             {"limits", Suite::limits},
                                             {"ranks", Suite::ranks}};
  add_choice(app,
             {.name = "--suite",
              .help = "What to time; lengths: prefill of 128 to 8192 tokens; limits: the machine alone; "
                      "ranks: 1, 2, 4 and 8 against one process"},
             suites, [this](Suite chosen) { chosen_suite = chosen; });
  add_value(app,
            {.name = "--case",
             .help = "These cases, named as --list names them, of any shape",
             .value = "NAME[,NAME...]"},
            [this](const std::string& text) { own = cases_in(text); });
  add_text(app, {.name = "--filter", .help = "Only cases whose name matches", .value = "RE"}, filter);
  add_workers(app, {.name = "--threads", .help = "How many threads; with --ranks: of each process"}, threads);
  add_value(app, {.name = "--seconds", .help = "Per case; 1 by default", .value = "S"},
            [this](const std::string& text) {
              seconds = static_cast<double>(parse_float("--seconds", text));
              if (!(seconds > 0 && seconds <= 3600))
                throw Error(Error::value, fmt::format("--seconds: {} is not in (0, 3600]", text));
            });
  add_text(
      app,
      {.name = "--compare", .help = "Beside what heed bench --json printed before", .value = "SAVED.json"},
      compare);
  add_switch(app, {.name = "--markdown", .help = "The table in Markdown"}, is_markdown);
  add_switch(app, {.name = "--csv", .help = "Lines of numbers separated by commas"}, is_csv);
  add_switch(app, {.name = "--quick", .help = "The long prefill over 2048 tokens instead of 4096"}, is_quick);
  add_switch(app, {.name = "--skip-limits", .help = "Do not measure the machine; no percentages"},
             skips_limits);
  add_workers(app,
              {.name = "--ranks", .help = "Of --suite ranks: so many processes, by mpirun, and not threads"},
              ranks);
  add_switch(app, {.name = "--oversubscribe", .help = "Also where there are fewer processors"},
             oversubscribes);
  add_switch(
      app,
      {.name = "--list", .help = "List the cases, with --json the work that each counts, and time nothing"},
      lists);
}

std::string BenchOptions::command() const {
  std::string words = "heed bench";
  if (own.empty()) words += fmt::format(" --suite {}", name_of(suite()));
  for (std::size_t n = 0; n < own.size(); ++n) words += (n == 0 ? " --case " : ",") + own[n].name();
  if (!filter.empty()) words += fmt::format(" --filter '{}'", filter);
  if (is_quick) words += " --quick";
  if (skips_limits) words += " --skip-limits";
  return words + fmt::format(" --threads {} --seconds {:.6g}", num_threads(), seconds);
}

std::vector<Case> chosen_cases(const BenchOptions& options) {
  std::vector<Case> cases = options.own.empty() ? cases_of(options.suite(), options.size()) : options.own;
  try {
    const std::regex pattern(options.filter);
    std::erase_if(cases, [&](const Case& c) { return !std::regex_search(c.name(), pattern); });
  } catch (const std::regex_error&) {
    throw Error(Error::value, fmt::format("--filter: '{}' is not a regular expression", options.filter));
  }
  if (cases.empty() && options.suite() != Suite::limits)
    throw Error(Error::value,
                fmt::format("--filter: '{}' matches no case; --list shows them", options.filter));
  return cases;
}

Status list(const std::vector<Case>& cases, Console& console) {
  nlohmann::ordered_json listed = nlohmann::ordered_json::array();
  for (const Case& c : cases) {
    listed.push_back(object_of(c));
    console.print(c.name());
  }
  console.result({{"cases", listed}});
  return done;
}

Status bench_ranks(const BenchOptions& options, Console& console) {
  if (options.ranks)
    return bench_rank_processes({.ranks = *options.ranks,
                                 .threads = options.threads.value_or(1),
                                 .size = options.size(),
                                 .oversubscribes = options.oversubscribes},
                                console);
  if (options.threads)
    throw Error(Error::value, "--threads: ranks that are threads have one each; say --ranks for processes");
  return bench_ranks(options.size(), console);
}

// "5 of 74, about 2 min left", as fast as those before it were.
std::string place_among(std::size_t before, std::size_t all, double seconds) {
  const std::string place = fmt::format("{} of {}", before + 1, all);
  if (before == 0) return place;
  const double left = seconds / static_cast<double>(before) * static_cast<double>(all - before);
  return left < 90 ? fmt::format("{}, about {:.0f} s left", place, std::ceil(left))
                   : fmt::format("{}, about {:.0f} min left", place, std::ceil(left / 60));
}

void refuse_strays(const BenchOptions& options) {
  const auto refuse = [](bool is_given, const std::string& flag, const std::string& where) {
    if (is_given) throw Error(Error::value, fmt::format("{}: means nothing {}", flag, where));
  };
  const bool is_of_ranks = options.suite() == Suite::ranks;
  refuse(options.ranks && !is_of_ranks, "--ranks", "without --suite ranks");
  refuse(options.chosen_suite && !options.own.empty(), "--suite", "beside --case");
  refuse(options.is_csv && options.is_markdown, "--csv", "beside --markdown");
  for (const auto& [is_given, flag] : {std::pair(!options.compare.empty(), "--compare"),
                                       {options.is_csv, "--csv"},
                                       {options.is_markdown, "--markdown"}})
    refuse(is_given && is_of_ranks, flag, "beside --suite ranks");
}

Status bench(const BenchOptions& options, Console& console) {
  refuse_strays(options);
  if (options.suite() == Suite::ranks) return bench_ranks(options, console);
  const std::vector<Case> cases = chosen_cases(options);
  if (options.lists) return list(cases, console);
  if (options.threads) set_num_threads(*options.threads);
  std::optional<SavedRun> saved;
  if (!options.compare.empty()) saved = read_saved_run("--compare", options.compare);
  std::optional<Limits> limits;
  if (!options.skips_limits) {
    console.progress("the machine's limits");
    limits = measure_limits();
  }
  const Layout layout = options.is_csv        ? Layout::csv
                        : options.is_markdown ? Layout::markdown
                                              : Layout::aligned;
  BenchReport report(console, {options.command(), layout, limits, saved}, cases);
  const Interruption interruption(console);
  Status status = done;
  const auto begun = std::chrono::steady_clock::now();
  for (std::size_t n = 0; n < cases.size(); ++n) {
    if (interruption.came()) {
      report.finish(BenchReport::End::interrupted);
      return interrupted;
    }
    const Case& c = cases[n];
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
    console.progress(place_among(n, cases.size(), taken.count()) + ": " + c.name());
    Measured measured = measure(*make_workload(c), options.seconds, binding_of(c, limits).now);
    report.add(c, measured);
    if (measured.findings.all_right()) continue;
    status = failed_check;
    console.error(fmt::format("{}: {} of {} checked elements are wrong: {}", c.name(),
                              measured.findings.misses, measured.findings.compared,
                              measured.findings.first_miss));
  }
  console.progress("");
  report.finish(BenchReport::End::all_cases);
  return status;
}

}  // namespace

Action add_bench(CLI::App& app) {
  describe(app, "How fast the kernels are, as a share of what this machine can do",
           "Examples:\n"
           "  heed bench\n"
           "  heed bench --suite decode --filter 'bf16/1x32x8x'\n"
           "  heed bench --suite decode --filter '^(cache|step)/'\n"
           "  heed bench --suite backward --filter f32\n"
           "  heed bench --suite all --quick --seconds 0.3 --json\n"
           "  heed bench --suite limits --threads 1\n"
           "  heed bench --case prefill/bf16/1x32x8x2048x2048x128/causal,decode/bf16/1x32x8x1x2048x128\n"
           "  heed bench --suite decode --json > saved.json\n"
           "  heed bench --suite decode --compare saved.json --markdown\n"
           "  heed bench --suite ranks --quick\n"
           "  heed bench --suite ranks --ranks 2 --threads 4\n\n"
           "Each case is shown when it is done. Ctrl-C ends with what there is, after the case that runs; a "
           "second one at once.");
  auto options = std::make_shared<BenchOptions>();
  options->add_to(app);
  return [options](Console& console) { return bench(*options, console); };
}

}  // namespace heed::tool
