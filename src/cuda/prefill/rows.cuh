// SPDX-License-Identifier: Apache-2.0
// The rows that a thread of prefill's consumers has.
#pragma once
#include "cuda/prefill/producer.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// The two rows of a thread, eight apart, in the tile at hand.
struct PrefillRows {
  const int group = warpgroup_index() - 1;
  const Warpgroup team{5 + group};
  int lane = thread_index() % 32;
  int row_in_group = thread_index() % 128 / 32 * 16 + lane / 4;
  RowTile* tile = nullptr;  // in shared memory, until it is released
  // Of the heads that share the tile, this thread's, and how many rows of the tile the others before it have.
  // Where no heads share one these are constants: a register more makes products of heads of 64 wait (C7511).
  int member = 0, rows_before = 0;

  // Before the rows of a tile that so many heads share.
  HEED_DEVICE void share(int tile_heads, int tile_rows) {
    const int of_head = tile_rows / tile_heads;
    member = (group * 64 + row_in_group) / of_head, rows_before = member * of_head;
  }

  // Query of the sequence.
  HEED_DEVICE int row(int r) const {
    return tile->first_query + group * 64 + row_in_group + 8 * r - rows_before;
  }
  // Rows beyond the tile's last are as that one: what they find is not written.
  HEED_DEVICE int written_row(int r) const { return min_of(row(r), tile->first_query + tile->rows - 1); }
  HEED_DEVICE Query query(int i) const {
    return {tile->b, tile->h, i, tile->first_row + i - tile->first_query};
  }
  HEED_DEVICE int rows_here() const { return tile->rows - group * 64; }

  // Once for the warpgroup.
  HEED_DEVICE void release(SharedAddress barrier) const {
    if (team.thread() == 0) barrier_arrive(barrier);
  }
};

// Which columns of a tile of scores some row does not see.
struct HiddenColumns {
  bool before, after;
};

}  // namespace heed::cuda
