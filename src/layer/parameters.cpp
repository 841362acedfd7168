// SPDX-License-Identifier: Apache-2.0
// A layer's weights and their gradients as named views.
#include <algorithm>

#include "layer/state.hpp"
#include "layer/weights.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {
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

}  // namespace

std::vector<Parameter> AttentionLayer::parameters() {
  require_weights(*state_);
  return views_of(state_->weights);
}

std::vector<Parameter> AttentionLayer::gradients() {
  require_weights(*state_);
  return views_of(state_->gradient_arrays());
}

void AttentionLayer::zero_gradients() {
  for (const Parameter& gradient : gradients())
    std::fill_n(static_cast<float*>(gradient.values.data), gradient.values.shape.elements(), 0.0f);
}

void AttentionLayer::update() {
  require_weights(*state_);
  state_->pack();
}

}  // namespace heed::inline v0_2
