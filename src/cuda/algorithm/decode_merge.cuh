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
  //
  // max, sum and out of a (team, row) have one writer, a warp of that team, and readers in another warp. Both
  // barriers are those of all 256 threads, and every warp runs both for every unit: the bounds of the loop
  // over units are the block's. In PTX's memory model a barrier makes what its threads did before it happen
  // before what they do after it: put_state() of a unit, first barrier passed, second barrier, meet_teams(),
  // first barrier of the next unit, its put_state(). So no two accesses of different warps to one place are
  // without order, whatever the named barriers between say, at which the warps of a team meet once for every
  // tile: as many times as the team has tiles, which differs between teams. What racecheck reports of max and
  // sum for 32 rows, and not of out beside them, is no race.
  HEED_DEVICE void end_unit(int first_key, bool is_first, bool is_last) {
    if (!is_first) sync();  // the teams' last states have been read
    Warp::put_state();
    sync();
    const State unit = meet_teams();
    if (is_paired()) {
      if (block_in_column() == 0 || is_first)
        total.add(unit);
      else
        chunk_so_far = unit;
      return;
    }
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

  // Whether the n-th of this warp's rows ends here.
  HEED_DEVICE bool ends_here(int n) const {
    return !is_paired() || (n >= State::rows / 2) == (block_in_column() == 1);
  }

  // In both blocks of a pair, which have two chunks each at most: each has half of the rows in the end.
  HEED_DEVICE void exchange() {
    static_assert(sizeof(Sent[2]) <= sizeof Thread::Shared::rings);
    auto& sent = *reinterpret_cast<Sent(*)[2]>(shared.rings);
    const int own = block_in_column();
    const bool has_second = some_see.end > (plan.units_each + 1) * unit_keys;
    if (thread_index() == 0)
      barrier_arrive_expecting(shared_address(&shared.met),
                               static_cast<int>(sizeof(Sent)) * (own == 0 && has_second ? 2 : 1));
    wait_for_cluster();  // no block needs its keys any longer
    send(sent[0], total, own);
    if (own == 1 && has_second) send(sent[1], chunk_so_far, own);
    barrier_wait(shared_address(&shared.met), 0);
#pragma unroll
    for (int n = 0; n < half; ++n) {
      DecodeRow<State::dims> got = sent[0].row(n);
      if (own == 0) {
        total.row[n].add(got);
        if (has_second) total.row[n].add(sent[1].row(n));
      } else {
        got.add(total.row[half + n]);
        if (has_second) got.add(chunk_so_far.row[half + n]);
        total.row[half + n] = got;
      }
    }
  }

  HEED_DEVICE void clear_states() { chunk_so_far.clear(), total.clear(); }

  State total;

 private:
  HEED_DEVICE State meet_teams() const {
    State unit;
    unit.clear();
#pragma unroll
    for (int n = 0; n < State::rows; ++n) {
      const int r = State::number(n);
      if (r >= count) continue;
      DecodeRow<State::dims>& row = unit.row[n];
      float max[Shape::teams];
#pragma unroll
      for (int t = 0; t < Shape::teams; ++t) max[t] = shared.max[t][r], row.max = fmaxf(row.max, max[t]);
#pragma unroll
      for (int t = 0; t < Shape::teams; ++t) {
        const float factor = fast_exp2(max[t] - finite_max(row.max));
        row.sum = fmaf(shared.sum[t][r], factor, row.sum);
        const auto out =
            *reinterpret_cast<const Numbers<State::dims>*>(shared.out[t][r] + State::first_dim());
#pragma unroll
        for (int d = 0; d < State::dims; ++d) row.out.x[d] = fmaf(out.x[d], factor, row.out.x[d]);
      }
    }
    return unit;
  }

  HEED_DEVICE KeptStates<Shape> kept() const {
    return {plan.states + block_index() * plan.states_each * decode_state_floats(Shape::rows, Shape::dim),
            count};
  }

  static constexpr int half = State::rows / 2;
  // Rows of a state that another block has in the end.
  struct Sent {
    Numbers<State::dims> out[half][decode_threads];
    Numbers<2> ends[half][decode_warps];  // max, sum

    HEED_DEVICE DecodeRow<State::dims> row(int n) const {
      const Numbers<2> end = ends[n][thread_index() / 32];
      return {end.x[0], end.x[1], out[n][thread_index()]};
    }
  };
  HEED_DEVICE void send(Sent& to, const State& state, int own) {
    const SharedAddress barrier = in_block(shared_address(&shared.met), 1 - own);
#pragma unroll
    for (int n = 0; n < half; ++n) {
      const DecodeRow<State::dims>&low = state.row[n], &high = state.row[half + n];
      float out[State::dims];
#pragma unroll
      for (int d = 0; d < State::dims; ++d) out[d] = own == 0 ? high.out.x[d] : low.out.x[d];
      cuda::send(in_block(shared_address(&to.out[n][thread_index()]), 1 - own), out, barrier);
      const float end[2] = {own == 0 ? high.max : low.max, own == 0 ? high.sum : low.sum};
      if (thread_index() % 32 == 0)
        cuda::send(in_block(shared_address(&to.ends[n][thread_index() / 32]), 1 - own), end, barrier);
    }
  }

  State chunk_so_far;
};

}  // namespace heed::cuda
