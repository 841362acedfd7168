// SPDX-License-Identifier: Apache-2.0
// For few rows, tiles of 16 keys and their values on their way to a warp's ring. The caller's lie (keys,
// dims), sixteenths of a row turned by the key's number; a cache's lie as its pages have them, keys (dims,
// 16) and values (dims / 16, 16, 16), halves turned by the row's fourth, so that eight rows of a matrix are
// read without conflicts.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_team.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

// Out of the caller's rows.
template <class Shape>
class FewRows {
  static constexpr int dim = Shape::dim, pieces = dim / 8;  // 16 bytes each, in a row
  using Team = DecodeTeam<Shape>;

 public:
  // A tile that is there.
  struct Tile {
    SharedAddress keys, values;

    // Keys times dimensions [16 k, 16 k + 16).
    HEED_DEVICE void load_keys(std::uint32_t (&a)[4], int k, int lane) const {
      load_matrices(a, keys + place(lane % 16, 2 * k + lane / 16));
    }
    // Dimensions [16 d, 16 d + 16) times keys.
    HEED_DEVICE void load_values(std::uint32_t (&a)[4], int d, int lane) const {
      load_transposed(a, values + place(lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
    }
  };

  HEED_DEVICE FewRows(const DecodeHead& of, int first_tile) : head(of), thread(Team::thread()) {
    const std::int64_t first = head.first_key + first_tile + thread / pieces;
    k = first_of(head.c->k, first) + thread % pieces * 8;
    v = first_of(head.c->v, first) + thread % pieces * 8;
  }

  // The team's next tile: one after the other.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    constexpr int together = Team::threads / pieces,
                  turns = Shape::tile_keys / together;  // keys that a team copies at once
    const std::int64_t k_step = together * head.c->k.length, v_step = together * head.c->v.length;
    const std::uint16_t *from_k = k, *from_v = v;
    k += tile_step * head.c->k.length, v += tile_step * head.c->v.length;
    if (head.is_wanted(tile) && head.is_wanted(tile + Shape::tile_keys - 1)) {
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
      const bool is_there = head.is_wanted(tile + key);
      const SharedAddress at = to + place(key, thread % pieces);
      stream16(at, is_there ? from_k : head.c->k.data, is_there);
      stream16(at + Shape::tile_bytes, is_there ? from_v : head.c->v.data, is_there);
    }
  }

 private:
  static constexpr int tile_step = Shape::teams * Shape::tile_keys;

  HEED_DEVICE static SharedAddress place(int key, int piece) {
    return static_cast<SharedAddress>(key * dim * 2 + (piece ^ key % 8) * 16);
  }
  HEED_DEVICE const std::uint16_t* first_of(const Tensor& t, std::int64_t first_key) const {
    return static_cast<const std::uint16_t*>(t.data) + head.b * t.batch + head.kv_head * t.heads +
           first_key * t.length;
  }

  const DecodeHead head;
  const int thread;            // of the team
  const std::uint16_t *k, *v;  // this thread's of the next tile
};

// Out of a cache's pages.
template <class Shape>
class FewPages {
  static constexpr int dim = Shape::dim;
  using Team = DecodeTeam<Shape>;

 public:
  // A tile that is there, as that of FewRows.
  struct Tile {
    SharedAddress keys, values;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[4], int k, int lane) const {
      load_transposed(a, keys + place(16 * k + lane / 16 * 8 + lane % 8, lane / 8 % 2));
    }
    HEED_DEVICE void load_values(std::uint32_t (&a)[4], int d, int lane) const {
      load_transposed(a, values + place(16 * d + lane / 16 * 8 + lane % 8, lane / 8 % 2));
    }
  };

  HEED_DEVICE FewPages(const DecodeHead& of, int /*first_tile*/) : head(of) {}

  // Keys beyond the sequence are masked whatever they are; their values must be 0.
  HEED_DEVICE void start(int tile, SharedAddress to) const {
    const cache::PageLayout& layout = head.c->layout;
    const int page_size = static_cast<int>(layout.page_size), page = tile / page_size,
              within = tile % page_size;
    const unsigned char* from = head.c->cached[head.b].table[page] + head.kv_head * layout.head_bytes() +
                                std::int64_t{within} * dim * 2;
#pragma unroll
    for (int n = Team::thread(); n < 2 * dim; n += Team::threads) {
      stream16(to + place(n / 2, n % 2), from + n * 16, true);
      stream16(to + Shape::tile_bytes + place(n / 2, n % 2), from + layout.values_at() + n * 16,
               head.is_wanted(tile + n / 2 % 16));
    }
  }

 private:
  HEED_DEVICE static SharedAddress place(int row, int half) {
    return static_cast<SharedAddress>(row * 32 + (half ^ row / 4 % 2) * 16);
  }

  const DecodeHead head;
};

}  // namespace heed::cuda
