// SPDX-License-Identifier: Apache-2.0
// Attention for a few rows over many keys, bf16 or f16: keys and values are read once for all query heads
// that share them, by copies that run ahead in a ring of each warp's own.
//
// Keys are the first operand of a product and rows the second, so no row of a matrix instruction is idle. Of
// a block of 256 keys warp w takes every eighth tile of 16; the warps' states make the block's, blocks make a
// chunk, chunks the row, each in order from key 0, whether one block of threads does them all or the one that
// arrives last merges them: the bits of a sequence do not depend on what runs beside it (O3).
#pragma once
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
  using Place = PlaceInState<Shape>;
  static constexpr Type type = Shape::type;
  using Merge::chunk, Merge::total;
  using Thread::c, Thread::plan, Thread::shared, Thread::split, Thread::b, Thread::kv_head, Thread::count;
  using Thread::query, Thread::query_of, Thread::least_of, Thread::most_of, Thread::dim, Thread::mine;
  using Thread::seen_begin, Thread::seen_end, Thread::is_apart;

 public:
  using typename Thread::Shared;

  HEED_DEVICE Decode(const Call& call, const DecodePlan& launch, Shared& memory)
      : Merge(call, launch, memory) {}

  HEED_DEVICE void run() {
    if (count == 0) return;
    const int stretch = plan.blocks_each * static_cast<int>(block_keys);
    const bool sees_any = seen_begin < seen_end;
    const int first = sees_any ? seen_begin / stretch : 0, last = sees_any ? (seen_end - 1) / stretch : 0;
    if (split < first || split > last) return;
    is_apart = first != last;
    attend(most_of(split * stretch, seen_begin / static_cast<int>(block_keys) * static_cast<int>(block_keys)),
           least_of((split + 1) * stretch, seen_end));
    if (is_apart && !Merge::take_all(last - first + 1)) return;
    finish();
  }

 private:
  // Keys [first_key, end_key), the first that of a block. Leaves the merged state in total, or the states of
  // blocks or chunks in memory where the block that arrives last waits for them.
  HEED_DEVICE void attend(int first_key, int end_key) {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    DecodeLoads<Shape> loads({&c, b, kv_head, seen_begin, seen_end}, first_key, end_key, shared.rings[warp]);
    Merge::load_queries(lane, warp);
    Merge::find_ranges(lane);
    total.clear(), chunk.clear();
#pragma unroll 1
    for (int block = first_key; block < end_key; block += static_cast<int>(block_keys)) {
      Merge::clear_warp();
#pragma unroll 1
      for (int tile = block + warp * Shape::tile_keys;
           tile < least_of(block + static_cast<int>(block_keys), end_key);
           tile += decode_warps * Shape::tile_keys) {
        Merge::attend_tile(loads.take(), tile, lane);
        loads.release();
      }
      Merge::merge_warps(block, lane, warp);
      const int next = block + static_cast<int>(block_keys);
      if (next % chunk_keys == 0 || next >= end_key) Merge::end_chunk(block / static_cast<int>(chunk_keys));
    }
    loads.drain();
  }

  HEED_DEVICE void finish() {
    if (const int r = Place::own_row(); r >= 0) {
      shared.left[r] = 0;
      if (r < count) shared.before[r] = close_row(r);
    }
    sync();
    bool found = false;
#pragma unroll
    for (int k = 0; k < mine; ++k) {
      const int r = Place::row(k);
      if (r >= count) continue;
      const float x = total.out[k] * shared.before[r] + 0.0f;
      write(row_of(c.out, query(r)), Place::dim(k), x);
      if (is_finite(x)) continue;
      found = true, shared.left[r] = 1;
    }
    if (!any(found)) return;
    for (int r = 0; r < count; ++r)
      if (shared.left[r])
        complete_row(WholeBlock<decode_threads>(), c, query(r), {0, dim},
                     reinterpret_cast<double*>(&shared.out[0][0][0]));
  }

  // The factor of the row's output; writes its log-sum-exp.
  HEED_DEVICE float close_row(int r) {
    const KeyRange range = visible_keys(c, b, query_of(r));
    // A row whose every score left the range of f32 looks as if it saw no key.
    if (total.sum == 0 && range.begin < range.end) total.sum = __builtin_nanf("");
    if (!c.sink.data && !c.log_sum_exp.data) return total.sum == 0 ? 0.0f : 1.0f / total.sum;
    const ClosedRow row = closed(c, query(r), {total.max, total.sum * lowered<type>});
    if (c.log_sum_exp.data) write(row_of(c.log_sum_exp, query(r)), 0, static_cast<float>(row.log_sum_exp()));
    return row.out() * lowered<type>;
  }
};

}  // namespace heed::cuda
