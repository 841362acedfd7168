// SPDX-License-Identifier: Apache-2.0
// One element of a result against the reference and its bound.
#pragma once
#include "heed/check.hpp"

namespace heed::checking {

struct ExpectedElement {
  double value, bound;
};

struct ElementPlace {
  const char* name;  // of the result
  Shape place;
  DType dtype;
};

void compare(const ElementPlace&, double found, const ExpectedElement&, Check&);

}  // namespace heed::checking
