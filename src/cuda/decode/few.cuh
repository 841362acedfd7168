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

// Tiles of 16 or 32 keys and their values out of the caller's rows: (keys, dims), sixteenths of a row
// swizzled by the key's number, so that eight rows of a matrix are read without conflicts.
template <class Shape>
class FewRows {
  static constexpr int dim = Shape::dim, pieces = dim / 8;  // 16 bytes each, in a row
  static constexpr int sixteen_bytes = 16 * dim * 2;        // of so many keys
  using Team = DecodeTeam<Shape>;

 public:
  static constexpr int half_bytes = Shape::half_bytes;
  // A tile that has arrived. Operands come in twos, as bytes do.
  struct Tile {
    SharedAddress keys;

    // Sixteen keys, from 16 j on, times dimensions [16 k, 16 k + 16), and the next sixteen.
    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int j, int k, int lane) const {
      const SharedAddress from = keys + j * sixteen_bytes;
#pragma unroll
      for (int n = 0; n < 2; ++n) load_matrices(a[n], from + place(lane % 16, 2 * (k + n) + lane / 16));
    }
    // Dimensions [16 d, 16 d + 16) times sixteen keys, and the next sixteen.
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int j, int d, int lane) const {
      const SharedAddress from = keys + Shape::half_bytes + j * sixteen_bytes;
#pragma unroll
      for (int n = 0; n < 2; ++n)
        load_matrices_transposed(a[n], from + place(lane % 8 + lane / 16 * 8, 2 * (d + n) + lane / 8 % 2));
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

  // The team's next tile of keys, and of values: one after the other.
  HEED_DEVICE void start_keys(int tile, SharedAddress to) { start(tile, to, k, head.c->k, has_k); }
  HEED_DEVICE void start_values(int tile, SharedAddress to) { start(tile, to, v, head.c->v, has_v); }

 private:
  static constexpr int tile_step = Shape::teams * Shape::tile_keys;

  HEED_DEVICE void start(int tile, SharedAddress to, const std::uint16_t*& next, const Tensor& t, bool has) {
    constexpr int together = Team::threads / pieces,  // keys that a team copies at once
        rounds = Shape::tile_keys / together;
    const std::int64_t step = together * t.stride.length;
    const std::uint16_t* from = next;
    next += tile_step * t.stride.length;
    if (head.is_wanted(tile) && head.is_wanted(tile + Shape::tile_keys - 1)) {
#pragma unroll
      for (int n = 0; n < rounds; ++n, from += step)
        stream16(to + place(thread / pieces + n * together, thread % pieces), from, has);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < rounds; ++n, from += step) {
      const int key = thread / pieces + n * together;
      const bool is_valid = head.is_wanted(tile + key);
      stream16(to + place(key, thread % pieces), is_valid ? from : t.data, is_valid && has);
    }
  }

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

// Where a warp finds the next 16 tokens of its tiles in a cache.
template <class Shape>
class TilePlaces {
 public:
  struct Place {
    const unsigned char *keys, *values, *key_scales;
  };

  HEED_DEVICE TilePlaces(const DecodeHead& head, int first_tile)
      : key_rows(Shape::padded ? static_cast<int>(head.c->dim) : Shape::dim),
        value_rows(Shape::padded ? static_cast<int>(head.c->layout.value_width()) : Shape::dim),
        keys_at(head.kv_head * head.c->layout.head_bytes()),
        values_at(keys_at + head.c->layout.values_at()),
        scales_at(keys_at + head.c->layout.key_scales_at()),
        lookups(head, first_tile) {}

  HEED_DEVICE Place next() {
    constexpr int element = Shape::quantized ? 1 : 2;
    const auto [page, token] = lookups.next();
    return {page + keys_at + token * key_rows * element, page + values_at + token * value_rows * element,
            page + scales_at + token * 4};
  }

  // Of 16 tokens: a dimension's numbers, or as many of a token's.
  const int key_rows, value_rows;

 private:
  const std::int64_t keys_at, values_at, scales_at;  // of the head, in a page
  PageLookups<Shape> lookups;
};

// Out of a cache's pages, as they lie in them, sixteen tokens after sixteen: keys (dims, 16) and values
// (dims / 16, 16, 16), halves swizzled by the row's fourth.
template <class Shape>
class FewPages {
  static constexpr int dim = Shape::dim, sixteen_bytes = 16 * dim * 2;

 public:
  static constexpr int half_bytes = Shape::half_bytes;
  // A tile that has arrived, as that of FewRows.
  struct Tile {
    SharedAddress keys;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int j, int k, int lane) const {
      load(a, keys + j * sixteen_bytes + k * 512, lane);
    }
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int j, int d, int lane) const {
      load(a, keys + Shape::half_bytes + j * sixteen_bytes + d * 512, lane);
    }

   private:
    HEED_DEVICE static void load(std::uint32_t (&a)[2][4], SharedAddress from, int lane) {
      const SharedAddress row = from + place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
      load_matrices_transposed(a[0], row), load_matrices_transposed(a[1], row + 512);
    }
  };

  HEED_DEVICE FewPages(const DecodeHead& of, int first_tile) : head(of), places(of, first_tile) {}

  // A lane has half a row of 32 bytes, and the same of every sixteenth row further.
  HEED_DEVICE void start_keys(int /*tile*/, SharedAddress to) {
    const int lane = lane_index(), row = lane / 2;
#pragma unroll
    for (int j = 0; j < Shape::tile_keys / 16; ++j) {
      const auto from = places.next();
      values[j] = from.values + lane * 16;
#pragma unroll
      for (int n = 0; n < dim; n += 16)
        prefetch16(to + j * sixteen_bytes + place(row, lane % 2) + n * 32, from.keys + lane * 16 + n * 32,
                   !Shape::padded || n + row < places.key_rows);
    }
  }
  // Keys beyond the sequence are masked whatever they are; their values must be 0.
  HEED_DEVICE void start_values(int tile, SharedAddress to) {
    const int lane = lane_index(), row = lane / 2;
#pragma unroll
    for (int j = 0; j < Shape::tile_keys / 16; ++j) {
      const bool is_wanted = head.is_wanted(tile + j * 16 + row);
#pragma unroll
      for (int n = 0; n < dim; n += 16)
        prefetch16(to + j * sixteen_bytes + place(row, lane % 2) + n * 32, values[j] + n * 32,
                   (!Shape::padded || n < places.value_rows) && is_wanted);
    }
  }

 private:
  HEED_DEVICE static SharedAddress place(int row, int half) {
    return static_cast<SharedAddress>(row * 32 + (half ^ row / 4 % 2) * 16);
  }

  const DecodeHead head;
  TilePlaces<Shape> places;
  const unsigned char* values[Shape::tile_keys / 16];  // this lane's, of the tile whose keys were started
};

