// SPDX-License-Identifier: Apache-2.0
// The warps of a block of Hopper's backward pass that multiply nothing. One thread claims tiles of keys and
// loads operands by the copy engine; two others add what consumers found of dQ to its sum in memory, when it
// is this block's turn.
#pragma once
#include <cstdint>

#include "cuda/backward/hopper/shared.cuh"
#include "cuda/prefill/producer.cuh"

namespace heed::cuda {

template <class Shape>
class BackwardLoader {
 public:
  HEED_DEVICE BackwardLoader(const GradientCall& call, const BackwardPlan& launch,
                             BackwardShared<Shape> memory)
      : g(call), c(call.forward), plan(launch), shared(memory) {}

  HEED_DEVICE void run() {
    for (int number = claim(); number < plan.tiles;) {
      KeyTile tile;
      const bool is_tile = find(number, tile);
      if (is_tile) describe(tile);
      number = is_tile ? load(tile) : claim();
    }
    end_claims();
    describe({-1});
  }

 private:
  HEED_DEVICE int claim() const { return static_cast<int>(atomicAdd(plan.next_tile, 1u)); }
  // When there is none: the last block leaves the counters as it found them.
  HEED_DEVICE void end_claims() const {
    if (count_arrival(plan.next_tile + 1) + 1 == gridDim.x) plan.next_tile[0] = plan.next_tile[1] = 0;
  }

  // Returns false where it is no tile of any sequence.
  HEED_DEVICE bool find(int number, KeyTile& tile) const {
    const auto [head, behind] = plan.order[number];
    int n = plan.order.tiles - 1 - behind;
    const int kv_heads = static_cast<int>(c.kv_heads);
    int b = head / kv_heads;
    if (plan.keys.each == 0) {
      const auto found = plan.keys.find(n, [&](int entry) { return c.sequence(entry).first_key; });
      b = found.b, n = found.tile;
    }
    const Sequence& s = c.sequence(b);
    tile = {b, head % kv_heads, n};
    tile.keys = static_cast<int>(s.keys) - n * backward_keys;
    if (tile.keys <= 0) return false;
    tile.key_count = static_cast<int>(s.key_count), tile.queries = static_cast<int>(s.queries);
    tile.first_offset = static_cast<int>(s.first_offset), tile.end_offset = static_cast<int>(s.end_offset);
    tile.first_query_row = static_cast<int>(s.first_query);
    tile.first_key_row = static_cast<int>(s.first_key) + tile.first_key();
    tile.line = plan.queries.first(b, s.first_query);
    tile.first_head = static_cast<int>(c.head(tile.kv_head, 0));
    tile.head_step = c.tiled_heads ? kv_heads : 1;
    const QueryTiles seen = query_tiles_of(s, n, Shape::rows);
    tile.first = seen.first, tile.last = seen.last;
    if constexpr (Shape::copies) {
      // The copy engine writes 128 rows, or as many as the tensor has: they are to be the sequence's own.
      const bool is_whole =
          tile.keys >= backward_keys || tile.first_key_row + tile.keys >= static_cast<int>(g.key_rows);
      tile.is_copied = plan.copies_gradients && is_whole && seen.first <= seen.last;
    }
    return true;
  }

  HEED_DEVICE void describe(const KeyTile& tile) {
    barrier_wait(shared.slot_empty(described), shared.phase_of_two(described) ^ 1);
    *shared.slot(described) = tile;
    barrier_arrive(shared.slot_full(described));
    ++described;
  }

  // Returns the number of the next tile, claimed as late as the answer can still arrive in time.
  HEED_DEVICE int load(const KeyTile& tile) {
    const int group = plan.group;
    BackwardStep step(tile, group);
    if (step.is_over()) return claim();
    int next = 0;
    for (bool is_first = true; !step.is_over(); step.advance(group), ++loaded, is_first = false) {
      const int head = tile.head(step.member);
      if (step.remaining == 1) next = claim();
      barrier_wait(shared.stage_empty(loaded), shared.phase(loaded) ^ 1);
      load_queries(tile, step.tile, head);
      if (is_first) load_keys(tile);
      load_pieces<Shape::rows, Shape::pieces>({shared.gradients(loaded), shared.gradients_full(loaded),
                                               &plan.out_gradient, &g.out_gradient, query_policy()},
                                              head, tile.b, tile.first_query_row + step.tile * Shape::rows);
      if (Shape::biased) load_bias(tile, step.tile, head);
    }
    return next;
  }

