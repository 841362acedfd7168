// SPDX-License-Identifier: Apache-2.0
// States become one, in fixed order: those of the teams that of a unit of keys, units a chunk, chunks a row.
#pragma once
#include <cstdint>
#include <type_traits>

#include "cuda/algorithm/decode_group.cuh"
#include "cuda/algorithm/decode_state.cuh"
#include "cuda/algorithm/decode_warp.cuh"

namespace heed::cuda {

// A team's own states.
template <class Shape>
using DecodeProducts = std::conditional_t<Shape::many, DecodeGroup<Shape>, DecodeWarp<Shape>>;

template <class Shape>
class DecodeMerge : public DecodeProducts<Shape> {
  using Thread = DecodeThread<Shape>;
  using Warp = DecodeProducts<Shape>;
  using State = DecodeState<Shape>;
  static constexpr int unit_keys = Shape::unit_keys, chunk = static_cast<int>(chunk_keys);

 protected:
  using Thread::c, Thread::plan, Thread::shared, Thread::b, Thread::kv_head, Thread::kv_heads, Thread::count;
  using Thread::some_see, Thread::is_apart;
  using Warp::Warp;

  // What the teams found in a unit, to the chunk and the row, or to memory where the block of threads that
  // arrives last waits for it.
  HEED_DEVICE void end_unit(int first_key, bool is_first, bool is_last) {
    if (!is_first) sync();  // the teams' last states have been read
    Warp::put_state();
    sync();
    const State unit = meet_teams();
    if (is_apart && plan.keeps_units) return kept().keep(first_key / unit_keys, unit);
    if constexpr (unit_keys == chunk)
      chunk_so_far = unit;
    else
      chunk_so_far.add(unit);
    if (!is_last && (first_key + unit_keys) % chunk != 0) return;
    if (is_apart)
      kept().keep(first_key / chunk, chunk_so_far);
    else
      total.add(chunk_so_far);
    chunk_so_far.clear();
  }

  static_assert(sizeof(typename Fold<Shape>::Shared) <= sizeof Thread::Shared::rings);

  // In the block that arrives last: all states in order, by way of the memory that no key needs any longer.
  HEED_DEVICE bool take_all(int stretches) {
    sync();
    unsigned* arrivals = plan.arrivals + block_index();
    if (thread_index() == 0) shared.arrived = arrive(arrivals);
    sync();
    if (shared.arrived + 1 != static_cast<unsigned>(stretches)) return false;
    if (thread_index() == 0) *arrivals = 0;
    const int keys = plan.keeps_units ? unit_keys : chunk;  // of a state
    total = Fold<Shape>(kept(), *reinterpret_cast<typename Fold<Shape>::Shared*>(shared.rings))(
        some_see.begin / keys, (some_see.end + keys - 1) / keys, chunk / keys);
    return true;
  }

  // Whether the other block of a cluster does the rest of these keys.
  HEED_DEVICE bool is_paired() const {
    if constexpr (!Shape::many)
      return false;
    else
      return is_apart && plan.is_paired;
  }

  // The rows that end in this block of threads.
  HEED_DEVICE int first_row_here() const { return is_paired() ? block_in_column() * Shape::end_rows : 0; }
  HEED_DEVICE int rows_here() const { return is_paired() ? Shape::end_rows : Shape::rows; }

  // What the teams of a pair's block found in its n-th unit goes to the block where the rows end. Nobody
  // waits.
  HEED_DEVICE void end_unit_of_pair(int n) {
    if constexpr (Shape::many) {
      if (n == 0) wait_for_cluster();
      Warp::put_state_of_pair(n);
    }
  }

  // In both blocks of a pair, which have two units each at most: all that was found for the rows that end
  // here.
  HEED_DEVICE void take_halves() {
    if constexpr (Shape::many) {
      const int own = block_in_column(), middle = plan.units_each * unit_keys;
      const int of_first = units_of(middle - some_see.begin), of_second = units_of(some_see.end - middle);
      if (thread_index() == 0)
        barrier_arrive_expecting(shared_address(&shared.other.all_there),
                                 (own == 0 ? of_second : of_first) * sent_bytes);
      sync();  // this block's own are there
      barrier_wait(shared_address(&shared.other.all_there), 0);
      constexpr int rows = Shape::end_rows / decode_warps;
#pragma unroll 1  // code that has not run yet is slow to come
      for (int n = 0; n < of_first + of_second; ++n) {
        const int block = n < of_first ? 0 : 1, unit = block == 0 ? n : n - of_first;
        const TeamStates<Shape>& found = block == own ? shared.found[unit] : shared.other.found[unit];
#pragma unroll
        for (int i = 0; i < rows; ++i) total.row[i].add(met(found, State::number(i)));
      }
    }
  }

  HEED_DEVICE void clear_states() { chunk_so_far.clear(), total.clear(); }

  State total;

 private:
  static constexpr int sent_bytes = Shape::teams * Shape::end_rows * (Shape::dim + 2) * 4;

  HEED_DEVICE static int units_of(int keys) { return (keys + unit_keys - 1) / unit_keys; }

  // What the teams found for a row, as one state.
  HEED_DEVICE static DecodeRow<State::dims> met(const TeamStates<Shape>& found, int r) {
    DecodeRow<State::dims> row;
    row.clear();
    Numbers<2> ends[Shape::teams];
#pragma unroll
    for (int t = 0; t < Shape::teams; ++t) ends[t] = found.ends[t][r], row.max = fmaxf(row.max, ends[t].x[0]);
#pragma unroll
    for (int t = 0; t < Shape::teams; ++t) {
      const float factor = fast_exp2(ends[t].x[0] - finite_max(row.max));
      row.sum = fmaf(ends[t].x[1], factor, row.sum);
      const auto out = *reinterpret_cast<const Numbers<State::dims>*>(found.out[t][r] + State::first_dim());
#pragma unroll
      for (int d = 0; d < State::dims; ++d) row.out.x[d] = fmaf(out.x[d], factor, row.out.x[d]);
    }
    return row;
  }
  HEED_DEVICE State meet_teams() const {
    State unit;
    unit.clear();
#pragma unroll
    for (int n = 0; n < State::rows; ++n) {
      const int r = State::number(n);
      if (r < count) unit.row[n] = met(shared.found[r / Shape::end_rows], r % Shape::end_rows);
    }
    return unit;
  }

  HEED_DEVICE KeptStates<Shape> kept() const {
    return {plan.states + block_index() * plan.states_each * decode_state_floats(Shape::rows, Shape::dim),
            count};
  }

  State chunk_so_far;
};

}  // namespace heed::cuda
