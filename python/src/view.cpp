// SPDX-License-Identifier: Apache-2.0
// heed._heed.Page and Picture: what heed.view and heed.picture are made of.
#include "heed/view.hpp"

#include <nanobind/stl/tuple.h>

#include "bindings.hpp"
#include "others_run.hpp"
#include "view_docs.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

std::string read_text(const char* name, nb::handle object) {
  if (!PyUnicode_Check(object.ptr())) throw wrong_kind(name, object, "a str");
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (!utf8) throw from_python_error(name, "is no text", Error::value);  // a lone surrogate
  return {utf8, static_cast<std::size_t>(size)};
}

// One for each of so many. To the library a list without entries was not given.
std::vector<std::string> read_texts(const std::string& name, nb::handle object, std::int64_t wanted,
                                    const char* what) {
  std::vector<std::string> texts;
  if (object.is_none()) return texts;
  const nb::list list(object);
  if (nb::len(list) == 0) throw Error(Error::shape, name + ": 0 for " + std::to_string(wanted) + " " + what);
  for (std::size_t i = 0; i < nb::len(list); ++i) {
    const std::string place = name + "[" + std::to_string(i) + "]";
    texts.push_back(read_text(place.c_str(), list[i]));
  }
  return texts;
}

view::Run read_run(nb::handle name, nb::handle extents, nb::handle query_tokens, nb::handle key_tokens) {
  const auto [queries, keys, first_position] =
      nb::cast<std::tuple<std::int64_t, std::int64_t, nb::object>>(extents);
  view::Run run{.queries = queries, .keys = keys};
  run.name = read_text("name", name);
  run.query_tokens = read_texts("query_tokens", query_tokens, queries, "queries");
  run.key_tokens = read_texts("key_tokens", key_tokens, keys, "keys");
  if (!first_position.is_none()) run.first_position = read_integer("first_position", first_position);
  return run;
}

view::Layer read_layer(nb::handle name, nb::handle heads, nb::handle kv_heads) {
  view::Layer layer;
  layer.name = read_text("name", name);
  layer.heads = read_integer("heads", heads);
  layer.kv_heads = read_integer("kv_heads", kv_heads);
  return layer;
}

View weights_view(const Tensor& tensor) {
  dtype_of(tensor);
  return view_of(tensor, right_aligned(tensor));
}

// Keeps the arrays alive, and lets other Python threads run while they are read.
template <class Shown>
void add_rows(Shown& shown, nb::handle weights, nb::handle hidden) {
  const Tensor weights_tensor = read_tensor("weights", weights, Use::copy);
  view::Rows rows{.weights = weights_view(weights_tensor)};
  std::optional<Tensor> hidden_tensor;
  if (!hidden.is_none()) {
    hidden_tensor.emplace(read_tensor("hide", hidden));
    rows.hidden = bool_view_of(*hidden_tensor, right_aligned(*hidden_tensor));
  }
  const OthersRun others_run;
  shown.add_rows(rows);
}

std::string html_of(const view::Page& page) {
  const OthersRun others_run;
  return page.html();
}

template <class Shown>
void save(const Shown& shown, nb::handle path) {
  const std::string file = read_path("path", path);
  const OthersRun others_run;
  shown.save(file);
}

nb::bytes as_bytes(const std::string& bytes) { return nb::bytes(bytes.data(), bytes.size()); }
nb::bytes png_of(const view::Picture& picture) { return as_bytes(picture.png()); }
nb::bytes pdf_of(const view::Picture& picture) { return as_bytes(picture.pdf()); }

view::Theme read_theme(nb::handle object) {
  const std::string name = read_text("theme", object);
  if (name == "light") return view::Theme::light;
  if (name == "dark") return view::Theme::dark;
  if (name == "print") return view::Theme::print;
  throw Error(Error::value, "theme: '" + name + "' is neither 'light', 'dark' nor 'print'");
}

view::PictureOptions read_picture_options(nb::handle theme, nb::handle title, nb::handle shown_heads) {
  view::PictureOptions options{.theme = read_theme(theme), .title = read_text("title", title)};
  if (shown_heads.is_none()) return options;
  for (const nb::handle head : nb::list(shown_heads)) options.heads.push_back(read_integer("heads", head));
  if (options.heads.empty()) throw Error(Error::value, "heads: none; there must be at least one");
  return options;
}

