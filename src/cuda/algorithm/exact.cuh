// SPDX-License-Identifier: Apache-2.0
// Attention in f32 with the bits of the CPU's kernels (O2): every score, sum and output has the CPU's chains
// in the CPU's order, the softmax moves by blocks of 256 keys and chunks of 1024, and the exponential is the
// CPU's. All options, any type of element, widened to f32.
//
// A block of threads does 64 rows that share a KV head. Keys come through a ring of stages in pieces of 128
// keys x 32 dimensions, values in pieces of as many floats. A thread keeps the scores of 8 rows and 2 x 8
// keys in registers, so that a block's maximum is known before the first exponential, and the sums of 8 rows
// and 4 dimensions of each slab of 64.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_end.cuh"

namespace heed::cuda {

template <int slabs, bool in_place>
class Exact : private ExactEnd<slabs, in_place> {
  using End = ExactEnd<slabs, in_place>;
  using State = ExactState<slabs>;
  using Total = ExactTotal<slabs>;
  using Thread = ExactThread<slabs, in_place>;
  using End::found_poison;
  using Thread::c, Thread::plan, Thread::work, Thread::shared, Thread::loads;
  using Thread::max, Thread::own_max, Thread::own_sum, Thread::o;
  using Thread::row, Thread::column, Thread::own_row;

 public:
  using Thread::rows, Thread::dims;
  using typename Thread::Shared;
  static constexpr std::int64_t state_floats = rows * (2 + dims);

  HEED_DEVICE Exact(const Call& call, const ExactPlan& launch, Shared& memory) : End(call, launch, memory) {}

  HEED_DEVICE void run() {
    if (thread_index() == 0) shared.work.find(c, plan, {rows, dims});
    sync();
    if (!work.has_rows() || !work.is_left(c, plan)) return;
    if (plan.splits > 1 && !work.has_chunk()) return;
    find_ranges();
    loads.load_queries();
    KeyRange keys = work.chunks(plan);
    for (bool careful = false;; careful = true) {
      attend(keys, careful);
      if (plan.splits > 1 && !careful && !take_all_chunks()) return;
      End::finish(careful);
      if (careful || !any(found_poison)) {
        if (careful) End::complete();
        return End::keep_ends();
      }
      keys = work.all_chunks();
    }
  }

 private:
  HEED_DEVICE void find_ranges() {
    const int t = thread_index();
    if (t >= rows) return;
    shared.begin[t] = shared.end[t] = 0;
    if (!work.is_row(t)) return;
    const KeyRange seen = visible_keys(c, work.b, work.query(t).i);
    shared.begin[t] = static_cast<int>(seen.begin), shared.end[t] = static_cast<int>(max(0, seen.end));
  }

  // Over the blocks of these chunks; leaves the merged state in max, own_max, own_sum and o.
  HEED_DEVICE void attend(KeyRange keys, bool careful) {
    Total total;
    keep_in_memory(total);
    State::clear();
    loads.start(keys);
    std::int64_t chunk = -1;
    for (std::int64_t block = work.first_block(keys); block < keys.end;
         block = work.next_block(block, keys)) {
      if (chunk >= 0 && block / chunk_keys != chunk) {
        merge(total);
        total.keep(*this);
        State::clear();
      }
      chunk = block / chunk_keys;
      attend_block(block, careful);
    }
    merge(total);
    loads.drain();
  }

  HEED_DEVICE void attend_block(std::int64_t block, bool careful) {
    const KeyRange seen = work.part_of(block);
    const int first = static_cast<int>((seen.begin - block) / exact_tile),
              last = static_cast<int>((seen.end - 1 - block) / exact_tile);
    End::score_block(block, first, last);
    End::add_block(block, seen, first, last, careful);
  }

  // The part = the total merged with the part. The first part is the total so far: merging it into an empty
  // state would change nothing.
  HEED_DEVICE void merge(const Total& total) {
    if (!total.is_empty) State::merge(total.state, power_of(c));
  }

  // Where chunks run apart: leaves this one's state and, in the block that arrives last, merges them all in
  // order.
  HEED_DEVICE bool take_all_chunks() {
    float* state = work.partial(plan, state_floats, work.split);
    move_state(state, [](float* memory, float& x) { *memory = x; });
    sync();
    unsigned* arrivals = plan.arrivals + work.number;
    if (thread_index() == 0) shared.arrived = arrive(arrivals);
    sync();
    const std::int64_t chunks = work.chunk_count();
    if (shared.arrived + 1 != static_cast<unsigned>(chunks)) return false;
    if (thread_index() == 0) *arrivals = 0;
    Total total;
    for (std::int64_t n = 0; n < chunks; ++n) {
      move_state(work.partial(plan, state_floats, n),
                 [](const float* memory, float& x) { x = written_elsewhere(memory); });
      merge(total);
      total.keep(*this);
    }
    return true;
  }

  template <class Memory, class Move>
  HEED_DEVICE void move_state(Memory* state, const Move& move) {
    if (own_row >= 0) move(state + rows + own_row, own_sum), move(state + own_row, own_max);
    // Threads that share rows have the same maxima; they read them when all have written.
    sync();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      move(state + row(n), max[n]);
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e) move(state + (2 + 64 * v + column * 4 + e) * rows + row(n), o[v][e][n]);
    }
  }
};

}  // namespace heed::cuda
