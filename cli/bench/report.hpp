// SPDX-License-Identifier: Apache-2.0
// What `heed bench` reports: a table for people, one object for programs, whose fields bench/records.py
// lists.
#pragma once
#include <nlohmann/json.hpp>

#include "bench/limits.hpp"
#include "bench/measure.hpp"
#include "console.hpp"
#include "table.hpp"

namespace heed::tool {

// What a case is, without a time: name, role, dtype, shape and the work that is counted.
nlohmann::ordered_json object_of(const Case&);

// People see each line when its case is done; programs get one object, at the end.
class BenchReport {
 public:
  // `command` is what this run is repeated with.
  BenchReport(const Console&, std::string command, std::optional<Limits>, const std::vector<Case>& to_come);
  void add(const Case&, const Measured&);  // a wrong result gets a line, but no figure
  enum class End : std::uint8_t { all_cases, interrupted };
  void finish(End) const;

 private:
  void print_machine() const;
  void add_row(std::vector<std::string> cells);

  const Console& console_;
  const std::string command_;
  const std::optional<Limits> limits_;
  const std::size_t to_come_;
  nlohmann::ordered_json cases_ = nlohmann::ordered_json::array();
  Table table_;
};

}  // namespace heed::tool
