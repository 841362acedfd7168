// SPDX-License-Identifier: Apache-2.0
// A picture: heads in a grid, the tokens at its edges, and what the colours mean below.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "files/atomic_file.hpp"
#include "files/json.hpp"
#include "heed/view.hpp"
#include "view/blocks.hpp"
#include "view/pdf.hpp"
#include "view/picture_plan.hpp"
#include "view/png.hpp"
#include "view/rows.hpp"
#include "view/svg.hpp"

namespace HEED_NAMESPACE::view {
namespace {

constexpr std::int64_t finest_side = 512;  // cells; more pixels than that show no more

int level_of_side(const Run& run, std::int64_t side) {
  int n = 0;
  while (((std::max(run.queries, run.keys) - 1) >> n) + 1 > side) ++n;
  return n;
}

std::string rounded(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", number);
  return text;
}

// Round distances between numbers that stand some forty pixels apart.
std::int64_t step_between(std::int64_t count, std::int64_t pixels) {
  const double wanted =
      40.0 * static_cast<double>(count) / static_cast<double>(std::max<std::int64_t>(1, pixels));
  for (std::int64_t power = 1;; power *= 10)
    for (const std::int64_t digit : {1, 2, 5})
      if (static_cast<double>(digit * power) >= wanted) return digit * power;
}

const Level& level_within(const Pyramid& pyramid, std::int64_t side) {
  for (const Level& each : pyramid.levels())
    if (std::max(each.rows, each.columns) <= side) return each;
  return pyramid.levels().back();
}

}  // namespace

struct Picture::State {
  struct Head {
    std::int64_t number = 0;
    Pyramid pyramid;
    float largest = 0;
    bool is_part_hidden = false;
  };
  struct ShownLayer {
    Layer layer;
    std::vector<Head> heads{};
  };
  Run run;
  PictureOptions options;
  std::vector<ShownLayer> layers{};
  std::int64_t rows = 0;  // of the layer added last

