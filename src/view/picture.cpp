// SPDX-License-Identifier: Apache-2.0
// A picture: the heads of a layer in a grid, the tokens at its edges.
#include <algorithm>
#include <cmath>

#include "files/atomic_file.hpp"
#include "heed/view.hpp"
#include "view/blocks.hpp"
#include "view/png.hpp"
#include "view/rows.hpp"
#include "view/svg.hpp"

namespace heed::inline v0_2::view {
namespace {

constexpr std::int64_t finest_side = 512;       // cells; more pixels than that show no more
constexpr std::size_t longest_label = 12;       // characters
constexpr std::int64_t gap = 20, caption = 26;  // pixels

int level_of_side(const Run& run, std::int64_t side) {
  int n = 0;
  while (((std::max(run.queries, run.keys) - 1) >> n) + 1 > side) ++n;
  return n;
}

// The first characters of a token, whole ones.
std::string shortened(const std::string& token) {
  std::size_t characters = 0, end_of_short = 0;
  for (std::size_t i = 0; i < token.size(); ++i) {
    if ((static_cast<unsigned char>(token[i]) & 0xC0) == 0x80) continue;
    if (++characters == longest_label) end_of_short = i;
    if (characters > longest_label) return token.substr(0, end_of_short) + "~";
  }
  return token;
}

std::int64_t widest(const std::vector<std::string>& tokens) {
  std::size_t most = 0;
  for (const std::string& token : tokens) most = std::max(most, std::min(token.size(), longest_label));
  return static_cast<std::int64_t>(most) * letter_width + 8;
}

// Where everything is, in pixels.
struct Plan {
  std::int64_t columns = 1, rows = 1, panel_width = 0, panel_height = 0, left = gap, top = gap;
  bool has_query_labels = false, has_key_labels = false;
  std::int64_t width() const { return left + columns * (panel_width + gap); }
  std::int64_t height() const { return top + rows * (panel_height + caption + gap); }
  Box panel(std::int64_t head) const {
    return {left + head % columns * (panel_width + gap),
            top + head / columns * (panel_height + caption + gap) + caption, panel_width, panel_height};
  }
};

Plan plan_of(const Run& run, std::int64_t heads, const Level& level) {
  Plan plan;
  plan.columns =
      heads <= 4 ? heads : static_cast<std::int64_t>(std::ceil(std::sqrt(1.5 * static_cast<double>(heads))));
  plan.rows = (heads + plan.columns - 1) / plan.columns;
  const std::int64_t wanted = heads == 1 ? 520 : heads <= 4 ? 340 : heads <= 12 ? 280 : 200;
  const std::int64_t cell =
      std::max<std::int64_t>(1, std::min<std::int64_t>(40, wanted / std::max(level.rows, level.columns)));
  plan.panel_width = cell * level.columns;
  plan.panel_height = cell * level.rows;
  const bool is_legible = level.log2_pool == 0 && cell >= letter_height;
  plan.has_query_labels = is_legible && !run.query_tokens.empty();
  plan.has_key_labels = is_legible && !run.key_tokens.empty();
  if (plan.has_query_labels) plan.left = std::max(plan.left, widest(run.query_tokens) + 8);
  if (plan.has_key_labels) plan.top = std::max(plan.top, widest(run.key_tokens) + 4);
  return plan;
}

}  // namespace

struct Picture::State {
  struct Head {
    Pyramid pyramid;
    float largest = 0;
  };
  Run run;
  Layer layer;
  std::vector<Head> heads{};
  std::int64_t rows = 0;

