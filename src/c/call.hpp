// SPDX-License-Identifier: Apache-2.0
// Views and lists of numbers. What they hold is checked by whoever is given them.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

#include "heed/attention.hpp"
#include "heed/c.h"
#include "heed/tensor.hpp"

namespace heed::c {

View to_view(const char* name, const heed_view&);  // refuses one that is not given
MutableView to_view(const char* name, const heed_mutable_view&);
BoolView to_view(const char* name, const heed_bool_view&);
Optional<View> to_optional(const char* name, const heed_view&);
Optional<MutableView> to_optional(const char* name, const heed_mutable_view&);

heed_dtype from_dtype(DType);

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

// The list of masks of a call: a tag and its fields become a type.

void add_masks(const heed_masks&, Options&);
std::optional<Align> to_align(const char* name, const char* field, heed_align);  // 0: not said

// The three structs of a call: everything read, written, chosen.

Inputs to_inputs(const heed_inputs*);
Outputs to_outputs(const heed_outputs&);
Options to_options(const heed_options*);  // NULL: the defaults
HeadMap to_head_map(const char* name, heed_head_map);
heed_head_map from_head_map(HeadMap);

}  // namespace heed::c
