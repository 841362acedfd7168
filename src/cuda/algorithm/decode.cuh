// SPDX-License-Identifier: Apache-2.0
// Attention for a few rows over many keys, bf16 or f16: keys and values are read once for all query heads
// that share them, by copies that run ahead in a ring of each warp's own.
//
// Keys are the first operand of a product and rows the second, so no row of a matrix instruction is idle. Of
// a block of 256 keys warp w takes every eighth tile of 16; the warps' states make the block's, blocks make a
// chunk, chunks the row, each in order from key 0, whether one block of threads does them all or the one that
// arrives last merges them: the bits of a sequence do not depend on what runs beside it (O3).
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_loads.cuh"
#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/algorithm/decode_state.cuh"
#include "cuda/algorithm/finish.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/algorithm/wide_row.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/mma.cuh"

namespace heed::cuda {

template <class Shape>
class Decode {
  using Place = PlaceInState<Shape>;
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, rows = Shape::rows, eights = Shape::row_eights, mine = Shape::mine;

 public:
  struct Shared {
    typename DecodeLoads<Shape>::Shared rings[decode_warps];
    alignas(16) float out[decode_warps][Shape::pass_rows][dim];
    alignas(16) std::uint32_t q[eights > 1 ? eights : 1][eights > 1 ? dim / 16 : 1][32][2];
    float max[decode_warps][rows], sum[decode_warps][rows];
    float warp_factor[decode_warps][rows], before[rows], now[rows];  // what states are multiplied with
    int left[rows];
    unsigned arrived;
  };

  HEED_DEVICE Decode(const Call& call, const DecodePlan& launch, Shared& memory)
      : c(call), plan(launch), shared(memory), kv_heads(static_cast<int>(c.kv_heads)) {
    const int n = static_cast<int>(block_index()) / plan.splits;
    split = static_cast<int>(block_index()) - n * plan.splits;
    b = n / kv_heads, kv_head = n - b * kv_heads;
    group = static_cast<int>(c.heads) / kv_heads;
    const Sequence& s = c.sequence(b);
    count = static_cast<int>(s.queries) * group;
    if (count == 0) return;
    const Seen seen = seen_by(c, b, 0, s.queries - 1);
    seen_begin = static_cast<int>(seen.begin), seen_end = static_cast<int>(seen.end);
  }

  HEED_DEVICE void run() {
    if (count == 0) return;
    const int stretch = plan.blocks_each * static_cast<int>(block_keys);
    const bool sees_any = seen_begin < seen_end;
    const int first = sees_any ? seen_begin / stretch : 0, last = sees_any ? (seen_end - 1) / stretch : 0;
    if (split < first || split > last) return;
    is_apart = first != last;
    attend(most_of(split * stretch, seen_begin / static_cast<int>(block_keys) * static_cast<int>(block_keys)),
           least_of((split + 1) * stretch, seen_end));
    if (is_apart && !take_all(last - first + 1)) return;
    finish();
  }

 private:
  HEED_DEVICE static int least_of(int x, int y) { return x < y ? x : y; }
  HEED_DEVICE static int most_of(int x, int y) { return x > y ? x : y; }

  // Rows are the queries in order, each for all heads that read the KV head.
  HEED_DEVICE int query_of(int r) const { return count == group ? 0 : r / group; }
  HEED_DEVICE Query query(int r) const {
    const int n = query_of(r), member = r - n * group;
    const int h = c.tiled_heads ? member * kv_heads + kv_head : kv_head * group + member;
    return {b, h, n, c.sequence(b).first_query + n};
  }
  HEED_DEVICE bool keeps_each_block() const { return is_apart && keeps_blocks(plan); }

  // Keys [first_key, end_key), the first that of a block. Leaves the merged state in total, or the states of
  // blocks or chunks in memory where the block that arrives last waits for them.
  HEED_DEVICE void attend(int first_key, int end_key) {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    DecodeLoads<Shape> loads({&c, b, kv_head, seen_begin, seen_end}, first_key, end_key, shared.rings[warp]);
    load_queries(lane, warp);
    find_ranges(lane);
    total.clear(), chunk.clear();
#pragma unroll 1
    for (int block = first_key; block < end_key; block += static_cast<int>(block_keys)) {
      clear_warp();
#pragma unroll 1
      for (int tile = block + warp * Shape::tile_keys;
           tile < least_of(block + static_cast<int>(block_keys), end_key);
           tile += decode_warps * Shape::tile_keys) {
        attend_tile(loads.take(), tile, lane);
        loads.release();
      }
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
      const int next = block + static_cast<int>(block_keys);
      if (next % chunk_keys == 0 || next >= end_key) end_chunk(block / static_cast<int>(chunk_keys));
    }
    loads.drain();
  }

  HEED_DEVICE std::uint32_t query_pair(int e, int k, int half, int lane) const {
    const int r = 8 * e + lane / 4;
    if (r >= count) return 0;
    const Row row = row_of(c.q, query(r));
    return *reinterpret_cast<const std::uint32_t*>(static_cast<const std::uint16_t*>(row.data) + row.first +
                                                   16 * k + 8 * half + lane % 4 * 2);
  }

