// SPDX-License-Identifier: Apache-2.0
#include "mask_axes.hpp"

#include <algorithm>
#include <string_view>

namespace heed::python {

namespace {

bool has_shape(const Tensor& tensor, std::initializer_list<std::int64_t> extents) {
  return std::ranges::equal(tensor.extents(), extents);
}

bool is_named_by(const Error& error, const Tensor& tensor) {
  std::string_view sentence = error.what();
  constexpr std::string_view owner = "options.";  // where C++ has a bias
  if (sentence.starts_with(owner)) sentence.remove_prefix(owner.size());
  return error.code == Error::shape && sentence.starts_with(tensor.name) &&
         sentence.find(".shape: ") != std::string_view::npos;
}

}  // namespace

Error with_axes(const Error& error, const Choices& choices, const Shape& scores) {
  const std::string sentence = error.what();
  for (const Tensor& mask : choices.held) {
    if (!is_named_by(error, mask)) continue;
    const std::string name = mask.name;
    if (has_shape(mask, {scores.batch, scores.dim}))
      return {error.code, sentence + "; if it is (batch, keys), pass " + name + "[:, None, None, :]"};
    if (has_shape(mask, {scores.batch, scores.length, scores.dim}))
      return {error.code, sentence + "; if it is (batch, queries, keys), pass " + name + "[:, None]"};
  }
  return error;
}

}  // namespace heed::python
