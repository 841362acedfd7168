// SPDX-License-Identifier: Apache-2.0
// Where keys and values come from: tiles of them on their way into shared memory, and how products read them
// there. A source says how its keys lie (a key's dimensions side by side, or a dimension's keys), how large a
// slot of the ring is, and copies a tile into a slot: at once, or in `copies` pieces among other work, where
// all rows of a tile are there (`aim` says so). Keys that no row of the block sees are not read, or are
// hidden later; their values become 0. Dimensions beyond the call's are 0 in every slot from the beginning.
#pragma once
#include <cstdint>

#include "cuda/tile/element.cuh"
#include "general/rows.cuh"
#include "general/shape.hpp"
#include "general/tile.cuh"

namespace heed::cuda::general {

// Keys and values of one tile, as products read them.
struct Operands {
  SharedAddress keys, values;
  SharedAddress key_scales, value_scales;  // of an int8 cache, a float for each key
};

// An address for copies of no bytes, which is not read.
HEED_DEVICE const unsigned char* aligned(const void* p) {
  return reinterpret_cast<const unsigned char*>(reinterpret_cast<std::uintptr_t>(p) / 16 * 16);
}

}  // namespace heed::cuda::general
