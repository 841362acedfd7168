// SPDX-License-Identifier: Apache-2.0
// What a call says, as numbers that differ where it does: for ranks that must be called alike, and for a
// backward pass that must be told what its forward pass was.
#pragma once
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>

#include "heed/mask.hpp"

namespace heed::call {

constexpr std::int64_t mix(std::int64_t hash, std::int64_t value) {
  const auto x = (static_cast<std::uint64_t>(hash) ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
  return static_cast<std::int64_t>(x ^ (x >> 29));
}

// A list begins with its length: no number of it then stands for its end.
template <class Number>
std::int64_t mix_list(std::int64_t hash, std::span<const Number> list) {
  hash = mix(hash, std::ssize(list));
  for (const Number number : list) hash = mix(hash, number);
  return hash;
}

std::int64_t number_of(std::optional<Align>);
// What the masks say of the whole call; of a matrix, that there is one.
std::int64_t number_of(const Masks&);

}  // namespace heed::call
