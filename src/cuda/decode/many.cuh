// SPDX-License-Identifier: Apache-2.0
// Decode for up to 32 rows of a KV head at a time: a team is a warpgroup with wgmma. Of the 64 rows of its
// matrix instructions every other eight are real, so that each warp has eight of them and a quad of lanes
// one: the instructions wait for memory in any case.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/decode/plan.hpp"
#include "cuda/decode/work.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// A team's ring of tiles that the caller has in rows: one thread of the team asks the copy engine for them. A
// tile lies in pieces of 64 dimensions, rows of 128 bytes in the engine's swizzle, as the matrix units want
// them.
template <class Shape>
class EngineRing {
  using Team = DecodeTeam<Shape>;
  static constexpr int tile_keys = Shape::tile_keys;

 public:
  struct Shared {
    unsigned char stages[Shape::stages][Shape::stage_bytes];
  };
  struct Barriers {
    std::uint64_t full[Shape::stages];
  };

  // A tile that has arrived.
  struct Tile {
    SharedAddress keys;

    static constexpr int keys_are_transposed = 0, row_bytes = 128;
    // 16 dimensions of all keys, from 16 k on; 16 keys' values, from 16 k on.
    HEED_DEVICE Operand keys_at(int k) const {
      return advanced(operand(keys), k / 4 * tile_keys * 128 + k % 4 * 32);
    }
    HEED_DEVICE Operand values_at(int k) const {
      return advanced(operand(keys + Shape::tile_bytes, tile_keys * 128), k * 2048);
    }
  };

  // Before anything of this call is read; all threads sync before a team takes its first tile.
  HEED_DEVICE static void prepare(const DecodePlan& plan, Barriers& barriers) {
    if (Team::thread() != 0) return;
    prefetch_map(&plan.k), prefetch_map(&plan.v);
#pragma unroll
    for (int n = 0; n < Shape::stages; ++n) barrier_init(shared_address(&barriers.full[n]), 1);
    publish_barriers();
  }

  // This team's tiles of a stretch of the head's keys.
  HEED_DEVICE EngineRing(const DecodeHead& of, const DecodePlan& maps, const KeyStretch& keys, Shared& memory,
                         Barriers& barriers)
      : head(of),
        plan(maps),
        end(keys.end),
        ring(shared_address(&memory)),
        full(shared_address(&barriers)),
        next(keys.begin + Team::number() * tile_keys) {
    const Call& c = *head.c;
    first_row = static_cast<int>(head.first_key);
    k_head = c.k.stride.heads == 0 ? 0 : head.kv_head, k_entry = c.k.stride.batch == 0 ? 0 : head.b;
    v_head = c.v.stride.heads == 0 ? 0 : head.kv_head, v_entry = c.v.stride.batch == 0 ? 0 : head.b;
  }

  // The first tile, into the second-level cache, while launches ahead may still write it. With more than one
  // the copies that are needed first would wait.
  HEED_DEVICE void prefetch_first() const {
    constexpr int lines = Shape::dim * 2 / 128;  // of a row
#pragma unroll 1
    for (int n = Team::thread(); n < tile_keys * lines; n += Team::threads) {
      const int j = next + n / lines, first = n % lines * 64;
      if (j >= end) return;
      if (!Shape::padded || first < head.c->dim) prefetch_l2(element_of(head.c->k, j) + first);
      if (!Shape::padded || first < head.c->value_dim) prefetch_l2(element_of(head.c->v, j) + first);
    }
  }

  HEED_DEVICE void begin() {
    if (Team::thread() != 0) return;
#pragma unroll 1
    for (int n = 0; n < Shape::stages - 1; ++n) load();
  }

  // The next tile, visible to the whole team, which syncs once; the tile before it is no longer needed.
  HEED_DEVICE Tile take(int first_key) {
    const SharedAddress at = ring + taken * Shape::stage_bytes;
    const bool is_whole = first_key >= head.begin && first_key + tile_keys <= head.end;
    if (!is_whole) {
      barrier_wait(full + taken * 8, phase);
      clear_values(at + Shape::tile_bytes, first_key);
    }
    Team::sync();
    if (Team::thread() == 0) load();
    if (is_whole) barrier_wait(full + taken * 8, phase);
    taken = taken == Shape::stages - 1 ? 0 : taken + 1;
    if (taken == 0) phase ^= 1;
    return {at};
  }
  // Instead of take(), where only the other team has a tile.
  HEED_DEVICE void pass() const { Team::sync(); }
  HEED_DEVICE void drain() const {}

