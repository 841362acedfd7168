// SPDX-License-Identifier: Apache-2.0
// Decode: attention for a few rows over many keys, bf16 or f16. Keys and values are read once for all query
// heads that share them, by copies that run ahead in a ring of each team's own.
//
// Of a unit of keys, 256 or 1024, team t takes every tile of 16 or 64 whose number is t modulo the teams. The
// teams' states make the unit's, units make a chunk, chunks the row, each in order from key 0, whether one
// block does them all, two exchange what they have or the one that arrives last merges them: the bits of a
// sequence do not depend on what runs beside it (O3).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "cuda/decode/few.cuh"
#include "cuda/decode/many.cuh"
#include "cuda/decode/plan.hpp"
#include "cuda/decode/work.cuh"
#include "cuda/runtime/launch.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// How tiles of keys and values arrive: from the caller's rows or a cache's pages, for few rows or for many.
template <class Shape>
using FewCopies = std::conditional_t<Shape::quantized, FewBytes<Shape>,
                                     std::conditional_t<Shape::paged, FewPages<Shape>, FewRows<Shape>>>;
template <class Shape>
using ManyLoads = std::conditional_t<Shape::paged, DecodeRing<Shape, ManyPages<Shape>>, EngineRing<Shape>>;
template <class Shape>
using FewLoads =
    std::conditional_t<Shape::is_small, FewRing<Shape, FewCopies<Shape>>, WholeRing<Shape, FewCopies<Shape>>>;
template <class Shape>
using DecodeLoads = std::conditional_t<Shape::many, ManyLoads<Shape>, FewLoads<Shape>>;

template <class Shape>
class Decode {
  using Loads = DecodeLoads<Shape>;
  using Team = DecodeTeam<Shape>;
  using State = DecodeState<Shape>;
  static constexpr Type type = Shape::type;
  static constexpr int unit_keys = Shape::unit_keys, chunk = static_cast<int>(chunk_keys);

  // Where two blocks share the keys of a head: what the other one found for the rows that end here.
  struct Pair {
    TeamStates<Shape> found[2];  // in its units of keys
    std::uint64_t full;          // a barrier
  };
  struct Alone {};

 public:
  struct Shared {
    typename Loads::Shared rings[Shape::teams];  // at a multiple of 1024
    // What this one found: in a unit, by rows; of a pair, in each of its units for the rows that end here.
    TeamStates<Shape> found[Shape::rows / Shape::end_rows];
    std::conditional_t<Shape::many, Pair, Alone> other;
    typename Loads::Barriers barriers[Shape::teams];
    int unfinished[Shape::rows];
    unsigned arrived;
  };

  HEED_DEVICE Decode(const Call& call, const DecodePlan& launch, Shared& memory)
      : c(call), plan(launch), shared(memory), work(call, launch) {}

  // A launch whose sequences are cut is a short one. What follows may then take the multiprocessors that are
  // free, and wait there: one sequence of 1024 keys takes 5.61 us instead of 5.68, 32768 keys 36.6 instead of
  // 36.9. Where they are not cut it is 0.3 % slower, and pages gain nothing (H200, November 2026).
  HEED_DEVICE static bool launches_dependents_early(const DecodePlan& plan) {
    return !Shape::paged && plan.splits > 1;
  }

  // What can be done before the launches ahead of this one have ended.
  HEED_DEVICE static void prepare(const Call& c, const DecodePlan& plan, Shared& memory) {
    if (thread_index() == 0) barrier_init(shared_address(&memory.other.full), 1), publish_barriers();
    if (c.keys > 0) Loads::prepare(plan, memory.barriers[Team::number()]);
    sync();
  }

  HEED_DEVICE void run() {
    if (work.count == 0) return;
    const auto& seen = work.seen_by_some;
    const int stretch = plan.units_each * unit_keys, split = block_in_column();
    const bool sees_any = seen.begin < seen.end;
    const int first = sees_any ? seen.begin / stretch : 0, last = sees_any ? (seen.end - 1) / stretch : 0;
    if (split < first || split > last) return;
    is_split = first != last;
    attend({max_of(split * stretch, seen.begin / unit_keys * unit_keys),
            min_of((split + 1) * stretch, seen.end)});
    if (!launches_dependents_early(plan)) launch_dependents();
    if (is_paired())
      merge_pair();
    else if (is_split && !merge_stretches(last - first + 1))
      return;
    finish();
  }

