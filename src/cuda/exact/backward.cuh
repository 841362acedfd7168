// SPDX-License-Identifier: Apache-2.0
// The backward pass in f32 with the bits of the CPU's kernel (O2, src/cpu/backward/backward.hpp):
//
//   S = Q K^T      P = 2^(S - log-sum-exp)      dP = dO V^T      dS = P * (dP - delta)
//   dQ += dS K     dK += dS^T Q                 dV += P^T dO
//
// S and dP are chains over dimensions; dQ is a chain over each 192 keys, dK and dV over each 96 rows, counted
// from the sequence's first, and chains are added in order. A block of threads owns 96 keys and walks the
// rows that see them, 96 at a time: each of the five products is computed once. Blocks take turns at the dQ
// of a tile of rows, in the order of their keys. A block has a slab of 64 dimensions of the sums, and those
// of other slabs compute S and dP for themselves.
#pragma once
#include <cstdint>

#include "cuda/backward/pairs.cuh"
#include "cuda/exact/pair_tiles.cuh"
#include "cuda/exact/plan.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Of sums over keys and over rows: the CPU's (cpu/backward/call.hpp).
constexpr std::int64_t gradient_keys = 192, gradient_rows = 96;

// What a block has to do: blocks are (batch, KV heads, slabs, tiles of keys), the last of them fastest.
struct BackwardBlock {
  std::int64_t b, kv_head, slab, tile;

  HEED_DEVICE BackwardBlock(const Call& c, const ExactTurns& turns, std::int64_t n) {
    tile = n % turns.key_tiles, n /= turns.key_tiles;
    slab = n % turns.slabs, n /= turns.slabs;
    kv_head = n % c.kv_heads, b = n / c.kv_heads;
  }
};

// Writes the sums of a slab of rows, or marks those that are no numbers.
struct SlabEnd {
  const Tensor& to;
  unsigned char* marks;
  float factor;
  std::int64_t dim, slab;
};

class ExactBackward {
  using Sums = Pairs::Sums;

 public:
  using Shared = PairsShared;

  HEED_DEVICE ExactBackward(const GradientCall& call, const ExactTurns& order, const BackwardBlock& own,
                            PairsShared& memory, PairOptions& options)
      : g(call),
        c(call.forward),
        turns(order),
        block(own),
        shared(memory),
        first_key(own.tile * pair_items),
        wanted(sums_of(call, own.slab)),
        pairs(call, memory, options, wanted) {}

  HEED_DEVICE static void run(const GradientCall& g, const ExactTurns& turns, PairsShared& shared) {
    if (thread_index() == 0) shared.number = count_arrival(turns.next);
    sync();
    const BackwardBlock block(g.forward, turns, shared.number);
    if (thread_index() == 0) shared.of = PairRows::of_group(g.forward, block.b, block.kv_head);
    sync();
    PairOptions options;
    ExactBackward(g, turns, block, shared, options).walk();
  }

 private:
  HEED_DEVICE static PairSums sums_of(const GradientCall& g, std::int64_t slab) {
    const std::int64_t first = slab * pair_slab;
    return {first, g.v.data && first < g.forward.value_dim, g.k.data && first < g.forward.dim,
            g.q.data && first < g.forward.dim};
  }

  HEED_DEVICE void walk() {
    static_assert(gradient_rows == pair_items);
    if (!wanted.of_values && !wanted.of_keys && !wanted.of_rows) return;
    const std::int64_t rows = shared.of.count(c);
    if (block.tile == 0 && wanted.of_rows) write_unseen_rows(rows);
    if (block.tile > 0 && first_key >= c.sequence(block.b).keys) return;
    Sums of_keys = {}, of_values = {};
    force_to_memory(of_keys), force_to_memory(of_values);
    pairs.own(first_key);
    std::int64_t row = next_rows(0);
    if (row < rows) pairs.start(row);
    while (row < rows) {
      const std::int64_t next = next_rows(row + pair_items);
      pairs.weigh(next < rows ? next : Pairs::none);
      if (wanted.of_values) add_rows(of_values);
      pairs.differentiate(By::product);
      if (wanted.of_keys) add_rows(of_keys);
      if (wanted.of_rows) add_to_rows(row);
      row = next;
    }
    sync();
    const PairEnd keys{first_key, shared.keys.count};
    if (wanted.of_keys)
      write<Owned::keys>(of_keys, keys, {g.k, g.rows.unfinished_k, g.scale, c.dim, block.slab});
    if (wanted.of_values)
      write<Owned::keys>(of_values, keys, {g.v, g.rows.unfinished_v, 1.0f, c.value_dim, block.slab});
  }

  // dK and dV: a tile of rows is a chain.
  HEED_DEVICE void add_rows(Sums& sums) {
    Sums chain = {};
    pairs.add_rows(chain);
    for_each([&](int n, int e) { sums[n][e] = sums[n][e] + chain[n][e]; });
  }

