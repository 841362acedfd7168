// SPDX-License-Identifier: Apache-2.0
// A tensor as the copy engine knows it.
#pragma once
#include <cuda.h>

#include <cstdint>

#include "cuda/call.hpp"

namespace heed::cuda {

// Whether the copy engine can take a tensor: 16 bits, rows without gaps, everything on 16 bytes.
bool is_mappable(const Tensor&);

struct MapExtents {
  std::int64_t dim, rows, heads, entries;
};
// Boxes of 64 dimensions and this many rows; an axis of stride 0 has one entry.
CUtensorMap tensor_map(const Tensor&, const MapExtents&, int box_rows);
// The same with the pieces of 64 dimensions as an axis between rows and heads, boxes of whole rows: each
// piece of all rows of a box, then the next.
CUtensorMap tensor_map_of_rows(const Tensor&, const MapExtents&, int box_rows);
// Tokens as a page of a cache has them, sixteen after sixteen, from any of these lines of 64 bytes on. Boxes
// of 64 tokens, box_dim dimensions, two rows of 32 bytes in one.
struct SixteensExtents {
  std::int64_t dim, sixteens, lines;
  int box_dim;
};
CUtensorMap tensor_map_of_sixteens(const Tensor&, const SixteensExtents&);

}  // namespace heed::cuda
