// SPDX-License-Identifier: Apache-2.0
// Decode for up to 8 rows of a KV head: a team is one warp with mma. Keys are the first operand of a product
// and rows the second, so no row of a matrix instruction is idle.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/decode/plan.hpp"
#include "cuda/decode/work.cuh"
#include "cuda/tile/block.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Tiles of 16 keys and their values out of the caller's rows: (keys, dims), sixteenths of a row swizzled by
// the key's number, so that eight rows of a matrix are read without conflicts.
template <class Shape>
class FewRows {
  static constexpr int dim = Shape::dim, pieces = dim / 8;  // 16 bytes each, in a row
  using Team = DecodeTeam<Shape>;

 public:
  // A tile that has arrived.
  struct Tile {
    SharedAddress keys, values;

    // Keys times dimensions [16 k, 16 k + 16).
    HEED_DEVICE void load_keys(std::uint32_t (&a)[4], int k, int lane) const {
      load_matrices(a, keys + place(lane % 16, 2 * k + lane / 16));
    }
    // Dimensions [16 d, 16 d + 16) times keys.
    HEED_DEVICE void load_values(std::uint32_t (&a)[4], int d, int lane) const {
      load_matrices_transposed(a, values + place(lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
    }
  };

  HEED_DEVICE FewRows(const DecodeHead& of, int first_tile)
      : head(of),
        thread(Team::thread()),
        has_k(!Shape::padded || thread % pieces * 8 < head.c->dim),
        has_v(!Shape::padded || thread % pieces * 8 < head.c->value_dim) {
    const std::int64_t first = head.first_key + first_tile + thread / pieces;
    k = first_of(head.c->k, first) + (has_k ? thread % pieces * 8 : 0);
    v = first_of(head.c->v, first) + (has_v ? thread % pieces * 8 : 0);
  }

  // The team's next tile: one after the other.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    constexpr int together = Team::threads / pieces,  // keys that a team copies at once
        rounds = Shape::tile_keys / together;
    const std::int64_t k_step = together * head.c->k.stride.length,
                       v_step = together * head.c->v.stride.length;
    const std::uint16_t *from_k = k, *from_v = v;
    k += tile_step * head.c->k.stride.length, v += tile_step * head.c->v.stride.length;
    if (head.is_wanted(tile) && head.is_wanted(tile + Shape::tile_keys - 1)) {
#pragma unroll
      for (int n = 0; n < rounds; ++n, from_k += k_step, from_v += v_step) {
        const SharedAddress at = to + place(thread / pieces + n * together, thread % pieces);
        stream16(at, from_k, has_k), stream16(at + Shape::tile_bytes, from_v, has_v);
      }
      return;
    }
#pragma unroll 1
    for (int n = 0; n < rounds; ++n, from_k += k_step, from_v += v_step) {
      const int key = thread / pieces + n * together;
      const bool is_valid = head.is_wanted(tile + key);
      const SharedAddress at = to + place(key, thread % pieces);
      stream16(at, is_valid ? from_k : head.c->k.data, is_valid && has_k);
      stream16(at + Shape::tile_bytes, is_valid ? from_v : head.c->v.data, is_valid && has_v);
    }
  }

 private:
  static constexpr int tile_step = Shape::teams * Shape::tile_keys;

  HEED_DEVICE static SharedAddress place(int key, int piece) {
    return static_cast<SharedAddress>(key * dim * 2 + (piece ^ key % 8) * 16);
  }
  HEED_DEVICE const std::uint16_t* first_of(const Tensor& t, std::int64_t first_key) const {
    return static_cast<const std::uint16_t*>(t.data) + head.b * t.stride.batch +
           head.kv_head * t.stride.heads + first_key * t.stride.length;
  }

  const DecodeHead head;
  const int thread;            // of the team
  const bool has_k, has_v;     // whether the caller's rows have this thread's dimensions
  const std::uint16_t *k, *v;  // this thread's of the next tile
};

// Out of a cache's pages, as they lie in them: keys (dims, 16) and values (dims / 16, 16, 16), halves
// swizzled by the row's fourth.
template <class Shape>
class FewPages {
  static constexpr int dim = Shape::dim;
  using Team = DecodeTeam<Shape>;

