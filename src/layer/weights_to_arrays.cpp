// SPDX-License-Identifier: Apache-2.0
// Writes a layer's weights as a checkpoint names them.
#include "layer/naming.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {
using namespace layer;

namespace {

Arrays plain(const LayerWeights& w, const WeightNames& names) {
  Arrays arrays;
  for (std::size_t i = 0; i < 4; ++i) {
    arrays[names.matrices[i]] = *matrices(w)[i];
    if (const std::optional<Array>& bias = *biases(w)[i]) arrays[names.biases[i]] = *bias;
  }
  return arrays;
}

// Q over K over V, in one array.
Array stack(const std::array<const Array*, 3>& parts, const std::array<std::string, 3>& names) {
  Array all{.element = parts[0]->element, .shape = parts[0]->shape};
  all.shape[0] = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (parts[i]->element != all.element)
      throw refusal(Error::dtype, names[i].c_str(), ".element: ", name_of(parts[i]->element),
                    " is not that of ", names[0].c_str(), ": ", name_of(all.element),
                    ", and torch's scheme packs them into one array");
    all.shape[0] += parts[i]->shape[0];
    all.data.insert(all.data.end(), parts[i]->data.begin(), parts[i]->data.end());
  }
  return all;
}

// torch has every bias or none, so an absent one beside others is written as zeros.
void add_torch_biases(const LayerWeights& w, Arrays& arrays) {
  std::array<Array, 4> all;
  const Array* present = nullptr;
  for (const auto* bias : biases(w))
    if (*bias && !present) present = &**bias;
  if (!present) return;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::optional<Array>& bias = *biases(w)[i];
    const std::int64_t rows = matrices(w)[i]->shape[0];
    all[i] = bias
                 ? *bias
                 : Array{present->element,
                         {rows},
                         std::vector<std::byte>(static_cast<std::size_t>(rows) * bytes_of(present->element))};
  }
  arrays[packed_bias] = stack({&all[0], &all[1], &all[2]}, {"b_q", "b_k", "b_v"});
  arrays[torch_names.biases[3]] = all[3];
}

Arrays torch(const LayerWeights& w) {
  const std::int64_t model_dim = w.w_o.shape[0];
  const WeightNames ours;
  for (std::size_t i = 0; i < 3; ++i)
    if (matrices(w)[i]->shape[0] != model_dim)
      throw refusal(Error::unsupported, ours.matrices[i].c_str(), ".rows: ", matrices(w)[i]->shape[0],
                    " is not model_dim: ", model_dim,
                    ", and torch's scheme knows neither grouped heads nor another head_dim");
  Arrays arrays;
  arrays[torch_names.matrices[3]] = w.w_o;
  if (w.w_k.shape[1] == model_dim && w.w_v.shape[1] == model_dim)
    arrays[packed_matrix] = stack({&w.w_q, &w.w_k, &w.w_v}, {"w_q", "w_k", "w_v"});
  else
    for (std::size_t i = 0; i < 3; ++i) arrays[torch_names.matrices[i]] = *matrices(w)[i];
  add_torch_biases(w, arrays);
  return arrays;
}

}  // namespace

Arrays to_arrays(const LayerWeights& w, Naming naming) {
  check_weights(w);
  if (naming == Naming::torch) return torch(w);
  return plain(w, naming == Naming::paper ? paper_names : llama_names);
}

}  // namespace heed::inline v0_2