// Out of an int8 cache's pages, sixteen tokens after sixteen: keys (dims, 16) and values (dims / 16, 16, 16);
// behind each the scales. Matrices of 16-bit numbers are loaded whose halves are neighbours, of two keys or
// of two dimensions: one goes to the first eight rows of a product, the other to the last (in_sixteen). Bytes
// are widened exactly, but for a power of two that queries and the values' scales have in their place; none
// that nobody sees is infinite, so that 0 times it is 0.
template <class Shape>
class FewBytes {
  static constexpr int dim = Shape::dim, sixteen_bytes = 16 * dim;

 public:
  static constexpr int half_bytes = Shape::half_bytes;
  struct Tile {
    SharedAddress keys;

    HEED_DEVICE void load_keys(std::uint32_t (&a)[2][4], int j, int k, int lane) const {
      load(a, keys + j * sixteen_bytes + k * 256 + lane * 16);
    }
    HEED_DEVICE void load_values(std::uint32_t (&a)[2][4], int j, int d, int lane) const {
      const int token = lane % 8 * 2 + lane / 8 % 2;
      load(a, keys + Shape::half_bytes + j * sixteen_bytes + d * 256 + place(lane / 16 * 16 + token));
    }
    // Of this lane's two of sixteen keys.
    HEED_DEVICE float2 key_scales(int j, int lane) const {
      return load_shared_floats(keys + Shape::tile_bytes + j * 64 + lane / 4 * 8);
    }
    HEED_DEVICE float2 value_scales(int j, int lane) const {
      const float2 x =
          load_shared_floats(keys + Shape::half_bytes + Shape::tile_bytes + j * 64 + lane / 4 * 8);
      return {x.x * lowering<Shape::type>, x.y * lowering<Shape::type>};
    }

