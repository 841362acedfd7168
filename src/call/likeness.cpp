// SPDX-License-Identifier: Apache-2.0
#include "call/likeness.hpp"

#include <variant>

namespace heed::call {
namespace {

struct NumberOfMask {
  std::int64_t hash;

  std::int64_t operator()(const Causal& m) const { return mix(hash, number_of(m.align)); }
  std::int64_t operator()(const Window& m) const {
    return mix(mix(mix(mix(hash, m.left), m.right), m.front), number_of(m.align));
  }
  std::int64_t operator()(const KeyLengths& m) const { return mix_list<std::int32_t>(hash, m.valid); }
  std::int64_t operator()(const Document& m) const {
    const std::int64_t of_ids = mix_list<std::int32_t>(mix(hash, number_of(m.align)), m.ids);
    return mix_list<std::int32_t>(of_ids, m.query_ids);
  }
  // Of a matrix, that there is one. No template: a new mask has to say what it is.
  std::int64_t operator()(const Keep&) const { return hash; }
  std::int64_t operator()(const Hide&) const { return hash; }
  std::int64_t operator()(const Tree&) const { return hash; }
};

}  // namespace

std::int64_t number_of(std::optional<Align> align) {
  return align ? 1 + static_cast<std::int64_t>(*align) : 0;
}

std::int64_t number_of(const Masks& masks) {
  std::int64_t hash = 2;
  for (const Mask& mask : masks)
    hash = std::visit(NumberOfMask{mix(hash, static_cast<std::int64_t>(mask.index()))}, mask);
  return hash;
}

}  // namespace heed::call