  // Queries, and what their rows have to themselves.
  HEED_DEVICE void load_queries(const KeyTile& tile, int n, int head) const {
    const SharedAddress full = shared.queries_full(loaded);
    if (Shape::masked && plan.mask.words) {
      barrier_expect(full, Shape::mask_bytes);
      load_bytes(shared.mask(loaded), plan.mask.tile(tile.b, head, n, tile.tile), Shape::mask_bytes, full);
    }
    barrier_expect(full, Shape::row_bytes);
    load_bytes(shared.rows(loaded), plan.rows + plan.tile(tile.line + n, head) * 2 * Shape::rows,
               Shape::row_bytes, full);
    load_pieces<Shape::rows, Shape::pieces>({shared.queries(loaded), full, &plan.q, &c.q, query_policy()},
                                            head, tile.b, tile.first_query_row + n * Shape::rows);
  }
  HEED_DEVICE std::uint64_t query_policy() const {
    return Shape::may_stream ? plan.query_policy : evict_last;
  }
  // One at a time: consumers are done with it before the step's other half.
  HEED_DEVICE void load_bias(const KeyTile& tile, int n, int head) const {
    barrier_wait(shared.bias_empty(), loaded & 1 ^ 1);
    barrier_arrive_expecting(shared.bias_full(), Shape::bias_bytes);
#pragma unroll
    for (int piece = 0; piece < Shape::keys / 64; ++piece)
      load_box(shared.bias() + piece * Shape::rows * 128, &plan.bias,
               {tile.first_key() + piece * 64, tile.first_query_row + n * Shape::rows,
                c.bias.stride.heads == 0 ? 0 : head, c.bias.stride.batch == 0 ? 0 : tile.b},
               shared.bias_full(), evict_first);
  }
  HEED_DEVICE void load_keys(const KeyTile& tile) {
    barrier_wait(shared.keys_empty(), key_tiles++ & 1 ^ 1);
    load_pieces<Shape::keys, Shape::pieces>({shared.keys(), shared.keys_full(), &plan.k, &c.k, evict_first},
                                            tile.kv_head, tile.b, tile.first_key_row);
    load_pieces<Shape::keys, Shape::pieces>(
        {shared.values(), shared.values_full(), &plan.v, &c.v, evict_first}, tile.kv_head, tile.b,
        tile.first_key_row);
  }

  const GradientCall& g;
  const Call& c;
  const BackwardPlan& plan;
  const BackwardShared<Shape> shared;
  unsigned described = 0, loaded = 0, key_tiles = 0;  // tiles of keys, steps, and tiles that have steps
};

// One of two threads that take steps by turns: an add, its completion and the word of it to other blocks take
// longer than a step. With one, 64 heads of 4096 x 128 over 8 reached 551 TFLOP/s instead of 583 (H200,
// November 2026).
template <class Shape>
class BackwardAdder {
 public:
  HEED_DEVICE BackwardAdder(const GradientCall& call, const BackwardPlan& launch,
                            BackwardShared<Shape> memory, unsigned which)
      : g(call), plan(launch), shared(memory), parity(which) {}

  HEED_DEVICE void run() {
    const int group = plan.group;
    unsigned steps = 0, copies = 0;
    for (unsigned n = 0;; ++n) {
      barrier_wait(shared.slot_full(n), shared.phase_of_two(n));
      const KeyTile& tile = *shared.slot(n);
      if (tile.b < 0) break;
      for (BackwardStep step(tile, group); !step.is_over(); step.advance(group), ++steps)
        if (steps % 2 == parity) add(tile, step, steps);
      if (Shape::copies && tile.is_copied) {
        if (steps % 2 == parity) copy(tile, steps - 1, copies & 1);  // while the other still adds
        ++copies;
      }
      barrier_arrive(shared.slot_empty(n));
    }
    if constexpr (Shape::copies) wait_for_stores();  // of dV and dK
  }