 public:
  // A tile that has arrived, as that of FewRows.
  struct Tile {
    SharedAddress keys, values;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[4], int k, int lane) const {
      load_matrices_transposed(a, keys + place(16 * k + lane / 16 * 8 + lane % 8, lane / 8 % 2));
    }
    HEED_DEVICE void load_values(std::uint32_t (&a)[4], int d, int lane) const {
      load_matrices_transposed(a, values + place(16 * d + lane / 16 * 8 + lane % 8, lane / 8 % 2));
    }
  };

  HEED_DEVICE FewPages(const DecodeHead& of, int first_tile)
      : head(of),
        lookups(of, first_tile),
        key_rows(Shape::padded ? static_cast<int>(of.c->dim) : dim),
        value_rows(Shape::padded ? static_cast<int>(of.c->layout.value_width()) : dim) {}

  // Keys beyond the sequence are masked whatever they are; their values must be 0.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    const auto [part, token] = lookups.next();
    const unsigned char *const keys = part + std::int64_t{token} * key_rows * 2,
                               *const values =
                                   part + head.c->layout.values_at() + std::int64_t{token} * value_rows * 2;
#pragma unroll(Shape::padded ? 4 : 2 * dim / Team::threads)  // registers do not suffice for all of 256
    for (int n = Team::thread(); n < 2 * dim; n += Team::threads) {
      const bool has_k = !Shape::padded || n < 2 * key_rows, has_v = !Shape::padded || n < 2 * value_rows;
      stream16(to + place(n / 2, n % 2), keys + (has_k ? n * 16 : 0), has_k);
      stream16(to + Shape::tile_bytes + place(n / 2, n % 2), values + (has_v ? n * 16 : 0),
               has_v && head.is_wanted(tile + n / 2 % 16));
    }
  }

 private:
  HEED_DEVICE static SharedAddress place(int row, int half) {
    return static_cast<SharedAddress>(row * 32 + (half ^ row / 4 % 2) * 16);
  }

  const DecodeHead head;
  PageLookups<Shape> lookups;
  const int key_rows, value_rows;  // of 32 bytes, that 16 tokens have
};

// A warp's partial state {max, sum, out} of its rows over its tiles of a unit of keys. In products a lane has
// row lane / 4, where scores are the two rows from 2 (lane % 4) on.
template <class Shape>
class WarpProducts {
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim;

 public:
  HEED_DEVICE void load_queries(const DecodeWork& work) {
    const int r = work.lane / 4;
    const bool is_valid = r < work.count;
    const Row row = row_of(work.c.q, work.query(is_valid ? r : 0));
    const auto* from = static_cast<const std::uint16_t*>(row.data) + row.first + work.lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < dim / 8; ++k) {
      const bool has = is_valid && (!Shape::padded || 8 * k < work.c.dim);
      q[k / 2][k % 2] = has ? *reinterpret_cast<const std::uint32_t*>(from + 8 * k) : 0u;
    }
  }

  // The keys that ranges let this thread's rows see.
  HEED_DEVICE void find_ranges(const DecodeWork& work) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int r = work.lane % 4 * 2 + n;
      const KeyRange range = r < work.count ? visible_keys(work.sequence, work.query_of(r)) : KeyRange{0, 0};
      begin[n] = static_cast<int>(range.begin), end[n] = static_cast<int>(range.end);
    }
  }

  HEED_DEVICE void clear() {
    max[0] = max[1] = minus_infinity, sum[0] = sum[1] = 0;
#pragma unroll
    for (int d = 0; d < dim / 16; ++d)
#pragma unroll
      for (int n = 0; n < 4; ++n) o[d][n] = 0;
  }

  // 16 keys for all rows.
  template <class Tile>
  HEED_DEVICE void attend_tile(const DecodeWork& work, Tile tile, int first_key) {
    // [eight of the keys][row]. In one array of four the compiler leaves them in memory, and 64
    // sequences of 4096 keys took 276 us instead of 247 (H200, November 2026).
    float s[2][2];
    find_scores(s, work, tile, first_key);
    const float first = weigh(0, s[0][0], s[1][0]), second = weigh(1, s[0][1], s[1][1]);
    const std::uint32_t p[2] = {transposed(pack2<type>(s[0][0], s[0][1])),
                                transposed(pack2<type>(s[1][0], s[1][1]))};
    rescale(first, second);
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      if (Shape::padded && 16 * d >= work.c.value_dim) break;
      std::uint32_t a[4];
      tile.load_values(a, d, work.lane);
      add_product<type>(o[d], a, p[0], p[1]);
    }
  }

  // The warp's state, for all teams to read.
  HEED_DEVICE void put_state(const DecodeWork& work, TeamStates<Shape>& to) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int across = 4; across < 32; across *= 2) sum[n] += shuffle_xor(sum[n], across);
      const int r = work.lane % 4 * 2 + n;
      if (work.lane / 4 == 0) to.ends[work.warp][r] = {max[n], sum[n]};
      float* const out = to.out[work.warp][r] + work.lane / 4;
