// SPDX-License-Identifier: Apache-2.0
#include "layer/attention_prefixes.hpp"

#include <set>

#include "layer/naming.hpp"

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