bool are_causal(nb::handle weights) {
  const Tensor tensor = read_tensor("weights", weights, Use::copy);
  return view::looks_causal(weights_view(tensor));
}

}  // namespace

void define_view(nb::module_& m) {
  nb::class_<view::Page>(m, "Page", page_doc)
      .def(
          "__init__",
          [](view::Page* self, nb::handle title, nb::handle layers, nb::handle budget) {
            view::PageOptions options;
            options.title = read_text("title", title);
            options.layers = read_integer("layers", layers);
            options.budget_bytes = read_integer("budget", budget);
            new (self) view::Page(options);
          },
          nb::arg("title").none(), nb::arg("layers"), nb::arg("budget").none(),
          nb::sig("def __init__(self, title: str, layers: int, budget: int) -> None"))
      .def(
          "add_run",
          [](view::Page& self, nb::handle name, nb::handle extents, nb::handle query_tokens,
             nb::handle key_tokens) { self.add_run(read_run(name, extents, query_tokens, key_tokens)); },
          nb::arg("name"), nb::arg("extents"), nb::arg("query_tokens").none(), nb::arg("key_tokens").none(),
          nb::sig("def add_run(self, name: str, extents: tuple[int, int, int | None], query_tokens: "
                  "list[str] | None, "
                  "key_tokens: list[str] | None) -> None"),
          add_run_doc)
      .def(
          "add_layer",
          [](view::Page& self, nb::handle name, nb::handle heads, nb::handle kv_heads) {
            self.add_layer(read_layer(name, heads, kv_heads));
          },
          nb::arg("name"), nb::arg("heads"), nb::arg("kv_heads"),
          nb::sig("def add_layer(self, name: str, heads: int, kv_heads: int) -> None"), add_layer_doc)
      .def("add_rows", &add_rows<view::Page>, nb::arg("weights"), nb::arg("hide") = nb::none(),
           nb::sig("def add_rows(self, weights: Any, hide: Any = None) -> None"), add_rows_doc)
      .def("html", &html_of, nb::sig("def html(self) -> str"), html_doc)
      .def("save", &save<view::Page>, nb::arg("path"), nb::sig("def save(self, path: Any) -> None"),
           save_doc);
  nb::class_<view::Picture>(m, "Picture", picture_doc)
      .def(
          "__init__",
          [](view::Picture* self, nb::handle extents, nb::handle query_tokens, nb::handle key_tokens,
             nb::handle name, nb::handle heads, nb::handle theme, nb::handle title, nb::handle shown_heads) {
            const view::Run run = read_run(nb::str(""), extents, query_tokens, key_tokens);
            const view::Layer layer = read_layer(name, heads, heads);
            const view::PictureOptions options = read_picture_options(theme, title, shown_heads);
            new (self) view::Picture(run, layer, options);
          },
          nb::arg("extents"), nb::arg("query_tokens").none(), nb::arg("key_tokens").none(), nb::arg("name"),
          nb::arg("heads"), nb::arg("theme"), nb::arg("title"), nb::arg("shown_heads").none(),
          nb::sig("def __init__(self, extents: tuple[int, int, int | None], query_tokens: list[str] | None, "
                  "key_tokens: list[str] | None, name: str, heads: int, theme: str, title: str, shown_heads: "
                  "list[int] | None) -> None"))
      .def(
          "add_layer",
          [](view::Picture& self, nb::handle name, nb::handle heads) {
            self.add_layer(read_layer(name, heads, heads));
          },
          nb::arg("name"), nb::arg("heads"), nb::sig("def add_layer(self, name: str, heads: int) -> None"),
          add_picture_layer_doc)
      .def("add_rows", &add_rows<view::Picture>, nb::arg("weights"), nb::arg("hide") = nb::none(),
           nb::sig("def add_rows(self, weights: Any, hide: Any = None) -> None"), add_rows_doc)
      .def("png", &png_of, nb::sig("def png(self) -> bytes"), png_doc)
      .def("svg", &view::Picture::svg, nb::sig("def svg(self) -> str"), svg_doc)
      .def("pdf", &pdf_of, nb::sig("def pdf(self) -> bytes"), pdf_doc)
      .def("save", &save<view::Picture>, nb::arg("path"), nb::sig("def save(self, path: Any) -> None"),
           save_doc);
  m.def("looks_causal", &are_causal, nb::arg("weights"), nb::sig("def looks_causal(weights: Any) -> bool"),
        looks_causal_doc);
}

}  // namespace heed::python