#pragma unroll
      for (int d = 0; d < dim / 16; ++d) out[16 * d] = o[d][n], out[16 * d + 8] = o[d][n + 2];
    }
  }

 private:
  template <class Tile>
  HEED_DEVICE void find_scores(float (&s)[2][2], const DecodeWork& work, Tile tile, int first_key) const {
    // Even and odd steps are summed apart: each product would wait for the last.
    float product[2][4] = {};
#pragma unroll
    for (int k = 0; k < dim / 16; ++k) {
      if (Shape::padded && 16 * k >= work.c.dim) break;
      std::uint32_t a[4];
      tile.load_keys(a, k, work.lane);
      add_product<type>(product[k % 2], a, q[k][0], q[k][1]);
    }
#pragma unroll
    for (int n = 0; n < 4; ++n)
      s[n / 2][n % 2] = infinity_to_nan((product[0][n] + product[1][n]) * work.c.scale_log2e);
    if (work.c.softcap_log2e != 0) {
#pragma unroll
      for (int n = 0; n < 4; ++n) s[n / 2][n % 2] = softcapped_score(work.c.softcap_log2e, s[n / 2][n % 2]);
    }
    if (!work.all_see(first_key, first_key + Shape::tile_keys)) hide_unseen(s, first_key + work.lane / 4);
  }
  HEED_DEVICE void hide_unseen(float (&s)[2][2], int first_key) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int j = first_key + n / 2 * 8;
      if (j < begin[n % 2] || j >= end[n % 2]) s[n / 2][n % 2] = minus_infinity;
    }
  }

  // Scores of row n, one of each eight keys, become weights. Returns the factor of what was summed against
  // the old maximum.
  HEED_DEVICE float weigh(int n, float& a, float& b) {
    float top = fmaxf(a, b);
#pragma unroll
    for (int across = 4; across < 32; across *= 2) top = fmaxf(top, shuffle_xor(top, across));
    const float now = fmaxf(max[n], top);
    const float factor = fast_exp2(max[n] - finite_max(now));
    max[n] = now;
    const float subtract = finite_max(now) - lift<type>;
    a = fast_exp2(a - subtract), b = fast_exp2(b - subtract);
    sum[n] = fmaf(sum[n], factor, a + b);
    return factor;
  }

  // Where no maximum of a warp has moved, there is nothing to do.
  HEED_DEVICE void rescale(float first, float second) {
    if (!warp_any(first != 1.0f || second != 1.0f)) return;
#pragma unroll
    for (int d = 0; d < dim / 16; ++d)
#pragma unroll
      for (int n = 0; n < 4; ++n) o[d][n] *= n % 2 == 0 ? first : second;
  }

  std::uint32_t q[dim / 16][2];
  int begin[2], end[2];
  float max[2], sum[2], o[dim / 16][4];
};

}  // namespace heed::cuda
