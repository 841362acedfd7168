// SPDX-License-Identifier: Apache-2.0
// Checks of a layer's weights: each array alone, all of them together, and against a configuration.
#include "layer/weights.hpp"

#include "layer/config.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {

namespace {

bool is_floating(Element element) {
  return element == Element::f16 || element == Element::bf16 || element == Element::f32 ||
         element == Element::f64;
}

void check_widths(const LayerWeights& w, const WeightNames& names) {
  const char *q = names.matrices[0].c_str(), *k = names.matrices[1].c_str(), *v = names.matrices[2].c_str(),
             *o = names.matrices[3].c_str();
  const std::int64_t query_width = w.w_q.shape[0], key_width = w.w_k.shape[0], value_width = w.w_v.shape[0];
  const std::int64_t merged_width = w.w_o.shape[1];
  if (w.w_o.shape[0] != w.w_q.shape[1])
    throw refusal(Error::shape, o, ".rows: ", w.w_o.shape[0], " is not the model dim, ", q,
                  ".columns: ", w.w_q.shape[1]);
  if (query_width % key_width != 0)
    throw refusal(Error::shape, k, ".rows: ", key_width, " does not divide ", q, ".rows: ", query_width);
  if (merged_width % value_width != 0)
    throw refusal(Error::shape, v, ".rows: ", value_width, " does not divide ", o,
                  ".columns: ", merged_width);
  if (query_width / key_width != merged_width / value_width)
    throw refusal(Error::shape, v, ".rows: ", value_width, " is ", o, ".columns / ",
                  merged_width / value_width, ", but ", k, ".rows: ", key_width, " is ", q, ".rows / ",
                  query_width / key_width);
}

}  // namespace

std::array<const Array*, 4> matrices(const LayerWeights& w) { return {&w.w_q, &w.w_k, &w.w_v, &w.w_o}; }

std::array<const std::optional<Array>*, 4> biases(const LayerWeights& w) {
  return {&w.b_q, &w.b_k, &w.b_v, &w.b_o};
}

std::string written(const std::vector<std::int64_t>& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  return text + ")";
}

Array rows_of(const Array& packed, std::int64_t first, std::int64_t count) {
  Array part{.element = packed.element, .shape = packed.shape};
  part.shape[0] = count;
  const auto row_bytes = static_cast<std::ptrdiff_t>(packed.data.size()) / packed.shape[0];
  part.data.assign(packed.data.begin() + first * row_bytes,
                   packed.data.begin() + (first + count) * row_bytes);
  return part;
}

void check_array(const std::string& name, const Array& array, std::size_t rank) {
  if (array.shape.size() != rank)
    throw refusal(Error::shape, name.c_str(), ".shape: ", written(array.shape).c_str(), " has rank ",
                  std::ssize(array.shape), ", not ", static_cast<std::int64_t>(rank));
  if (!is_floating(array.element))
    throw refusal(Error::dtype, name.c_str(), ".element: ", name_of(array.element),
                  " is not a floating-point type");
  const std::int64_t held = std::ssize(array.data);
  auto bytes = static_cast<std::int64_t>(bytes_of(array.element));
  for (const std::int64_t extent : array.shape) {
    if (extent < 1)
      throw refusal(Error::shape, name.c_str(), ".shape: ", written(array.shape).c_str(),
                    " has an extent below 1");
    if (bytes > held / extent) {
      bytes = held + 1;  // more than there are, and no product that could overflow
      break;
    }
    bytes *= extent;
  }
  if (bytes != held)
    throw refusal(Error::shape, name.c_str(), ".data: ", held, " bytes are not ",
                  written(array.shape).c_str(), " of ", name_of(array.element));
}

void check_weights(const LayerWeights& w, const WeightNames& names) {
  for (std::size_t i = 0; i < 4; ++i) check_array(names.matrices[i], *matrices(w)[i], 2);
  check_widths(w, names);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::optional<Array>& bias = *biases(w)[i];
    if (!bias) continue;
    check_array(names.biases[i], *bias, 1);
    if (bias->shape[0] != matrices(w)[i]->shape[0])
      throw refusal(Error::shape, names.biases[i].c_str(), ".length: ", bias->shape[0], " is not ",
                    names.matrices[i].c_str(), ".rows: ", matrices(w)[i]->shape[0]);
  }
}

void check_weights(const LayerWeights& w, const LayerConfig& c) {
  const WeightNames names;
  const std::array<std::array<std::int64_t, 2>, 4> wanted{{{query_width(c), c.model_dim},
                                                           {key_width(c), *c.key_dim},
                                                           {value_width(c), *c.value_dim},
                                                           {c.model_dim, merged_width(c)}}};
  const std::array<const char*, 4> rule{"(heads * head_dim, model_dim)", "(kv_heads * head_dim, key_dim)",
                                        "(kv_heads * value_head_dim, value_dim)",
                                        "(model_dim, heads * value_head_dim)"};
  for (std::size_t i = 0; i < 4; ++i) {
    const Array& matrix = *matrices(w)[i];
    check_array(names.matrices[i], matrix, 2);
    if (matrix.shape[0] != wanted[i][0] || matrix.shape[1] != wanted[i][1])
      throw refusal(Error::shape, names.matrices[i].c_str(), ".shape: ", written(matrix.shape).c_str(),
                    " is not ", rule[i], ": (", wanted[i][0], ", ", wanted[i][1], ")");
  }
  check_weights(w, names);
}

}  // namespace heed::layer
