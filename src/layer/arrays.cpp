// SPDX-License-Identifier: Apache-2.0
// A layer's weights as a checkpoint names them: found under any of three naming schemes, written, and
// converted from one kind into another.
#include <algorithm>
#include <vector>

#include "heed/version.hpp"
#include "layer/naming.hpp"
#include "layer/weights.hpp"
#include "refusal/refusal.hpp"

namespace HEED_NAMESPACE {
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
}  // namespace HEED_NAMESPACE

namespace heed::layer {

Naming naming_of(const Arrays& arrays, const std::string& prefix) {
  const Checkpoint from{arrays, prefix};
  const Match match = detect(from);
  refuse_strangers(from);
  return match.naming;
}

}  // namespace heed::layer

namespace HEED_NAMESPACE {

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

// Writes a layer's weights as a checkpoint names them.

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

// Makes one kind of checkpoint out of another: fewer KV heads by averaging, and tiled query heads into
// interleaved ones.

using namespace layer;

namespace {

// Averages each `group` neighbouring blocks of `block` rows into one. The sum is in double, so that equal
// rows come out with the bits they went in with.
Array mean_of_groups(const Array& array, std::int64_t group, std::int64_t block) {
  const std::int64_t columns = array.shape.size() == 2 ? array.shape[1] : 1;
  const std::int64_t block_size = block * columns, groups = array.shape[0] / (group * block);
  const std::vector<float> from = array.to_floats();
  std::vector<float> to(static_cast<std::size_t>(groups * block_size));
  for (std::int64_t g = 0; g < groups; ++g)
    for (std::int64_t n = 0; n < block_size; ++n) {
      double sum = 0;
      for (std::int64_t h = 0; h < group; ++h)
        sum += static_cast<double>(from[static_cast<std::size_t>((g * group + h) * block_size + n)]);
      to[static_cast<std::size_t>(g * block_size + n)] = static_cast<float>(sum / static_cast<double>(group));
    }
  std::vector<std::int64_t> shape = array.shape;
  shape[0] = groups * block;
  return Array::from_floats(shape, to, array.element);
}

struct Blocks {
  std::int64_t
      outer;  // how many times the sequence of heads occurs: 1 for rows, the number of rows for columns
  std::int64_t bytes;  // of one head's block
};

// Block kv * (heads / kv_heads) + g becomes block g * kv_heads + kv of the tiled order.
void interleave(std::vector<std::byte>& data, std::int64_t heads, std::int64_t kv_heads,
                const Blocks& blocks) {
  const std::vector<std::byte> tiled = data;
  const std::int64_t group = heads / kv_heads;
  for (std::int64_t row = 0; row < blocks.outer; ++row)
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t source = (h % group) * kv_heads + h / group;
      const auto from = tiled.begin() + (row * heads + source) * blocks.bytes;
      std::copy(from, from + blocks.bytes, data.begin() + (row * heads + h) * blocks.bytes);
    }
}

std::int64_t byte_size(const Array& array) { return static_cast<std::int64_t>(array.data.size()); }

void check_count(const char* name, std::int64_t count) {
  if (count < 1) throw refusal(Error::value, name, ": ", count, " is not positive");
}

void check_divides(const char* name, std::int64_t count, const char* width_name, std::int64_t width) {
  if (width % count != 0)
    throw refusal(Error::shape, name, ": ", count, " does not divide ", width_name, ": ", width);
}

}  // namespace

LayerWeights pool_kv_heads(LayerWeights w, std::int64_t from, std::int64_t to) {
  check_weights(w);
  check_count("from", from);
  check_count("to", to);
  check_divides("to", to, "from", from);
  check_divides("from", from, "w_k.rows", w.w_k.shape[0]);
  check_divides("from", from, "w_v.rows", w.w_v.shape[0]);
  if (from == to) return w;
  const std::int64_t head_dim = w.w_k.shape[0] / from, value_head_dim = w.w_v.shape[0] / from,
                     group = from / to;
  w.w_k = mean_of_groups(w.w_k, group, head_dim);
  w.w_v = mean_of_groups(w.w_v, group, value_head_dim);
  if (w.b_k) w.b_k = mean_of_groups(*w.b_k, group, head_dim);
  if (w.b_v) w.b_v = mean_of_groups(*w.b_v, group, value_head_dim);
  return w;
}

LayerWeights interleave_heads(LayerWeights w, std::int64_t heads, std::int64_t kv_heads) {
  check_weights(w);
  check_count("heads", heads);
  check_count("kv_heads", kv_heads);
  check_divides("kv_heads", kv_heads, "heads", heads);
  check_divides("heads", heads, "w_q.rows", w.w_q.shape[0]);
  check_divides("heads", heads, "w_o.columns", w.w_o.shape[1]);
  if (w.w_q.shape[0] / w.w_k.shape[0] != heads / kv_heads)
    throw refusal(Error::shape, "heads / kv_heads: ", heads / kv_heads,
                  " is not w_q.rows / w_k.rows: ", w.w_q.shape[0] / w.w_k.shape[0]);
  interleave(w.w_q.data, heads, kv_heads, {1, byte_size(w.w_q) / heads});
  if (w.b_q) interleave(w.b_q->data, heads, kv_heads, {1, byte_size(*w.b_q) / heads});
  const std::int64_t rows = w.w_o.shape[0];
  interleave(w.w_o.data, heads, kv_heads, {rows, byte_size(w.w_o) / rows / heads});
  return w;
}

}  // namespace HEED_NAMESPACE
