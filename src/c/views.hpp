// SPDX-License-Identifier: Apache-2.0
// Views and lists of numbers. What they hold is checked by whoever is given them.
#pragma once
#include <cstdint>
#include <span>

#include "heed/c.h"
#include "heed/tensor.hpp"

namespace heed::c {

View to_view(const char* name, const heed_view&);  // refuses one that is not given
MutableView to_view(const char* name, const heed_mutable_view&);
BoolView to_view(const char* name, const heed_bool_view&);
Optional<View> to_optional(const char* name, const heed_view&);
Optional<MutableView> to_optional(const char* name, const heed_mutable_view&);

// Zeros are a view that is not given: one with a type alone has lost the rest on its way.
bool is_given(const heed_view&);
bool is_given(const heed_mutable_view&);
bool is_given(const heed_bool_view&);

template <class Numbers>
bool are_given(const Numbers& list) {
  return list.data || list.count != 0;
}

std::span<const std::int64_t> to_span(const char* name, const heed_int64s&);
std::span<const std::int32_t> to_span(const char* name, const heed_int32s&);
std::span<const float> to_span(const char* name, const heed_floats&);

// A field that must be zero until it means something.
void check_reserved(const char* name, std::int32_t reserved);

}  // namespace heed::c