   private:
    HEED_DEVICE static void load(std::uint32_t (&a)[2][4], SharedAddress from) {
      std::uint32_t bytes[4];
      load_matrices_transposed(bytes, from);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        a[m / 2][m % 2 * 2] = widen_lowered<Shape::type>(bytes[m]);
        a[m / 2][m % 2 * 2 + 1] = widen_lowered<Shape::type>(bytes[m] >> 8);
      }
    }
  };

  HEED_DEVICE FewBytes(const DecodeHead& of, int first_tile)
      : apart(static_cast<int>(of.c->layout.value_scales_at() - of.c->layout.key_scales_at())),
        places(of, first_tile) {}

  HEED_DEVICE void start_keys(int /*tile*/, SharedAddress to) {
    const int lane = lane_index();
#pragma unroll
    for (int j = 0; j < Shape::tile_keys / 16; ++j) {
      from[j] = places.next();
#pragma unroll
      for (int n = 0; n < dim; n += 32)
        prefetch16(to + j * sixteen_bytes + lane * 16 + n * 16, from[j].keys + lane * 16 + n * 16,
                   !Shape::padded || n + lane < places.key_rows);
      prefetch16_if(lane < 4, to + Shape::tile_bytes + j * 64 + lane * 16, from[j].key_scales + lane * 16);
    }
  }
  HEED_DEVICE void start_values(int /*tile*/, SharedAddress to) {
    const int lane = lane_index();
#pragma unroll
    for (int j = 0; j < Shape::tile_keys / 16; ++j) {
#pragma unroll
      for (int n = 0; n < dim; n += 32)
        prefetch16(to + j * sixteen_bytes + place(lane) + n * 16, from[j].values + lane * 16 + n * 16,
                   !Shape::padded || n + lane / 16 * 16 < places.value_rows);
      prefetch16_if(lane < 4, to + Shape::tile_bytes + j * 64 + lane * 16,
                    from[j].key_scales + apart + lane * 16);
    }
  }

 private:
  // Of a token's sixteen values. Eight tokens of even number are read together, or of odd: twos are swapped,
  // so that they lie in different banks. Two that are neighbours in memory stay neighbours: with the tokens
  // of even number first, memory was asked for every 16 bytes by themselves, four times as often in all, and
  // 64 sequences of 4096 keys of 128 took 178 us instead of 141 (H200, November 2026).
  HEED_DEVICE static SharedAddress place(int token) {
    return static_cast<SharedAddress>((token ^ token / 8 % 2) * 16);
  }

  const int apart;  // bytes from a key's scale to its value's
  TilePlaces<Shape> places;
  typename TilePlaces<Shape>::Place from[Shape::tile_keys / 16];  // of the tile whose keys were started
};

// A tile of keys and one of values, that a warp copies itself. The place of keys is free once their scores
// are known: the next ones are asked for while the values are used, and the next values after that. Where two
// blocks share a multiprocessor, what their warps wait for is enough.
template <class Shape, class Copies>
class FewRing {
 public:
  struct Shared {
    unsigned char tile[Shape::stage_bytes];
  };
  struct Barriers {};
  using Tile = typename Copies::Tile;

  HEED_DEVICE static void prepare(const DecodePlan&, Barriers&) {}

  // This warp's tiles of a stretch of the head's keys.
  HEED_DEVICE FewRing(const DecodeHead& head, const DecodePlan&, const KeyStretch& keys, Shared& memory,
                      Barriers&)
      : end(keys.end),
        place(shared_address(&memory)),
        next(keys.begin + DecodeTeam<Shape>::number() * Shape::tile_keys),
        copies(head, next) {}

  HEED_DEVICE void begin() { load_keys(), load_values(); }

  // The next tile's keys, visible to the whole warp, and then its values.
  HEED_DEVICE Tile take_keys() const { return take_older(); }
  HEED_DEVICE Tile take_values() const { return take_older(); }
  // They are no longer needed.
  HEED_DEVICE void release_keys() { sync_warp(), load_keys(); }
  HEED_DEVICE void release_values() { sync_warp(), load_values(); }
  HEED_DEVICE void drain() const { wait_for_copies<0>(); }

 private:
  HEED_DEVICE Tile take_older() const {
    wait_for_copies<1>();
    sync_warp();
    return {place};
  }
  // Starts the copies of the next tile.
  HEED_DEVICE void load_keys() {
    if (next < end) copies.start_keys(next, place);
    commit_copies();
  }
  HEED_DEVICE void load_values() {
    if (next < end) copies.start_values(next, place + Shape::half_bytes);
    commit_copies();
    next += Shape::teams * Shape::tile_keys;
  }