  // Eight rows stay in registers; more lie in shared memory as the registers would have them.
  HEED_DEVICE void load_queries(int lane, int warp) {
    if constexpr (eights == 1) {
#pragma unroll
      for (int k = 0; k < dim / 16; ++k)
#pragma unroll
        for (int half = 0; half < 2; ++half) q[k][half] = query_pair(0, k, half, lane);
    } else {
      for (int n = warp; n < eights * dim / 16; n += decode_warps)
        for (int half = 0; half < 2; ++half)
          shared.q[n / (dim / 16)][n % (dim / 16)][lane][half] =
              query_pair(n / (dim / 16), n % (dim / 16), half, lane);
      sync();
    }
  }
  HEED_DEVICE void multiply(float (&s)[4], const std::uint32_t (&a)[4], int e, int k, int lane) const {
    if constexpr (eights == 1)
      add_product<type>(s, a, q[k][0], q[k][1]);
    else
      add_product<type>(s, a, shared.q[e][k][lane][0], shared.q[e][k][lane][1]);
  }

  // The keys that ranges let this thread's rows see.
  HEED_DEVICE void find_ranges(int lane) {
#pragma unroll
    for (int e = 0; e < eights; ++e)
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int r = 8 * e + lane % 4 * 2 + n;
        const KeyRange range = r < count ? visible_keys(c, b, query_of(r)) : KeyRange{0, 0};
        begin[e][n] = static_cast<int>(range.begin), end[e][n] = static_cast<int>(range.end);
      }
  }

  HEED_DEVICE void clear_warp() {
#pragma unroll
    for (int e = 0; e < eights; ++e) {
      max[e][0] = max[e][1] = minus_infinity, sum[e][0] = sum[e][1] = 0;
#pragma unroll
      for (int d = 0; d < dim / 16; ++d)
#pragma unroll
        for (int n = 0; n < 4; ++n) o[d][e][n] = 0;
    }
  }

  HEED_DEVICE float to_score(float product) const {
    const float s = spoil_infinity(product * c.scale_log2e);
    return c.softcap_log2e == 0 ? s : softcapped_score(c, s);
  }

  // 16 keys for all rows.
  HEED_DEVICE void attend_tile(typename DecodeLoads<Shape>::Tile tile, int first_key, int lane) {
    // Of few rows, even and odd steps are summed apart: each product would wait for the last.
    constexpr int chains = eights == 1 ? 2 : 1;
    float s[eights][4] = {}, odd[eights][4] = {};
#pragma unroll
    for (int k = 0; k < dim / 16; ++k) {
      std::uint32_t a[4];
      tile.load_keys(a, k, lane);
#pragma unroll
      for (int e = 0; e < eights; ++e) multiply(k % chains == 0 ? s[e] : odd[e], a, e, k, lane);
    }
    std::uint32_t p[eights][2];
    float factor[eights][2];
#pragma unroll
    for (int e = 0; e < eights; ++e) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int j = first_key + lane / 4 + n / 2 * 8;
        const float product = chains == 1 ? s[e][n] : s[e][n] + odd[e][n];
        s[e][n] = j >= begin[e][n % 2] && j < end[e][n % 2] ? to_score(product) : minus_infinity;
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float top = fmaxf(s[e][n], s[e][n + 2]);
#pragma unroll
        for (int across = 4; across < 32; across *= 2) top = fmaxf(top, from_lane_across(top, across));
        const float now = fmaxf(max[e][n], top);
        factor[e][n] = fast_exp2(max[e][n] - finite_max(now));
        max[e][n] = now;
        const float subtract = finite_max(now) - lift<type>;
        s[e][n] = fast_exp2(s[e][n] - subtract), s[e][n + 2] = fast_exp2(s[e][n + 2] - subtract);
        sum[e][n] = fmaf(sum[e][n], factor[e][n], s[e][n] + s[e][n + 2]);
      }
      p[e][0] = transposed(side_by_side<type>(s[e][0], s[e][1])),
      p[e][1] = transposed(side_by_side<type>(s[e][2], s[e][3]));
    }
    rescale(factor);
#pragma unroll
    for (int d = 0; d < dim / 16; ++d) {
      std::uint32_t a[4];
      tile.load_values(a, d, lane);
#pragma unroll
      for (int e = 0; e < eights; ++e) add_product<type>(o[d][e], a, p[e][0], p[e][1]);
    }
  }

  // What was summed against the old maxima; where none of a warp's has moved, there is nothing to do.
  HEED_DEVICE void rescale(const float (&factor)[eights][2]) {
    bool moved = false;
#pragma unroll
    for (int e = 0; e < eights; ++e) moved = moved || factor[e][0] != 1.0f || factor[e][1] != 1.0f;
    if (!any_of_warp(moved)) return;
#pragma unroll
    for (int d = 0; d < dim / 16; ++d)
#pragma unroll
      for (int e = 0; e < eights; ++e)
#pragma unroll
        for (int n = 0; n < 4; ++n) o[d][e][n] *= factor[e][n % 2];
  }

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

  HEED_DEVICE void end_chunk(int number) {
    if (keeps_each_block()) return;
    if (is_apart)
      keep(state_of(number));
    else
      add_chunk();
    chunk.clear();
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

  const Call& c;
  const DecodePlan& plan;
  Shared& shared;
  const int kv_heads;
  int split, b, kv_head, group;
  int count;                         // rows that are real
  int seen_begin = 0, seen_end = 0;  // keys that some row sees
  bool is_apart = false;             // other blocks of threads do the rest of these keys
  std::uint32_t q[dim / 16][2];
  int begin[eights][2], end[eights][2];
  float max[eights][2], sum[eights][2], o[dim / 16][eights][4];  // of the warp, in this block of keys
  RowEnd block_end{};
  DecodeState<Shape> chunk, total;
};

}  // namespace heed::cuda