 private:
  HEED_DEVICE const std::uint16_t* element_of(const Tensor& t, int j) const {
    return static_cast<const std::uint16_t*>(t.data) + head.b * t.stride.batch +
           head.kv_head * t.stride.heads + (head.first_key + j) * t.stride.length;
  }
  HEED_DEVICE static SharedAddress place(int key, int piece) {
    return static_cast<SharedAddress>(piece / 8 * tile_keys * 128 + key * 128 + (piece % 8 ^ key % 8) * 16);
  }

  // Starts the copies of the next tile into the stage that is free. For the team's first thread.
  HEED_DEVICE void load() {
    if (next >= end) return;
    const SharedAddress to = ring + loaded * Shape::stage_bytes, barrier = full + loaded * 8;
    barrier_arrive_expecting(barrier, 2 * Shape::tile_bytes);
    copy_tile(to, &plan.k, {0, first_row + next, k_head, k_entry}, barrier);
    copy_tile(to + Shape::tile_bytes, &plan.v, {0, first_row + next, v_head, v_entry}, barrier);
    next += Shape::teams * tile_keys;
    loaded = loaded == Shape::stages - 1 ? 0 : loaded + 1;
  }

  // Whole rows at once, or 64 dimensions, which the engine fills up with zeros.
  HEED_DEVICE static void copy_tile(SharedAddress to, const CUtensorMap* map, const BoxAt& at,
                                    SharedAddress barrier) {
    if constexpr (!Shape::padded) {
      load_rows(to, map, at, barrier, evict_first);
    } else {
#pragma unroll
      for (int first = 0; first < Shape::dim; first += 64)
        load_box(to + first * tile_keys * 2, map, {first, at.row, at.head, at.entry}, barrier, evict_first);
    }
  }

  // Scores of keys that nobody sees are masked, but 0 times their values must be 0.
  HEED_DEVICE void clear_values(SharedAddress values, int first_key) const {
    constexpr int pieces = Shape::dim / 8;
#pragma unroll 1
    for (int n = Team::thread(); n < tile_keys * pieces; n += Team::threads) {
      const int key = n / pieces, j = first_key + key;
      if (j < head.begin || j >= head.end) clear_shared16(values + place(key, n % pieces));
    }
    fence_async_proxy();
  }

  const DecodeHead head;
  const DecodePlan& plan;
  const int end;
  const SharedAddress ring, full;
  int next, loaded = 0, taken = 0;  // the next tile's first key, its stage, and that of the tile to take
  unsigned phase = 0;
  int first_row = 0, k_head = 0, k_entry = 0, v_head = 0, v_entry = 0;  // of the first thread
};

// Tiles of 64 keys and their values from a cache to a warpgroup's ring, as they lie in its pages, sixteen
// tokens after sixteen: keys (dims, 16) and values (dims / 16, 16, 16), rows of 32 bytes in the matrix units'
// swizzle of 32. A warp's copies ask for whole lines: where they made rows of 128 bytes of them, four queries
// of 64 sequences over 4096 keys of 128 took 304 us instead of 253 (H200, November 2026).
template <class Shape>
class ManyPages {
  using Team = DecodeTeam<Shape>;
  static constexpr int dim = Shape::dim, tile_keys = Shape::tile_keys, in_page = 16;
  static constexpr int sixteen_bytes = in_page * dim * 2;
  static_assert(tile_keys == 64);

 public:
  // A tile that has arrived.
  struct Tile {
    SharedAddress keys;

    static constexpr int keys_are_transposed = 1, row_bytes = 32;
    // 16 dimensions of all keys, from 16 k on; 16 keys' values, from 16 k on.
    HEED_DEVICE Operand keys_at(int k) const { return advanced(operand(keys, sixteen_bytes), k * 512); }
    HEED_DEVICE Operand values_at(int k) const {
      return advanced(operand(keys + Shape::tile_bytes, 512), k * sixteen_bytes);
    }
  };

  HEED_DEVICE ManyPages(const DecodeHead& of, int first_tile)
      : head(of),
        part_at(of.kv_head * of.c->layout.head_bytes()),
        first(Team::thread() / 32 * in_page),
        lookups(of, first_tile + first) {}

