// SPDX-License-Identifier: Apache-2.0
// For few rows, a team's ring of tiles of 16 keys and their values. The caller's lie (keys, dims), sixteenths
// of a row turned by the key's number; a cache's lie as its pages have them, keys (dims, 16) and values (dims
// / 16, 16, 16), halves turned by the row's fourth, so that eight rows of a matrix are read without
// conflicts.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_team.cuh"
#include "cuda/algorithm/element.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

template <class Shape>
class FewLoads {
  static constexpr int dim = Shape::dim, pieces = dim / 8;  // 16 bytes each, in a row of the caller's
  using Team = DecodeTeam<Shape>;
  static constexpr int team_threads = Team::threads;

 public:
  struct Shared {
    unsigned char tiles[Shape::stages][2][Shape::tile_bytes];
  };
  struct Barriers {};

  // A tile that is there.
  struct Tile {
    SharedAddress keys, values;

    // Keys times dimensions [16 k, 16 k + 16).
    HEED_DEVICE void load_keys(std::uint32_t (&a)[4], int k, int lane) const {
      if constexpr (Shape::paged)
        load_transposed(a, keys + place_in_page(16 * k + lane / 16 * 8 + lane % 8, lane / 8 % 2));
      else
        load_matrices(a, keys + place(lane % 16, 2 * k + lane / 16));
    }
    // Dimensions [16 d, 16 d + 16) times keys.
    HEED_DEVICE void load_values(std::uint32_t (&a)[4], int d, int lane) const {
      const int key = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
      if constexpr (Shape::paged)
        load_transposed(a, values + place_in_page(16 * d + key, half));
      else
        load_transposed(a, values + place(key, 2 * d + half));
    }
  };

  // This team's tiles of a stretch of the head's keys.
  HEED_DEVICE FewLoads(const DecodeHead& of, const DecodePlan&, const KeyStretch& keys, Shared& memory,
                       Barriers&)
      : head(of), end(keys.end), ring(shared_address(&memory)), thread(Team::thread()) {
    next = keys.begin + Team::number() * Shape::tile_keys;
    if constexpr (!Shape::paged) {
      const std::int64_t first = head.c->sequence(head.b).first_key + next + thread / pieces;
      k = first_of(head.c->k, first) + thread % pieces * 8;
      v = first_of(head.c->v, first) + thread % pieces * 8;
    }
#pragma unroll 1
    for (int n = 0; n < Shape::stages - 1; ++n) load();
  }

  // The next tile, there for the whole team; the tile before it is no longer needed.
  HEED_DEVICE Tile take(int /*first_key*/) {
    wait_for_copies<Shape::stages - 2>();
    Team::sync();
    load();
    const SharedAddress at = ring + taken * 2 * Shape::tile_bytes;
    taken = taken == Shape::stages - 1 ? 0 : taken + 1;
    return {at, at + Shape::tile_bytes};
  }
  HEED_DEVICE void drain() const { wait_for_copies<0>(); }

 private:
  HEED_DEVICE static SharedAddress place(int key, int piece) {
    return static_cast<SharedAddress>(key * dim * 2 + (piece ^ key % 8) * 16);
  }
  HEED_DEVICE static SharedAddress place_in_page(int row, int half) {
    return static_cast<SharedAddress>(row * 32 + (half ^ row / 4 % 2) * 16);
  }
  HEED_DEVICE const std::uint16_t* first_of(const Tensor& t, std::int64_t first_key) const {
    return static_cast<const std::uint16_t*>(t.data) + head.b * t.batch + head.kv_head * t.heads +
           first_key * t.length;
  }
  HEED_DEVICE bool is_wanted(int j) const { return j >= head.begin && j < head.end; }

  // Starts the copies of the next tile into the stage that is free.
  HEED_DEVICE void load() {
    constexpr int step = Shape::teams * Shape::tile_keys;
    if (next < end) {
      const SharedAddress to = ring + loaded * 2 * Shape::tile_bytes;
      if constexpr (Shape::paged)
        load_page(to);
      else
        load_rows(to);
    }
    close_copies();
    next += step;
    if constexpr (!Shape::paged) k += step * head.c->k.length, v += step * head.c->v.length;
    loaded = loaded == Shape::stages - 1 ? 0 : loaded + 1;
  }

  HEED_DEVICE void load_rows(SharedAddress to) const {
    constexpr int together = team_threads / pieces,
                  turns = Shape::tile_keys / together;  // keys that a team copies at once
    const std::int64_t k_step = together * head.c->k.length, v_step = together * head.c->v.length;
    const std::uint16_t *from_k = k, *from_v = v;
    if (is_wanted(next) && is_wanted(next + Shape::tile_keys - 1)) {
#pragma unroll
      for (int n = 0; n < turns; ++n, from_k += k_step, from_v += v_step) {
        const SharedAddress at = to + place(thread / pieces + n * together, thread % pieces);
        stream16(at, from_k, true), stream16(at + Shape::tile_bytes, from_v, true);
      }
      return;
    }
#pragma unroll 1
    for (int n = 0; n < turns; ++n, from_k += k_step, from_v += v_step) {
      const int key = thread / pieces + n * together;
      const bool is_there = is_wanted(next + key);
      const SharedAddress at = to + place(key, thread % pieces);
      stream16(at, is_there ? from_k : head.c->k.data, is_there);
      stream16(at + Shape::tile_bytes, is_there ? from_v : head.c->v.data, is_there);
    }
  }

  // Keys beyond the sequence are masked whatever they are; their values must be 0.
  HEED_DEVICE void load_page(SharedAddress to) const {
    const cache::PageLayout& layout = head.c->layout;
    const int page_size = static_cast<int>(layout.page_size), page = next / page_size,
              within = next % page_size;
    const unsigned char* from = head.c->cached[head.b].table[page] + head.kv_head * layout.head_bytes() +
                                std::int64_t{within} * dim * 2;
#pragma unroll
    for (int n = thread; n < 2 * dim; n += team_threads) {
      stream16(to + place_in_page(n / 2, n % 2), from + n * 16, true);
      stream16(to + Shape::tile_bytes + place_in_page(n / 2, n % 2), from + layout.values_at() + n * 16,
               is_wanted(next + n / 2 % 16));
    }
  }

  const DecodeHead head;
  const int end;
  const SharedAddress ring;
  const int thread;                                // of the team
  const std::uint16_t *k = nullptr, *v = nullptr;  // this thread's of the next tile
  int next, loaded = 0, taken = 0;  // the next tile's first key, its stage, and that of the tile to take
};

}  // namespace heed::cuda
