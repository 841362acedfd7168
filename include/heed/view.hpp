// SPDX-License-Identifier: Apache-2.0
// Attention to look at: a page for the browser and pictures, made a stretch of queries at a time. The library
// is heed::view.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "heed/attention.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE::view {

// One pass of tokens through layers: what its queries and keys are called.
struct Run {
  std::string name{};
  std::int64_t queries = 0, keys = 0;
  std::vector<std::string> query_tokens{}, key_tokens{};  // UTF-8, one for each; none: numbers
  // Which key is the first query's own position; none where queries and keys are two sequences.
  std::optional<std::int64_t> first_position{};
};

// The query heads of one layer, and which of them share keys and values.
struct Layer {
  std::string name{};
  std::int64_t heads = 1, kv_heads = 1;
  HeadMap head_map = HeadMap::interleaved;
};

// A stretch of queries of every head: what attention() writes into Outputs::weights.
struct Rows {
  View weights{};               // (1, heads, rows, keys)
  Optional<BoolView> hidden{};  // true where a mask hides the key; an extent of 1 broadcasts
};

// Is every weight above the diagonal exactly 0, as under a causal mask? (1, heads, queries, keys); false
// for zeros alone, and unless there are as many queries as keys, and at least two.
bool looks_causal(const View& weights);

struct PageOptions {
  std::string title{"Attention"};
  // How many layers all runs have together. Each gets its share of `budget_bytes`, which the page stays
  // under: first what is shown of the whole, then finer levels as far as they fit.
  std::int64_t layers = 1;
  std::int64_t budget_bytes = 40'000'000;
};

// One self-contained HTML page. Memory grows with the page and with one stretch, not with queries x keys.
class Page {
 public:
  explicit Page(const PageOptions& = {});
  ~Page();
  Page(Page&&) noexcept;
  Page& operator=(Page&&) noexcept;

  void add_run(const Run&);
  void add_layer(const Layer&);  // of the run added last
  void add_rows(const Rows&);    // of the layer added last, in order
  std::string html() const;      // refuses a layer that lacks rows
  void save(const std::filesystem::path&) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

enum class Theme : std::uint8_t { light, dark, print };  // print: greys on white

struct PictureOptions {
  Theme theme = Theme::light;
  std::string title{};
  std::vector<std::int64_t> heads{};  // those that are drawn, of every layer; none said: all
};

// Heatmaps of heads: those of one layer side by side, or a row for every layer. The words stand at the edges
// where they are read, and where they are not the picture says so.
class Picture {
 public:
  Picture(const Run&, const Layer&, const PictureOptions& = {});
  ~Picture();
  Picture(Picture&&) noexcept;
  Picture& operator=(Picture&&) noexcept;

  void add_layer(const Layer&);  // the next row of the picture
  void add_rows(const Rows&);    // of the layer added last, in order
  std::string png() const;
  std::string svg() const;
  std::string pdf() const;
  enum class Ink : std::uint8_t { shades, colours };
  // For a terminal, at most so many characters wide.
  std::string text(std::int64_t width, Ink) const;
  void save(const std::filesystem::path&) const;  // .png, .svg or .pdf

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes a page to play with attention in: heed itself inside, compiled to WebAssembly
// (docs/view.md).
void save_playground(const std::filesystem::path&);

}  // namespace HEED_NAMESPACE::view