 private:
  // The first of these keys is that of a unit.
  HEED_DEVICE void attend(const KeyStretch& keys) {
    const int team = Team::number(), first_tile = first_seen_tile(keys.begin + team * Shape::tile_keys);
    Loads loads(
        {&c, work.b, work.kv_head, work.seen_by_some.begin, work.seen_by_some.end, work.sequence.first_key},
        plan, {first_tile - team * Shape::tile_keys, keys.end}, shared.rings[team], shared.barriers[team]);
    if constexpr (Shape::many && !Shape::paged)
      if (!c.sequences) loads.prefetch_first();
    wait_for_prior_launches();
    if constexpr (!Shape::many) own.load_queries(work);  // first: they would wait for keys in flight
    loads.begin();
    if constexpr (Shape::many) own.load_queries(work);
    own.find_seen(work, plan.mask, first_tile);
    chunk_so_far.clear(), total.clear();
    if (is_paired()) cluster_arrive();  // no one sends to a block that does not run yet
#pragma unroll 1
    for (int unit = keys.begin; unit < keys.end; unit += unit_keys) {
      own.clear();
      const int end = min_of(unit + unit_keys, keys.end);
      int tile = max_of(unit + team * Shape::tile_keys, first_tile);
#pragma unroll 1
      for (; tile < end; tile += Shape::teams * Shape::tile_keys) own.attend_tile(work, loads, tile);
      // Every team syncs as often as the others do. Where one had synced more often, racecheck lost the order
      // that sync() makes of what the teams found (compute-sanitizer 2025.3, November 2026).
      if constexpr (Shape::many)
        if (tile - team * Shape::tile_keys < end) loads.pass();
      if (is_paired())
        end_unit_of_pair((unit - keys.begin) / unit_keys);
      else
        end_unit(unit, keys);
    }
    loads.drain();
  }

  // The team's first tile of which some row sees a key, if tiles from this one on are its own. What it leaves
  // out would change no state.
  HEED_DEVICE int first_seen_tile(int tile) const {
    constexpr int step = Shape::teams * Shape::tile_keys;
    const int hidden = work.seen_by_some.begin - tile - Shape::tile_keys;
    if (Shape::many || hidden < 0) return tile;  // many rows: teams sync for each of their tiles
    return tile + (hidden / step + 1) * step;
  }

  // Merges what the teams found in a unit into the chunk and the row, or stores it for the block that arrives
  // last.
  HEED_DEVICE void end_unit(int unit, const KeyStretch& keys) {
    if (unit != keys.begin) sync();  // the teams' last states have been read
    if constexpr (Shape::many)
      own.put_state(work, shared.found[own.row(work) / Shape::end_rows]);
    else
      own.put_state(work, shared.found[0]);
    sync();
    const State found = merge_teams();
    if (is_split && plan.stores_units) return stored().store(unit / unit_keys, found);
    if constexpr (unit_keys == chunk)
      chunk_so_far = found;
    else
      chunk_so_far.add(found);
    if (unit + unit_keys < keys.end && (unit + unit_keys) % chunk != 0) return;
    if (is_split)
      stored().store(unit / chunk, chunk_so_far);
    else
      total.add(chunk_so_far);
    chunk_so_far.clear();
  }

