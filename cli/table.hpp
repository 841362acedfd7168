// SPDX-License-Identifier: Apache-2.0
// A plain table for the terminal: columns as wide as their widest cell, numbers to the right.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "console.hpp"

namespace heed::tool {

struct Column {
  enum class Side : std::uint8_t { left, right };
  std::string title;
  Side side = Side::right;
  std::size_t width = 0;  // at least
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> cells);  // one per column
  std::string text(const Console&) const;    // no newline at the end

  // Line by line, before it is known what comes: columns are as wide as they say, and their titles.
  std::string heading(const Console&) const;
  std::string line(std::vector<std::string> cells) const;

 private:
  std::vector<std::size_t> widths() const;
  std::string aligned(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Names and values under each other, without a heading.
struct Fact {
  std::string name, value;
};
std::string list_of(const Console&, const std::vector<Fact>&);

// 0.0123 -> "12.3 ms": three digits and a unit that fits.
std::string readable_seconds(double seconds);
// 0.000012345 -> "1.23e-05": an error, or a share of its bound.
std::string readable_error(double error);
// 1572864 -> "1,572,864".
std::string readable_count(std::int64_t count);

}  // namespace heed::tool
