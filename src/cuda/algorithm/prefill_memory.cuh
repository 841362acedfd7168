// SPDX-License-Identifier: Apache-2.0
// What prefill's producer and consumers share: operands in stages, barriers that say which are there and
// which have been used, and the description of the tile of rows at hand.
#pragma once
#include <cstdint>

#include "cuda/algorithm/prefill_plan.hpp"
#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// A tile of rows of one head and the tiles of keys that it visits, from the last to the first: all that
// consumers need to know of it. b < 0: there are no more.
struct RowTile {
  int b, h;
  int first_query, rows;                    // of the sequence; fewer than the block's in its first tile
  std::int64_t first_row;                   // of q and out
  int first, last;                          // tiles of keys
  int plain_begin, plain_end;               // those that every row sees whole
  int key_count, first_offset, end_offset;  // as in Sequence
  int tail;     // the first row of the last tile's values that is not the sequence's own
  int again;    // whether it comes for the second time, since f32 could not finish some row of it
  int is_left;  // consumers say it: the tile must come again

  HEED_DEVICE int begin_of(int i) const { return i + first_offset > 0 ? i + first_offset : 0; }
  HEED_DEVICE int end_of(int i) const { return i + end_offset < key_count ? i + end_offset : key_count; }
};

// Barriers, and the slots through which the producer says what comes next.
template <class Shape>
struct PrefillMemory {
  unsigned char* memory;  // at a multiple of 1024
  SharedAddress at;       // the same

  HEED_DEVICE explicit PrefillMemory(unsigned char* any) {
    at = (shared_address(any) + 1023u) & ~1023u;
    memory = any + (at - shared_address(any));
  }

  HEED_DEVICE SharedAddress queries(unsigned n) const {
    return at + Shape::queries_at + n % Shape::query_stages * Shape::query_bytes;
  }
  HEED_DEVICE SharedAddress keys(unsigned n) const {
    return at + Shape::keys_at + n % Shape::stages * Shape::key_bytes;
  }
  HEED_DEVICE SharedAddress values(unsigned n) const {
    return at + Shape::values_at + n % Shape::stages * Shape::key_bytes;
  }
  HEED_DEVICE SharedAddress out() const { return at + Shape::out_at; }
  HEED_DEVICE RowTile* slot(unsigned n) const {
    return reinterpret_cast<RowTile*>(memory + 256 + n % 2 * 64);
  }
  static_assert(sizeof(RowTile) <= 64);

  // Each pair: what is there, and what may be overwritten.
  HEED_DEVICE SharedAddress tile_there(unsigned n) const { return at + n % 2 * 8; }
  HEED_DEVICE SharedAddress tile_used(unsigned n) const { return at + 16 + n % 2 * 8; }
  HEED_DEVICE SharedAddress queries_there(unsigned n) const { return at + 32 + n % Shape::query_stages * 8; }
  HEED_DEVICE SharedAddress queries_used(unsigned n) const { return at + 48 + n % Shape::query_stages * 8; }
  HEED_DEVICE SharedAddress keys_there(unsigned n) const { return at + 64 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress keys_used(unsigned n) const { return at + 96 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress values_there(unsigned n) const { return at + 128 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress values_used(unsigned n) const { return at + 160 + n % Shape::stages * 8; }
  // Of the n-th use of a stage, of queries, or of a slot.
  HEED_DEVICE static unsigned phase(unsigned n) { return n / Shape::stages & 1; }
  HEED_DEVICE static unsigned query_phase(unsigned n) { return n / Shape::query_stages & 1; }
  HEED_DEVICE static unsigned slot_phase(unsigned n) { return n / 2 & 1; }

  HEED_DEVICE void init() const {
    for (unsigned n = 0; n < 2; ++n) {
      barrier_init(tile_there(n), 1), barrier_init(tile_used(n), 128 * Shape::groups);
      slot(n)->is_left = 0;
    }
    for (unsigned n = 0; n < Shape::query_stages; ++n)
      barrier_init(queries_there(n), 1), barrier_init(queries_used(n), Shape::groups);
    for (unsigned n = 0; n < Shape::stages; ++n) {
      barrier_init(keys_there(n), 1), barrier_init(keys_used(n), Shape::groups);
      barrier_init(values_there(n), 1), barrier_init(values_used(n), Shape::groups);
    }
    barriers_are_ready();
  }
};

}  // namespace heed::cuda
