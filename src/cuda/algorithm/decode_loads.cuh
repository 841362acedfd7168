// SPDX-License-Identifier: Apache-2.0
// A warp's ring of tiles of 16 keys and their values. The caller's lie (keys, dims), sixteenths of a row
// turned by the key's number; a cache's lie as its pages have them, keys (dims, 16) and values (dims / 16,
// 16, 16), halves turned by the row's fourth, so that eight rows of a matrix are read without conflicts.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/element.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

template <class Shape>
class DecodeLoads {
  static constexpr int dim = Shape::dim, pieces = dim / 8;  // 16 bytes each, in a row of the caller's

 public:
  struct Shared {
    unsigned char tiles[Shape::stages][2][Shape::tile_bytes];
  };
  struct Head {
    const Call* c;
    int b, kv_head;
    int begin, end;  // keys that some row sees
  };

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

  // Keys [first_key, end_key) of the head, every eighth tile of them from this warp's on.
  HEED_DEVICE DecodeLoads(const Head& of, int first_key, int end_key, Shared& memory)
      : head(of), end(end_key), ring(shared_address(&memory)) {
    const int lane = thread_index() % 32;
    next = first_key + thread_index() / 32 * Shape::tile_keys;
    if constexpr (!Shape::paged) {
      const Sequence& s = head.c->sequence(head.b);
      k = first_of(head.c->k, s.first_key + lane / pieces) + lane % pieces * 8;
      v = first_of(head.c->v, s.first_key + lane / pieces) + lane % pieces * 8;
    }
#pragma unroll
    for (int n = 0; n < Shape::stages - 1; ++n) load();
  }

  HEED_DEVICE Tile take() {
    load();
    wait_for_copies<Shape::stages - 1>();
    sync_warp();
    const SharedAddress at = stage(taken);
    return {at, at + Shape::tile_bytes};
  }
  HEED_DEVICE void release() {
    sync_warp();
    ++taken;
  }
  HEED_DEVICE void drain() const { wait_for_copies<0>(); }

 private:
  HEED_DEVICE static SharedAddress place(int key, int piece) {
    return static_cast<SharedAddress>(key * dim * 2 + (piece ^ key % 8) * 16);
  }
  HEED_DEVICE static SharedAddress place_in_page(int row, int half) {
    return static_cast<SharedAddress>(row * 32 + (half ^ row / 4 % 2) * 16);
  }
  HEED_DEVICE SharedAddress stage(int n) const { return ring + n % Shape::stages * 2 * Shape::tile_bytes; }
  HEED_DEVICE const std::uint16_t* first_of(const Tensor& t, std::int64_t first_key) const {
    return static_cast<const std::uint16_t*>(t.data) + head.b * t.batch + head.kv_head * t.heads +
           first_key * t.length;
  }
  HEED_DEVICE bool is_wanted(int j) const { return j >= head.begin && j < head.end; }

  // Starts the copies of the next tile into the stage that was released last.
  HEED_DEVICE void load() {
    if (next < end) {
      const SharedAddress to = stage(loaded);
      if constexpr (Shape::paged)
        load_page(to);
      else
        load_rows(to);
    }
    close_copies();
    next += decode_warps * Shape::tile_keys, ++loaded;
  }

  HEED_DEVICE void load_rows(SharedAddress to) const {
    constexpr int together = 32 / pieces,
                  turns = Shape::tile_keys / together;  // keys that a warp copies at once
    const int lane = thread_index() % 32;
    const std::int64_t k_step = together * head.c->k.length, v_step = together * head.c->v.length;
    const std::uint16_t *from_k = k + next * head.c->k.length, *from_v = v + next * head.c->v.length;
    if (is_wanted(next) && is_wanted(next + Shape::tile_keys - 1)) {
#pragma unroll
      for (int n = 0; n < turns; ++n, from_k += k_step, from_v += v_step) {
        const SharedAddress at = to + place(lane / pieces + n * together, lane % pieces);
        stream16(at, from_k, true), stream16(at + Shape::tile_bytes, from_v, true);
      }
      return;
    }
#pragma unroll 1
    for (int n = 0; n < turns; ++n, from_k += k_step, from_v += v_step) {
      const int key = lane / pieces + n * together;
      const bool is_there = is_wanted(next + key);
      const SharedAddress at = to + place(key, lane % pieces);
      stream16(at, is_there ? from_k : k, is_there);
      stream16(at + Shape::tile_bytes, is_there ? from_v : v, is_there);
    }
  }

  // Keys beyond the sequence are masked whatever they are; their values must be 0.
  HEED_DEVICE void load_page(SharedAddress to) const {
    const cache::PageLayout& layout = head.c->layout;
    const int lane = thread_index() % 32, page_size = static_cast<int>(layout.page_size),
              page = next / page_size, within = next % page_size;
    const unsigned char* from = head.c->cached[head.b].table[page] + head.kv_head * layout.head_bytes() +
                                std::int64_t{within} * dim * 2;
#pragma unroll
    for (int n = lane; n < 2 * dim; n += 32) {
      stream16(to + place_in_page(n / 2, n % 2), from + n * 16, true);
      stream16(to + Shape::tile_bytes + place_in_page(n / 2, n % 2), from + layout.values_at() + n * 16,
               is_wanted(next + n / 2 % 16));
    }
  }

  const Head head;
  const int end;
  const SharedAddress ring;
  const std::uint16_t *k = nullptr, *v = nullptr;
  int next, loaded = 0, taken = 0;
};

}  // namespace heed::cuda
