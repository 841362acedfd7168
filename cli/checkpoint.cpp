// SPDX-License-Identifier: Apache-2.0
// See checkpoint.hpp.
#include "checkpoint.hpp"

#include <fmt/core.h>

#include <set>

#include "heed/error.hpp"

namespace heed::tool {
namespace {

struct Scheme {
  Naming naming;
  std::vector<std::string> telling;  // either of these marks a layer; the first is the usual one
  std::vector<std::string> all;
};

const std::vector<Scheme>& schemes() {
  static const std::vector<Scheme> known = {
      {Naming::paper,
       {"W_q.weight"},
       {"W_q.weight", "W_k.weight", "W_v.weight", "W_o.weight", "W_q.bias", "W_k.bias", "W_v.bias",
        "W_o.bias"}},
      {Naming::torch,
       {"in_proj_weight", "q_proj_weight"},
       {"in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight",
        "out_proj.weight", "out_proj.bias"}},
      {Naming::llama,
       {"q_proj.weight"},
       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "q_proj.bias", "k_proj.bias",
        "v_proj.bias", "o_proj.bias"}}};
  return known;
}

bool matches(const std::string& pattern, const std::string& text, std::size_t at = 0, std::size_t from = 0) {
  for (; at < pattern.size() && pattern[at] != '*'; ++at, ++from)
    if (from >= text.size() || text[from] != pattern[at]) return false;
  if (at == pattern.size()) return from == text.size();
  for (; from <= text.size(); ++from)
    if (matches(pattern, text, at + 1, from)) return true;
  return false;
}

std::vector<AttentionNames> all_attention(const Arrays& arrays) {
  std::vector<AttentionNames> layers;
  for (const Scheme& scheme : schemes())
    for (const std::string& suffix : scheme.telling)
      for (const auto& [name, array] : arrays) {
        if (!name.ends_with(suffix)) continue;
        const std::string prefix = name.substr(0, name.size() - suffix.size());
        // "my_q_proj.weight" is another name, not the prefix "my_".
        if (prefix.empty() || prefix.ends_with('.')) layers.push_back({prefix, scheme.naming});
      }
  return layers;
}

}  // namespace

std::vector<AttentionNames> find_attention(const Arrays& arrays, const std::string& pattern) {
  std::vector<AttentionNames> layers;
  std::set<std::string> prefixes;
  for (const AttentionNames& layer : all_attention(arrays)) {
    prefixes.insert(layer.prefix);
    if (matches(pattern, layer.prefix)) layers.push_back(layer);
  }
  if (!layers.empty()) return layers;
  std::string found;
  for (const std::string& prefix : prefixes)
    found += fmt::format("{}'{}'", found.empty() ? "" : ", ", prefix);
  throw Error(Error::value,
              fmt::format("--prefix: no attention weights after '{}'; {}", pattern,
                          found.empty() ? "there are none in the file" : "there are some after " + found));
}

void replace_attention(Arrays& arrays, const AttentionNames& layer, Arrays instead) {
  for (const Scheme& scheme : schemes())
    if (scheme.naming == layer.naming)
      for (const std::string& name : scheme.all) arrays.erase(layer.prefix + name);
  for (auto& [name, array] : instead)
    if (!arrays.emplace(layer.prefix + name, std::move(array)).second)
      throw Error(Error::value,
                  fmt::format("--naming: the file already has a tensor {}{}", layer.prefix, name));
}

}  // namespace heed::tool
