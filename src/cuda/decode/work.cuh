// SPDX-License-Identifier: Apache-2.0
// What a block of decode does: a KV head of a sequence, its rows and the keys they see; its teams of warps;
// and a team's ring of tiles of keys and values.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/decode/plan.hpp"
#include "cuda/decode/state.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/mma.cuh"
#include "cuda/tile/visible.cuh"

namespace heed::cuda {

// What the teams found in a unit of keys, for some rows; these begin in different banks.
template <class Shape>
struct TeamStates {
  alignas(16) float out[Shape::teams][Shape::end_rows][Shape::dim + 4];
  Numbers<2> ends[Shape::teams][Shape::end_rows];  // max, sum
};

struct DecodeWork {
  const Call& c;
  const int kv_heads, group;
  int lane, warp, b, kv_head;
  Sequence sequence;
  int queries, count;  // count: rows that are real
  struct Keys {
    int begin = 0, end = 0;
  };
  Keys seen_by_some, seen_by_all;

  HEED_DEVICE DecodeWork(const Call& call, const DecodePlan& plan)
      : c(call), kv_heads(static_cast<int>(c.kv_heads)), group(plan.group) {
    lane = thread_index() % 32, warp = thread_index() / 32;
    const int n = static_cast<int>(block_index());
    b = n / kv_heads, kv_head = n - b * kv_heads;
    // Not c.sequence(b), which would find the call's own by its address: far slower than as an argument.
    sequence = c.each;
    if (c.sequences) sequence = c.sequences[b];
    queries = static_cast<int>(sequence.queries), count = queries * group;
    if (count == 0) return;
    const KeyRange first = visible_keys(sequence, 0), last = visible_keys(sequence, queries - 1);
    seen_by_some = {static_cast<int>(first.begin), static_cast<int>(last.end)};
    seen_by_all = {static_cast<int>(last.begin), static_cast<int>(first.end)};
  }

  // Rows are the queries in order, each for all heads that read the KV head.
  HEED_DEVICE int query_of(int r) const { return queries == 1 ? 0 : r / group; }
  HEED_DEVICE Query query(int r) const {
    const int n = query_of(r), member = r - n * group;
    const int h = c.tiled_heads ? member * kv_heads + kv_head : kv_head * group + member;
    return {b, h, n, sequence.first_query + n};
  }

  HEED_DEVICE bool all_see(int begin, int end) const {
    return !(begin < seen_by_all.begin || end > seen_by_all.end);
  }
};

// Warps that share the tiles of keys which they load.
template <class Shape>
struct DecodeTeam {
  static constexpr int threads = 32 * Shape::team_warps;

  HEED_DEVICE static int number() { return thread_index() / threads; }
  HEED_DEVICE static int thread() { return thread_index() % threads; }  // of the team
  HEED_DEVICE static void sync() {
    if constexpr (Shape::team_warps == 1)
      sync_warp();
    else
      named_sync(1 + number(), threads);
  }
};

// A KV head of a sequence.
struct DecodeHead {
  const Call* c;
  int b, kv_head;
  int begin, end;          // keys that some row sees
  std::int64_t first_key;  // the sequence's, among the rows of a packed call

  HEED_DEVICE bool is_wanted(int j) const { return j >= begin && j < end; }
};
struct KeyStretch {
  int begin, end;
};

// Where a cache has sixteen tokens of each tile that a warp copies, one tile after the other. Looked up for
// 32 tiles at a time, the lanes one each, and 32 ahead: a load waits for the copies that were started before
// it. One tile ahead, 64 sequences of 4096 keys of 64 took 181 us instead of 174 (H200, November 2026).
template <class Shape>
class PageLookups {
 public:
  // The head's part of a page, and a token of the page.
  struct Place {
    const unsigned char* part;
    int token;
  };

  // `first`: the first tile's token.
  HEED_DEVICE PageLookups(const DecodeHead& of, int first)
      : head(of), lane_token(first + thread_index() % 32 * tokens_apart) {
    if (head.end == 0) return;
    now = found(lane_token), later = found(lane_token + 32 * tokens_apart);
  }

  HEED_DEVICE Place next() {
    const auto part = reinterpret_cast<unsigned long long>(now.part);
    const Place place{reinterpret_cast<const unsigned char*>(__shfl_sync(0xffffffffu, part, taken)),
                      __shfl_sync(0xffffffffu, now.token, taken)};
    if (++taken == 32) {
      taken = 0, lane_token += 32 * tokens_apart;
      now = later, later = found(lane_token + 32 * tokens_apart);
    }
    return place;
  }

 private:
  static constexpr int tokens_apart = Shape::teams * Shape::tile_keys;

  // What is beyond the sequence, or nobody sees, becomes 0: then any page will do.
  HEED_DEVICE Place found(int token) const {
    const cache::PageLayout& layout = head.c->layout;
    const int page_size = static_cast<int>(layout.page_size), page = token < head.end ? token / page_size : 0;
    return {head.c->cached[head.b].table[page] + head.kv_head * layout.head_bytes(), token % page_size};
  }

  const DecodeHead head;
  int lane_token, taken = 0;
  Place now{}, later{};
};

// A ring of tiles that the threads of a team copy themselves, some tiles ahead of the one they work on.
// `Copies` knows where a tile lies: it starts a thread's part of the copies of one, and has the Tile that
// products read.
template <class Shape, class Copies>
class DecodeRing {
  using Team = DecodeTeam<Shape>;

 public:
  struct Shared {
    unsigned char tiles[Shape::stages][2][Shape::tile_bytes];
  };
  struct Barriers {};
  using Tile = typename Copies::Tile;

  HEED_DEVICE static void prepare(const DecodePlan&, Barriers&) {}

  // This team's tiles of a stretch of the head's keys.
  HEED_DEVICE DecodeRing(const DecodeHead& head, const DecodePlan&, const KeyStretch& keys, Shared& memory,
                         Barriers&)
      : end(keys.end),
        ring(shared_address(&memory)),
        next(keys.begin + Team::number() * Shape::tile_keys),
        copies(head, next) {}

  HEED_DEVICE void begin() {
#pragma unroll 1
    for (int n = 0; n < Shape::stages - 1; ++n) load();
  }

  // The next tile, visible to the whole team; the tile before it is no longer needed.
  HEED_DEVICE Tile take(int /*first_key*/) {
    wait_for_copies<Shape::stages - 2>();
    if constexpr (Shape::many) fence_async_proxy();
    Team::sync();
    load();
    const SharedAddress at = ring + taken * 2 * Shape::tile_bytes;
    taken = after(taken);
    return {at, at + Shape::tile_bytes};
  }
  // Instead of take(), where only other teams have a tile.
  HEED_DEVICE void pass() const { Team::sync(); }
  HEED_DEVICE void drain() const { wait_for_copies<0>(); }

 private:
  HEED_DEVICE static int after(int stage) { return stage == Shape::stages - 1 ? 0 : stage + 1; }

  // Starts the copies of the next tile into the stage that is free.
  HEED_DEVICE void load() {
    if (next < end) copies.start(next, ring + loaded * 2 * Shape::tile_bytes);
    commit_copies();
    next += Shape::teams * Shape::tile_keys;
    loaded = after(loaded);
  }

  const int end;
  const SharedAddress ring;
  int next, loaded = 0, taken = 0;  // the next tile's first key, its stage, and that of the tile to take
  Copies copies;
};

}  // namespace heed::cuda
