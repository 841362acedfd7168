// SPDX-License-Identifier: Apache-2.0
// What `heed bench` says: a table for people, one object for programs.
#pragma once
#include <nlohmann/json.hpp>

#include "bench/limits.hpp"
#include "bench/measure.hpp"
#include "console.hpp"
#include "table.hpp"

namespace heed::tool {

class BenchReport {
 public:
  BenchReport(const Console&, std::optional<Limits>);
  void add(const Case&, const Measured&);  // a wrong result gets a line, but no figure
  void print() const;

 private:
  void print_limits() const;

  const Console& console_;
  const std::optional<Limits> limits_;
  nlohmann::ordered_json cases_ = nlohmann::ordered_json::array();
  Table table_;
};

}  // namespace heed::tool
