// SPDX-License-Identifier: Apache-2.0
// Finds a layer's weights in a checkpoint, under any of three naming schemes.
#include <vector>

#include "layer/attention_prefixes.hpp"
#include "layer/naming.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {
using namespace layer;

namespace {

// The arrays whose names begin with the prefix, by the rest of their names.
struct Checkpoint {
  const Arrays& arrays;
  const std::string& prefix;

  std::string full(const std::string& name) const { return prefix + name; }

  const Array* find(const std::string& name) const {
    const auto found = arrays.find(full(name));
    return found == arrays.end() ? nullptr : &found->second;
  }

  const Array& need(const std::string& name, const std::string& present) const {
    if (const Array* array = find(name)) return *array;
    throw refusal(Error::value, full(name).c_str(), ": missing beside ", full(present).c_str());
  }

  std::optional<Array> maybe(const std::string& name) const {
    const Array* array = find(name);
    return array ? std::optional<Array>(*array) : std::nullopt;
  }

  // Where to look instead, or a few of the names that are there.
  std::string suggestion() const {
    std::vector<std::string> names;
    for (const auto& named : arrays) names.push_back(named.first);
    if (const std::string others = attention_prefixes(names); !others.empty()) return others;
    std::string text = "found ";
    for (std::size_t shown = 0; shown < names.size(); ++shown) {
      if (shown == 3) return text + " and " + std::to_string(names.size() - shown) + " more";
      text += (shown == 0 ? "" : ", ") + shown_name(names[shown]);
    }
    return names.empty() ? "found nothing" : text;
  }
};

struct Match {
  Naming naming;
  std::string name;  // what gave it away
};

Match detect(const Checkpoint& from) {
  const std::vector<std::pair<Naming, std::vector<std::string>>> telling{
      {Naming::paper, {paper_names.matrices.begin(), paper_names.matrices.end()}},
      {Naming::torch, {packed_matrix, "q_proj_weight", "k_proj_weight", "v_proj_weight"}},
      {Naming::llama, {llama_names.matrices.begin(), llama_names.matrices.end()}}};
  std::optional<Match> match;
  for (const auto& [naming, names] : telling)
    for (const std::string& name : names) {
      if (!from.find(name)) continue;
      if (match && match->naming != naming)
        throw refusal(Error::ambiguous, "arrays: ", from.full(match->name).c_str(), " and ",
                      from.full(name).c_str(), " belong to two naming schemes");
      if (!match) match = Match{naming, name};
    }
  if (!match)
    throw refusal(Error::value,
                  "arrays: no W_q.weight, in_proj_weight, q_proj_weight or q_proj.weight after the prefix \"",
                  from.prefix.c_str(), "\"; ", from.suggestion());
  return *match;
}

// Parts of a checkpoint that would change the result and that the layer does not have: ignoring them would be
// wrong.
void refuse_strangers(const Checkpoint& from) {
  for (const char* name : {"bias_k", "bias_v", "q_norm.weight", "k_norm.weight"})
    if (from.find(name))
      throw refusal(Error::unsupported, from.full(name).c_str(), ": the layer has no such part");
}

WeightNames with_prefix(const std::string& prefix, WeightNames names) {
  for (std::string& name : names.matrices) name.insert(0, prefix);
  for (std::string& name : names.biases) name.insert(0, prefix);
  return names;
}

LayerWeights read_plain(const Checkpoint& from, const WeightNames& names, const std::string& present) {
  const auto& [q, k, v, o] = names.matrices;
  LayerWeights w{from.need(q, present), from.need(k, present), from.need(v, present), from.need(o, present)};
  w.b_q = from.maybe(names.biases[0]);
  w.b_k = from.maybe(names.biases[1]);
  w.b_v = from.maybe(names.biases[2]);
  w.b_o = from.maybe(names.biases[3]);
  return w;
}

void read_packed_bias(const Checkpoint& from, LayerWeights& w) {
  const Array* bias = from.find(packed_bias);
  if (!bias) return;
  check_array(from.prefix + packed_bias, *bias, 1);
  const std::int64_t q = w.w_q.shape[0], k = w.w_k.shape[0], v = w.w_v.shape[0];
  if (bias->shape[0] != q + k + v)
    throw refusal(Error::shape, from.full(packed_bias).c_str(), ".length: ", bias->shape[0],
                  " is not 3 * model_dim: ", q + k + v);
  w.b_q = rows_of(*bias, 0, q);
  w.b_k = rows_of(*bias, q, k);
  w.b_v = rows_of(*bias, q + k, v);
}

// torch knows no grouped heads: each of Q, K and V is model_dim wide.
void check_torch_rows(const Checkpoint& from, const std::string& name, const Array& matrix,
                      std::int64_t model_dim) {
  if (matrix.shape[0] != model_dim)
    throw refusal(Error::shape, from.full(name).c_str(), ".rows: ", matrix.shape[0],
                  " is not model_dim: ", model_dim);
}

LayerWeights read_torch(const Checkpoint& from, const std::string& present) {
  LayerWeights w;
  w.w_o = from.need(torch_names.matrices[3], present);
  check_array(from.prefix + torch_names.matrices[3], w.w_o, 2);
  w.b_o = from.maybe(torch_names.biases[3]);
  if (const Array* packed = from.find(packed_matrix)) {
    for (std::size_t i = 0; i < 3; ++i)
      if (from.find(torch_names.matrices[i]))
        throw refusal(Error::ambiguous, "arrays: ", from.full(packed_matrix).c_str(), " and ",
                      from.full(torch_names.matrices[i]).c_str(), " name the same weights");
    check_array(from.prefix + packed_matrix, *packed, 2);
    const std::int64_t dim = packed->shape[1];
    if (packed->shape[0] != 3 * dim)
      throw refusal(Error::shape, from.full(packed_matrix).c_str(), ".rows: ", packed->shape[0],
                    " is not 3 * model_dim: ", 3 * dim);
    w.w_q = rows_of(*packed, 0, dim);
    w.w_k = rows_of(*packed, dim, dim);
    w.w_v = rows_of(*packed, 2 * dim, dim);
  } else {
    const std::array<Array*, 3> parts{&w.w_q, &w.w_k, &w.w_v};
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string& name = torch_names.matrices[i];
      *parts[i] = from.need(name, present);
      check_array(from.prefix + name, *parts[i], 2);
      check_torch_rows(from, name, *parts[i], w.w_q.shape[1]);
    }
  }
  read_packed_bias(from, w);
  return w;
}

}  // namespace
}  // namespace heed::inline v0_2

namespace heed::layer {

Naming naming_of(const Arrays& arrays, const std::string& prefix) {
  const Checkpoint from{arrays, prefix};
  const Match match = detect(from);
  refuse_strangers(from);
  return match.naming;
}

}  // namespace heed::layer

namespace heed::inline v0_2 {

LayerWeights layer_weights(const Arrays& arrays, const std::string& prefix) {
  const Checkpoint from{arrays, prefix};
  const Match match = detect(from);
  refuse_strangers(from);
  const WeightNames names = match.naming == Naming::paper   ? paper_names
                            : match.naming == Naming::torch ? torch_names
                                                            : llama_names;
  LayerWeights w =
      match.naming == Naming::torch ? read_torch(from, match.name) : read_plain(from, names, match.name);
  check_weights(w, with_prefix(prefix, names));
  return w;
}

}  // namespace heed::inline v0_2
