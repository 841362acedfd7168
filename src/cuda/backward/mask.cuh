// SPDX-License-Identifier: Apache-2.0
// Masks become bits (mask.hpp).
#pragma once
#include <cstdint>

#include "cuda/backward/mask.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Whether masks are one of bytes that lie side by side.
HEED_DEVICE bool has_one_mask_of_bytes(const Call& c) {
  return c.mask_count == 1 && c.document_count == 0 && c.gap_count == 0 && !c.masks[0].is_tree &&
         c.masks[0].where.stride.dim == 1;
}

// Of key j, for the 64 queries from this one on; or for that one alone, if all queries are alike.
HEED_DEVICE KeyBits key_bits(const Call& c, const Query& first, int j, bool queries_are_alike) {
  const Sequence& s = c.sequence(first.b);
  const bool in_bytes = has_one_mask_of_bytes(c);
  KeyBits bits{};
  for (int n = 0; n < MaskTiles::queries && j < s.keys; ++n) {
    Query query = first;
    if (!queries_are_alike) query.i += n, query.row += n;
    if (query.i >= s.queries) break;
    bool is_seen;
    if (in_bytes) {
      const BoolTensor& m = c.masks[0];
      const auto* const row = static_cast<const std::uint8_t*>(m.where.data) + row_of(m.where, query).first;
      is_seen = (row[j] != 0) == m.visible_when;
    } else {
      is_seen = masks_allow(c, query, j) && gaps_allow(c, query, j);
    }
    bits.word[n / 32] |= static_cast<std::uint32_t>(is_seen) << n % 32;
  }
  return bits;
}

// A block for each tile, a thread for each key.
HEED_DEVICE void pack_mask_tile(const Call& c, const MaskTiles& mask) {
  std::int64_t n = block_index();
  const auto next = [&](int extent) {
    const auto found = static_cast<int>(n % extent);
    n /= extent;
    return found;
  };
  const int key_tile = next(mask.key_tiles), query_tile = next(mask.query_tiles), h = next(mask.heads),
            b = static_cast<int>(n);
  const std::int64_t first = std::int64_t{query_tile} * MaskTiles::queries;
  const Query query{b, h, first, c.sequence(b).first_query + first};
  const bool queries_are_alike = mask.query_tiles == 1 && c.queries > MaskTiles::queries;
  const_cast<KeyBits*>(mask.words)[block_index() * MaskTiles::keys + thread_index()] =
      key_bits(c, query, key_tile * MaskTiles::keys + thread_index(), queries_are_alike);
}

}  // namespace heed::cuda