  // dQ: a chain goes through two tiles of keys, of which the second waits for the first.
  HEED_DEVICE void add_to_rows(std::int64_t row) {
    static_assert(gradient_keys == 2 * pair_items);
    const std::int64_t tile = row / pair_items, before = tile_before(row, block.tile),
                       after = tile_after(row, block.tile);
    const std::int64_t at =
        ((block.b * c.kv_heads + block.kv_head) * turns.slabs + block.slab) * turns.row_tiles + tile;
    float* const own = turns.sums + (at * 2) * sizeof(Sums) / 4 * pair_threads + thread_index();
    float* const own_chain = own + sizeof(Sums) / 4 * pair_threads;
    const auto place = [](int n, int e) { return (n * 8 + e) * pair_threads; };
    // fault: cuda-gradient-chain
    const bool is_second = block.tile % 2 == 1, continues = is_second && before == block.tile - 1;
    Sums chain = {};
    if (continues) {
      wait_for(turns.of_rows + at, before);
      for_each([&](int n, int e) { chain[n][e] = load_l2(own_chain + place(n, e)); });
    }
    pairs.add_keys(chain);
    if (!continues && before >= 0) wait_for(turns.of_rows + at, before);
    if (!is_second && after == block.tile + 1) {
      for_each([&](int n, int e) { own_chain[place(n, e)] = chain[n][e]; });
    } else {
      if ((continues ? tile_before(row, before) : before) >= 0)
        for_each([&](int n, int e) { chain[n][e] = load_l2(own + place(n, e)) + chain[n][e]; });
      if (after < 0) return write_rows(row, chain);
      for_each([&](int n, int e) { own[place(n, e)] = chain[n][e]; });
    }
    sync();
    if (thread_index() == 0) store_release(turns.of_rows + at, static_cast<unsigned>(block.tile + 1));
  }

  HEED_DEVICE void wait_for(const unsigned* turn, std::int64_t tile) const {
    if (thread_index() == 0)
      while (load_acquire(turn) != static_cast<unsigned>(tile + 1)) {
      }
    sync();
  }

  // Rows that see no key of any tile.
  HEED_DEVICE void write_unseen_rows(std::int64_t rows) {
    const Sums zeros = {};
    for (std::int64_t row = 0; row < rows; row += pair_items)
      if (tile_after(row, -1) < 0) write_rows(row, zeros);
  }

  HEED_DEVICE void write_rows(std::int64_t row, const Sums& sums) {
    sync();
    write<Owned::rows>(sums, {row, min(pair_items, shared.of.count(c) - row)},
                       {g.q, g.rows.unfinished_q, g.scale, c.dim, block.slab});
  }

  // Tiles of rows that see a key of this block, from this row on; tiles of keys that some of the rows see,
  // before this one and after it, or -1.
  HEED_DEVICE std::int64_t next_rows(std::int64_t row) const {
    const std::int64_t rows = shared.of.count(c);
    while (row < rows && !sees(row, block.tile)) row += pair_items;
    return row;
  }
  HEED_DEVICE std::int64_t tile_before(std::int64_t row, std::int64_t tile) const {
    do --tile;
    while (tile >= 0 && !sees(row, tile));
    return tile;
  }
  HEED_DEVICE std::int64_t tile_after(std::int64_t row, std::int64_t tile) const {
    do ++tile;
    while (tile < turns.key_tiles && !sees(row, tile));
    return tile < turns.key_tiles ? tile : -1;
  }
  HEED_DEVICE bool sees(std::int64_t row, std::int64_t tile) const {
    const std::int64_t last = min(row + pair_items, shared.of.count(c)) - 1, key = tile * pair_items;
    const Seen seen = seen_by(c, block.b, row / shared.of.group, last / shared.of.group);
    const KeyRange part = seen.within({key, min(key + pair_items, c.sequence(block.b).keys)});
    return part.begin < part.end;
  }

  template <class Step>
  HEED_DEVICE static void for_each(const Step& step) {
#pragma unroll
    for (int n = 0; n < 6; ++n)
#pragma unroll
      for (int e = 0; e < 8; ++e) step(n, e);
  }

  // Through shared memory, so that one thread knows whether all of an item's numbers are finite.
  struct PairEnd {
    std::int64_t first, count;
  };
  template <Owned owned>
  HEED_DEVICE void write(const Sums& sums, const PairEnd& items, const SlabEnd& end) {
    float(&all)[pair_items][pair_pitch] = shared.tile;  // (dims, items)
    static_assert(pair_slab <= pair_items);
    sync();
    for_each([&](int n, int e) {
      all[pairs.dim(e)][owned == Owned::rows ? pairs.row(n) : pairs.key(n)] = sums[n][e] * end.factor + 0.0f;
    });
    sync();
    const std::int64_t first_dim = end.slab * pair_slab;
    const int dims = static_cast<int>(min(pair_slab, end.dim - first_dim));
    for (int n = thread_index(); n < items.count; n += pair_threads) {
      bool is_number = true;
      for (int d = 0; d < dims; ++d) is_number = is_number && is_finite(all[d][n]);
      if (!is_number)
        leave_unfinished(
            g, end.marks,
            gradient_number<owned>(g, shared.of, items.first + n) * GradientCall::slabs(end.dim) + end.slab);
      shared.is_finite[n] = is_number;
    }
    sync();
    for (int n = thread_index(); n < items.count * dims; n += pair_threads) {
      const int m = n / dims, d = n % dims;
      if (shared.is_finite[m])
        write_gradient(g, gradient_row<owned>(c, shared.of, end.to, items.first + m), first_dim + d,
                       all[d][m]);
    }
  }

  const GradientCall& g;
  const Call& c;
  const ExactTurns& turns;
  const BackwardBlock block;
  PairsShared& shared;
  const std::int64_t first_key;
  const PairSums wanted;
  Pairs pairs;
};

}  // namespace heed::cuda
