// SPDX-License-Identifier: Apache-2.0
// See matches.hpp.
#include "view/matches.hpp"

#include <algorithm>

namespace HEED_NAMESPACE::view {
namespace {

constexpr std::size_t window = 32768, shortest = 3, longest = 258;
constexpr int candidates = 12;  // weights are noise to a search: more found 0.3 % more, in twice the time
constexpr std::size_t long_enough = 64;

std::size_t hash_of(const std::uint8_t* at) {
  const std::uint32_t three =
      at[0] | static_cast<std::uint32_t>(at[1] << 8) | static_cast<std::uint32_t>(at[2] << 16);
  return (three * 2654435761U) >> 17;
}

}  // namespace

Matches::Matches(std::span<const std::uint8_t> bytes)
    : bytes_(bytes), last_(window, -1), previous_(window, -1) {}

void Matches::remember(std::size_t place) {
  if (place + shortest > bytes_.size()) return;
  std::int64_t& last = last_[hash_of(bytes_.data() + place)];
  previous_[place % window] = last;
  last = static_cast<std::int64_t>(place);
}

Symbol Matches::longest_match() const {
  Symbol best{.length = 0, .distance = bytes_[place_]};
  const std::size_t most = std::min(longest, bytes_.size() - place_);
  if (most < shortest) return best;
  const std::uint8_t* const here = bytes_.data() + place_;
  std::int64_t from = last_[hash_of(here)];
  for (int tries = 0; tries < candidates && from >= 0; ++tries) {
    const auto distance = place_ - static_cast<std::size_t>(from);
    if (distance == 0 || distance >= window) break;
    const std::uint8_t* const there = bytes_.data() + from;
    if (best.length == 0 || there[best.length] == here[best.length]) {
      std::size_t length = 0;
      while (length < most && there[length] == here[length]) ++length;
      if (length >= shortest && length > best.length)
        best = {static_cast<std::uint16_t>(length), static_cast<std::uint16_t>(distance)};
      if (length >= long_enough || length == most) break;
    }
    from = previous_[static_cast<std::size_t>(from) % window];
  }
  return best;
}

std::vector<Symbol> Matches::next(std::size_t most) {
  std::vector<Symbol> symbols;
  while (place_ < bytes_.size() && symbols.size() < most) {
    symbols.push_back(longest_match());
    const std::size_t end = place_ + std::max<std::size_t>(1, symbols.back().length);
    // Within a long run only its ends are worth finding again.
    const bool is_run = end - place_ >= long_enough;
    for (; place_ < end; ++place_)
      if (!is_run || place_ + 4 >= end) remember(place_);
  }
  return symbols;
}

}  // namespace HEED_NAMESPACE::view
