// SPDX-License-Identifier: Apache-2.0
// heed.padding_mask, look_ahead_mask, combine and key_lengths: masks out of tokens and sizes.
#include <cstring>

#include "bindings.hpp"
#include "heed/mask.hpp"
#include "mask_docs.hpp"
#include "result.hpp"
#include "views.hpp"

namespace heed::python {

namespace {

// (batch, length) tokens, or (length,) of them, and what array the answer should resemble, if it was one.
struct Tokens {
  Integers integers;
  std::int64_t batch = 1, length = 0;
  std::optional<Tensor> like{};
};

Tokens read_tokens(nb::handle object) {
  Tokens tokens{read_integers("tokens", object)};
  const std::vector<std::int64_t>& shape = tokens.integers.shape;
  if (shape.size() != 1 && shape.size() != 2)
    throw Error(Error::shape, "tokens: " + std::to_string(shape.size()) + " axes are neither 1 nor 2");
  if (shape.size() == 2) tokens.batch = shape[0];
  tokens.length = shape.back();
  const bool is_array =
      !nb::isinstance<nb::list>(object) && !nb::isinstance<nb::tuple>(object) && !PyRange_Check(object.ptr());
  if (is_array) tokens.like.emplace(read_tensor("tokens", object));
  return tokens;
}

Result make_result(const std::optional<Tensor>& like, Element element, std::span<const std::int64_t> shape) {
  if (like) return {"mask", *like, element, shape};
  return {"mask", element, shape};
}

nb::object to_array(const HideMatrix& matrix, const std::optional<Tensor>& like) {
  const Shape& s = matrix.shape;
  const std::array<std::int64_t, 4> shape{s.batch, s.heads, s.length, s.dim};
  Result result = make_result(like, Element::boolean, shape);
  if (s.elements() > 0)
    std::memcpy(result.tensor().data, matrix.hidden.get(), static_cast<std::size_t>(s.elements()));
  return result.object();
}

nb::object padding(nb::handle object, nb::handle pad_id) {
  const Tokens tokens = read_tokens(object);
  HideMatrix mask = heed::padding_mask(tokens.integers.values, tokens.batch, read_integer("pad_id", pad_id));
  mask.shape.dim = tokens.length;  // which a batch of no sequences does not tell
  return to_array(mask, tokens.like);
}

nb::object look_ahead(nb::handle size) {
  return to_array(heed::look_ahead_mask(read_integer("size", size)), {});
}

HideMatrix to_matrix(const Tensor& mask) {
  HideMatrix matrix;
  matrix.shape = right_aligned(mask).shape;
  bool_view_of(mask, {});
  const heed::Array packed = packed_copy(mask);
  matrix.hidden = std::make_unique<bool[]>(packed.data.size());
  for (std::size_t i = 0; i < packed.data.size(); ++i) matrix.hidden[i] = packed.data[i] != std::byte{0};
  return matrix;
}

nb::object combined(nb::handle first, nb::handle second) {
  const Tensor a = read_tensor("a", first), b = read_tensor("b", second);
  const HideMatrix of_a = to_matrix(a), of_b = to_matrix(b);
  return to_array(heed::combine(of_a, of_b), a);
}

nb::object lengths(nb::handle object, nb::handle pad_id) {
  const Tokens tokens = read_tokens(object);
  const std::vector<std::int32_t> counts =
      heed::key_lengths(tokens.integers.values, tokens.batch, read_integer("pad_id", pad_id));
  const std::array<std::int64_t, 1> shape{std::ssize(counts)};
  Result result = make_result(tokens.like, Element::i32, shape);
  if (!counts.empty()) std::memcpy(result.tensor().data, counts.data(), 4 * counts.size());
  return result.object();
}

}  // namespace

void define_masks(nb::module_& m) {
  m.def("padding_mask", &padding, nb::arg("tokens").none(), nb::arg("pad_id").none() = 0,
        nb::sig("def padding_mask(tokens: typing.Any, pad_id: int = 0) -> typing.Any"), padding_mask_doc);
  m.def("look_ahead_mask", &look_ahead, nb::arg("size").none(),
        nb::sig("def look_ahead_mask(size: int) -> numpy.typing.NDArray[numpy.bool_]"), look_ahead_mask_doc);
  m.def("combine", &combined, nb::arg("a").none(), nb::arg("b").none(),
        nb::sig("def combine(a: ArrayT, b: ArrayT) -> ArrayT"), combine_doc);
  m.def("key_lengths", &lengths, nb::arg("tokens").none(), nb::arg("pad_id").none() = 0,
        nb::sig("def key_lengths(tokens: typing.Any, pad_id: int = 0) -> typing.Any"), key_lengths_doc);
}

}  // namespace heed::python