  HEED_DEVICE State merge_teams() const {
    State unit;
    unit.clear();
#pragma unroll
    for (int n = 0; n < State::rows; ++n) {
      const int r = State::number(n);
      if (r < work.count) unit.row[n] = merged(shared.found[r / Shape::end_rows], r % Shape::end_rows);
    }
    return unit;
  }
  // What the teams found for a row, as one state.
  HEED_DEVICE static DecodeRow<State::dims> merged(const TeamStates<Shape>& found, int r) {
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

  static_assert(sizeof(typename Fold<Shape>::Shared) <= sizeof Shared::rings);

  // In the block that arrives last: all states in order, through the memory that no key needs any longer.
  HEED_DEVICE bool merge_stretches(int stretches) {
    sync();
    unsigned* arrivals = plan.arrivals + block_index();
    if (thread_index() == 0) shared.arrived = count_arrival(arrivals);
    sync();
    if (shared.arrived + 1 != static_cast<unsigned>(stretches)) return false;
    if (thread_index() == 0) *arrivals = 0;
    const int keys = plan.stores_units ? unit_keys : chunk;  // of a state
    total = Fold<Shape>(stored(), *reinterpret_cast<typename Fold<Shape>::Shared*>(shared.rings))(
        work.seen_by_some.begin / keys, (work.seen_by_some.end + keys - 1) / keys, chunk / keys);
    return true;
  }
  HEED_DEVICE StoredStates<Shape> stored() const {
    return {plan.states + block_index() * plan.states_each * decode_state_floats(Shape::rows, Shape::dim),
            work.count};
  }

  // Whether the other block of a cluster does the rest of these keys.
  HEED_DEVICE bool is_paired() const {
    if constexpr (!Shape::many)
      return false;
    else
      return is_split && plan.is_paired;
  }

  // What the teams of a pair's block found in its n-th unit goes to the block where the rows end. Nobody
  // waits.
  HEED_DEVICE void end_unit_of_pair(int n) {
    if constexpr (Shape::many) {
      if (n == 0) cluster_wait();
      const int rank = block_in_column(), to_block = own.row(work) / Shape::end_rows;
      to_block == rank ? own.put_state(work, shared.found[n])
                       : own.send_state(work, shared.other.found[n], shared.other.full, to_block);
    }
  }

  // In both blocks of a pair, which have two units each at most: all that was found for the rows that end
  // here.
  HEED_DEVICE void merge_pair() {
    if constexpr (Shape::many) {
      constexpr int sent_bytes = Shape::teams * Shape::end_rows * (Shape::dim + 2) * 4;
      const int rank = block_in_column(), middle = plan.units_each * unit_keys;
      const int of_first = units_of(middle - work.seen_by_some.begin),
                of_second = units_of(work.seen_by_some.end - middle);
      if (thread_index() == 0)
        barrier_arrive_expecting(shared_address(&shared.other.full),
                                 (rank == 0 ? of_second : of_first) * sent_bytes);
      sync();  // this block's own are written
      barrier_wait(shared_address(&shared.other.full), 0);
      constexpr int rows = Shape::end_rows / Shape::warps;
#pragma unroll 1  // code that has not run yet is slow to fetch
      for (int n = 0; n < of_first + of_second; ++n) {
        const int block = n < of_first ? 0 : 1, unit = block == 0 ? n : n - of_first;
        const TeamStates<Shape>& found = block == rank ? shared.found[unit] : shared.other.found[unit];
#pragma unroll
        for (int i = 0; i < rows; ++i) total.row[i].add(merged(found, State::number(i)));
      }
    }
  }
  HEED_DEVICE static int units_of(int keys) { return (keys + unit_keys - 1) / unit_keys; }

  // Writes the rows that end in this block.
  HEED_DEVICE void finish() {
    const int first_row = is_paired() ? block_in_column() * Shape::end_rows : 0,
              rows = is_paired() ? Shape::end_rows : Shape::rows;
    bool found = false;
#pragma unroll 1  // code that has not run yet is slow to fetch
    for (int n = 0; n < rows / Shape::warps; ++n) {
      const int r = first_row + State::number(n);
      if (r >= work.count) break;
      DecodeRow<State::dims> row = total.at(n);
      const float factor = close_row(r, row);
      float x[State::dims], poison = 0;  // 0 * x is 0 for every finite x
#pragma unroll
      for (int d = 0; d < State::dims; ++d) {
        x[d] = row.out.x[d] * factor + 0.0f;
        poison = fmaf(x[d], 0.0f, poison);
      }
      write_row(row_of(c.out, work.query(r)), x);
      const bool is_unfinished = warp_any(poison != 0);
      if (work.lane == 0) shared.unfinished[r] = is_unfinished;
      found = found || is_unfinished;
    }
    if (!any(found)) return;
    for (int r = first_row; r < min_of(work.count, first_row + rows); ++r)
      if (shared.unfinished[r])
        complete_row(WholeBlock<Shape::threads>(), c, work.query(r),
                     {0, Shape::padded ? c.value_dim : Shape::dim}, reinterpret_cast<double*>(shared.rings));
  }

  HEED_DEVICE void write_row(const Row& out, const float (&x)[State::dims]) const {
    auto* const to =
        static_cast<std::uint16_t*>(const_cast<void*>(out.data)) + out.first + State::first_dim();
    if (out.type == type && out.step == 1 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
#pragma unroll
      for (int d = 0; d < State::dims; d += 2)
        if (is_own(d)) reinterpret_cast<std::uint32_t*>(to)[d / 2] = pack2<type>(x[d], x[d + 1]);
      return;
    }
#pragma unroll 1
    for (int d = 0; d < State::dims; ++d)
      if (is_own(d)) write(out, State::first_dim() + d, x[d]);
  }

  // Whether the d-th dimension of this thread is the caller's.
  HEED_DEVICE bool is_own(int d) const { return !Shape::padded || State::first_dim() + d < c.value_dim; }

  // The factor of the row's output; writes its log-sum-exp.
  HEED_DEVICE float close_row(int r, DecodeRow<State::dims>& row) const {
    if (row.sum == 0) {
      // A row whose every score left the range of f32 looks as if it saw no key.
      if (may_see_a_key(work.query(r))) row.sum = __builtin_nanf("");
    }
    // As close_with_sink() has it without a sink: asking for log-sum-exps changes no output.
    if (!c.sink.data && !c.log_sum_exp.data) return row.sum == 0 ? 0.0f : 1.0f / row.sum;
    return close_with_sink(c, work.query(r), {row.max, row.sum * lowered<type>}, work.lane == 0) *
           lowered<type>;
  }

  HEED_DEVICE bool may_see_a_key(const Query& q) const {
    const KeyRange range = visible_keys(work.sequence, q.i);
    const int begin = static_cast<int>(range.begin), end = static_cast<int>(range.end);
    if (begin >= end || !plan.mask.words) return begin < end;
    return PackedMask::lets_see(
        plan.mask.row(static_cast<int>(q.b), static_cast<int>(q.h), static_cast<int>(q.i)), begin, end);
  }

  // Rare, and so not where the rest of the code is.
  static __device__ __noinline__ float close_with_sink(const Call& c, const Query& q, const RowEnd& end,
                                                       bool writes) {
    const ClosedRow row = closed(c, q, end);
    if (c.log_sum_exp.data && writes)
      write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
    return row.out();
  }

  const Call& c;
  const DecodePlan& plan;
  Shared& shared;
  const DecodeWork work;
  std::conditional_t<Shape::many, GroupProducts<Shape>, WarpProducts<Shape>> own;  // of a team
  State chunk_so_far, total;
  bool is_split = false;  // other blocks do the rest of these keys
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::blocks)
    decode_kernel(const __grid_constant__ Call c, const __grid_constant__ DecodePlan plan) {
  extern __shared__ __align__(1024) unsigned char memory[];
  using Kernel = Decode<Shape>;
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(memory);
  if (Kernel::launches_dependents_early(plan)) launch_dependents();
  if constexpr (Shape::many) Kernel::prepare(c, plan, shared);
  // Lists of sequences and pages, and masks, are written by launches ahead on the stream.
  if (c.sequences || c.cached || plan.mask.words) wait_for_prior_launches();
  Kernel(c, plan, shared).run();
  wait_for_prior_launches();  // a block that has nothing to do, too
}

template <class Shape>
void launch_decode_shape(const Call& c, const DecodePlan& plan, Stream stream) {
  constexpr int shared = sizeof(typename Decode<Shape>::Shared);
  static_assert(shared <= 232448);
  const auto kernel = decode_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "cudaFuncSetAttribute");
  const dim3 blocks(static_cast<unsigned>(c.batch * c.kv_heads * plan.row_tiles),
                    static_cast<unsigned>(plan.splits));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = attributes[1].val.clusterDim.z = 1;
  attributes[1].val.clusterDim.y = plan.is_paired ? 2 : 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = dim3(Shape::threads), config.dynamicSmemBytes = shared;
  config.stream = stream, config.attrs = attributes, config.numAttrs = plan.is_paired ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, c, plan), "cuda.decode");
}

template <int dim, bool padded, Type type>
void launch_decode_dim(const Call& c, const DecodePlan& plan, Stream stream) {
  using enum DecodeSource;
  if constexpr (dim <= max_dim_of_many_rows)
    if (has_many_rows(c))
      return c.cached ? launch_decode_shape<DecodeShape<dim, padded, type, true, pages>>(c, plan, stream)
                      : launch_decode_shape<DecodeShape<dim, padded, type, true, rows>>(c, plan, stream);
  switch (decode_source(c)) {
    case rows:
      return launch_decode_shape<DecodeShape<dim, padded, type, false, rows>>(c, plan, stream);
    case pages:
      return launch_decode_shape<DecodeShape<dim, padded, type, false, pages>>(c, plan, stream);
    case int8_pages:
      return launch_decode_shape<DecodeShape<dim, padded, type, false, int8_pages>>(c, plan, stream);
  }
}

}  // namespace heed::cuda
