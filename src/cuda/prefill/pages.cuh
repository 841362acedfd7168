// SPDX-License-Identifier: Apache-2.0
// Prefill's producer where keys and values are those of a cache: a warpgroup whose threads copy pages as they
// lie. Sixteen keys are (dims, 16) there and sixteen values (dims / 16, 16 tokens, 16 dims): rows of 32
// bytes, which matrix instructions take transposed, in the 32-byte swizzle. One thread of it schedules, and
// loads queries by the copy engine.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/plan.hpp"
#include "cuda/prefill/producer.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

template <class Shape>
class PrefillPageProducer {
  static constexpr int tokens = 16, parts = Shape::keys / tokens;  // of a tile of keys

 public:
  HEED_DEVICE PrefillPageProducer(const Call& call, const PrefillPlan& launch, PrefillShared<Shape> memory)
      : c(call), plan(launch), shared(memory), schedule{call, launch, memory} {}

  HEED_DEVICE void run() {
    for (unsigned n = 0;; ++n) {
      if (thread_index() == 0) begin_tile(n);
      barrier_wait(shared.slot_full(n), shared.slot_phase(n));
      const RowTile tile = *shared.slot(n);
      barrier_arrive(shared.slot_empty(n));
      if (tile.b < 0) return;
      load(tile);
    }
  }

 private:
  // Describes the next tile of rows, or that there is none, and loads its queries. For the first thread.
  HEED_DEVICE void begin_tile(unsigned n) {
    RowTile tile{-1};
    if (number < plan.tiles) {
      tile = schedule.find(number);
      schedule.take_unfinished(n, tile);
    } else {
      if (claims) schedule.end_claims();
      claims = false;
      if (!schedule.take_unfinished(n, tile) && !schedule.take_unfinished(n + 1, tile)) tile.b = -1;
    }
    schedule.describe(tile, n);
    if (tile.b < 0) return;
    barrier_wait(shared.queries_empty(n), shared.query_phase(n) ^ 1);
    load_queries(c, plan, shared, tile, n);
  }

  // Keys are one tile ahead of values, and pages are looked up one tile ahead of keys, before their copies
  // are started: a load waits for those.
  HEED_DEVICE void load(const RowTile& tile) {
    const int kv_head = static_cast<int>(c.kv_head(tile.h));
    const Pages pages{c.cached[tile.b].table, kv_head * c.layout.head_bytes(), tile.key_count};
    Place place = look_up(pages, tile.last), next = look_up(pages, tile.last - 1);
    load_keys(place, pages, tile.last, loaded);
    for (int j = tile.last - 1; j >= tile.first; --j, ++loaded) {
      const Place after_next = look_up(pages, j - 1);
      load_keys(next, pages, j, loaded + 1);
      load_values(place, pages, j + 1, loaded);
      place = next, next = after_next;
    }
    if (thread_index() == 0 && !tile.again) number = schedule.claim();
    load_values(place, pages, tile.first, loaded++);
  }

  struct Pages {
    const unsigned char* const* table;
    std::int64_t head_at;  // in a page
    int key_count;
  };
  // The head's part of a page, and a token of the page. Lane n has those of the n-th sixteen keys of a tile.
  struct Place {
    const unsigned char* part;
    int token;
  };
  HEED_DEVICE Place look_up(const Pages& pages, int j) const {
    const int lane = thread_index() % 32, first = j * Shape::keys + lane * tokens,
              page_size = static_cast<int>(c.layout.page_size);
    if (j < 0 || lane >= parts || first >= pages.key_count)
      return {static_cast<const unsigned char*>(c.q.data), 0};  // not read
    return {pages.table[first / page_size] + pages.head_at, first % page_size};
  }
  HEED_DEVICE static Place of_part(const Place& place, int part) {
    const auto address = reinterpret_cast<unsigned long long>(place.part);
    return {reinterpret_cast<const unsigned char*>(__shfl_sync(0xffffffffu, address, part)),
            __shfl_sync(0xffffffffu, place.token, part)};
  }

  HEED_DEVICE void load_keys(const Place& place, const Pages& pages, int j, unsigned n) const {
    barrier_wait(shared.keys_empty(n), shared.phase(n) ^ 1);
    const int rows = static_cast<int>(c.dim);
    // Scores of keys beyond the sequence are masked, whatever they are.
    for_own_parts([&](int part) {
      const auto [from, token] = of_part(place, part);
      const bool is_valid = j * Shape::keys + part * tokens < pages.key_count;
      copy_rows<Shape::dim>(shared.keys(n) + part * Shape::dim * 32, from + std::int64_t{token} * rows * 2,
                            is_valid ? rows : 0, is_valid);
    });
    barrier_arrive_after_copies(shared.keys_full(n));
  }
  // Values of tokens beyond the sequence have weight 0, but 0 times them must be 0.
  HEED_DEVICE void load_values(const Place& place, const Pages& pages, int j, unsigned n) const {
    barrier_wait(shared.values_empty(n), shared.phase(n) ^ 1);
    const int rows = static_cast<int>(c.layout.value_width());
    for_own_parts([&](int part) {
      const auto [from, token] = of_part(place, part);
      const int of_lane = j * Shape::keys + part * tokens + thread_index() % 32 / 2;
      copy_rows<Shape::value_dim>(shared.values(n) + part * Shape::value_dim * 32,
                                  from + c.layout.values_at() + std::int64_t{token} * rows * 2, rows,
                                  of_lane < pages.key_count);
    });
    barrier_arrive_after_copies(shared.values_full(n));
  }

  template <class Body>
  HEED_DEVICE static void for_own_parts(const Body& body) {
#pragma unroll 1
    for (int part = thread_index() / 32; part < parts; part += 4) body(part);
  }

  // Sixteen tokens, `all` rows of 32 bytes, by a warp: `rows` of them from a page, zeros after them. In each
  // sixteen rows a lane has half of one.
  template <int all>
  HEED_DEVICE static void copy_rows(SharedAddress to, const unsigned char* from, int rows, bool is_valid) {
    const int lane = thread_index() % 32, row = lane / 2;
    to += static_cast<SharedAddress>(row * 32 + (lane % 2 ^ row / 4 % 2) * 16), from += lane * 16;
#pragma unroll 2  // registers do not suffice for more
    for (int first = 0; first < all; first += 16)
      stream16(to + first * 32, from + (first + row < rows ? first * 32 : 0), is_valid && first + row < rows);
  }

  const Call& c;
  const PrefillPlan& plan;
  const PrefillShared<Shape> shared;
  const PrefillSchedule<Shape> schedule;
  unsigned loaded = 0;  // tiles of values
  // Of the first thread: the tile of rows to begin, and whether more may be claimed.
  int number = static_cast<int>(block_index());
  bool claims = true;
};

}  // namespace heed::cuda
