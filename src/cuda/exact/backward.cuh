// SPDX-License-Identifier: Apache-2.0
// The backward pass in f32 with the bits of the CPU's kernel (O2, src/cpu/backward/backward.hpp):
//
//   S = Q K^T      P = 2^(S - log-sum-exp)      dP = dO V^T      dS = P * (dP - delta)
//   dQ += dS K     dK += dS^T Q                 dV += P^T dO
//
// S and dP are chains over dimensions; dQ is a chain over each 192 keys, dK and dV over each 96 rows, counted
// from the sequence's first, and chains are added in order. Each product is computed once. A block of threads
// of the first kernel owns 96 keys and walks the rows that see them, 96 at a time; it makes dK and dV, and
// leaves dS in device memory. A block of the second owns 96 rows and makes dQ of it. Blocks have a slab of 64
// dimensions of the sums; those of other slabs of keys compute S and dP for themselves.
#pragma once
#include <cstdint>

#include "cuda/backward/pairs.cuh"
#include "cuda/exact/pair_tiles.cuh"
#include "cuda/exact/plan.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Of sums over keys and over rows: the CPU's (cpu/backward/call.hpp).
constexpr std::int64_t gradient_keys = 192, gradient_rows = 96;

// What a block has to do: blocks are (heads, slabs, tiles), the last of them fastest.
struct BackwardBlock {
  std::int64_t head, b, kv_head, slab, tile;  // the head: of the part's

  HEED_DEVICE BackwardBlock(const Call& c, const ExactPart& part, std::int64_t slabs, std::int64_t tiles) {
    std::int64_t n = block_index();
    tile = n % tiles, n /= tiles;
    slab = n % slabs, head = n / slabs;
    kv_head = (part.first_head + head) % c.kv_heads, b = (part.first_head + head) / c.kv_heads;
  }
};

// Whether some row of a tile sees some key of another.
HEED_DEVICE bool sees_tile(const Call& c, const PairRows& of, std::int64_t row_tile, std::int64_t key_tile) {
  const std::int64_t row = row_tile * pair_items, rows = of.count(c), key = key_tile * pair_items;
  if (row >= rows) return false;
  const Seen seen = seen_by(c, of.b, of.index(row), of.index(min(row + pair_items, rows) - 1));
  const KeyRange part = seen.within({key, min(key + pair_items, c.sequence(of.b).keys)});
  return part.begin < part.end;
}

// The sums of 6 items and 8 dimensions, of one thread.
using PairChain = Pairs::Sums;
template <class Step>
HEED_DEVICE void for_each_sum(const Step& step) {
#pragma unroll
  for (int n = 0; n < 6; ++n)
#pragma unroll
    for (int e = 0; e < 8; ++e) step(n, e);
}
HEED_DEVICE int sum_dim(int e) { return pair_across() * 4 + (e < 4 ? e : 28 + e); }

// Writes the sums of a slab of some items, or marks those that are no numbers: through shared memory, so that
// one thread knows whether all of an item's numbers are finite.
template <Owned owned>
struct SlabEnd {
  const GradientCall& g;
  const PairRows& of;
  const Tensor& to;
  std::uint32_t* marks;
  float factor;
  std::int64_t dim, slab, first, count;  // items from the first on

  // Item n of this thread.
  HEED_DEVICE static int item(int n) {
    const int down = pair_down();
    if constexpr (owned == Owned::rows) return down + 16 * n;
    return n < 4 ? down * 4 + n : 60 + down * 2 + n;
  }

