// SPDX-License-Identifier: Apache-2.0
// What `heed bench` reports: a table for people, one object for programs, whose fields bench/records.py
// lists.
#pragma once
#include <nlohmann/json.hpp>

#include "bench/limits.hpp"
#include "bench/measure.hpp"
#include "bench/saved_run.hpp"
#include "console.hpp"
#include "table.hpp"

namespace heed::tool {

// What a case is, without a time: name, role, dtype, shape and the work that is counted.
nlohmann::ordered_json object_of(const Case&);

// How people see it: a table that is aligned, one in Markdown, or numbers separated by commas.
enum class Layout : std::uint8_t { aligned, markdown, csv };

struct BenchRun {
  std::string command{};  // that repeats it
  Layout layout = Layout::aligned;
  std::optional<Limits> limits{};
  std::optional<SavedRun> saved{};  // to compare with
};

// People see each line when its case is done; programs get one object, at the end.
class BenchReport {
 public:
  BenchReport(const Console&, BenchRun, const std::vector<Case>& to_come);
  void add(const Case&, const Measured&);  // a wrong result gets a line, but no figure
  enum class End : std::uint8_t { all_cases, interrupted };
  void finish(End) const;

 private:
  void print_machine() const;
  void print_heading() const;
  void print_notes() const;
  void add_row(const nlohmann::ordered_json& record, std::vector<std::string> cells);

  const Console& console_;
  const BenchRun run_;
  const std::size_t to_come_;
  const std::vector<Column> columns_;
  nlohmann::ordered_json cases_ = nlohmann::ordered_json::array();
  Table table_;
  std::vector<double>
      slowdowns_{};  // of cases with turns: what the machine did meanwhile, of its limit before
};

}  // namespace heed::tool
