// SPDX-License-Identifier: Apache-2.0
// Attention for a few rows over many keys, bf16 or f16: keys and values are read once for all query heads
// that share them, by copies that run ahead in a ring of each team's own.
//
// Of a unit of keys, 256 or 1024, team t takes every tile of 16 or 64 whose number is t modulo the teams; the
// teams' states make the unit's, units make a chunk, chunks the row, each in order from key 0, whether one
// block of threads does them all, two exchange what they have or the one that arrives last merges them: the
// bits of a sequence do not depend on what runs beside it (O3).
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_merge.cuh"
#include "cuda/algorithm/finish.cuh"
#include "cuda/algorithm/wide_row.cuh"

namespace heed::cuda {

template <class Shape>
class Decode : private DecodeMerge<Shape> {
  using Thread = DecodeThread<Shape>;
  using Merge = DecodeMerge<Shape>;
  using State = DecodeState<Shape>;
  static constexpr Type type = Shape::type;
  using Merge::total;
  using Thread::c, Thread::plan, Thread::shared, Thread::b, Thread::kv_head, Thread::count, Thread::lane,
      Thread::sequence;
  using Thread::query, Thread::query_of, Thread::min_of, Thread::max_of, Thread::some_see, Thread::is_apart;

 public:
  using typename Thread::Shared;

  HEED_DEVICE Decode(const Call& call, const DecodePlan& launch, Shared& memory)
      : Merge(call, launch, memory) {}

  // A launch whose sequences are cut is a short one. What follows may then take the multiprocessors that are
  // free, and wait there: one sequence of 1024 keys takes 5.61 us instead of 5.68, 32768 keys 36.6 instead of
  // 36.9. Where they are not cut it is 0.3 % slower, and pages gain nothing (H200, November 2026).
  HEED_DEVICE static bool lets_next_begin_early(const DecodePlan& plan) {
    return !Shape::paged && plan.splits > 1;
  }

  // What can be done before the launches ahead of this one have ended.
  HEED_DEVICE static void prepare(const Call& c, const DecodePlan& plan, Shared& memory) {
    if (thread_index() == 0) barrier_init(shared_address(&memory.other.all_there), 1), barriers_are_ready();
    if (c.keys > 0) DecodeLoads<Shape>::prepare(plan, memory.barriers[DecodeTeam<Shape>::number()]);
    sync();
  }

  HEED_DEVICE void run() {
    if (count == 0) return;
    const int stretch = plan.units_each * Shape::unit_keys, split = block_in_column();
    const bool sees_any = some_see.begin < some_see.end;
    const int first = sees_any ? some_see.begin / stretch : 0,
              last = sees_any ? (some_see.end - 1) / stretch : 0;
    if (split < first || split > last) return;
    is_apart = first != last;
    attend(max_of(split * stretch, some_see.begin / Shape::unit_keys * Shape::unit_keys),
           min_of((split + 1) * stretch, some_see.end));
    if (!lets_next_begin_early(plan)) let_next_launch_begin();
    if (Merge::is_paired())
      Merge::take_halves();
    else if (is_apart && !Merge::take_all(last - first + 1))
      return;
    finish();
  }