  HEED_DEVICE void write(const PairChain& sums, float (*all)[pair_pitch], unsigned char* is_number) const {
    sync();
    for_each_sum([&](int n, int e) { all[sum_dim(e)][item(n)] = sums[n][e] * factor + 0.0f; });
    sync();
    const std::int64_t first_dim = slab * pair_slab;
    const int dims = static_cast<int>(min(pair_slab, dim - first_dim));
    for (int n = thread_index(); n < count; n += pair_threads) {
      bool is_so = true;
      for (int d = 0; d < dims; ++d) is_so = is_so && is_finite(all[d][n]);
      if (!is_so)
        leave_unfinished(g, marks,
                         gradient_number<owned>(g, of, first + n) * GradientCall::slabs(dim) + slab);
      is_number[n] = is_so;
    }
    sync();
    for (int n = thread_index(); n < count * dims; n += pair_threads) {
      const int m = n / dims, d = n % dims;
      if (is_number[m])
        write_gradient(g, gradient_row<owned>(g.forward, of, to, first + m), first_dim + d, all[d][m]);
    }
  }
};

// dK, dV and dS.
class ExactKeyGradients {
 public:
  using Shared = PairsShared;

  HEED_DEVICE ExactKeyGradients(const GradientCall& call, const ExactPart& of, PairsShared& memory,
                                PairOptions& options)
      : g(call),
        c(call.forward),
        part(of),
        shared(memory),
        block(call.forward, of, of.slabs, of.key_tiles),
        wanted(sums_of(call, block.slab)),
        pairs(call, memory, options, wanted) {}

  static constexpr std::int64_t blocks(const ExactPart& part) {
    return part.heads * part.slabs * part.key_tiles;
  }

  HEED_DEVICE void run() {
    static_assert(gradient_rows == pair_items);
    const bool makes_pairs = part.pairs && block.slab == 0;
    const std::int64_t first_key = block.tile * pair_items, keys = c.sequence(block.b).keys;
    if (first_key >= keys || (!wanted.of_values && !wanted.of_keys && !makes_pairs)) return;
    if (thread_index() == 0) shared.of = PairRows::of_group(c, block.b, block.kv_head);
    sync();
    pairs.own(first_key);
    PairChain of_values, of_keys;
    force_to_memory(of_values), force_to_memory(of_keys);
    bring(of_values, of_keys);
    for (std::int64_t tile = part.first_row_tile; tile < part.first_row_tile + part.row_tiles; ++tile) {
      if (!sees_tile(c, shared.of, tile, block.tile)) continue;
      pairs.weigh(tile * pair_items);
      if (wanted.of_values) add_rows(of_values);
      pairs.differentiate(By::product, makes_pairs ? part.pair_tile(block.head, tile, block.tile) : nullptr);
      if (wanted.of_keys) add_rows(of_keys);
    }
    part.is_last ? write(of_values, of_keys, {first_key, min(first_key + pair_items, keys)})
                 : leave(of_values, of_keys);
  }

 private:
  HEED_DEVICE static PairSums sums_of(const GradientCall& g, std::int64_t slab) {
    const std::int64_t first = slab * pair_slab;
    return {first, g.v.data && first < g.forward.value_dim, g.k.data && first < g.forward.dim};
  }

  // A tile of rows is a chain.
  HEED_DEVICE void add_rows(PairChain& sums) {
    PairChain chain = {}, before;
    for_each_sum([&](int n, int e) { before[n][e] = sums[n][e]; });
    pairs.add_rows(chain);
    for_each_sum([&](int n, int e) { sums[n][e] = before[n][e] + chain[n][e]; });
  }

  // Of the rows in parts before this one, and for the next.
  HEED_DEVICE void bring(PairChain& of_values, PairChain& of_keys) const {
    const float* const from = part.key_sums(block.head, block.slab, block.tile) + thread_index();
    for_each_sum([&](int n, int e) {
      const int at = (n * 8 + e) * pair_threads;
      of_values[n][e] = part.is_first ? 0.0f : from[at];
      of_keys[n][e] = part.is_first ? 0.0f : from[at + ExactPart::sum_floats];
    });
  }
  HEED_DEVICE void leave(const PairChain& of_values, const PairChain& of_keys) const {
    float* const to = part.key_sums(block.head, block.slab, block.tile) + thread_index();
    for_each_sum([&](int n, int e) {
      const int at = (n * 8 + e) * pair_threads;
      to[at] = of_values[n][e], to[at + ExactPart::sum_floats] = of_keys[n][e];
    });
  }

