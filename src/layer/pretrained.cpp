// SPDX-License-Identifier: Apache-2.0
#include "heed/pretrained.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "files/checkpoint_folder.hpp"
#include "layer/config.hpp"
#include "layer/model.hpp"
#include "layer/naming.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {

std::string shown_name(const std::string& name) {
  constexpr std::size_t longest = 60;
  std::string text = name.substr(0, longest);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return "\"" + text + (name.size() > longest ? "...\"" : "\"");
}

std::string attention_prefixes(const std::vector<std::string>& names) {
  constexpr std::size_t max_shown = 3;
  std::set<std::string> prefixes;
  for (const std::string& name : names)
    for (const std::string& telling :
         {paper_names.matrices[0], llama_names.matrices[0], torch_names.matrices[0],
          std::string(packed_matrix), std::string(packed_heads)}) {
      if (!name.ends_with(telling)) continue;
      const std::string prefix = name.substr(0, name.size() - telling.size());
      if (prefix.empty() || prefix.ends_with('.')) prefixes.insert(prefix);
    }
  std::string text;
  std::size_t shown = 0;
  for (const std::string& prefix : prefixes) {
    if (shown == max_shown) return text + " and " + std::to_string(prefixes.size() - shown) + " more";
    text += (shown++ == 0 ? "there are some after " : ", ") + shown_name(prefix);
  }
  return text;
}

}  // namespace heed::layer

namespace HEED_NAMESPACE {
using namespace layer;
namespace {

// "model.layers.3.self_attn." in a model with a head of its own, "layers.3.self_attn." in one without.
std::string find_prefix(const files::CheckpointFolder& folder, const std::string& where, std::int64_t layer) {
  const std::vector<std::string> names = folder.names();
  const std::string usual = "model.layers." + std::to_string(layer) + ".self_attn.";
  for (const std::string& prefix : {usual, usual.substr(std::string("model.").size())}) {
    const auto has_it = [&](const std::string& name) { return name.starts_with(prefix); };
    if (std::ranges::any_of(names, has_it)) return prefix;
  }
  const std::string others = attention_prefixes(names);
  throw refusal(Error::file, where, ": no tensor's name begins with ", shown_name(usual),
                others.empty() ? "; there are no attention weights" : "; " + others);
}

bool is_known(const std::string& name, const ModelLayer& model) {
  if (name == "rotary_emb.inv_freq") return true;  // older checkpoints store what the configuration says
  if (model.type->packs_heads) return name == packed_heads || name == llama_names.matrices[3];
  return std::ranges::find(llama_names.matrices, name) != llama_names.matrices.end() ||
         std::ranges::find(llama_names.biases, name) != llama_names.biases.end();
}

// Only what belongs to the layer is read; what would change its result and is not known is refused.
Arrays read_layer(files::CheckpointFolder& folder, const std::string& prefix, const ModelLayer& model) {
  Arrays arrays;
  for (const std::string& name : folder.names()) {
    if (!name.starts_with(prefix)) continue;
    const std::string rest = name.substr(prefix.size());
    if (!is_known(rest, model))
      throw refusal(Error::unsupported, shown_name(name), ": the layer has no such part");
    if (rest != "rotary_emb.inv_freq") arrays.emplace(name, folder.read(name));
  }
  return arrays;
}

// Phi-3's q over k over v as three matrices.
void unpack_heads(Arrays& arrays, const std::string& prefix, const LayerConfig& c) {
  const auto packed = arrays.extract(prefix + packed_heads);
  if (packed.empty()) return;  // whoever needs the three will miss them
  check_array(packed.key(), packed.mapped(), 2);
  const std::int64_t rows = packed.mapped().shape[0], q = query_width(c), k = key_width(c);
  if (rows != q + 2 * k)
    throw refusal(Error::shape, shown_name(packed.key()), ".rows: ", rows,
                  " are not (heads + 2 * kv_heads) * head_dim: ", q + 2 * k);
  arrays[prefix + llama_names.matrices[0]] = rows_of(packed.mapped(), 0, q);
  arrays[prefix + llama_names.matrices[1]] = rows_of(packed.mapped(), q, k);
  arrays[prefix + llama_names.matrices[2]] = rows_of(packed.mapped(), q + k, k);
}

void check_biases(const Arrays& arrays, const std::string& prefix, const ModelLayer& model) {
  for (std::size_t i = 0; i < 4; ++i) {
    const bool is_wanted = model.biases == ModelBiases::as_configured ||
                           (model.biases == ModelBiases::of_queries_keys_and_values && i < 3);
    const std::string name = prefix + llama_names.biases[i];
    if (arrays.contains(name) == is_wanted) continue;
    throw refusal(Error::file, shown_name(name), is_wanted ? ": missing, but" : ": there, but",
                  " config.json's ", model.type->name,
                  model.biases == ModelBiases::as_configured ? " with attention_bias" : "",
                  is_wanted ? " has it" : " has no such bias");
  }
}

}  // namespace

PretrainedLayer from_pretrained(const std::filesystem::path& folder, std::int64_t layer) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error))
    throw refusal(Error::file, folder.string(),
                  ": is not a folder; a model's has config.json and safetensors files");
  const ModelLayer model = read_model_config(folder / "config.json", layer);
  files::CheckpointFolder checkpoint(folder);
  const std::string prefix = find_prefix(checkpoint, folder.string(), layer);
  Arrays arrays = read_layer(checkpoint, prefix, model);
  if (model.type->packs_heads) unpack_heads(arrays, prefix, model.config);
  check_biases(arrays, prefix, model);
  PretrainedLayer found{.config = model.config, .sliding_window = model.sliding_window};
  try {
    found.weights = layer_weights(arrays, prefix);
    check_weights(found.weights, found.config);
  } catch (const Error& refused) {
    throw refusal(refused.code, folder.string(), ": ", refused.what());
  }
  return found;
}

}  // namespace HEED_NAMESPACE