  void refuse_missing_rows() const {
    if (rows != run.queries)
      throw Error(Error::shape, "rows: " + std::to_string(rows) + " of the layer's " +
                                    std::to_string(run.queries) + " queries were given");
  }
  void add_layer(const Layer&);
  std::int64_t columns() const;
  std::int64_t panels() const;
  const Level& level(const Head& head) const {
    return level_within(head.pyramid, panels() == 1 ? finest_side : panels() <= 4 ? 256 : 200);
  }
  double end(const Head& head) const { return end_of_scale(head.largest, run.keys); }
  Plan plan() const {
    return plan_of({.run = run,
                    .panels = panels(),
                    .columns = columns(),
                    .level = level(layers[0].heads[0]),
                    .has_title = !title().empty()});
  }
  const std::string& title() const;
  std::string caption(const ShownLayer&, std::size_t layer, const Head&, std::int64_t width) const;
  void label_edges(Drawing&, const Plan&) const;
  void label_axes(Drawing&, const Plan&) const;
  void add_legend(Drawing&, const Plan&) const;
  std::string draw(Drawing&, const Plan&) const;
  template <class Kind>
  std::string drawn() const {
    refuse_missing_rows();
    const Plan where = plan();
    Kind drawing(where.width(), where.height(), options.theme);
    return draw(drawing, where);
  }
};

void Picture::State::add_layer(const Layer& layer) {
  check_layer(layer);
  ShownLayer shown{.layer = layer};
  const int finest = level_of_side(run, finest_side);
  const auto add_head = [&](std::int64_t number) {
    shown.heads.push_back({.number = number, .pyramid = Pyramid(run.queries, run.keys, finest)});
  };
  for (const std::int64_t number : options.heads) {
    if (number < 0 || number >= layer.heads)
      throw Error(Error::value, "heads: " + std::to_string(number) + " is none of the layer's " +
                                    std::to_string(layer.heads));
    add_head(number);
  }
  for (std::int64_t number = 0; number < layer.heads && options.heads.empty(); ++number) add_head(number);
  layers.push_back(std::move(shown));
  rows = 0;
}

// What was given, or the name of the one layer; that of several stands above every head.
const std::string& Picture::State::title() const {
  return options.title.empty() && layers.size() == 1 ? layers[0].layer.name : options.title;
}

// A row for every layer, so that head n stands above head n; the heads of a single one fill a rectangle.
std::int64_t Picture::State::columns() const {
  std::size_t most = 0;
  for (const ShownLayer& each : layers) most = std::max(most, each.heads.size());
  const auto heads = static_cast<std::int64_t>(most);
  return layers.size() == 1 ? columns_for(heads) : heads;
}
std::int64_t Picture::State::panels() const {
  return layers.size() == 1 ? static_cast<std::int64_t>(layers[0].heads.size())
                            : columns() * static_cast<std::int64_t>(layers.size());
}

// As much as there is room for.
std::string Picture::State::caption(const ShownLayer& layer, std::size_t n, const Head& head,
                                    std::int64_t width) const {
  const std::string number = std::to_string(head.number);
  const std::string name = layers.size() == 1         ? ""
                           : layer.layer.name.empty() ? "layer " + std::to_string(n)
                                                      : layer.layer.name;
  const std::string whole = (name.empty() ? "" : name + ", ") + "head " + number;
  for (const std::string& text : {whole + ", up to " + rounded(head.largest), whole})
    if (static_cast<std::int64_t>(text.size()) * letter_width <= width) return text;
  return layers.size() == 1 ? number : "L" + std::to_string(n) + " H" + number;
}

void Picture::State::label_edges(Drawing& drawing, const Plan& plan) const {
  const auto along = [](std::int64_t n, std::int64_t count, std::int64_t pixels) {
    return (2 * n + 1) * pixels / (2 * count);
  };
  const std::int64_t every_query =
      plan.query_words.empty() ? step_between(run.queries, plan.panel_height) : 1;
  const std::int64_t every_key = plan.key_words.empty() ? step_between(run.keys, plan.panel_width) : 1;
  for (std::int64_t row = 0; row < plan.rows; ++row) {
    const Box first = plan.panel(row * plan.columns);
    for (std::int64_t i = 0; i < run.queries; i += every_query) {
      const std::string text =
          plan.query_words.empty() ? std::to_string(i) : plan.query_words[static_cast<std::size_t>(i)];
      drawing.add_label({.text = text,
                         .x = first.x - 5,
                         .y = first.y + along(i, run.queries, first.height),
                         .way = Label::Way::left,
                         .is_quiet = plan.query_words.empty()});
    }
  }
  for (std::int64_t column = 0; column < std::min(plan.columns, panels()); ++column) {
    const Box first = plan.panel(column);
    for (std::int64_t j = 0; j < run.keys; j += every_key) {
      const std::string text =
          plan.key_words.empty() ? std::to_string(j) : plan.key_words[static_cast<std::size_t>(j)];
      drawing.add_label({.text = text,
                         .x = first.x + along(j, run.keys, first.width),
                         .y = first.y - 5 - (plan.key_words.empty() ? letter_height / 2 : 0),
                         .way = plan.key_words.empty() ? Label::Way::middle : Label::Way::up,
                         .is_quiet = plan.key_words.empty()});
    }
  }
}

void Picture::State::label_axes(Drawing& drawing, const Plan& plan) const {
  const Box first = plan.panel(0), last = plan.panel(plan.columns * plan.rows - 1);
  drawing.add_label({.text = "keys (looked at)",
                     .x = first.x + std::min(last.x + last.width - first.x, plan.width() - first.x) / 2,
                     .y = plan.top - 8,
                     .way = Label::Way::middle,
                     .is_quiet = true});
  drawing.add_label({.text = "queries (looking)",
                     .x = 14,
                     .y = (first.y + last.y + last.height) / 2,
                     .way = Label::Way::up_middle,
                     .is_quiet = true});
  if (!title().empty()) drawing.add_label({.text = title(), .x = 14, .y = 16});
}

void Picture::State::add_legend(Drawing& drawing, const Plan& plan) const {
  const Box bar = plan.legend();
  const Head& only = layers[0].heads[0];
  const bool is_one = panels() == 1;
  drawing.add_scale(bar);
  drawing.add_label({.text = "weight: 0", .x = bar.x, .y = bar.y + 18});
  drawing.add_label(
      {.text = is_one ? rounded(end(only)) : "its largest, at least " + rounded(end_of_scale(0, run.keys)),
       .x = bar.x + bar.width,
       .y = bar.y + 18,
       .way = Label::Way::left});
  const bool hides = std::any_of(layers.begin(), layers.end(), [](const ShownLayer& layer) {
    return std::any_of(layer.heads.begin(), layer.heads.end(),
                       [](const Head& head) { return head.is_part_hidden; });
  });
  if (hides) {
    drawing.add_hatching({bar.x + bar.width + 16, bar.y, 10, 10});
    drawing.add_label({.text = "hidden by a mask", .x = bar.x + bar.width + 32, .y = bar.y + 5});
  }
  const std::string note = std::to_string(run.queries) + " queries by " + std::to_string(run.keys) +
                           " keys are too many for their words: they are counted from 0";
  if (plan.lacks_words) drawing.add_label({.text = note, .x = bar.x, .y = bar.y + 36, .is_quiet = true});
}

std::string Picture::State::draw(Drawing& drawing, const Plan& plan) const {
  for (std::size_t l = 0; l < layers.size(); ++l)
    for (std::size_t h = 0; h < layers[l].heads.size(); ++h) {
      const Head& head = layers[l].heads[h];
      const std::int64_t place = static_cast<std::int64_t>(l) * plan.columns + static_cast<std::int64_t>(h);
      const Box box = plan.panel(place);
      drawing.add_cells({.box = box, .level = &level(head), .end_of_scale = end(head)});
      const std::int64_t above = place < plan.columns ? plan.above : 0;  // the words of the keys lie between
      drawing.add_label({.text = caption(layers[l], l, head, box.width), .x = box.x, .y = box.y - above - 8});
    }
  label_edges(drawing, plan);
  label_axes(drawing, plan);
  add_legend(drawing, plan);
  return drawing.finish();
}

Picture::Picture(const Run& run, const Layer& layer, const PictureOptions& options)
    : state_(std::make_unique<State>()) {
  check_run(run);
  if (!files::is_utf8(options.title))
    throw Error(Error::value, "title: " + files::quote_briefly(options.title) + " is not UTF-8");
  state_->run = run;
  state_->options = options;
  state_->add_layer(layer);
}
Picture::~Picture() = default;
Picture::Picture(Picture&&) noexcept = default;
Picture& Picture::operator=(Picture&&) noexcept = default;

void Picture::add_layer(const Layer& layer) {
  state_->refuse_missing_rows();
  state_->add_layer(layer);
}

void Picture::add_rows(const Rows& rows) {
  State& state = *state_;
  State::ShownLayer& shown = state.layers.back();
  check_rows(rows, {.heads = shown.layer.heads,
                    .queries = state.run.queries,
                    .keys = state.run.keys,
                    .first_row = state.rows});
  for_every_row(rows, [&shown](std::size_t h, std::span<const float> weights, const bool* hidden) {
    for (State::Head& head : shown.heads) {
      if (head.number != static_cast<std::int64_t>(h)) continue;
      head.pyramid.add_row(weights, hidden);
      for (std::size_t j = 0; j < weights.size(); ++j) {
        if (hidden && hidden[j])
          head.is_part_hidden = true;
        else if (std::isfinite(weights[j]))
          head.largest = std::max(head.largest, weights[j]);
      }
    }
  });
  state.rows += rows.weights.shape.length;
}

std::string Picture::png() const { return state_->drawn<PngDrawing>(); }
std::string Picture::svg() const { return state_->drawn<SvgDrawing>(); }
std::string Picture::pdf() const { return state_->drawn<PdfDrawing>(); }

std::string Picture::text(std::int64_t width, Ink kind) const {
  state_->refuse_missing_rows();
  std::string text;
  for (const State::ShownLayer& layer : state_->layers)
    for (const State::Head& head : layer.heads) {
      const Level& level = level_within(head.pyramid, std::max((width - 14) / 2, Pyramid::coarsest_side));
      text += (layer.layer.name.empty() ? "" : layer.layer.name + ", ") + "head " +
              std::to_string(head.number) + "\n" +
              blocks({.level = level,
                      .end_of_scale = state_->end(head),
                      .tokens = state_->run.query_tokens,
                      .has_colours = kind == Ink::colours});
    }
  return text;
}

void Picture::save(const std::filesystem::path& path) const {
  const std::string kind = path.extension().string();
  if (kind != ".png" && kind != ".svg" && kind != ".pdf")
    throw Error(Error::value, "path: '" + path.string() + "' ends in neither .png, .svg nor .pdf");
  const std::string bytes = kind == ".png" ? png() : kind == ".svg" ? svg() : pdf();
  files::AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

}  // namespace HEED_NAMESPACE::view
