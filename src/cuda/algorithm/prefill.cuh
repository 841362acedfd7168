// SPDX-License-Identifier: Apache-2.0
// Attention for many rows by Hopper's matrix units: bf16 and f16 in, f32 sums. Masks are ranges of keys
// (Causal, Window, KeyLengths); softcap, sink and log-sum-exp are there.
//
// A producer thread brings queries, keys and values by the copy engine. Each warpgroup of consumers does 64
// rows of one head: while its product with one tile of values runs, it weighs the scores of the next tile,
// and warpgroups take turns at the matrix units. Tiles of keys are counted from key 0 and visited from the
// last to the first, so a row's bits depend on its own keys alone (O3): a tile that a row does not see adds
// nothing to it.
#pragma once
#include <cstdint>

#include "cuda/algorithm/prefill_again.cuh"
#include "cuda/algorithm/prefill_producer.cuh"

namespace heed::cuda {

template <class Shape, bool capped>
class PrefillConsumer : private PrefillAgain<Shape, capped> {
  using Again = PrefillAgain<Shape, capped>;
  using Thread = PrefillThread<Shape, capped>;
  using Again::multiply_keys, Again::multiply_values, Again::stage, Again::taken;
  using Thread::release, Thread::keys, Thread::o, Thread::s, Thread::p;
  using Thread::shared, Thread::tile, Thread::group, Thread::team, Thread::lane, Thread::rows_here;

 public:
  HEED_DEVICE PrefillConsumer(const Call& call, const PrefillPlan& launch, PrefillMemory<Shape> memory)
      : Again(call, launch, memory) {}

  HEED_DEVICE void run() {
    if (group == 0) let_go(1, 256);  // it is the first to take its turn
    for (unsigned n = 0;; ++n) {
      barrier_wait(shared.tile_there(n), shared.slot_phase(n));
      tile = shared.slot(n);
      if (tile->b < 0) break;
      tile->again ? Again::attend_again(n) : attend(n);
      Again::finish();
      sync_warp();
      // Every thread, for what it has read itself. In two instructions: one of all lanes moves registers of
      // the loops over keys, and 64 heads of 16384 x 128 took 13.07 ms instead of 12.90 (H200, November
      // 2026).
      if (lane == 0) barrier_arrive(shared.tile_used(n));
      if (lane != 0) barrier_arrive(shared.tile_used(n));
    }
    if (team.thread() == 0) wait_for_stores_to_read();
  }

 private:
  // Where a tile of rows is longer than one of keys, a warpgroup may see fewer tiles than the others do.
  // Elsewhere only a tile that is not full may leave one idle.
  static constexpr bool may_pass = Shape::rows > keys;
  // Every second warpgroup sees half of its last tile under a causal mask, and does no more of it: 90 us
  // instead of 93 for 256 heads of 1024 x 64. With heads of 128 of its values too: 142.6 instead of 147.8
  // (H200, November 2026).
  static constexpr bool may_halve = keys == 128;
  // With a softcap registers do not last for it: ptxas says C7511.
  static constexpr bool may_halve_values = may_halve && !may_pass && !capped;

  // Tiles of keys that some row of this warpgroup sees, and those that every row sees whole; last < first:
  // none.
  struct OwnTiles {
    int first, last, plain_begin, plain_end;
  };
  HEED_DEVICE OwnTiles own_tiles() const {
    if constexpr (!may_pass) return {tile->first, tile->last, tile->plain_begin, tile->plain_end};
    const int here = rows_here() < 64 ? rows_here() : 64, i0 = tile->first_query + group * 64,
              i1 = i0 + here - 1;
    if (here <= 0 || tile->begin_of(i0) >= tile->end_of(i1)) return {tile->last + 1, tile->last};
    return {uniform(tile->begin_of(i0) / keys), uniform((tile->end_of(i1) - 1) / keys),
            uniform((tile->begin_of(i1) + keys - 1) / keys), uniform(max_of(tile->end_of(i0), 0) / keys)};
  }

