// SPDX-License-Identifier: Apache-2.0
// What the warps of a block of Hopper's backward pass share: the tile of keys at hand, operands in stages,
// and barriers.
#pragma once
#include <cstdint>

#include "cuda/backward/hopper/plan.hpp"
#include "cuda/backward/hopper/products.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// A tile of keys of one KV head and the tiles of queries that see it. b < 0: no more tiles follow.
struct KeyTile {
  int b, kv_head, tile;
  int keys;                                 // of the sequence from the tile's first on
  int first, last;                          // tiles of queries; last < first: none
  int key_count, first_offset, end_offset;  // as in Sequence
  int queries;                              // of the sequence
  int first_query_row, first_key_row;       // of q, and of k for this tile
  int line;                                 // the sequence's first tile of queries
  int first_head, head_step;                // query heads that read the KV head
  bool is_copied;                           // the copy engine writes dK and dV

  HEED_DEVICE int head(int member) const { return first_head + member * head_step; }

  HEED_DEVICE int first_key() const { return tile * backward_keys; }
  // Whether some query up to this one, or from this one on, does not see some key of the tile: it lies before
  // what the query sees, or after.
  HEED_DEVICE bool hides_before(int last_query) const { return last_query + first_offset > first_key(); }
  HEED_DEVICE bool hides_after(int first_query) const {
    return min_of(first_query + end_offset, key_count) < first_key() + backward_keys;
  }
  // Tiles of keys below this one that a tile of queries, beginning at query i, sees.
  HEED_DEVICE int tiles_below(int i) const { return tile - max_of(i + first_offset, 0) / backward_keys; }
};

// The steps of a block at a tile of keys: tiles of queries from the last to the first, query heads at each.
struct BackwardStep {
  int tile, member, remaining;

  HEED_DEVICE BackwardStep(const KeyTile& of, int group)
      : tile(of.last), member(0), remaining((of.last - of.first + 1) * group) {}
  HEED_DEVICE bool is_over() const { return remaining <= 0; }
  HEED_DEVICE void advance(int group) {
    --remaining;
    if (++member == group) member = 0, --tile;
  }
  HEED_DEVICE BackwardStep next(int group) const {
    BackwardStep made = *this;
    made.advance(group);
    return made;
  }
};

template <class Shape>
struct BackwardShared {
  // Of a description: those who add, consumers, and the warp that clears what no step of a biased call
  // reaches.
  static constexpr int readers = 2 + 128 * Shape::groups + 32 * Shape::biased;
  unsigned char* memory;  // at a multiple of 1024
  SharedAddress at;       // the same

  HEED_DEVICE explicit BackwardShared(unsigned char* any) : memory(any), at(align_1024(memory)) {}

  HEED_DEVICE SharedAddress keys() const { return at + Shape::keys_at; }
  HEED_DEVICE SharedAddress values() const { return at + Shape::values_at; }
  HEED_DEVICE SharedAddress rows(unsigned n) const {
    return at + Shape::rows_at + n % Shape::stages * Shape::row_bytes;
  }
  HEED_DEVICE SharedAddress queries(unsigned n) const {
    return at + Shape::queries_at + n % Shape::stages * Shape::query_bytes;
  }
  HEED_DEVICE SharedAddress gradients(unsigned n) const {
    return at + Shape::gradients_at + n % Shape::stages * Shape::query_bytes;
  }
  // dS of this step and of the one before; dQ, of both too where there is room.
  HEED_DEVICE SharedAddress scores(unsigned n) const {
    return at + Shape::scores_at + n % 2 * Shape::score_bytes;
  }
  HEED_DEVICE SharedAddress sums(unsigned n) const {
    return at + Shape::sums_at + n % Shape::sum_buffers * Shape::sum_bytes;
  }
  HEED_DEVICE SharedAddress mask(unsigned n) const {
    return at + Shape::masks_at + n % Shape::stages * Shape::mask_bytes;
  }
  HEED_DEVICE SharedAddress bias() const { return at + Shape::bias_at; }
  HEED_DEVICE KeyTile* slot(unsigned n) const {
    return reinterpret_cast<KeyTile*>(memory + 256 + n % 2 * 64);
  }
  static_assert(sizeof(KeyTile) <= 64);

  // Full: the data has arrived. Empty: its readers are done with it.
  HEED_DEVICE SharedAddress slot_full(unsigned n) const { return at + n % 2 * 8; }
  HEED_DEVICE SharedAddress slot_empty(unsigned n) const { return at + 16 + n % 2 * 8; }
  HEED_DEVICE SharedAddress keys_full() const { return at + 32; }
  HEED_DEVICE SharedAddress values_full() const { return at + 40; }
  HEED_DEVICE SharedAddress keys_empty() const { return at + 48; }
  HEED_DEVICE SharedAddress sums_full(unsigned n) const { return at + 56 + n % 2 * 8; }
  HEED_DEVICE SharedAddress sums_empty(unsigned n) const { return at + 192 + n % Shape::sum_buffers * 8; }
  HEED_DEVICE SharedAddress queries_full(unsigned n) const { return at + 80 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress gradients_full(unsigned n) const { return at + 112 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress stage_empty(unsigned n) const { return at + 144 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress bias_full() const { return at + 176; }
  HEED_DEVICE SharedAddress bias_empty() const { return at + 184; }
  // dV and dK of a tile, for the copy engine.
  HEED_DEVICE SharedAddress copy_full() const { return at + 208; }
  HEED_DEVICE SharedAddress copy_empty() const { return at + 216; }
  // Where they lie, of a warpgroup: dV in the operands of the last step, queries for one of them and
  // gradients for the other; dK in the rows of dS that no other warpgroup writes.
  HEED_DEVICE RowsAt copied_values(int group, unsigned last) const {
    return {group == 0 ? queries(last) : gradients(last), Shape::rows * 128};
  }
  HEED_DEVICE RowsAt copied_keys(int group) const {
    return {scores(0) + group * 64 * 128, Shape::keys * 128};
  }
  // Of the n-th use of a stage, or of one of two.
  HEED_DEVICE static unsigned phase(unsigned n) { return n / Shape::stages & 1; }
  HEED_DEVICE static unsigned phase_of_two(unsigned n) { return n / 2 & 1; }
  HEED_DEVICE static unsigned phase_of_sums(unsigned n) { return n / Shape::sum_buffers & 1; }

  HEED_DEVICE void init() const {
    for (unsigned n = 0; n < 2; ++n) {
      barrier_init(slot_full(n), 1), barrier_init(slot_empty(n), readers);
      barrier_init(sums_full(n), 128 * Shape::groups);
    }
    if constexpr (Shape::copies)
      barrier_init(copy_full(), 128 * Shape::groups), barrier_init(copy_empty(), 1);
    barrier_init(keys_full(), 1), barrier_init(values_full(), 1);
    barrier_init(keys_empty(), 128 * Shape::groups);
    for (unsigned n = 0; n < Shape::sum_buffers; ++n) barrier_init(sums_empty(n), 1);
    barrier_init(bias_full(), 1), barrier_init(bias_empty(), 128 * Shape::groups);
    for (unsigned n = 0; n < Shape::stages; ++n) {
      barrier_init(queries_full(n), 1), barrier_init(gradients_full(n), 1);
      barrier_init(stage_empty(n), 128 * Shape::groups);
    }
    publish_barriers();
  }
};

}  // namespace heed::cuda