  // Each warp has sixteen keys of a tile, a lane half a row, and the same of every sixteenth row further.
  HEED_DEVICE void start(int tile, SharedAddress to) {
    const int j = tile + first, lane = Team::thread() % 32, row = lane / 2;
    const bool is_valid = j < head.end, is_wanted = head.is_wanted(j + row);
    const int key_rows = Shape::padded ? static_cast<int>(head.c->dim) : dim,  // in 16 tokens
        value_rows = Shape::padded ? static_cast<int>(head.c->layout.value_width()) : dim;
    const auto [page, token] = lookups.next();
    const unsigned char* const part = page + part_at;
    const unsigned char *const keys = part + std::int64_t{token} * key_rows * 2 + lane * 16,
                               *const values = part + head.c->layout.values_at() +
                                               std::int64_t{token} * value_rows * 2 + lane * 16;
    const SharedAddress at = to + first * dim * 2 + row * 32 + (lane % 2 ^ row / 4 % 2) * 16;
#pragma unroll 4  // registers do not suffice for all of 128
    for (int n = 0; n < dim; n += 16) {
      const bool has_k = !Shape::padded || n + row < key_rows, has_v = !Shape::padded || n < value_rows;
      stream16(at + n * 32, keys + (has_k ? n * 32 : 0), is_valid && has_k);
      stream16(at + Shape::tile_bytes + n * 32, values + (has_v ? n * 32 : 0), has_v && is_wanted);
    }
  }

 private:
  const DecodeHead head;
  const std::int64_t part_at;  // the head's, in a page
  const int first;             // of a tile's keys, this warp's
  PageLookups<Shape> lookups;
};

// A warpgroup's partial state {max, sum, out} of its rows over its tiles of a unit of keys.
template <class Shape>
class GroupProducts {
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, keys = Shape::tile_keys;

 public:
  HEED_DEVICE void load_queries(const DecodeWork& work) {
    const int r = row(work);
    const bool is_valid = r < work.count;
    const Row of = row_of(work.c.q, work.query(is_valid ? r : 0));
    const auto* from = static_cast<const std::uint16_t*>(of.data) + of.first + work.lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < dim / 8; ++k) {
      const bool has = is_valid && (!Shape::padded || 8 * k < work.c.dim);
      q[k] = has ? *reinterpret_cast<const std::uint32_t*>(from + 8 * k) : 0u;
    }
  }

  // The keys that this thread's row sees; `first_tile`: the team's.
  HEED_DEVICE void find_seen(const DecodeWork& work, const PackedMask& packed, int first_tile) {
    const int r = row(work);
    is_masked = packed.words != nullptr;
    mask.begin(work, packed, r, first_tile);
    const KeyRange range = r < work.count ? visible_keys(work.sequence, work.query_of(r)) : KeyRange{0, 0};
    begin = static_cast<int>(range.begin), end = static_cast<int>(range.end);
  }

  HEED_DEVICE void clear() {
    max = minus_infinity, sum = 0;
#pragma unroll
    for (int n = 0; n < dim / 2; ++n) o[n] = 0;
  }

  // A tile of keys for all rows.
  template <class Loads>
  HEED_DEVICE void attend_tile(const DecodeWork& work, Loads& loads, int first_key) {
    const auto tile = loads.take(first_key);
    float s[keys / 2];
    multiply_keys(s, tile);
    weigh(s, work, first_key);
    multiply_values(s, tile);
  }

  // Of the rows of a team, that of this thread.
  HEED_DEVICE static int row(const DecodeWork& work) {
    return work.warp % Shape::team_warps * 8 + work.lane / 4;
  }

  // The warpgroup's state, for all teams to read.
  HEED_DEVICE void put_state(const DecodeWork& work, TeamStates<Shape>& to) {
    const int r = row(work) % Shape::end_rows, team = team_of(work);
    add_up();
    if (work.lane % 4 == 0) to.ends[team][r] = {max, sum};
    float* const out = to.out[team][r] + work.lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) *reinterpret_cast<float2*>(out + 8 * n) = {o[4 * n], o[4 * n + 1]};
  }
  // The same to another block of the cluster, whose barrier counts the bytes.
  HEED_DEVICE void send_state(const DecodeWork& work, TeamStates<Shape>& to, std::uint64_t& full, int block) {
    const int r = row(work) % Shape::end_rows, team = team_of(work);
    const SharedAddress barrier = map_to_rank(shared_address(&full), block);
    add_up();
    if (work.lane % 4 == 0)
      store_remote(map_to_rank(shared_address(&to.ends[team][r]), block), {max, sum}, barrier);
    const SharedAddress out = map_to_rank(shared_address(to.out[team][r] + work.lane % 4 * 2), block);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) store_remote(out + 32 * n, {o[4 * n], o[4 * n + 1]}, barrier);
  }

 private:
  HEED_DEVICE static int team_of(const DecodeWork& work) { return work.warp / Shape::team_warps; }
  HEED_DEVICE void add_up() { sum += shuffle_xor(sum, 1), sum += shuffle_xor(sum, 2); }

  // s = queries * keys^T
  template <class Tile>
  HEED_DEVICE void multiply_keys(float (&s)[keys / 2], const Tile& tile) const {
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) s[n] = 0;
    pin(s);
    fence_products();