  const int end;
  const SharedAddress place;
  int next;  // the first key of the next tile to load
  Copies copies;
};

// The same in a ring of whole tiles, where one block fills a multiprocessor.
template <class Copies>
class WholeTiles : public Copies {
 public:
  using Copies::Copies;
  HEED_DEVICE void start(int tile, SharedAddress to) {
    this->start_keys(tile, to), this->start_values(tile, to + Copies::half_bytes);
  }
};
template <class Shape, class Copies>
class WholeRing : public DecodeRing<Shape, WholeTiles<Copies>> {
  using Tile = typename Copies::Tile;

 public:
  using DecodeRing<Shape, WholeTiles<Copies>>::DecodeRing;
  HEED_DEVICE Tile take_keys() { return tile = this->take(0); }
  HEED_DEVICE Tile take_values() const { return tile; }
  HEED_DEVICE void release_keys() const {}
  HEED_DEVICE void release_values() const {}

 private:
  Tile tile;
};

// Of sixteen keys, or dimensions, that which a lane has in the first or the second eight rows of a product.
template <class Shape>
HEED_DEVICE int in_sixteen(int lane, int half) {
  return Shape::quantized ? lane / 4 * 2 + half : lane / 4 + half * 8;
}

// A warp's partial state {max, sum, out} of its rows over its tiles of a unit of keys. In products a lane has
// row lane / 4, where scores are the two rows from 2 (lane % 4) on.
template <class Shape>
class WarpProducts {
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, eights = Shape::tile_keys / 8;  // of keys, in a tile
  using Scores = float[eights][2];                                       // one key of each eight, of two rows

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
      if constexpr (Shape::quantized) q[k / 2][k % 2] = raised<type>(q[k / 2][k % 2]);
    }
  }

  // The keys that this thread's rows see; `first_tile`: the warp's.
  HEED_DEVICE void find_seen(const DecodeWork& work, const PackedMask& mask, int first_tile) {
    is_masked = mask.words != nullptr;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int r = work.lane % 4 * 2 + n;
      masks[n].begin(work, mask, r, first_tile);
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

  // A tile of keys for all rows.
  template <class Loads>
  HEED_DEVICE void attend_tile(const DecodeWork& work, Loads& loads, int first_key) {
    if (is_masked && !take_masks(first_key)) {
      loads.take_keys(), loads.release_keys(), loads.take_values(), loads.release_values();
      return;
    }
    Scores s;
    find_scores(s, work, loads, first_key);
    if (is_masked) hide_masked(s, work.lane);
    const float first = weigh(0, s), second = weigh(1, s);
    const auto tile = loads.take_values();
    std::uint32_t p[eights];
#pragma unroll
    for (int n = 0; n < eights; ++n) {
      if constexpr (Shape::quantized) scale_weights(s, n, tile.value_scales(n / 2, work.lane));
      p[n] = transposed(pack2<type>(s[n][0], s[n][1]));
    }
    rescale(first, second);
#pragma unroll
    for (int d = 0; d < dim / 16; d += 2) {
      if (Shape::padded && d % Shape::skipped == 0 && 16 * d >= work.c.value_dim) break;
#pragma unroll
      for (int j = 0; j < eights / 2; ++j) {
        std::uint32_t a[2][4];
        tile.load_values(a, j, d, work.lane);
        add_product<type>(o[d], a[0], p[2 * j], p[2 * j + 1]);
        add_product<type>(o[d + 1], a[1], p[2 * j], p[2 * j + 1]);
      }
    }
    loads.release_values();
  }

  // The warp's state, for all teams to read.
  HEED_DEVICE void put_state(const DecodeWork& work, TeamStates<Shape>& to) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int across = 4; across < 32; across *= 2) sum[n] += shuffle_xor(sum[n], across);
      const int r = work.lane % 4 * 2 + n;
      if (work.lane / 4 == 0) to.ends[work.warp][r] = {max[n], sum[n]};
      float* const out = to.out[work.warp][r];
