// SPDX-License-Identifier: Apache-2.0
// See huffman.hpp.
#include "view/huffman.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <utility>

namespace HEED_NAMESPACE::view {
namespace {

// The depth of every symbol in the tree that joins the two rarest again and again.
std::vector<std::uint8_t> depths(std::span<const std::uint32_t> counts) {
  using Entry = std::pair<std::uint64_t, std::size_t>;  // count, node; ties go by node, so the tree is one
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> rarest;
  std::vector<std::size_t> parent(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) rarest.emplace(counts[i], i);
  std::vector<std::uint8_t> lengths(counts.size());
  if (rarest.size() == 1) lengths[rarest.top().second] = 1;
  if (rarest.size() <= 1) return lengths;
  while (rarest.size() > 1) {
    const Entry a = rarest.top();
    rarest.pop();
    const Entry b = rarest.top();
    rarest.pop();
    parent[a.second] = parent[b.second] = parent.size();
    rarest.emplace(a.first + b.first, parent.size());
    parent.push_back(0);
  }
  std::vector<std::uint8_t> depth(parent.size());
  for (std::size_t node = parent.size() - 1; node-- > 0;)
    if (node >= counts.size() || counts[node] > 0)
      depth[node] = static_cast<std::uint8_t>(std::min(255, depth[parent[node]] + 1));
  std::copy_n(depth.begin(), counts.size(), lengths.begin());
  return lengths;
}

}  // namespace

HuffmanCode numbered(std::vector<std::uint8_t> lengths) {
  std::array<std::uint32_t, 17> first{};
  for (const std::uint8_t length : lengths)
    if (length > 0) ++first[length + 1U];
  for (std::size_t length = 1; length < first.size(); ++length)
    first[length] = (first[length] + first[length - 1]) << 1;
  HuffmanCode code{.lengths = std::move(lengths)};
  code.bits.resize(code.lengths.size());
  for (std::size_t i = 0; i < code.lengths.size(); ++i) {
    const std::uint8_t length = code.lengths[i];
    if (length == 0) continue;
    const std::uint32_t number = first[length]++;
    for (int bit = 0; bit < length; ++bit)
      code.bits[i] =
          static_cast<std::uint16_t>(code.bits[i] | (((number >> bit) & 1U) << (length - 1 - bit)));
  }
  return code;
}

// A tree that is too deep is made again from counts that differ less.
HuffmanCode huffman_code(std::span<const std::uint32_t> counts, int longest) {
  std::vector<std::uint32_t> flatter(counts.begin(), counts.end());
  std::vector<std::uint8_t> lengths = depths(flatter);
  while (*std::max_element(lengths.begin(), lengths.end()) > longest) {
    for (std::uint32_t& count : flatter) count = (count + 1) / 2;
    lengths = depths(flatter);
  }
  return numbered(std::move(lengths));
}

}  // namespace HEED_NAMESPACE::view
