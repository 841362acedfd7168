// SPDX-License-Identifier: Apache-2.0
// States become one, in fixed order: those of the warps that of a block of keys, blocks a chunk, chunks a
// row.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_warp.cuh"

namespace heed::cuda {

template <class Shape>
class DecodeMerge : public DecodeWarp<Shape> {
  using Thread = DecodeThread<Shape>;
  using Warp = DecodeWarp<Shape>;
  using Place = PlaceInState<Shape>;

 protected:
  using Thread::c, Thread::plan, Thread::shared, Thread::b, Thread::kv_head, Thread::kv_heads, Thread::count;
  using Thread::dim, Thread::rows, Thread::eights, Thread::mine, Thread::is_apart, Thread::least_of;
  using Thread::seen_begin, Thread::seen_end;
  using Warp::max, Warp::sum, Warp::o;
  using Warp::Warp;

  // The warps' states of a block of keys, to the chunk or to memory.
  HEED_DEVICE void merge_warps(int block, int lane, int warp) {
    put_ends(lane, warp);
#pragma unroll
    for (int pass = 0; pass < Shape::passes; ++pass) {
      put_rows(pass, lane, warp);
      sync();
      if (pass == 0) find_factors(lane, warp);
      if (pass == 0) sync();
      add_rows(pass, block / static_cast<int>(block_keys));
      sync();  // the warps' rows have been read
    }
  }

  HEED_DEVICE void end_chunk(int number) {
    if (keeps_each_block()) return;
    if (is_apart)
      keep(state_of(number));
    else
      add_chunk();
    chunk.clear();
  }

  // In the block that arrives last: all states in order.
  HEED_DEVICE bool take_all(int stretches) {
    sync();
    unsigned* arrivals = plan.arrivals + b * kv_heads + kv_head;
    if (thread_index() == 0) shared.arrived = arrive(arrivals);
    sync();
    if (shared.arrived + 1 != static_cast<unsigned>(stretches)) return false;
    if (thread_index() == 0) *arrivals = 0;
    const bool blocks = keeps_blocks(plan);
    const int unit = static_cast<int>(blocks ? block_keys : chunk_keys),
              in_chunk = static_cast<int>(chunk_keys) / unit;
    const int begin_state = seen_begin / unit, end_state = (seen_end + unit - 1) / unit;
    FoldedStates<Shape> all, some;
    all.clear();
#pragma unroll 1
    for (int n = begin_state; n < end_state;) {
      const int end = least_of(end_state, (n / in_chunk + 1) * in_chunk);  // of the chunk
      if (blocks) {
        some.clear();
        for (; n < end; n += FoldedStates<Shape>::together) some.add(kept_states(), n, end);
        all.add(some);
        n = end;
      } else {
        all.add(kept_states(), n, end_state);
        n += FoldedStates<Shape>::together;
      }
    }
    all.store(total);
    return true;
  }

  DecodeState<Shape> chunk, total;

 private:
  HEED_DEVICE bool keeps_each_block() const { return is_apart && keeps_blocks(plan); }

