// SPDX-License-Identifier: Apache-2.0
// The arrays of a layer: tensors that it owns while it computes, and its weights as one table with what must
// hold among them.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "backend/backend.hpp"
#include "heed/layer.hpp"

namespace heed::layer {

struct Floats {
  Memory data{};
  MutableView view{};
};

// Packed with these strides, not initialised. No room: Error with the name and the shape.
Floats make_floats(const Backend&, const char* name, const Shape& shape, const Strides& stride,
                   DType dtype = DType::f32);
Floats copy_as_floats(const Backend&, const char* name, const View&);

// Writes the value to every row of entry b from number counts[b] on.
void fill_rows_after(const Backend&, std::span<const std::int64_t> counts, float value, const MutableView&);

// The eight arrays of a layer as one table, and what must hold among them.

// How a caller or a checkpoint calls the matrices and the biases, each in the order q, k, v, o.
struct WeightNames {
  std::array<std::string, 4> matrices{"w_q", "w_k", "w_v", "w_o"};
  std::array<std::string, 4> biases{"b_q", "b_k", "b_v", "b_o"};
};

// In the order q, k, v, o.
std::array<const Array*, 4> matrices(const LayerWeights&);
std::array<const std::optional<Array>*, 4> biases(const LayerWeights&);

std::string written(const std::vector<std::int64_t>& shape);  // "(4, 8)"

// Some rows of a matrix, or entries of a bias.
Array rows_of(const Array&, std::int64_t first, std::int64_t count);

// One array of the right rank, of floating elements, with as many bytes as its shape says.
void check_array(const std::string& name, const Array&, std::size_t rank);
// Every array alone, and the widths that must agree whatever the configuration is.
void check_weights(const LayerWeights&, const WeightNames& = {});
// And the shapes a completed configuration asks for.
void check_weights(const LayerWeights&, const LayerConfig&);
inline const LayerWeights& checked(const LayerWeights& w, const LayerConfig& completed) {
  check_weights(w, completed);
  return w;
}

}  // namespace heed::layer
