// SPDX-License-Identifier: Apache-2.0
// How many bytes a shape takes, with every product checked, and whether an array's contents agree with its
// shape.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "heed/files.hpp"

namespace heed::files {

// "(2, 3)", and "()" for a scalar. A shape of very many axes is cut short: it ends up in a sentence.
std::string shape_text(const std::vector<std::int64_t>& shape);

// The bytes of an array. `subject` begins the sentence when the shape is negative or too large. As in NumPy,
// the extents other than 0 must fit by themselves, so that no stride computed from an accepted shape can
// overflow.
std::int64_t byte_count(const std::string& subject, Element, const std::vector<std::int64_t>& shape);

// Throws unless the data has the bytes that the shape needs and every boolean is 0 or 1: any other byte is
// undefined behaviour once it is read through a bool.
void check_contents(const std::string& subject, const Array&);

}  // namespace heed::files
