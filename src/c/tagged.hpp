// SPDX-License-Identifier: Apache-2.0
// Structs with a kind and the fields of all kinds: each takes its own out, and what is left must be zeros.
#pragma once
#include <cstdint>
#include <utility>

#include "refusal/refusal.hpp"

namespace heed::c {

template <class Field>
Field take(Field& field) {
  return std::exchange(field, Field{});
}

inline Error something_left(std::int32_t kind) {
  return refusal(Error::value, ": a field that kind ", std::int64_t{kind}, " does not have is not 0");
}

}  // namespace heed::c
