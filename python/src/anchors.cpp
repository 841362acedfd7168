// SPDX-License-Identifier: Apache-2.0
#include "anchors.hpp"

#include <limits>
#include <utility>

#include "heed/half.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

Align read_align(const char* name, nb::handle object) {
  const std::string word = read_word(name, object);
  if (word == "starts") return Align::starts;
  if (word == "ends") return Align::ends;
  throw Error(Error::value, std::string(name) + ": \"" + word + "\" is none of \"starts\", \"ends\"");
}

std::int64_t read_reach(const char* name, nb::handle object) {
  return object.is_none() ? std::numeric_limits<std::int64_t>::max() : read_integer(name, object);
}

// An array, or (array, "starts" or "ends").
struct Anchored {
  nb::object array{};
  std::optional<Align> align{};
};

Anchored read_anchored(const std::string& name, nb::handle object) {
  const bool is_pair = nb::isinstance<nb::tuple>(object) && nb::len(object) == 2;
  if (!is_pair || !nb::isinstance<nb::str>(object[1])) return {nb::borrow(object)};
  return {object[0], read_align((name + " align").c_str(), object[1])};
}

// (tokens,) or (batch, tokens); returns how many tokens a row has.
std::int64_t read_ids(const char* name, nb::handle object, std::vector<std::int32_t>& ids) {
  const Integers read = read_integers(name, object);
  if (read.shape.size() != 1 && read.shape.size() != 2)
    throw Error(Error::shape,
                std::string(name) + ": " + std::to_string(read.shape.size()) + " axes are neither 1 nor 2");
  for (const std::int64_t id : read.values) {
    if (!std::in_range<std::int32_t>(id))
      throw Error(Error::value, std::string(name) + ": " + std::to_string(id) + " is not in int32's range");
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return read.shape.back();
}

nb::object as_floats(const char* name, nb::handle list) {
  try {
    return nb::module_::import_("numpy").attr("asarray")(list, "float32");
  } catch (nb::python_error& error) {
    error.restore();
    throw from_python_error(name, "cannot be read", Error::value);
  }
}

float read_slope(const Tensor& slopes, const std::byte* at) {
  switch (dtype_of(slopes)) {
    case DType::f32:
      return *reinterpret_cast<const float*>(at);
    case DType::f16:
      return to_float(*reinterpret_cast<const f16*>(at));
    case DType::bf16:
      return to_float(*reinterpret_cast<const bf16*>(at));
    case DType::f64:
      break;
  }
  throw Error(Error::dtype, std::string(slopes.name) + ".dtype: f64 is none of f32, f16, bf16");
}

Error ambiguous(const char* name, const std::string& found, const char* what_to_say) {
  return {Error::ambiguous, std::string(name) + ": " + found + "; say " + what_to_say};
}

struct AsksForAnchor {
  const std::string& found;
  bool has_query_documents;

  void operator()(const Causal& m) const {
    if (!m.align) throw ambiguous("causal", found, R"("ends" (decode) or "starts")");
  }
  void operator()(const Window& m) const {
    if (!m.align) throw ambiguous("window", found, R"((left, right, "ends") or (left, right, "starts"))");
  }
  void operator()(const Document& m) const {
    if (!m.align && !has_query_documents)
      throw ambiguous("document", found, R"((ids, "ends") or (ids, "starts"), or query_document=)");
  }
  void operator()(const KeyLengths&) const {}
  void operator()(const Keep&) const {}
  void operator()(const Hide&) const {}
  void operator()(const Tree&) const {}
};

}  // namespace

void read_causal(Choices& choices, nb::handle object) {
  if (object.is(Py_False)) return;
  if (object.is(Py_True))
    choices.options.masks.emplace_back(Causal{});
  else if (!nb::isinstance<nb::str>(object))
    throw wrong_kind("causal", object, R"(True, False, "starts" or "ends")");
  else
    choices.options.masks.emplace_back(Causal{read_align("causal", object)});
}