#pragma unroll
    for (int k = 0; k < dim / 16; ++k) {
      const std::uint32_t a[4] = {q[2 * k], 0, q[2 * k + 1], 0};
      multiply<type, Tile::keys_are_transposed, Tile::row_bytes>(s, a, tile.keys_at(k));
    }
    commit_products();
    wait_for_products<0>();
    pin(s);
  }

  // Scores become weights against the row's maximum and are added to the sum, each thread those of its
  // columns. The maximum follows when it is exceeded by 2^8, which weights can bear: only then are the
  // sums so far rescaled.
  HEED_DEVICE void weigh(float (&s)[keys / 2], const DecodeWork& work, int first_key) {
    float top = minus_infinity;
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) s[n] = infinity_to_nan(s[n] * work.c.scale_log2e);
    if (work.c.softcap_log2e != 0) cap(s, work.c);
    if (!work.all_see(first_key, first_key + keys)) hide_unseen(s, first_key + work.lane % 4 * 2);
    if (is_masked) hide_masked(s, work.lane, first_key);
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) top = fmaxf(top, s[n]);
    top = fmaxf(top, shuffle_xor(top, 1)), top = fmaxf(top, shuffle_xor(top, 2));
    const bool moves = top > max + 8.0f;
    if (warp_any(moves)) rescale(moves ? top : max);
    const float subtract = finite_max(max) - lift<type>;
    float total[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) s[n] = fast_exp2(s[n] - subtract), total[n % 4] += s[n];
    sum += total[0] + total[1];
  }

  HEED_DEVICE static void cap(float (&s)[keys / 2], const Call& c) {
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) s[n] = softcapped_score(c.softcap_log2e, s[n]);
  }
  HEED_DEVICE void hide_unseen(float (&s)[keys / 2], int first_key) const {
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) {
      const int j = first_key + n / 4 * 8 + n % 4;
      if (n % 4 < 2 && (j < begin || j >= end)) s[n] = minus_infinity;
    }
  }
  HEED_DEVICE void hide_masked(float (&s)[keys / 2], int lane, int first_key) {
    mask.take(first_key);
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2 && !mask.sees(n / 16, n / 4 % 4 * 8 + lane % 4 * 2 + n % 4)) s[n] = minus_infinity;
  }
  HEED_DEVICE void rescale(float now) {
    const float factor = fast_exp2(max - finite_max(now));
    max = now, sum *= factor;
#pragma unroll
    for (int n = 0; n < dim / 2; ++n)
      if (n % 4 < 2) o[n] *= factor;
  }

  // o += weights * values
  template <class Tile>
  HEED_DEVICE void multiply_values(const float (&s)[keys / 2], const Tile& tile) {
    std::uint32_t p[keys / 4];
#pragma unroll
    for (int n = 0; n < keys / 4; ++n) p[n] = n % 2 == 0 ? pack2<type>(s[2 * n], s[2 * n + 1]) : 0u;
    pin(p), pin(o);
    fence_products();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) multiply<type, 1, Tile::row_bytes>(o, p + 4 * k, tile.values_at(k));
    commit_products();
    wait_for_products<0>();
    pin(o), pin(p);
  }

  std::uint32_t q[dim / 8];
  int begin, end;
  bool is_masked;
  RowMask<Shape> mask;
  float max, sum;
  float o[dim / 2];  // of four, two are of this thread's row
};

}  // namespace heed::cuda
