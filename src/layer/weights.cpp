// SPDX-License-Identifier: Apache-2.0
// The arrays of a layer: buffers, checks of weights, random weights, and weights as named views.
#include "layer/weights.hpp"

#include <algorithm>
#include <cmath>
#include <new>

#include "layer/config.hpp"
#include "layer/state.hpp"
#include "refusal/refusal.hpp"
#include "softmax/philox.hpp"

namespace heed::layer {

Floats make_floats(const Backend& backend, const char* name, const Shape& shape, const Strides& stride,
                   DType dtype) {
  const auto bytes_each = static_cast<std::int64_t>(bytes_of(dtype));
  try {
    const std::int64_t bytes = std::min(shape.elements(), longest_reach / bytes_each) * bytes_each;
    Memory data = backend.allocate(static_cast<std::size_t>(bytes));
    const MutableView view{data.get(), shape, stride, dtype, backend.device};
    return {std::move(data), view};
  } catch (const std::bad_alloc&) {
    throw refusal(Error::capacity, name, ": no room for ", shape, " floats");
  }
}

Floats copy_as_floats(const Backend& backend, const char* name, const View& x) {
  Floats copy = make_floats(backend, name, x.shape, bhsd(x.shape));
  backend.copy(x, copy.view);
  return copy;
}

void fill_rows_after(const Backend& backend, std::span<const std::int64_t> counts, float value,
                     const MutableView& x) {
  for (std::size_t b = 0; b < counts.size(); ++b) {
    if (counts[b] == x.shape.length) continue;
    MutableView rows = x;
    const std::int64_t first = static_cast<std::int64_t>(b) * x.stride.batch + counts[b] * x.stride.length;
    rows.data = static_cast<std::byte*>(x.data) + first * static_cast<std::int64_t>(bytes_of(x.dtype));
    rows.shape.batch = 1;
    rows.shape.length -= counts[b];
    backend.fill(rows, value);
  }
}

// Checks of a layer's weights: each array alone, all of them together, and against a configuration.

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

// Weights for a layer that has none, from a counter-based generator: element n of matrix m is word n % 4 of
// philox({n / 4, m}, seed), the same on every machine.

namespace HEED_NAMESPACE {
using namespace layer;

namespace {

// The 2^24 odd multiples of 2^-24 in (-1, 1): symmetric, and exact in float.
float symmetric_uniform(std::uint32_t word) {
  return static_cast<float>(2 * static_cast<std::int32_t>(word >> 8) + 1 - (1 << 24)) * 0x1p-24f;
}

Array random_matrix(std::int64_t out, std::int64_t in, std::uint32_t matrix, std::uint64_t seed) {
  const auto largest = static_cast<float>(1 / std::sqrt(static_cast<double>(in)));
  std::vector<float> values(static_cast<std::size_t>(out * in));
  for (std::size_t n = 0; n < values.size(); n += 4) {
    const std::uint64_t four = n / 4;
    const softmax::Words words = softmax::philox(
        {static_cast<std::uint32_t>(four), static_cast<std::uint32_t>(four >> 32), matrix, 0}, seed);
    for (std::size_t i = 0; i < 4 && n + i < values.size(); ++i)
      values[n + i] = symmetric_uniform(words.word[i]) * largest;
  }
  return Array::from_floats({out, in}, values);
}

}  // namespace

LayerWeights random_weights(const LayerConfig& config, std::uint64_t seed) {
  const LayerConfig c = complete(config);
  return {.w_q = random_matrix(query_width(c), c.model_dim, 0, seed),
          .w_k = random_matrix(key_width(c), *c.key_dim, 1, seed),
          .w_v = random_matrix(value_width(c), *c.value_dim, 2, seed),
          .w_o = random_matrix(c.model_dim, merged_width(c), 3, seed)};
}

// A layer's weights and their gradients as named views.

using namespace layer;

namespace {

DType dtype_of_weights(const std::string& name, const Array& x) {
  if (x.element == Element::f64)
    throw refusal(Error::dtype, name.c_str(), ".element: f64 is none that views have; give f32 weights");
  return x.element == Element::bf16 ? DType::bf16 : x.element == Element::f16 ? DType::f16 : DType::f32;
}

void add(const std::string& name, Array& x, std::vector<Parameter>& all) {
  const bool is_matrix = x.shape.size() == 2;
  const Shape shape{1, 1, is_matrix ? x.shape[0] : 1, x.shape.back()};
  all.push_back({name, {x.data.data(), shape, dtype_of_weights(name, x)}});
}

std::vector<Parameter> views_of(LayerWeights& w) {
  const WeightNames names;
  std::vector<Parameter> all;
  Array* const matrices[] = {&w.w_q, &w.w_k, &w.w_v, &w.w_o};
  std::optional<Array>* const biases[] = {&w.b_q, &w.b_k, &w.b_v, &w.b_o};
  for (std::size_t i = 0; i < 4; ++i) add(names.matrices[i], *matrices[i], all);
  for (std::size_t i = 0; i < 4; ++i)
    if (*biases[i]) add(names.biases[i], **biases[i], all);
  return all;
}

// The array itself where it lies in the CPU's memory, else what it is copied to.
MutableView fetched(const MutableView& x, const Backend& backend, std::vector<float>& into) {
  if (x.device == Device::cpu) return x;
  into.resize(static_cast<std::size_t>(x.shape.elements()));
  const MutableView copy{into, x.shape};
  backend.copy(x, copy);
  return copy;
}

}  // namespace

std::vector<Parameter> AttentionLayer::parameters() {
  require_weights(*state_);
  return views_of(state_->weights);
}

std::vector<Parameter> AttentionLayer::gradients() {
  require_weights(*state_);
  const auto& sums = state_->gradient_sums();
  const WeightNames names;
  std::vector<Parameter> all;
  for (std::size_t n = 0; n < sums.size(); ++n) {
    if (!sums[n].view.data) continue;
    const std::string& name = n < 4 ? names.matrices[n] : names.biases[n - 4];
    all.push_back({name, fetched(sums[n].view, state_->backend, state_->fetched_gradients[n])});
  }
  return all;
}

void AttentionLayer::zero_gradients() {
  require_weights(*state_);
  for (const Floats& sum : state_->gradient_sums())
    if (sum.view.data) state_->backend.fill(sum.view, 0);
}

void AttentionLayer::update() {
  require_weights(*state_);
  state_->pack();
}

}  // namespace HEED_NAMESPACE