 private:
  HEED_DEVICE void add(const KeyTile& tile, const BackwardStep& step, unsigned n) const {
    const int head = tile.head(step.member);
    const std::int64_t at = plan.tile(tile.line + step.tile, head);
    const auto before = static_cast<unsigned>(tile.tiles_below(step.tile * Shape::rows));
    // fault: hopper-gradient-out-of-turn
    while (load_acquire(plan.adds + at) != before) {
    }
    barrier_wait(shared.sums_full(n), shared.phase_of_two(n));
    fence_all_proxies();
    float* const sum = plan.sums + at * (Shape::rows * Shape::dim);
    if constexpr (Shape::may_stream) {
      if (before == 0)
        store_bytes(sum, shared.sums(n), Shape::sum_bytes, plan.sum_policy);
      else
        add_floats(sum, shared.sums(n), Shape::sum_bytes, plan.sum_policy);
    } else {
      if (before == 0)
        store_bytes(sum, shared.sums(n), Shape::sum_bytes);
      else
        add_floats(sum, shared.sums(n), Shape::sum_bytes);
    }
    commit_stores();
    wait_for_stores_to_read();
    barrier_arrive(shared.sums_empty(n));
    wait_for_stores();
    fence_all_proxies();
    store_release(plan.adds + at, before + 1);
  }

  // dV and dK of a tile, of which this is the last step.
  HEED_DEVICE void copy(const KeyTile& tile, unsigned last, unsigned phase) const {
    barrier_wait(shared.copy_full(), phase);
#pragma unroll 1
    for (int group = 0; group < Shape::groups; ++group) {
      const int row = tile.first_key_row + group * 64;
      store(&plan.to_v, g.v, tile, row, shared.copied_values(group, last));
      store(&plan.to_k, g.k, tile, row, shared.copied_keys(group));
    }
    commit_stores();
    wait_for_stores_to_read();
    barrier_arrive(shared.copy_empty());
    barrier_arrive(shared.stage_empty(last), 128 * Shape::groups);  // for consumers, who leave it to the copy
  }
  HEED_DEVICE void store(const CUtensorMap* map, const Tensor& to, const KeyTile& tile, int row,
                         const RowsAt& from) const {
#pragma unroll
    for (int piece = 0; piece < Shape::pieces; ++piece)
      store_box(map,
                {piece * 64, row, to.stride.heads == 0 ? 0 : tile.kv_head, to.stride.batch == 0 ? 0 : tile.b},
                from.at + piece * from.piece_bytes);
  }

  const GradientCall& g;
  const BackwardPlan& plan;
  const BackwardShared<Shape> shared;
  const unsigned parity;
};

// A warp that writes zeros of the gradient by a bias where no step goes: ranges hide those queries from all
// keys of a tile.
template <class Shape>
class BackwardZeros {
 public:
  HEED_DEVICE BackwardZeros(const GradientCall& call, const BackwardPlan& launch,
                            BackwardShared<Shape> memory)
      : g(call), plan(launch), shared(memory) {}

  HEED_DEVICE void run() const {
    for (unsigned n = 0;; ++n) {
      barrier_wait(shared.slot_full(n), shared.phase_of_two(n));
      const KeyTile& tile = *shared.slot(n);
      if (tile.b < 0) break;
      if (plan.bias_gradient == BiasGradient::of_products)
        for (int member = 0; member < plan.group; ++member) {
          // fault: hopper-bias-gradient-not-cleared
          clear(tile, member, 0, tile.first * Shape::rows);
          clear(tile, member, (tile.last + 1) * Shape::rows, static_cast<int>(g.bias.length));
        }
      barrier_arrive(shared.slot_empty(n));  // every thread, for what it has read itself
    }
  }

 private:
  // Of queries [begin, end): two rows of 128 keys at once.
  HEED_DEVICE void clear(const KeyTile& tile, int member, int begin, int end) const {
    const Tensor& to = g.bias.tensor;
    const int lane = thread_index() % 32, key = tile.first_key() + lane % 16 * 8;
    if (key >= g.bias.dim) return;
    const Row row = row_of(to, tile.b, tile.head(member), begin + lane / 16);
    auto* at = static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first + key;
#pragma unroll 4
    for (int i = begin + lane / 16; i < end; i += 2, at += 2 * to.stride.length)
      __stcs(reinterpret_cast<uint4*>(at), uint4{0, 0, 0, 0});
  }

  const GradientCall& g;
  const BackwardPlan& plan;
  const BackwardShared<Shape> shared;
};

}  // namespace heed::cuda
