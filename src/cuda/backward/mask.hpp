// SPDX-License-Identifier: Apache-2.0
// Boolean masks, documents and further windows as a backward pass in one kernel reads them: packed to bits
// once per call.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/call.hpp"

struct CUstream_st;

namespace heed::cuda {

// Of a key: a bit for each of 64 queries.
struct alignas(8) KeyBits {
  std::uint32_t word[2];
};

// A bit for each key and query: 1 where masks let the query see the key. Tiles of 128 keys times 64 queries
// lie together. An axis along which no mask differs has one entry.
struct MaskTiles {
  static constexpr int keys = 128, queries = 64, tile_bytes = keys * queries / 8;

  const KeyBits* words = nullptr;  // (batch, heads, tiles of queries, tiles of keys, keys)
  int batch = 0, heads = 0, query_tiles = 0, key_tiles = 0;  // none: there is no mask

  constexpr bool is_empty() const { return batch == 0; }
  constexpr std::int64_t tiles() const { return std::int64_t{batch} * heads * query_tiles * key_tiles; }
  constexpr std::int64_t bytes() const { return tiles() * tile_bytes; }
  constexpr const KeyBits* tile(int b, int h, int query_tile, int key_tile) const {
    const std::int64_t matrix = std::int64_t{batch == 1 ? 0 : b} * heads + (heads == 1 ? 0 : h);
    return words +
           ((matrix * query_tiles + (query_tiles == 1 ? 0 : query_tile)) * key_tiles + key_tile) * keys;
  }
};

// What a call's masks become; no words yet. The call's lists are the host's.
inline MaskTiles mask_tiles(const Call& c) {
  if (c.mask_count == 0 && c.document_count == 0 && c.gap_count == 0) return {};
  bool by_row = c.document_count > 0 || c.gap_count > 0, by_batch = by_row || c.sequences, by_head = false;
  for (std::int64_t n = 0; n < c.mask_count; ++n) {
    const TensorStrides& stride = c.masks[n].where.stride;
    by_batch |= stride.batch != 0 || c.masks[n].is_tree, by_head |= stride.heads != 0;
    by_row |= stride.length != 0;
  }
  const auto count = [](std::int64_t all, int each) { return static_cast<int>((all + each - 1) / each); };
  return {.batch = by_batch ? static_cast<int>(c.batch) : 1,
          .heads = by_head ? static_cast<int>(c.heads) : 1,
          .query_tiles = by_row ? count(c.queries, MaskTiles::queries) : 1,
          .key_tiles = count(c.keys, MaskTiles::keys)};
}

// The mask, once a launch has put it into this memory.
MaskTiles packed(const Call&, MaskTiles, std::byte* memory, CUstream_st*);

}  // namespace heed::cuda
