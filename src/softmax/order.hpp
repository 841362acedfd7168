// SPDX-License-Identifier: Apache-2.0
// The order of sums, the same in every backend (docs/numerics.md), so that a row has one answer everywhere.
#pragma once
#include <cstdint>

namespace heed::softmax {

// Key blocks and chunks have fixed lengths anchored at key 0, so that the order of every sum depends on
// nothing but the row (O1). A chunk starts a fresh softmax state; chunks are merged in order whether or not
// they ran apart.
constexpr std::int64_t block_keys = 256;
constexpr std::int64_t chunk_keys = 1024;

// Sums are cut into chains, because the error of a chain grows with its length: each begins from 0, and what
// it comes to is added to those before it. A chain of weights has so many keys, and one over the dimensions
// of a head or the inputs of a projection so many terms, counted from key 0 and from dimension 0; one of
// weighted values is a block.
constexpr std::int64_t chain_keys = 32;
constexpr std::int64_t chain_terms = 128;

}  // namespace heed::softmax
