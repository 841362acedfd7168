// SPDX-License-Identifier: Apache-2.0
// See picture_plan.hpp.
#include "view/picture_plan.hpp"

#include <algorithm>
#include <cmath>

namespace HEED_NAMESPACE::view {
namespace {

constexpr std::size_t longest_word = 14;  // characters
constexpr std::int64_t gap = 14, caption = 16, title_room = 16, legend_room = 44, widest_picture = 3000;
constexpr std::int64_t legend_width = 220, words_of_legend = 180, widest_note = 490;

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::size_t characters_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// A token as it is read: without the mark of a space in front, ends of lines written out, not too long.
std::string word_of(std::string token) {
  for (const std::string_view mark : {" ", "\u0120", "\u2581"})
    if (token.size() > mark.size() && token.starts_with(mark)) token.erase(0, mark.size());
  replace_all(token, "\u010A", "\\n");
  replace_all(token, "\n", "\\n");
  if (characters_of(token) <= longest_word) return token;
  std::size_t seen = 0, end = 0;
  while (seen < longest_word) seen += begins_character(token[end++]);
  return token.substr(0, end - 1) + "~";
}

std::vector<std::string> words_of(const std::vector<std::string>& tokens) {
  std::vector<std::string> words;
  words.reserve(tokens.size());
  for (const std::string& token : tokens) words.push_back(word_of(token));
  return words;
}

std::int64_t widest(const std::vector<std::string>& words) {
  std::size_t most = 0;
  for (const std::string& word : words) most = std::max(most, characters_of(word));
  return static_cast<std::int64_t>(most) * letter_width;
}

// Pixels of a cell: what looks well, and more if there are words that are read then and the picture stays
// bearable.
std::int64_t cell_for(const PlanOf& of, std::int64_t rows, bool& has_words) {
  const bool is_named = !of.run.query_tokens.empty() || !of.run.key_tokens.empty();
  const std::int64_t wanted = of.panels == 1 ? 320 : of.panels <= 4 ? 210 : of.panels <= 12 ? 170 : 120;
  const std::int64_t side = std::max(of.level.rows, of.level.columns);
  const std::int64_t cell = std::clamp<std::int64_t>(wanted / side, 1, 24);
  const std::int64_t legible = std::max(cell, letter_height + 1);
  has_words = is_named && of.level.log2_pool == 0 &&
              of.columns * (legible * of.level.columns + gap) <= widest_picture &&
              rows * (legible * of.level.rows + gap + caption) <= widest_picture;
  return has_words ? legible : cell;
}

}  // namespace

// About three columns to two rows, but no more columns than these rows need: 12 panels are 3 rows of 4, not
// 5, 5 and 2.
std::int64_t columns_for(std::int64_t panels) {
  if (panels <= 4) return panels;
  const auto widest = static_cast<std::int64_t>(std::ceil(std::sqrt(1.5 * static_cast<double>(panels))));
  const std::int64_t rows = (panels + widest - 1) / widest;
  return (panels + rows - 1) / rows;
}

// The legend has room, too.
std::int64_t Plan::width() const {
  return left + std::max({columns * (panel_width + gap), legend_width + words_of_legend,
                          lacks_words ? widest_note : 0});
}
std::int64_t Plan::height() const {
  return top + above + rows * (panel_height + caption + gap) + legend_room + (lacks_words ? title_room : 0);
}
Box Plan::panel(std::int64_t n) const {
  const std::int64_t row = n / columns;
  return {left + n % columns * (panel_width + gap),
          top + above + caption + row * (panel_height + caption + gap), panel_width, panel_height};
}
Box Plan::legend() const {
  return {left, height() - legend_room - (lacks_words ? title_room : 0) + 8, legend_width, 10};
}

Plan plan_of(const PlanOf& of) {
  Plan plan;
  plan.columns = of.columns;
  plan.rows = (of.panels + of.columns - 1) / of.columns;
  const std::int64_t cell = cell_for(of, plan.rows, plan.has_words);
  plan.lacks_words = !plan.has_words && !(of.run.query_tokens.empty() && of.run.key_tokens.empty());
  plan.panel_width = cell * of.level.columns;
  plan.panel_height = cell * of.level.rows;
  if (plan.has_words) {
    plan.query_words = words_of(of.run.query_tokens);
    plan.key_words = words_of(of.run.key_tokens);
  }
  const auto digits = static_cast<std::int64_t>(std::to_string(of.run.queries).size());
  plan.left =
      gap + title_room + (plan.query_words.empty() ? digits * letter_width : widest(plan.query_words)) + 6;
  plan.top = gap + title_room + (of.has_title ? title_room + 4 : 0);
  plan.above = (plan.key_words.empty() ? letter_height : widest(plan.key_words)) + 6;
  return plan;
}

}  // namespace HEED_NAMESPACE::view
