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

// What to pass instead where the shape is a usual mistake; else nothing.
std::string hint(const Tensor& mask, const Shape& scores) {
  if (has_shape(mask, {scores.batch, scores.dim}))
    return std::string("; if it is (batch, keys), pass ") + mask.name + "[:, None, None, :]";
  if (has_shape(mask, {scores.batch, scores.length, scores.dim}))
    return std::string("; if it is (batch, queries, keys), pass ") + mask.name + "[:, None]";
  return "";
}

}  // namespace

Error with_axes(const Error& error, const Choices& choices, const Shape& scores) {
  for (const Tensor& mask : choices.held)
    if (is_named_by(error, mask)) return {error.code, error.what() + hint(mask, scores)};
  return error;
}

void check_last_axes(const Tensor& mask, const Shape& scores) {
  struct Axis {
    const char* name;
    std::int64_t extent;
  };
  auto i = static_cast<std::size_t>(mask.rank);
  for (const Axis& axis : {Axis{"keys", scores.dim}, {"queries", scores.length}, {"heads", scores.heads}}) {
    if (i == 0) return;
    const std::int64_t extent = mask.shape[--i];
    if (extent != 1 && extent != axis.extent)
      throw Error(Error::shape, std::string(mask.name) + ": extent " + std::to_string(extent) +
                                    " does not broadcast to " + std::to_string(axis.extent) + " " +
                                    axis.name + hint(mask, scores));
  }
}

}  // namespace heed::python
