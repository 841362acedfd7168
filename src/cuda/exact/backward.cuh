// SPDX-License-Identifier: Apache-2.0
// The backward pass in f32 with the bits of the CPU's kernel (O2, src/cpu/backward/backward.hpp):
//
//   S = Q K^T      P = 2^(S - log-sum-exp)      dP = dO V^T      dS = P * (dP - delta)
//   dQ += dS K     dK += dS^T Q                 dV += P^T dO
//
// S and dP are chains over dimensions; dQ is a chain over each 192 keys, dK and dV over each 96 rows, counted
// from the sequence's first, and chains are added in order. A block of threads owns 96 rows and walks the
// keys that they see, 96 at a time: each of the five products is computed once. Blocks take turns at the dK
// and dV of a tile of keys, in the order of their rows; all of them begin with the first key, and so none
// waits long. A block has a slab of 64 dimensions of the sums, and those of other slabs compute S and dP for
// themselves.
#pragma once
#include <cstdint>

#include "cuda/backward/pairs.cuh"
#include "cuda/exact/pair_tiles.cuh"
#include "cuda/exact/plan.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Of sums over keys and over rows: the CPU's (cpu/backward/call.hpp).
constexpr std::int64_t gradient_keys = 192, gradient_rows = 96;

// What a block has to do: blocks are (tiles of rows, batch, KV heads, slabs), the last of them fastest. Those
// that wait for each other are far apart, and the rows that see most come last, all of them together.
struct BackwardBlock {
  std::int64_t tile, b, kv_head, slab;

  HEED_DEVICE BackwardBlock(const Call& c, const ExactTurns& turns, std::int64_t n) {
    slab = n % turns.slabs, n /= turns.slabs;
    kv_head = n % c.kv_heads, n /= c.kv_heads;
    b = n % c.batch, tile = n / c.batch;
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
    static_assert(gradient_rows == pair_items && gradient_keys == 2 * pair_items);
    const std::int64_t first = block.tile * pair_items, rows = shared.of.count(c),
                       keys = c.sequence(block.b).keys;
    if (wanted.of_values || wanted.of_keys) write_unseen_keys();
    if (first >= rows || (!wanted.of_values && !wanted.of_keys && !wanted.of_rows)) return;
    pairs.own(first);
    Sums of_rows = {}, of_values, of_keys;
    force_to_memory(of_rows), force_to_memory(of_values), force_to_memory(of_keys);
    Sums of_chain = {};
    force_to_memory(of_chain);
    std::int64_t key = next_keys(0), chain_number = 0;
    if (key < keys) pairs.start(key);
    while (key < keys) {
      const std::int64_t next = next_keys(key + pair_items);
      pairs.weigh(next < keys ? next : Pairs::none);
      if (wanted.of_values) set_to_rows(of_values);
      pairs.differentiate(By::product);
      if (wanted.of_keys) set_to_rows(of_keys);
      if (wanted.of_rows) {
        // fault: cuda-gradient-chain
        if (key / gradient_keys != chain_number) end_chain(of_chain, of_rows);
        chain_number = key / gradient_keys;
        add_keys(of_chain);
      }
      if (wanted.of_values || wanted.of_keys) add_to_keys(key / pair_items, of_values, of_keys);
      key = next;
    }
    end_chain(of_chain, of_rows);
    if (wanted.of_rows)
      write<Owned::rows>(of_rows, {first, min(pair_items, rows - first)},
                         {g.q, g.rows.unfinished_q, g.scale, c.dim, block.slab});
  }

  // A chain of dK or dV: the rows of this block.
  HEED_DEVICE void set_to_rows(Sums& sums) {
    Sums chain = {};
    pairs.add_rows(chain);
    for_each([&](int n, int e) { sums[n][e] = chain[n][e]; });
  }

  // dQ: a chain goes through two tiles of keys.
  HEED_DEVICE void add_keys(Sums& sums) {
    Sums chain;
    for_each([&](int n, int e) { chain[n][e] = sums[n][e]; });
    pairs.add_keys(chain);
    for_each([&](int n, int e) { sums[n][e] = chain[n][e]; });
  }
  HEED_DEVICE static void end_chain(Sums& chain, Sums& sums) {
    for_each([&](int n, int e) { sums[n][e] = sums[n][e] + chain[n][e], chain[n][e] = 0; });
  }

