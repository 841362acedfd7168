// SPDX-License-Identifier: Apache-2.0
// What the CPU does with arrays besides attention: copies, sums, merged results, the rotary embedding.
// Rounded once to the type of what is written.
#pragma once
#include <cstdint>
#include <span>

#include "heed/attention.hpp"
#include "heed/rotary.hpp"
#include "heed/tensor.hpp"

namespace heed::cpu {

void copy(const View& from, const MutableView& into);
void add(const View& from, const MutableView& into);
void average_heads(const View& from, const MutableView& into);
void fill(const MutableView&, float);

// Joins two results row by row, in double precision.
void merge(const Outputs& into, const Results& other);

// Rotary position embedding (S15) in place, of tensors that differ in heads and strides only.
void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions, const Rotary&,
            std::span<const std::int64_t> lengths);

}  // namespace heed::cpu