void read_window(Choices& choices, nb::handle object) {
  const bool is_sequence = nb::isinstance<nb::tuple>(object) || nb::isinstance<nb::list>(object);
  const std::size_t entries = is_sequence ? nb::len(object) : 0;
  if (entries != 2 && entries != 3)
    throw wrong_kind("window", object, "(left, right) or (left, right, \"starts\" or \"ends\")");
  Window window{read_reach("window left", object[0]), read_reach("window right", object[1])};
  if (entries == 3) window.align = read_align("window align", object[2]);
  choices.options.masks.emplace_back(window);
}

void read_document(Choices& choices, nb::handle object) {
  const auto [array, align] = read_anchored("document", object);
  choices.document_columns = read_ids("document", array, choices.document);
  choices.options.masks.emplace_back(Document{.ids = choices.document, .align = align});
}

void read_query_document(Choices& choices, nb::handle object) {
  choices.query_document_columns = read_ids("query_document", object, choices.query_document);
}

void read_alibi(Choices& choices, nb::handle object) {
  auto [array, align] = read_anchored("alibi", object);
  if (nb::isinstance<nb::list>(array) || nb::isinstance<nb::tuple>(array)) array = as_floats("alibi", array);
  const Tensor slopes = read_tensor("alibi", array);
  check_rank(slopes, 1, 2);
  const Placed placed = right_aligned(slopes);  // (heads), or (batch, heads)
  const auto bytes = static_cast<std::int64_t>(bytes_of(slopes.element));
  for (std::int64_t b = 0; b < placed.shape.length; ++b)
    for (std::int64_t h = 0; h < placed.shape.dim; ++h)
      choices.slopes.push_back(
          read_slope(slopes, slopes.data + bytes * (b * placed.stride.length + h * placed.stride.dim)));
  if (slopes.rank == 2) choices.slope_columns = placed.shape.dim;
  choices.options.alibi = Alibi{choices.slopes, align};
}

void share_anchor(Choices& choices) {
  std::optional<Align> said;
  bool has_documents = false;
  for (const Mask& mask : choices.options.masks)
    if (const auto* causal = std::get_if<Causal>(&mask)) said = causal->align;
  const auto share = [&said](std::optional<Align>& align) { align = align ? align : said; };
  for (Mask& mask : choices.options.masks) {
    if (auto* window = std::get_if<Window>(&mask)) share(window->align);
    if (auto* document = std::get_if<Document>(&mask)) {
      share(document->align);
      document->query_ids = choices.query_document;
      // To the library a list without entries was not given: queries that are none have any place.
      if (choices.query_document_columns && choices.query_document.empty()) document->align = Align::starts;
      has_documents = true;
    }
  }
  if (choices.options.alibi) share(choices.options.alibi->align);
  if (choices.query_document_columns && !has_documents)
    throw Error(Error::value, "query_document: given, but document is not");
}

void check_alignment(const Choices& choices, std::int64_t queries, std::int64_t keys) {
  if (queries == keys || choices.cache) return;
  const std::string found = std::to_string(queries) + " queries, " + std::to_string(keys) + " keys";
  for (const Mask& mask : choices.options.masks)
    std::visit(AsksForAnchor{found, choices.query_document_columns.has_value()}, mask);
  if (choices.options.alibi && !choices.options.alibi->align)
    throw ambiguous("alibi", found, R"((slopes, "ends") or (slopes, "starts"))");
}

void check_columns(const Choices& choices, const Columns& of) {
  const auto check = [](const char* name, std::int64_t columns, const char* tokens, std::int64_t wanted) {
    if (columns == wanted) return;
    throw Error(Error::shape, std::string(name) + ": " + std::to_string(columns) + " numbers a row for " +
                                  std::to_string(wanted) + " " + tokens);
  };
  if (choices.document_columns) check("document", *choices.document_columns, "keys", of.keys);
  if (choices.query_document_columns)
    check("query_document", *choices.query_document_columns, "queries", of.queries);
  if (choices.slope_columns) check("alibi", *choices.slope_columns, "heads", of.heads);
}

}  // namespace heed::python
