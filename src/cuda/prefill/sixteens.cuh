// SPDX-License-Identifier: Apache-2.0
// Keys and values that lie as in a page of a cache, sixteen tokens after sixteen: keys (dim, 16), values
// (dim / 16, 16, 16). So they are in shared memory, too, where the matrix units take rows of 32 bytes.
//
// The copy engine reads two such rows as one of 64, in its swizzle of 64: of 32 bytes it takes a row in the
// same time, and 512 queries over 8192 keys of 8 heads of 128 took 140 us instead of 98 (from an array 95;
// H200, November 2026). Read in the swizzle of 32, rows 8 to 15 of every sixteen have changed places in
// pairs: dimensions of keys, and tokens of values. So do those of queries and of weights. A product of
// sixteen terms does not depend on their order.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/launch.hpp"
#include "cuda/prefill/plan.hpp"
#include "cuda/tile/block.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// 64 tokens of one page, or of the workspace: where their keys and values lie in the maps of the copy engine.
struct SixteensBox {
  int sixteen, key_line, value_line;
};
template <class Shape>
struct SixteensTile {
  static constexpr int tokens = 64, count = Shape::keys / tokens;
  static constexpr int key_bytes = Shape::key_bytes / count, value_bytes = Shape::value_bytes / count;
  SixteensBox box[count];
};

// Finds tiles of keys of a sequence's KV head.
template <class Shape>
class SixteensFinder {
  using Tile = SixteensTile<Shape>;

 public:
  HEED_DEVICE SixteensFinder(const Call& c, const PrefillPlan& plan, int b, int kv_head) {
    const Sequence& s = c.sequence(b);
    if constexpr (!Shape::paged) {
      const std::int64_t head = c.k.stride.batch == 0 ? kv_head : b * c.kv_heads + kv_head;
      first_sixteen = static_cast<int>((head * plan.key_rows + s.first_key) / 16);
      return;
    }
    table = c.cached[b].table, first_page = static_cast<const unsigned char*>(c.k.data);
    head_line = static_cast<int>(kv_head * c.layout.head_bytes() / 64);
    value_lines = static_cast<int>(c.layout.values_at() / 64);
    last_token = s.keys > 0 ? static_cast<int>(s.keys - 1) / Tile::tokens * Tile::tokens : -1;
    page_size = static_cast<int>(c.layout.page_size);
  }

  HEED_DEVICE Tile operator()(int j) const {
    Tile found;
#pragma unroll
    for (int n = 0; n < Tile::count; ++n) found.box[n] = box_at(j * Shape::keys + n * Tile::tokens);
    return found;
  }

 private:
  // Behind the last page another one comes, whose tokens nobody sees.
  HEED_DEVICE SixteensBox box_at(int token) const {
    if constexpr (!Shape::paged) return {first_sixteen + token / 16, 0, 0};
    if (last_token < 0) return {0, 0, 0};
    token = min_of(token, last_token);
    const int page = token / page_size, line = static_cast<int>((table[page] - first_page) / 64) + head_line;
    return {(token - page * page_size) / 16, line, line + value_lines};
  }

  const unsigned char* const* table = nullptr;
  const unsigned char* first_page = nullptr;
  int head_line = 0, value_lines = 0;
  int last_token = 0;  // the first of the last 64; -1: there is none
  int page_size = 0;
  int first_sixteen = 0;  // in the workspace
};

// Of every sixteen dimensions of 64 rows of queries in shared memory, the last eight change places in pairs.
// `pieces` of 64 dimensions lie piece_bytes apart. By a warpgroup.
template <int pieces, int piece_bytes>
HEED_DEVICE void turn_queries(const Warpgroup& team, SharedAddress rows) {
  for (int n = team.thread(); n < pieces * 64 * 4; n += Warpgroup::threads) {
    const int row = n / 4 % 64;
    const SharedAddress at =
        rows + n / 256 * piece_bytes + row * 128 + ((n % 4 * 2 + 1) ^ row % 8) * 16;  // in the swizzle of 128
    const uint4 x = load_shared16(at);
    store_shared16(at, {__byte_perm(x.x, 0, 0x1032), __byte_perm(x.y, 0, 0x1032), __byte_perm(x.z, 0, 0x1032),
                        __byte_perm(x.w, 0, 0x1032)});
  }
  fence_async_proxy();
  team.sync();
}

// Where sixteen bytes of a token's value are, the n-th of dim / 8, by the token's place in a tile; their
// order is the swizzle's.
template <int dim>
HEED_DEVICE int value_in_sixteens(int token, int n) {
  const int turned = token % 16 ^ token / 8 % 2;
  return token / 16 * (dim * 32) + n / 2 * 512 + turned * 32 + n % 2 * 16;
}

}  // namespace heed::cuda