 private:
  // Keys [first_key, end_key), the first that of a unit.
  HEED_DEVICE void attend(int first_key, int end_key) {
    constexpr int unit_keys = Shape::unit_keys;
    const int team = DecodeTeam<Shape>::number();
    DecodeLoads<Shape> loads({&c, b, kv_head, some_see.begin, some_see.end, sequence.first_key}, plan,
                             {first_key, end_key}, shared.rings[team], shared.barriers[team]);
    if constexpr (Shape::many && !Shape::paged)
      if (!c.sequences) loads.bring_first_nearer();
    wait_for_launches_before();
    if constexpr (!Shape::many)
      Merge::load_queries();  // first: they would wait for keys that are on their way
    loads.begin();
    if constexpr (Shape::many) Merge::load_queries();
    Merge::find_ranges();
    Merge::clear_states();
    if (Merge::is_paired()) come_to_cluster();  // no one sends to a block that is not there
#pragma unroll 1
    for (int unit = first_key; unit < end_key; unit += unit_keys) {
      Merge::clear_own();
      const int end = min_of(unit + unit_keys, end_key);
      int tile = unit + team * Shape::tile_keys;
#pragma unroll 1
      for (; tile < end; tile += Shape::teams * Shape::tile_keys) Merge::attend_tile(loads.take(tile), tile);
      // Every team meets as often as the others do. Where one had met more often, racecheck lost the order
      // that sync() makes of what the teams found (compute-sanitizer 2025.3, November 2026).
      if constexpr (Shape::many)
        if (tile - team * Shape::tile_keys < end) loads.pass();
      if (Merge::is_paired())
        Merge::end_unit_of_pair((unit - first_key) / unit_keys);
      else
        Merge::end_unit(unit, unit == first_key, unit + unit_keys >= end_key);
    }
    loads.drain();
  }

  HEED_DEVICE void finish() {
    const int first_row = Merge::first_row_here(), rows = Merge::rows_here();
    bool found = false;
#pragma unroll 1  // code that has not run yet is slow to come
    for (int n = 0; n < rows / decode_warps; ++n) {
      const int r = first_row + State::number(n);
      if (r >= count) break;
      DecodeRow<State::dims> row = total.at(n);
      const float factor = close_row(r, row);
      float x[State::dims], poison = 0;  // 0 * x is 0 for every finite x
#pragma unroll
      for (int d = 0; d < State::dims; ++d) {
        x[d] = row.out.x[d] * factor + 0.0f;
        poison = fmaf(x[d], 0.0f, poison);
      }
      write_row(row_of(c.out, query(r)), x);
      const bool is_left = any_of_warp(poison != 0);
      if (lane == 0) shared.left[r] = is_left;
      found = found || is_left;
    }
    if (!any(found)) return;
    for (int r = first_row; r < min_of(count, first_row + rows); ++r)
      if (shared.left[r])
        complete_row(WholeBlock<decode_threads>(), c, query(r), {0, Shape::dim},
                     reinterpret_cast<double*>(shared.rings));
  }

  HEED_DEVICE void write_row(const Row& out, const float (&x)[State::dims]) const {
    auto* const to =
        static_cast<std::uint16_t*>(const_cast<void*>(out.data)) + out.first + State::first_dim();
    if (out.type == type && out.step == 1 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
#pragma unroll
      for (int d = 0; d < State::dims; d += 2)
        reinterpret_cast<std::uint32_t*>(to)[d / 2] = side_by_side<type>(x[d], x[d + 1]);
      return;
    }
#pragma unroll 1
    for (int d = 0; d < State::dims; ++d) write(out, State::first_dim() + d, x[d]);
  }

  // The factor of the row's output; writes its log-sum-exp.
  HEED_DEVICE float close_row(int r, DecodeRow<State::dims>& row) const {
    if (row.sum == 0) {
      // A row whose every score left the range of f32 looks as if it saw no key.
      const KeyRange range = visible_keys(sequence, query_of(r));
      if (range.begin < range.end) row.sum = __builtin_nanf("");
    }
    // As close_with_sink() has it without a sink: asking for log-sum-exps changes no output.
    if (!c.sink.data && !c.log_sum_exp.data) return row.sum == 0 ? 0.0f : 1.0f / row.sum;
    return close_with_sink(c, query(r), {row.max, row.sum * lowered<type>}, lane == 0) * lowered<type>;
  }

  // Rare, and so not where the rest of the code is.
  static __device__ __noinline__ float close_with_sink(const Call& c, const Query& q, const RowEnd& end,
                                                       bool writes) {
    const ClosedRow row = closed(c, q, end);
    if (c.log_sum_exp.data && writes)
      write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
    return row.out();
  }
};

}  // namespace heed::cuda
