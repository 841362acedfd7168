// SPDX-License-Identifier: Apache-2.0
// A page: runs, their layers, and all of it as HTML.
#include <algorithm>
#include <optional>

#include "files/atomic_file.hpp"
#include "files/json.hpp"
#include "heed/version.hpp"
#include "heed/view.hpp"
#include "view/base64.hpp"
#include "view/code.hpp"
#include "view/json_text.hpp"
#include "view/layer_record.hpp"
#include "view/page_text.hpp"
#include "view/rows.hpp"

namespace HEED_NAMESPACE::view {
namespace {

constexpr std::int64_t min_budget = 200'000;

// Among all heads a head is a picture of at most 64 x 64 cells. Blobs that are no larger than its exact
// weights stand before the script, so that it draws all heads while the browser still reads the rest.
constexpr std::size_t small_blob = 64 * 64 * sizeof(float);

// What a page takes before anything is shown on it: its scripts and styles, and about what describes the
// heads.
std::int64_t empty_page_bytes() {
  constexpr std::size_t description = 20'000;
  return static_cast<std::int64_t>(page_before_title.size() + page_before_data.size() +
                                   page_before_rest.size() + page_after_rest.size() + description);
}

std::string escaped_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '&')
      escaped += "&amp;";
    else
      escaped += c;
  }
  return escaped;
}

void check_options(const PageOptions& options) {
  if (options.layers < 1)
    throw Error(Error::value, "layers: " + std::to_string(options.layers) + ", there must be at least one");
  if (options.budget_bytes < min_budget)
    throw Error(Error::value, "budget: " + std::to_string(options.budget_bytes) +
                                  " bytes, a page takes at least " + std::to_string(min_budget));
  if (!files::is_utf8(options.title))
    throw Error(Error::value, "title: " + files::quote_briefly(options.title) + " is not UTF-8");
}

}  // namespace

struct Page::State {
  struct ShownRun {
    Run run;
    std::vector<std::string> layers{};  // JSON
  };
  PageOptions options;
  std::vector<ShownRun> runs{};
  std::vector<std::vector<std::string>> tokens{};  // each list once, however many runs have it
  Blobs blobs{};
  std::optional<LayerRecord> open{};
  std::int64_t layers = 0;

  void refuse_open_layer() const {
    if (open)
      throw Error(Error::shape, "rows: " + std::to_string(open->rows()) + " of the layer's " +
                                    std::to_string(open->queries()) + " queries were given");
  }
  std::string place_of(const std::vector<std::string>& list) {
    if (list.empty()) return "null";
    const auto found = std::find(tokens.begin(), tokens.end(), list);
    const auto place = found - tokens.begin();
    if (found == tokens.end()) tokens.push_back(list);
    return std::to_string(place);
  }
  std::string json();
};

std::string Page::State::json() {
  std::vector<std::string> shown;
  for (const ShownRun& each : runs)
    shown.push_back(json_object(
        {{"name", json_of(std::string_view(each.run.name))},
         {"queries", std::to_string(each.run.queries)},
         {"keys", std::to_string(each.run.keys)},
         {"query_tokens", place_of(each.run.query_tokens)},
         {"key_tokens", place_of(each.run.key_tokens)},
         {"first_position", each.run.first_position ? std::to_string(*each.run.first_position) : "null"},
         {"layers", json_list(each.layers)}}));
  std::vector<std::string> lists;
  for (const std::vector<std::string>& list : tokens) lists.push_back(json_of(list));
  return json_object({{"title", json_of(std::string_view(options.title))},
                      {"version", json_of(std::string_view(version()))},
                      {"octaves", std::to_string(octaves)},
                      {"tokens", json_list(lists)},
                      {"runs", json_list(shown)}});
}

Page::Page(const PageOptions& options) : state_(std::make_unique<State>()) {
  check_options(options);
  state_->options = options;
}
Page::~Page() = default;
Page::Page(Page&&) noexcept = default;
Page& Page::operator=(Page&&) noexcept = default;

void Page::add_run(const Run& run) {
  state_->refuse_open_layer();
  check_run(run);
  state_->runs.push_back({.run = run});
}

void Page::add_layer(const Layer& layer) {
  state_->refuse_open_layer();
  if (state_->runs.empty()) throw Error(Error::value, "layer: there is no run yet that it could be of");
  check_layer(layer);
  if (state_->layers == state_->options.layers)
    throw Error(Error::value,
                "layers: " + std::to_string(state_->options.layers) + " were announced, and this is another");
  ++state_->layers;
  // Base64 writes three bytes as four.
  const std::int64_t for_layers = (state_->options.budget_bytes - empty_page_bytes()) / 4 * 3;
  const std::int64_t share = std::max(layer.heads, for_layers / state_->options.layers);
  state_->open.emplace(state_->runs.back().run, layer, share);
}

void Page::add_rows(const Rows& rows) {
  if (!state_->open) throw Error(Error::value, "rows: there is no layer that lacks any");
  state_->open->add_rows(rows);
  if (!state_->open->is_whole()) return;
  state_->runs.back().layers.push_back(state_->open->pack(state_->blobs));
  state_->open.reset();
}

std::string Page::html() const {
  state_->refuse_open_layer();
  std::string page(page_before_title);
  page += escaped_html(state_->options.title);
  page += page_before_data;
  page += "<script type=\"application/json\" id=\"attention\">" + state_->json() + "</script>\n";
  std::string rest;
  for (std::size_t i = 0; i < state_->blobs.size(); ++i)
    (state_->blobs[i].size() <= small_blob ? page : rest) +=
        "<script type=\"application/octet-stream\" id=\"blob-" + std::to_string(i) + "\">" +
        base64(state_->blobs[i]) + "</script>\n";
  page += page_before_rest;
  page += rest;
  page += page_after_rest;
  const auto size = static_cast<std::int64_t>(page.size());
  if (size > state_->options.budget_bytes)
    throw Error(Error::capacity,
                "budget: " + std::to_string(state_->options.budget_bytes) +
                    " bytes do not hold even the coarsest level of every head; this page takes " +
                    std::to_string(size));
  return page;
}

void Page::save(const std::filesystem::path& path) const {
  const std::string page = html();
  files::AtomicFile file(path);
  file.write(page.data(), page.size());
  file.commit();
}

}  // namespace HEED_NAMESPACE::view
