// SPDX-License-Identifier: Apache-2.0
// How the matrix units' prefill cuts a call, and what a launch hands to it.
#pragma once
#include <cuda.h>  // types of a tensor map

#include <cstdint>

#include "cuda/algorithm/prefill_order.hpp"
#include "cuda/call.hpp"

namespace heed::cuda {

// One block: a producer, and `groups` warpgroups of 64 rows each that share keys and values.
template <int head_dim, Type element, int warpgroups>
struct PrefillShape {
  static constexpr Type type = element;
  static constexpr int dim = head_dim, groups = warpgroups, rows = 64 * groups;
  static constexpr int keys = dim == 256 ? 64 : 128;  // of a tile
  // Of smaller heads memory holds more, so that the next tile of rows is there when this one ends.
  static constexpr int stages = dim == 64 ? 3 : 2, query_stages = dim == 256 ? 1 : 2;
  static constexpr int threads = 128 * (groups + 1);
  // 64 K registers for all: a sum beyond them would wait for ever.
  static constexpr int producer_registers = groups == 2 ? 40 : 32,
                       consumer_registers = groups == 2 ? 232 : 160;
  static_assert((producer_registers + groups * consumer_registers) * 128 <= 65536);

  // Operands lie in pieces of 64 dimensions: rows of 128 bytes.
  static constexpr int pieces = dim / 64;
  static constexpr int query_bytes = rows * dim * 2, key_bytes = keys * dim * 2;
  // Offsets from a multiple of 1024. Outputs have the room of the queries where there is no other.
  static constexpr bool out_has_room = dim < 256;
  static constexpr int queries_at = 1024, keys_at = queries_at + query_stages * query_bytes,
                       values_at = keys_at + stages * key_bytes,
                       out_at = out_has_room ? values_at + stages * key_bytes : queries_at;
  static constexpr int shared_bytes =
      1024 + values_at + stages * key_bytes + (out_has_room ? query_bytes : 0);  // 1024: to align by hand
  static_assert(shared_bytes <= 232448);
};

// Three for heads of 64, whose exponentials then hide behind more products: with two, 64 heads of 2048
// queries took 323 us instead of 277 (H200, November 2026).
constexpr int prefill_groups(std::int64_t dim) { return dim == 64 ? 3 : 2; }

struct PrefillPlan {
  CUtensorMap q, k, v, out;  // (dim, rows, heads, entries), boxes of 64 dims
  unsigned* next_tile;       // 0 before and after, and the count of blocks that are done
  const int* tile_starts;    // (batch + 1): tiles of rows before each sequence; null where all are alike
  int tiles;                 // of all sequences and heads
  PrefillOrder order;        // of the tiles, where all sequences are alike
  int key_rows;              // of k, which ends there
};

}  // namespace heed::cuda
