// SPDX-License-Identifier: Apache-2.0
// What the layer's tests share: tensors that own their floats, seeded numbers, comparisons that count,
// refusals.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "heed/heed.hpp"

namespace heed::layer_tests {

inline const Options causal{.masks = {Causal{}}};

struct Tensor {
  Shape shape{};
  std::vector<float> values{};

  View view() const { return {values, shape}; }
  MutableView mutable_view() { return {values, shape}; }
  std::size_t index(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    return static_cast<std::size_t>(((b * shape.heads + h) * shape.length + i) * shape.dim + d);
  }
  float at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) const {
    return values[index(b, h, i, d)];
  }
};

inline std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(generator() >> 8) * 0x1p-23f - 1.0f;
  return values;
}

inline Tensor filled(const Shape& shape, float value) {
  return {shape, std::vector<float>(static_cast<std::size_t>(shape.elements()), value)};
}
inline Tensor random_tensor(const Shape& shape, unsigned seed) {
  return {shape, random_floats(shape.elements(), seed)};
}
// What an output holds before a call; finding it afterwards means that nothing was written.
constexpr float untouched = 12345.0f;
inline Tensor output(const Shape& shape) { return filled(shape, untouched); }

inline Array random_array(std::vector<std::int64_t> shape, unsigned seed, Element element = Element::f32) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return Array::from_floats(std::move(shape), random_floats(count, seed), element);
}

// Positions: first, first + 1, ...
inline std::vector<std::int64_t> counted(std::int64_t length, std::int64_t first = 0) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(length));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

// random_weights() with all four biases.
inline LayerWeights with_biases(LayerWeights w, unsigned seed) {
  w.b_q = random_array({w.w_q.shape[0]}, seed);
  w.b_k = random_array({w.w_k.shape[0]}, seed + 1);
  w.b_v = random_array({w.w_v.shape[0]}, seed + 2);
  w.b_o = random_array({w.w_o.shape[0]}, seed + 3);
  return w;
}

inline bool same_array(const Array& a, const Array& b) {
  return a.element == b.element && a.shape == b.shape && a.data == b.data;
}
inline bool same_array(const std::optional<Array>& a, const std::optional<Array>& b) {
  return a.has_value() == b.has_value() && (!a || same_array(*a, *b));
}
inline bool same_weights(const LayerWeights& a, const LayerWeights& b) {
  return same_array(a.w_q, b.w_q) && same_array(a.w_k, b.w_k) && same_array(a.w_v, b.w_v) &&
         same_array(a.w_o, b.w_o) && same_array(a.b_q, b.b_q) && same_array(a.b_k, b.b_k) &&
         same_array(a.b_v, b.b_v) && same_array(a.b_o, b.b_o);
}

// How many elements differ in any bit; -1 where the sizes differ.
inline std::int64_t bit_misses(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return -1;
  std::int64_t misses = 0;
  for (std::size_t n = 0; n < a.size(); ++n)
    misses += std::bit_cast<std::uint32_t>(a[n]) != std::bit_cast<std::uint32_t>(b[n]) ? 1 : 0;
  return misses;
}

// How many elements are further apart than the tolerance, or not numbers; -1 where the sizes differ.
template <class Wanted>
std::int64_t far_misses(const std::vector<float>& found, const std::vector<Wanted>& wanted,
                        double tolerance) {
  if (found.size() != wanted.size()) return -1;
  std::int64_t misses = 0;
  for (std::size_t n = 0; n < found.size(); ++n) {
    if (std::abs(static_cast<double>(found[n]) - static_cast<double>(wanted[n])) <= tolerance) continue;
    if (misses++ == 0) ADD_FAILURE() << "element " << n << " is " << found[n] << ", wanted " << wanted[n];
  }
  return misses;
}

inline void expect_refusal(Error::Code code, const std::string& sentence, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "accepted, wanted: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), sentence);
    EXPECT_EQ(error.code, code) << sentence;
  }
}

// One call into a fresh output.
inline Tensor run(const AttentionLayer& layer, const AttentionLayer::Call& call,
                  const Options& options = {}) {
  Tensor y = output({call.x.shape.batch, 1, call.x.shape.length, layer.config().model_dim});
  layer(call, {.out = y.mutable_view()}, options);
  return y;
}

}  // namespace heed::layer_tests