#pragma unroll
      for (int d = 0; d < dim / 16; ++d)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          out[16 * d + in_sixteen<Shape>(work.lane, half)] = o[d][n + 2 * half];
    }
  }

 private:
  template <class Loads>
  HEED_DEVICE void find_scores(Scores& s, const DecodeWork& work, Loads& loads, int first_key) const {
    const auto tile = loads.take_keys();
    // Even and odd steps are summed apart: each product would wait for the last.
    float product[eights / 2][2][4] = {};
#pragma unroll
    for (int k = 0; k < dim / 16; k += 2) {
      if (Shape::padded && k % Shape::skipped == 0 && 16 * k >= work.c.dim) break;
#pragma unroll
      for (int j = 0; j < eights / 2; ++j) {
        std::uint32_t a[2][4];
        tile.load_keys(a, j, k, work.lane);
        add_product<type>(product[j][0], a[0], q[k][0], q[k][1]);
        add_product<type>(product[j][1], a[1], q[k + 1][0], q[k + 1][1]);
      }
    }
    float2 scales[eights / 2];
#pragma unroll
    for (int j = 0; j < eights / 2; ++j) {
      scales[j] = {1, 1};
      if constexpr (Shape::quantized) scales[j] = tile.key_scales(j, work.lane);
    }
    loads.release_keys();
#pragma unroll
    for (int j = 0; j < eights / 2; ++j) {
#pragma unroll
      for (int n = 0; n < 4; ++n)
        s[2 * j + n / 2][n % 2] = infinity_to_nan((product[j][0][n] + product[j][1][n]) *
                                                  (n < 2 ? scales[j].x : scales[j].y) * work.c.scale_log2e);
    }
    if (work.c.softcap_log2e != 0) {
#pragma unroll
      for (int n = 0; n < eights; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) s[n][r] = softcapped_score(work.c.softcap_log2e, s[n][r]);
    }
    if (!work.all_see(first_key, first_key + Shape::tile_keys)) hide_unseen(s, work.lane, first_key);
  }

  // Of a tile, the key of the n-th eight that a lane has.
  HEED_DEVICE static int key_of(int lane, int n) { return n / 2 * 16 + in_sixteen<Shape>(lane, n % 2); }

  HEED_DEVICE void hide_unseen(Scores& s, int lane, int first_key) const {
#pragma unroll
    for (int n = 0; n < eights; ++n) {
      const int j = first_key + key_of(lane, n);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (j < begin[r] || j >= end[r]) s[n][r] = minus_infinity;
    }
  }

  // Whether some row sees a key of the tile.
  HEED_DEVICE bool take_masks(int first_key) {
    const bool first = masks[0].take(first_key), second = masks[1].take(first_key);
    return warp_any(first || second);
  }
  HEED_DEVICE void hide_masked(Scores& s, int lane) const {
#pragma unroll
    for (int n = 0; n < eights; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (!masks[r].sees(0, key_of(lane, n))) s[n][r] = minus_infinity;
  }

  // Scores of row r become weights. Returns the factor of what was summed against the old maximum.
  HEED_DEVICE float weigh(int r, Scores& s) {
    float top = s[0][r];
#pragma unroll
    for (int n = 1; n < eights; ++n) top = fmaxf(top, s[n][r]);
#pragma unroll
    for (int across = 4; across < 32; across *= 2) top = fmaxf(top, shuffle_xor(top, across));
    const float now = fmaxf(max[r], top);
    const float factor = fast_exp2(max[r] - finite_max(now));
    max[r] = now;
    const float subtract = finite_max(now) - lift<type>;
    float total = 0;
#pragma unroll
    for (int n = 0; n < eights; n += 2) {
      s[n][r] = fast_exp2(s[n][r] - subtract), s[n + 1][r] = fast_exp2(s[n + 1][r] - subtract);
      total = n == 0 ? s[n][r] + s[n + 1][r] : total + (s[n][r] + s[n + 1][r]);
    }
    sum[r] = fmaf(sum[r], factor, total);
    return factor;
  }

  // Those of the n-th eight keys. A weight of 0 stays 0, whatever the scale of a value that nobody sees is.
  HEED_DEVICE static void scale_weights(Scores& s, int n, const float2& scales) {
#pragma unroll
    for (int r = 0; r < 2; ++r) s[n][r] = s[n][r] == 0 ? 0.0f : s[n][r] * (n % 2 == 0 ? scales.x : scales.y);
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
  bool is_masked;
  RowMask<Shape> masks[2];
  float max[2], sum[2], o[dim / 16][4];
};

}  // namespace heed::cuda
