// SPDX-License-Identifier: Apache-2.0
// Numbers from one view to another, one at a time.
#pragma once
#include "heed/tensor.hpp"

namespace heed::cpu {

void copy(const View& from, const MutableView& into);
void add(const View& from, const MutableView& into);
void average_heads(const View& from, const MutableView& into);
void fill(const MutableView&, float);

}  // namespace heed::cpu