  HEED_DEVICE void attend(unsigned n) {
    const OwnTiles own = own_tiles();
    Again::begin_rows(n);
    const bool sees_any = !may_pass || own.first <= own.last;
    // Turns are taken once for each tile but one: that where the first scores are found.
#pragma unroll 1
    for (int j = tile->last; may_pass && j > (sees_any ? own.last : tile->first - 1); --j)
      pass(j == tile->last, sees_any || j < tile->last);
    if (sees_any) {
      const bool halves =
          may_halve && tile->end_of(tile->first_query + group * 64 + 63) <= own.last * keys + keys / 2;
      if (halves)
        begin<may_halve ? keys / 2 : keys>(own);
      else
        begin<keys>(own);
      if (own.last == tile->last && tile->tail < keys) clear_tail();

      // Tiles with a mask in loops of their own: one loop for all took 3 % longer (H200, November 2026).
      int j = own.last - 1;
      if (may_halve_values && halves && j < own.plain_end && j >= max_of(own.plain_begin, own.first))
        step<keys / 2>(j--, false, false);
#pragma unroll 1
      for (; j >= max_of(own.plain_end, own.first); --j) step(j, j < own.plain_begin, true);
#pragma unroll 1
      for (; j >= max_of(own.plain_begin, own.first); --j) step(j, false, false);
#pragma unroll 1
      for (; j >= own.first; --j) step(j, true, false);

      if (Shape::out_has_room) release(shared.queries_used(n));
      barrier_wait(shared.values_there(taken), shared.phase(taken));
      multiply_values(stage(taken));
      wait_for_products<0>();
      pin(o), pin(p);
      release(shared.values_used(taken));
      ++taken;
#pragma unroll 1
      for (; may_pass && j >= tile->first; --j) pass(false, true);
    } else if (Shape::out_has_room) {
      release(shared.queries_used(n));
    }
  }

  // The weights of the last tile of keys, whose products nothing hides.
  template <int columns>
  HEED_DEVICE void begin(const OwnTiles& own) {
    barrier_wait(shared.keys_there(taken), shared.phase(taken));
    multiply_keys<columns>(stage(taken));
    wait_for_products<0>();
    pin(first_sums<columns / 2>(s));
    release(shared.keys_used(taken));
    Again::template weigh<columns>(own.last, own.last < own.plain_begin, own.last >= own.plain_end);
    Again::template narrow<columns>();
  }

  // A tile that only other warpgroups see. Released when all threads have seen that it was there: they could
  // not tell its phase from a later one.
  HEED_DEVICE void pass(bool is_last, bool takes_turn) {
    barrier_wait(shared.keys_there(taken), shared.phase(taken));
    if (is_last && tile->tail < keys) clear_tail();
    if (takes_turn) {
      meet(1 + group, 256);
      let_go(1 + (group + 1) % Shape::groups, 256);
    }
    barrier_wait(shared.values_there(taken), shared.phase(taken));
    team.sync();
    release(shared.keys_used(taken)), release(shared.values_used(taken));
    ++taken;
  }

  // The scores of tile j, while the product of the last weights with the first `rows` of their values runs.
  template <int rows = keys>
  HEED_DEVICE void step(int j, bool hides_before, bool hides_after) {
    const unsigned next = taken + 1;
    const int keys_at = stage(next), values_at = stage(taken);
    barrier_wait(shared.keys_there(next), shared.phase(next));
    meet(1 + group, 256);  // this warpgroup's turn
    multiply_keys(keys_at);
    barrier_wait(shared.values_there(taken), shared.phase(taken));
    Again::template multiply_values<rows>(values_at);
    let_go(1 + (group + 1) % Shape::groups, 256);
    wait_for_products<1>();
    pin(s);
    release(shared.keys_used(next));
    Again::weigh(j, hides_before, hides_after);
    wait_for_products<0>();
    pin(o), pin(p);
    release(shared.values_used(taken));
    Again::narrow();
    Again::rescale();
    taken = next;
  }

  HEED_DEVICE static int max_of(int x, int y) { return x > y ? x : y; }

  // Values beyond the sequence's keys have weight 0, but may be NaN.
  HEED_DEVICE void clear_tail() {
    barrier_wait(shared.values_there(taken), shared.phase(taken));
    const int from = tile->tail, count = keys - from;
    for (int n = thread_index() - 128; n < Shape::pieces * count * 8; n += 128 * Shape::groups)
      clear_shared16(shared.values(taken) + (n / (count * 8) * keys + from) * 128 + n % (count * 8) * 16);
    show_to_engines();
    meet(4, 128 * Shape::groups);
  }
};

template <class Shape, bool capped>
HEED_DEVICE void prefill(const Call& c, const PrefillPlan& plan, unsigned char* memory) {
  const PrefillMemory<Shape> shared(memory);
  if (thread_index() == 0) {
    shared.init();
    for (const CUtensorMap* map : {&plan.q, &plan.k, &plan.v, &plan.out}) prefetch_map(map);
  }
  sync();
  if (thread_index() < 128) {
    give_registers<Shape::producer_registers>();
    if (thread_index() < 32 && is_elected()) PrefillProducer<Shape>(c, plan, shared).run();
  } else {
    take_registers<Shape::consumer_registers>();
    PrefillConsumer<Shape, capped>(c, plan, shared).run();
  }
}

}  // namespace heed::cuda
