// SPDX-License-Identifier: Apache-2.0
// What `heed bench` says: a table for people, one object for programs.
#pragma once
#include <nlohmann/json.hpp>

#include "bench/limits.hpp"
#include "bench/measure.hpp"
#include "console.hpp"
#include "table.hpp"

namespace heed::tool {

// People see each line when its case is done; programs get one object, at the end.
class BenchReport {
 public:
  BenchReport(const Console&, std::optional<Limits>, const std::vector<Case>& to_come);
  void add(const Case&, const Measured&);  // a wrong result gets a line, but no figure
  enum class End : std::uint8_t { all_cases, interrupted };
  void finish(End) const;

 private:
  void print_machine() const;
  void add_row(std::vector<std::string> cells);

  const Console& console_;
  const std::optional<Limits> limits_;
  const std::size_t to_come_;
  nlohmann::ordered_json cases_ = nlohmann::ordered_json::array();
  Table table_;
};

}  // namespace heed::tool
