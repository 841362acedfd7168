// SPDX-License-Identifier: Apache-2.0
// A mask that lacks axes: the refusal says which to add.
#pragma once
#include "choices.hpp"

namespace heed::python {

// The refusal of a call whose scores have this shape: (batch, heads, queries, keys). Where a mask or the bias
// is (batch, keys) or (batch, queries, keys), it goes on with the axes that are missing in the middle.
Error with_axes(const Error& error, const Choices& choices, const Shape& scores);

// Refuses a mask whose keys, queries or heads do not broadcast to those of the scores, with the same hint.
void check_last_axes(const Tensor& mask, const Shape& scores);

template <class Body>
void compute(const Choices& choices, const Shape& scores, Body body) {
  try {
    compute(body);
  } catch (const Error& error) {
    throw with_axes(error, choices, scores);
  }
}

}  // namespace heed::python