  HEED_DEVICE void write(const PairChain& of_values, const PairChain& of_keys, KeyRange keys) {
    using End = SlabEnd<Owned::keys>;
    const std::int64_t count = keys.end - keys.begin;
    if (wanted.of_values)
      End{g, shared.of, g.v, g.rows.unfinished_v, 1.0f, c.value_dim, block.slab, keys.begin, count}.write(
          of_values, shared.tile, shared.is_finite);
    if (wanted.of_keys)
      End{g, shared.of, g.k, g.rows.unfinished_k, g.scale, c.dim, block.slab, keys.begin, count}.write(
          of_keys, shared.tile, shared.is_finite);
  }

  const GradientCall& g;
  const Call& c;
  const ExactPart& part;
  PairsShared& shared;
  const BackwardBlock block;
  const PairSums wanted;
  Pairs pairs;
};

// dQ += dS K: a chain goes through two tiles of keys. Keys come 48 at a time, with what the rows give them.
class ExactRowGradients {
  static constexpr int stage_keys = 48, pitch = stage_keys + 4, pieces = pair_items / stage_keys;

 public:
  struct Shared {
    alignas(16) float pairs[2][pair_items][pitch];
    alignas(16) float keys[2][stage_keys][pair_slab];
    PairRows of;
    unsigned char is_finite[pair_items];
  };
  static_assert(sizeof(Shared::pairs) >= sizeof(float) * pair_slab * pair_pitch - sizeof(Shared::keys));

  HEED_DEVICE ExactRowGradients(const GradientCall& call, const ExactPart& of, Shared& memory)
      : g(call),
        c(call.forward),
        part(of),
        shared(memory),
        block(call.forward, of, g.slabs(call.forward.dim), of.row_tiles),
        in_place(lies_in_place(call)),
        // The rows that see most come first.
        tile(of.first_row_tile + of.row_tiles - 1 - block.tile) {}

  static std::int64_t blocks(const GradientCall& g, const ExactPart& part) {
    return part.heads * g.slabs(g.forward.dim) * part.row_tiles;
  }

  HEED_DEVICE void run() {
    if (thread_index() == 0) shared.of = PairRows::of_group(c, block.b, block.kv_head);
    sync();
    const std::int64_t first = tile * pair_items, rows = shared.of.count(c);
    if (first >= rows) return;
    PairChain sums = {}, chain = {};
    force_to_memory(sums);
    std::int64_t key_tile = next_keys(0), chain_number = 0;
    if (key_tile < part.key_tiles) load(key_tile, 0);
    while (key_tile < part.key_tiles) {
      const std::int64_t next = next_keys(key_tile + 1), number = key_tile * pair_items / gradient_keys;
      // fault: cuda-gradient-chain
      if (number != chain_number) end_chain(chain, sums);
      chain_number = number;
#pragma unroll 1
      for (int piece = 0; piece < pieces; ++piece) {
        wait_for_copies<0>();
        clear_bad_keys();
        sync();
        const int now = stage;
        stage = 1 - stage;
        if (piece + 1 < pieces)
          load(key_tile, piece + 1);
        else if (next < part.key_tiles)
          load(next, 0);
        multiply(now, chain);
      }
      key_tile = next;
    }
    end_chain(chain, sums);
    SlabEnd<Owned::rows>{g,     shared.of,  g.q,   g.rows.unfinished_q,          g.scale,
                         c.dim, block.slab, first, min(pair_items, rows - first)}
        .write(sums, reinterpret_cast<float(*)[pair_pitch]>(&shared.pairs[0][0][0]), shared.is_finite);
  }

 private:
  HEED_DEVICE std::int64_t next_keys(std::int64_t key_tile) const {
    while (key_tile < part.key_tiles && !sees_tile(c, shared.of, tile, key_tile)) ++key_tile;
    return key_tile;
  }

