// SPDX-License-Identifier: Apache-2.0
// See table.hpp.
#include "table.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace heed::tool {
namespace {

std::string padded(const std::string& cell, std::size_t width, Column::Side side) {
  return side == Column::Side::left ? fmt::format("{:<{}}", cell, width) : fmt::format("{:>{}}", cell, width);
}

std::string without_trailing_spaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    widths.push_back(std::max(columns_[c].width, columns_[c].title.size()));
    for (const auto& row : rows_) widths[c] = std::max(widths[c], row[c].size());
  }
  return widths;
}

std::string Table::aligned(const std::vector<std::string>& cells) const {
  const std::vector<std::size_t> wide = widths();
  std::string line;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    if (c > 0) line += "  ";
    line += padded(cells[c], wide[c], columns_[c].side);
  }
  return without_trailing_spaces(line);
}

std::string Table::heading(const Console& console) const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  return console.paint(Style::bold, aligned(titles));
}

std::string Table::line(std::vector<std::string> cells) const {
  cells.resize(columns_.size());
  return aligned(cells);
}

std::string Table::text(const Console& console) const {
  std::string text = heading(console);
  for (const auto& row : rows_) text += '\n' + aligned(row);
  return text;
}

std::string list_of(const Console& console, const std::vector<Fact>& facts) {
  std::size_t width = 0;
  for (const Fact& fact : facts) width = std::max(width, fact.name.size());
  std::string text;
  for (const Fact& fact : facts) {
    const std::string name = console.paint(Style::bold, fmt::format("{:<{}}", fact.name, width));
    text += fmt::format("{}{}  {}", text.empty() ? "" : "\n", name, fact.value);
  }
  return text;
}

std::string readable_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

std::string readable_error(double error) { return fmt::format("{:.3g}", error); }

std::string readable_count(std::int64_t count) {
  const std::string digits = fmt::format("{}", count);
  const std::size_t first = count < 0 ? 1 : 0;
  std::string text;
  for (std::size_t at = 0; at < digits.size(); ++at) {
    if (at > first && (digits.size() - at) % 3 == 0) text += ',';
    text += digits[at];
  }
  return text;
}

}  // namespace heed::tool
