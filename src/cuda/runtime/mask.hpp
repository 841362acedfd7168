// SPDX-License-Identifier: Apache-2.0
// Boolean masks and documents as the kernels of Hopper's matrix units read them: packed to bits once per
// call.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/call.hpp"

struct CUstream_st;

namespace heed::cuda {

// Whether some row sees a key of a tile, or every row every key.
enum class TileClass : std::uint8_t { empty, mixed, full };

// A bit for each query and key: 1 where masks let the query see the key. An axis along which no mask differs
// has one entry.
struct PackedMask {
  static constexpr int block_rows = 64;

  const std::uint32_t* words = nullptr;  // (batch, heads, rows, words of a row); null: there is no mask
  const TileClass* classes = nullptr;    // (batch, heads, rows / 64, tiles of keys)
  int batch = 1, heads = 1, rows = 1, row_words = 0, tiles = 0, tile_keys = 0;

  constexpr std::int64_t matrices() const { return std::int64_t{batch} * heads; }
  constexpr int blocks() const { return (rows + block_rows - 1) / block_rows; }
  constexpr std::int64_t word_bytes() const { return (matrices() * rows * row_words * 4 + 255) / 256 * 256; }
  constexpr std::int64_t bytes() const { return word_bytes() + matrices() * blocks() * tiles; }

  // Always inlined, or static: a kernel's parameter that is asked by its address is copied to memory.
  [[gnu::always_inline]] constexpr std::int64_t matrix(int b, int h) const {
    return (batch == 1 ? 0 : b) * heads + (heads == 1 ? 0 : h);
  }
  [[gnu::always_inline]] constexpr const std::uint32_t* row(int b, int h, int i) const {
    return words + (matrix(b, h) * rows + (rows == 1 ? 0 : i)) * row_words;
  }
  // Whether a row lets its query see one of keys [begin, end).
  static constexpr bool lets_see(const std::uint32_t* row, int begin, int end) {
    for (int w = begin / 32; w * 32 < end; ++w) {
      const std::uint32_t from = w * 32 < begin ? ~0u << begin % 32 : ~0u,
                          to = end - w * 32 < 32 ? ~(~0u << end % 32) : ~0u;
      if (row[w] & from & to) return true;
    }
    return false;
  }
  // Of the rows of a tile, which begin anywhere.
  template <class Rows>
  constexpr TileClass tile_class(const Rows& tile, int j) const {
    const int first = rows == 1 ? 0 : tile.first_query / block_rows,
              last = rows == 1 ? 0 : (tile.first_query + tile.rows - 1) / block_rows;
    const TileClass* const of = classes + matrix(tile.b, tile.h) * blocks() * tiles + j;
    const TileClass found = of[first * tiles];
    for (int n = first + 1; n <= last; ++n)
      if (of[n * tiles] != found) return TileClass::mixed;
    return found;
  }
};

// What a call's masks become, in tiles of so many keys; no words yet.
inline PackedMask packed_mask(const Call& c, int tile_keys) {
  PackedMask mask;
  if (c.mask_count == 0 && c.document_count == 0) return mask;
  bool by_batch = c.document_count > 0, by_head = false, by_row = c.document_count > 0;
  for (std::int64_t n = 0; n < c.mask_count; ++n) {
    const TensorStrides& stride = c.masks[n].where.stride;
    by_batch |= stride.batch != 0, by_head |= stride.heads != 0;
    by_row |= stride.length != 0, by_batch |= c.masks[n].is_tree;
  }
  if (by_batch) mask.batch = static_cast<int>(c.batch);
  if (by_head) mask.heads = static_cast<int>(c.heads);
  if (by_row) mask.rows = static_cast<int>(c.queries);
  mask.tile_keys = tile_keys;
  mask.tiles = static_cast<int>((c.keys + tile_keys - 1) / tile_keys);
  mask.row_words = mask.tiles * tile_keys / 32;
  return mask;
}

// Why they cannot be packed; null: they can.
inline const char* masks_refuse(const Call& c, const PackedMask& mask) {
  constexpr std::int64_t max_bytes = 256'000'000, max_grid_depth = 65535;
  if (mask.row_words == 0) return nullptr;
  for (std::int64_t b = 0; c.sequences && b < c.batch; ++b)
    if (c.sequences[b].first_query != 0) return "it takes no masks of packed sequences";
  if (mask.bytes() > max_bytes) return "its masks are beyond 256 MB in bits";
  if (mask.matrices() > max_grid_depth) return "it takes up to 65535 masks";
  return nullptr;
}

// The mask, once a launch has put it into this memory.
PackedMask packed(const Call&, PackedMask, std::byte* memory, CUstream_st*);

}  // namespace heed::cuda