  void refuse_missing_rows() const {
    if (rows != run.queries)
      throw Error(Error::shape, "rows: " + std::to_string(rows) + " of the layer's " +
                                    std::to_string(run.queries) + " queries were given");
  }
  const Level& level(const Head& head, std::int64_t side) const {
    for (const Level& each : head.pyramid.levels())
      if (std::max(each.rows, each.columns) <= side) return each;
    return head.pyramid.levels().back();
  }
  std::int64_t side() const { return heads.size() == 1 ? finest_side : heads.size() <= 4 ? 256 : 200; }
  Plan plan() const { return plan_of(run, layer.heads, level(heads[0], side())); }
  std::string draw(Drawing&) const;
  void label_edges(Drawing&, const Plan&) const;
};

void Picture::State::label_edges(Drawing& drawing, const Plan& plan) const {
  for (std::int64_t row = 0; row < plan.rows && plan.has_query_labels; ++row) {
    const Box first = plan.panel(row * plan.columns);
    for (std::int64_t i = 0; i < run.queries; ++i)
      drawing.add_label({.text = shortened(run.query_tokens[static_cast<std::size_t>(i)]),
                         .x = first.x - 8,
                         .y = first.y + (2 * i + 1) * first.height / (2 * run.queries),
                         .way = Label::Way::left});
  }
  for (std::int64_t column = 0; column < std::min(plan.columns, layer.heads) && plan.has_key_labels;
       ++column) {
    const Box first = plan.panel(column);
    for (std::int64_t j = 0; j < run.keys; ++j)
      drawing.add_label({.text = shortened(run.key_tokens[static_cast<std::size_t>(j)]),
                         .x = first.x + (2 * j + 1) * first.width / (2 * run.keys),
                         .y = first.y - caption - 2,
                         .way = Label::Way::up});
  }
}

std::string Picture::State::draw(Drawing& drawing) const {
  const Plan drawn = plan();
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const Box box = drawn.panel(static_cast<std::int64_t>(h));
    drawing.add_cells(box, level(heads[h], side()), end_of_scale(heads[h].largest, run.keys));
    drawing.add_label(
        {.text = "head " + std::to_string(h), .x = box.x, .y = box.y - 12, .colour = quiet_ink});
  }
  label_edges(drawing, drawn);
  return drawing.finish();
}

Picture::Picture(const Run& run, const Layer& layer) : state_(std::make_unique<State>()) {
  check_run(run);
  check_layer(layer);
  state_->run = run;
  state_->layer = layer;
  const int finest = level_of_side(run, finest_side);
  for (std::int64_t h = 0; h < layer.heads; ++h)
    state_->heads.push_back({.pyramid = Pyramid(run.queries, run.keys, finest)});
}
Picture::~Picture() = default;
Picture::Picture(Picture&&) noexcept = default;
Picture& Picture::operator=(Picture&&) noexcept = default;

void Picture::add_rows(const Rows& rows) {
  State& state = *state_;
  check_rows(rows, {.heads = state.layer.heads,
                    .queries = state.run.queries,
                    .keys = state.run.keys,
                    .first_row = state.rows});
  for_every_row(rows, [&state](std::size_t h, std::span<const float> weights, const bool* hidden) {
    State::Head& head = state.heads[h];
    head.pyramid.add_row(weights, hidden);
    for (std::size_t j = 0; j < weights.size(); ++j)
      if (std::isfinite(weights[j]) && !(hidden && hidden[j]))
        head.largest = std::max(head.largest, weights[j]);
  });
  state.rows += rows.weights.shape.length;
}

std::string Picture::png() const {
  state_->refuse_missing_rows();
  const Plan plan = state_->plan();
  PngDrawing drawing(plan.width(), plan.height());
  return state_->draw(drawing);
}

std::string Picture::svg() const {
  state_->refuse_missing_rows();
  const Plan plan = state_->plan();
  SvgDrawing drawing(plan.width(), plan.height());
  return state_->draw(drawing);
}

std::string Picture::text(std::int64_t width, Ink kind) const {
  state_->refuse_missing_rows();
  std::string text;
  for (std::size_t h = 0; h < state_->heads.size(); ++h) {
    const auto& head = state_->heads[h];
    const Level& level = state_->level(head, std::max((width - 14) / 2, Pyramid::coarsest_side));
    text += "head " + std::to_string(h) + "\n" +
            blocks({.level = level,
                    .end_of_scale = end_of_scale(head.largest, state_->run.keys),
                    .tokens = state_->run.query_tokens,
                    .has_colours = kind == Ink::colours});
  }
  return text;
}

void Picture::save(const std::filesystem::path& path) const {
  const std::string kind = path.extension().string();
  if (kind != ".png" && kind != ".svg")
    throw Error(Error::value, "path: '" + path.string() + "' ends in neither .png nor .svg");
  const std::string bytes = kind == ".png" ? png() : svg();
  files::AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace heed::inline v0_2::view