  // Adds to the sums of a tile of keys, after the rows before these that see it.
  HEED_DEVICE void add_to_keys(std::int64_t tile, Sums& of_values, Sums& of_keys) {
    const std::int64_t at =
        ((block.b * c.kv_heads + block.kv_head) * turns.slabs + block.slab) * turns.key_tiles + tile;
    constexpr int each = pair_items * pair_slab;
    float* const values = turns.sums + at * 2 * each + thread_index();
    const auto place = [](int n, int e) { return (n * 8 + e) * pair_threads; };
    std::int64_t before = block.tile - 1;
    while (before >= 0 && !sees(before, tile)) --before;
    if (before >= 0) {
      wait_for(turns.of_keys + at, before);
      for_each([&](int n, int e) { of_values[n][e] = load_l2(values + place(n, e)) + of_values[n][e]; });
      for_each([&](int n, int e) { of_keys[n][e] = load_l2(values + each + place(n, e)) + of_keys[n][e]; });
    }
    std::int64_t after = block.tile + 1;
    while (after < turns.row_tiles && !sees(after, tile)) ++after;
    if (after == turns.row_tiles) return write_keys(tile, of_values, of_keys);
    for_each([&](int n, int e) { values[place(n, e)] = of_values[n][e]; });
    for_each([&](int n, int e) { values[each + place(n, e)] = of_keys[n][e]; });
    sync();
    if (thread_index() == 0) store_release(turns.of_keys + at, static_cast<unsigned>(block.tile + 1));
  }

  HEED_DEVICE void wait_for(const unsigned* turn, std::int64_t tile) const {
    if (thread_index() == 0)
      while (load_acquire(turn) != static_cast<unsigned>(tile + 1)) {
      }
    sync();
  }

  // Tiles of keys that no row sees: each block has some.
  HEED_DEVICE void write_unseen_keys() {
    const std::int64_t keys = c.sequence(block.b).keys;
    for (std::int64_t tile = block.tile; tile * pair_items < keys; tile += turns.row_tiles) {
      bool is_seen = false;
      for (std::int64_t row = thread_index(); row < turns.row_tiles && !is_seen; row += pair_threads)
        is_seen = sees(row, tile);
      const Sums zeros = {};
      if (!any(is_seen)) write_keys(tile, zeros, zeros);
    }
  }

  HEED_DEVICE void write_keys(std::int64_t tile, const Sums& of_values, const Sums& of_keys) {
    const std::int64_t first = tile * pair_items;
    const ItemRange items{first, min(pair_items, c.sequence(block.b).keys - first)};
    if (wanted.of_values)
      write<Owned::keys>(of_values, items, {g.v, g.rows.unfinished_v, 1.0f, c.value_dim, block.slab});
    if (wanted.of_keys)
      write<Owned::keys>(of_keys, items, {g.k, g.rows.unfinished_k, g.scale, c.dim, block.slab});
  }

  // The first keys of the next tile that some of this block's rows see, from this key on.
  HEED_DEVICE std::int64_t next_keys(std::int64_t key) const {
    while (key < c.sequence(block.b).keys && !sees(block.tile, key / pair_items)) key += pair_items;
    return key;
  }
  // Whether some row of a tile sees some key of another.
  HEED_DEVICE bool sees(std::int64_t row_tile, std::int64_t key_tile) const {
    const std::int64_t row = row_tile * pair_items, rows = shared.of.count(c), key = key_tile * pair_items;
    if (row >= rows) return false;
    const Seen seen =
        seen_by(c, block.b, shared.of.index(row), shared.of.index(min(row + pair_items, rows) - 1));
    const KeyRange part = seen.within({key, min(key + pair_items, c.sequence(block.b).keys)});
    return part.begin < part.end;
  }

  template <class Step>
  HEED_DEVICE static void for_each(const Step& step) {
#pragma unroll
    for (int n = 0; n < 12; ++n)
#pragma unroll
      for (int e = 0; e < 8; ++e) step(n, e);
  }

  // Through shared memory, so that one thread knows whether all of an item's numbers are finite.
  struct ItemRange {
    std::int64_t first, count;
  };
  template <Owned owned>
  HEED_DEVICE void write(const Sums& sums, const ItemRange& items, const SlabEnd& end) {
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
  const PairSums wanted;
  Pairs pairs;
};

}  // namespace heed::cuda