  HEED_DEVICE static void end_chain(PairChain& chain, PairChain& sums) {
    for_each_sum([&](int n, int e) { sums[n][e] = sums[n][e] + chain[n][e], chain[n][e] = 0; });
  }

  // A piece of a tile of keys, and of dS.
  HEED_DEVICE void load(std::int64_t key_tile, int piece) const {
    const int first_row = thread_index() / 4, first_pair = thread_index() % 4 * 4;
    const float* const pairs =
        part.pair_tile(block.head, tile, key_tile) + first_row * pair_items + piece * stage_keys + first_pair;
#pragma unroll
    for (int r = 0; r < pair_items; r += 32)
#pragma unroll
      for (int k = 0; k < stage_keys; k += 16)
        copy16_if(&shared.pairs[stage][first_row + r][first_pair + k], pairs + r * pair_items + k, true);
    load_keys(key_tile * pair_items + piece * stage_keys);
    commit_copies();
  }

  HEED_DEVICE void load_keys(std::int64_t first) const {
    constexpr int fours = pair_slab / 4, together = pair_threads / fours;
    const Sequence& s = c.sequence(block.b);
    const int k = thread_index() / fours, e = thread_index() % fours * 4;
    const std::int64_t d = block.slab * pair_slab + e;
    float* const to = &shared.keys[stage][k][e];
    first += k;
    const Row row = row_of(c.k, block.b, block.kv_head, s.first_key + first);
    if (in_place) {
      const float* from = static_cast<const float*>(row.data) + row.first + d;
      const std::int64_t step = together * c.k.stride.length, count = d < c.dim ? s.key_count - first : 0;
#pragma unroll
      for (int n = 0; n < stage_keys; n += together, from += step)
        copy16_if(to + n * pair_slab, from, n < count);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < stage_keys / together * 4; ++n) {
      const int place = n / 4 * together, x = n % 4;
      const bool is_there = first + place < s.key_count && d + x < c.dim;
      to[place * pair_slab + x] =
          is_there ? read(row_of(c.k, block.b, block.kv_head, s.first_key + first + place), d + x) : 0.0f;
    }
  }

  // Keys that are not finite are zeros: whoever sees one has no number anyway, and it reaches nobody else
  // (G6). Each thread what it has copied.
  HEED_DEVICE void clear_bad_keys() const {
#pragma unroll
    for (int n = 0; n < stage_keys * pair_slab; n += pair_threads * 4) {
      float* const at = &shared.keys[stage][0][0] + n + thread_index() * 4;
      float x[4];
      load4(x, at);
      if (fmaf(x[0], 0.0f, fmaf(x[1], 0.0f, fmaf(x[2], 0.0f, x[3] * 0.0f))) == 0.0f) continue;
      x[0] = x[1] = x[2] = x[3] = 0;
      store4(at, x);
    }
  }

  // Four keys of a row lie together.
  HEED_DEVICE void multiply(int now, PairChain& chain) const {
    const float *keys = &shared.keys[now][0][pair_across() * 4], *p = &shared.pairs[now][pair_down()][0];
#pragma unroll 1
    for (int w = 0; w < stage_keys; w += 4, p += 4) {
      float x[6][4];
#pragma unroll
      for (int n = 0; n < 6; ++n) load4(x[n], p + 16 * n * pitch);
#pragma unroll
      for (int four = 0; four < 4; ++four, keys += pair_slab) {
        float of_key[6], y[8];
        load4(y, keys), load4(y + 4, keys + 32);
#pragma unroll
        for (int n = 0; n < 6; ++n) of_key[n] = x[n][four];
        add_products(chain, of_key, y);
      }
    }
  }

  const GradientCall& g;
  const Call& c;
  const ExactPart& part;
  Shared& shared;
  const BackwardBlock block;
  const bool in_place;
  const std::int64_t tile;  // of rows
  int stage = 0;            // that is filled next
};

}  // namespace heed::cuda