  // What the warp found in the block, for all to see: {max, sum}, and some rows of the outputs.
  HEED_DEVICE void put_ends(int lane, int warp) {
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int across = 4; across < 32; across *= 2) sum[e][n] += from_lane_across(sum[e][n], across);
        const int r = 8 * e + lane % 4 * 2 + n;
        if (lane / 4 == 0) shared.max[warp][r] = max[e][n], shared.sum[warp][r] = sum[e][n];
      }
  }
  HEED_DEVICE void put_rows(int pass, int lane, int warp) {
    constexpr int pass_eights = eights / Shape::passes;
#pragma unroll
    for (int e = 0; e < pass_eights; ++e)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float* const to = shared.out[warp][8 * e + lane % 4 * 2 + n] + lane / 4;
#pragma unroll
        for (int d = 0; d < dim / 16; ++d) {
          to[16 * d] = o[d][pass * pass_eights + e][n];
          to[16 * d + 8] = o[d][pass * pass_eights + e][n + 2];
        }
      }
  }

  // Merges {max, sum} of `part` into `state`; says what the outputs of both must be multiplied with.
  HEED_DEVICE void merge(DecodeState<Shape>& state, const RowEnd& part, int r) {
    const MergeFactors of(state.max, part.max);
    state.sum = fmaf(state.sum, of.before, part.sum * of.now);
    state.max = of.max;
    shared.before[r] = of.before, shared.now[r] = of.now;
  }

  // One warp for each eight rows: the block's {max, sum} from those of the warps, and that into the chunk's.
  // Lane l has the row l % 8 and two of the warps; what they find meets in fixed order.
  HEED_DEVICE void find_factors(int lane, int warp) {
    if (warp >= eights) return;
    const int r = 8 * warp + lane % 8, w = lane / 8;
    const float a = shared.max[w][r], z = shared.max[w + 4][r];
    float top = fmaxf(a, z);
    top = fmaxf(top, from_lane_across(top, 8));
    top = fmaxf(top, from_lane_across(top, 16));
    const float of_a = fast_exp2(a - finite_max(top)), of_z = fast_exp2(z - finite_max(top));
    shared.warp_factor[w][r] = of_a, shared.warp_factor[w + 4][r] = of_z;
    float sum_here = fmaf(shared.sum[w][r], of_a, shared.sum[w + 4][r] * of_z);
    sum_here += from_lane_across(sum_here, 8);
    sum_here += from_lane_across(sum_here, 16);
    block_end = {top, sum_here};
    if (lane < 8) merge(chunk, block_end, r);
  }
  static_assert(decode_warps == 8);
  // The rows of a pass: to the chunk, or to memory as the block's own state.
  HEED_DEVICE void add_rows(int pass, int block) {
    float* const state = keeps_each_block() ? state_of(block) : nullptr;
    if (const int r = Place::own_row(); state && pass == 0 && r >= 0)
      state[r] = block_end.max, state[rows + r] = block_end.sum;
    constexpr int some = mine / Shape::passes;
#pragma unroll
    for (int n = 0; n < some; ++n) {
      const int k = pass * some + n, r = Place::row(k), d = Place::dim(k);
      if (r >= count) continue;
      float x = 0;
#pragma unroll
      for (int w = 0; w < decode_warps; ++w)
        x = fmaf(shared.out[w][r - pass * Shape::pass_rows][d], shared.warp_factor[w][r], x);
      if (state)
        state[2 * rows + Place::element(k)] = x;
      else
        chunk.out[k] = fmaf(chunk.out[k], shared.before[r], x * shared.now[r]);
    }
  }

  // total = total merged with the chunk.
  HEED_DEVICE void add_chunk() {
    if (const int r = Place::own_row(); r >= 0) merge(total, {chunk.max, chunk.sum}, r);
    sync();
#pragma unroll
    for (int k = 0; k < mine; ++k) {
      const int r = Place::row(k);
      total.out[k] = fmaf(total.out[k], shared.before[r], chunk.out[k] * shared.now[r]);
    }
    sync();
  }

  HEED_DEVICE KeptStates kept_states() const {
    constexpr std::int64_t floats = decode_state_floats<Shape>;
    return {plan.states + std::int64_t{b * kv_heads + kv_head} * plan.states_each * floats, floats, count};
  }
  HEED_DEVICE float* state_of(int n) const { return kept_states().at(n); }
  HEED_DEVICE void keep(float* state) const {
    if (const int r = Place::own_row(); r >= 0) state[r] = chunk.max, state[rows + r] = chunk.sum;
#pragma unroll
    for (int k = 0; k < mine; ++k)
      if (Place::row(k) < count) state[2 * rows + Place::element(k)] = chunk.out[k];
  }

  RowEnd block_end{};
};

}  // namespace heed::cuda
