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

#include "cuda/algorithm/finish.cuh"
#include "cuda/algorithm/prefill_memory.cuh"
#include "cuda/algorithm/prefill_plan.hpp"
#include "cuda/algorithm/prefill_producer.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/algorithm/wide_row.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/wgmma.cuh"

namespace heed::cuda {

template <class Shape, bool capped>
class PrefillConsumer {
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, keys = Shape::keys;

 public:
  HEED_DEVICE PrefillConsumer(const Call& call, const PrefillPlan& launch, PrefillMemory<Shape> memory)
      : c(call), plan(launch), shared(memory), group(warpgroup_index() - 1), team{5 + group} {
    lane = thread_index() % 32;
    row_in_group = thread_index() % 128 / 32 * 16 + lane / 4;
    scale = capped ? 1.0f : c.scale_log2e;
    queries = operand(shared.queries() + group * 64 * 128);
    first_keys = operand(shared.keys(0)), first_values = operand(shared.values(0), keys * 128);
  }

  HEED_DEVICE void run() {
    if (group == 0) let_go(1, 256);  // it is the first to take its turn
    for (unsigned n = 0;; ++n) {
      barrier_wait(shared.tile_there(n), shared.slot_phase(n));
      tile = shared.slot(n);
      if (tile->b < 0) break;
      attend(n);
      finish();
      sync_warp();
      if (lane == 0) barrier_arrive(shared.tile_used(n));
    }
    if (team.thread() == 0) wait_for_stores_to_read();
  }

 private:
  HEED_DEVICE void release(SharedAddress barrier) const {
    if (team.thread() == 0) barrier_arrive(barrier);
  }

  // Where a tile of rows is longer than one of keys, a warpgroup may see fewer tiles than the others do.
  // Elsewhere only the last rows of a sequence may leave one idle.
  static constexpr bool may_pass = Shape::rows > keys;

  // Tiles of keys that some row of this warpgroup sees; last < first: none.
  struct OwnTiles {
    int first, last;
  };
  HEED_DEVICE OwnTiles own_tiles() const {
    if constexpr (!may_pass) return {tile->first, tile->last};
    const int here = rows_here() < 64 ? rows_here() : 64, i0 = tile->first_query + group * 64,
              i1 = i0 + here - 1;
    if (here <= 0 || tile->begin_of(i0) >= tile->end_of(i1)) return {tile->last + 1, tile->last};
    return {uniform(tile->begin_of(i0) / keys), uniform((tile->end_of(i1) - 1) / keys)};
  }

  HEED_DEVICE void attend(unsigned n) {
    const OwnTiles own = own_tiles();
    const int first = tile->first, last = tile->last, plain_begin = tile->plain_begin,
              plain_end = tile->plain_end;
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) o[i] = 0;
    max[0] = max[1] = minus_infinity, sum[0] = sum[1] = 0;

    barrier_wait(shared.queries_there(), n & 1);
    const bool sees_any = !may_pass || own.first <= own.last;
    // Turns are taken once for each tile but one: that where the first scores are found.
#pragma unroll 1
    for (int j = last; may_pass && j > (sees_any ? own.last : first - 1); --j)
      pass(j == last, sees_any || j < last);
    if (sees_any) {
      barrier_wait(shared.keys_there(taken), shared.phase(taken));
      multiply_keys(stage(taken));
      wait_for_products<0>();
      pin(s);
      release(shared.keys_used(taken));
      weigh(own.last, own.last < plain_begin, own.last >= plain_end);
      narrow();
      if (own.last == last && tile->tail < keys) clear_tail();

#pragma unroll 1
      for (int j = own.last - 1; j >= own.first; --j) step(j, j < plain_begin, j >= plain_end);

      if (Shape::out_has_room) release(shared.queries_used());
      barrier_wait(shared.values_there(taken), shared.phase(taken));
      multiply_values(stage(taken));
      wait_for_products<0>();
      pin(o), pin(p);
      release(shared.values_used(taken));
      ++taken;
#pragma unroll 1
      for (int j = own.first - 1; may_pass && j >= first; --j) pass(false, true);
    } else if (Shape::out_has_room) {
      release(shared.queries_used());
    }
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

  // The scores of tile j, while the product of the last weights with their values runs.
  HEED_DEVICE void step(int j, bool hides_before, bool hides_after) {
    const unsigned next = taken + 1;
    const int keys_at = stage(next), values_at = stage(taken);
    barrier_wait(shared.keys_there(next), shared.phase(next));
    meet(1 + group, 256);  // this warpgroup's turn
    multiply_keys(keys_at);
    barrier_wait(shared.values_there(taken), shared.phase(taken));
    multiply_values(values_at);
    let_go(1 + (group + 1) % Shape::groups, 256);
    wait_for_products<1>();
    pin(s);
    release(shared.keys_used(next));
    weigh(j, hides_before, hides_after);
    wait_for_products<0>();
    pin(o), pin(p);
    release(shared.values_used(taken));
    narrow();
    rescale();
    taken = next;
  }

  HEED_DEVICE static int stage(unsigned n) { return uniform(static_cast<int>(n % Shape::stages)); }

  // s = queries * keys^T
  HEED_DEVICE void multiply_keys(int at) {
    const Operand b = moved(first_keys, at * Shape::key_bytes);
    pin(s);
    begin_products();
#pragma unroll
    for (int k = 0; k < dim / 16; ++k)
      multiply<type, 0>(s, moved(queries, k / 4 * Shape::rows * 128 + k % 4 * 32),
                        moved(b, k / 4 * keys * 128 + k % 4 * 32), k != 0);
    close_products();
    pin(s);
  }

  // o += p * values
  HEED_DEVICE void multiply_values(int at) {
    const Operand b = moved(first_values, at * Shape::key_bytes);
    pin(p), pin(o);
    begin_products();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) multiply<type, 1>(o, p + 4 * k, moved(b, k * 2048));
    close_products();
    pin(o), pin(p);
  }

  // Query of the sequence.
  HEED_DEVICE int row(int r) const { return tile->first_query + group * 64 + row_in_group + 8 * r; }

  HEED_DEVICE void cap_scores() {
    const float reciprocal = 1.0f / c.softcap_log2e,
                inverse = reciprocal > most_finite ? most_finite : reciprocal;
#pragma unroll
    for (int i = 0; i < keys / 2; ++i) s[i] = c.softcap_log2e * tanh(s[i] * c.scale_log2e * inverse);
  }

  // Columns before the n-th of a tile, or from the n-th on.
  HEED_DEVICE void hide_before(int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int from = tile->begin_of(row(r)) - j * keys - 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
        if (8 * n < from) s[4 * n + 2 * r] = minus_infinity;
        if (8 * n + 1 < from) s[4 * n + 2 * r + 1] = minus_infinity;
      }
    }
  }
  HEED_DEVICE void hide_after(int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int to = tile->end_of(row(r)) - j * keys - 2 * (lane % 4);
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
        if (8 * n >= to) s[4 * n + 2 * r] = minus_infinity;
        if (8 * n + 1 >= to) s[4 * n + 2 * r + 1] = minus_infinity;
      }
    }
  }

  // Scores become weights against the row's maximum and are added to the sums, each thread those of its
  // columns. The maximum follows when it is left behind by 2^8, which weights can bear: then alone the sums
  // so far are rescaled.
  HEED_DEVICE void weigh(int j, bool hides_before, bool hides_after) {
    if constexpr (capped) cap_scores();
    if (hides_before) hide_before(j);
    if (hides_after) hide_after(j);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = max[r];
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) now = fmaxf(now, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
      now = fmaxf(now, from_lane_across(now, 1));
      now = fmaxf(now, from_lane_across(now, 2));
      const bool moves = (now - max[r]) * scale > 8.0f;
      factor[r] = moves ? fast_exp2((max[r] - now) * scale) : 1.0f;
      max[r] = moves ? now : max[r];
      const float subtract = (max[r] == minus_infinity ? 0.0f : max[r] * scale) - lift<type>;
      float total = sum[r] * factor[r];
#pragma unroll
      for (int n = 0; n < keys / 8; ++n) {
        float &a = s[4 * n + 2 * r], &b = s[4 * n + 2 * r + 1];
        a = fast_exp2(fmaf(a, scale, -subtract)), b = fast_exp2(fmaf(b, scale, -subtract));
        total += a + b;
      }
      sum[r] = total;
    }
  }

  // A thread's sums lie as an operand wants them.
  HEED_DEVICE void narrow() {
#pragma unroll
    for (int n = 0; n < keys / 4; ++n) p[n] = side_by_side<type>(s[2 * n], s[2 * n + 1]);
  }

  HEED_DEVICE void rescale() {
    if (!any_of_warp(factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) {
      o[4 * n] *= factor[0], o[4 * n + 1] *= factor[0];
      o[4 * n + 2] *= factor[1], o[4 * n + 3] *= factor[1];
    }
  }

  // Values beyond the sequence's keys have weight 0, but may be NaN.
  HEED_DEVICE void clear_tail() {
    barrier_wait(shared.values_there(taken), shared.phase(taken));
    const int from = tile->tail, count = keys - from;
    for (int n = thread_index() - 128; n < Shape::pieces * count * 8; n += 128 * Shape::groups)
      clear_shared16(shared.values(taken) + (n / (count * 8) * keys + from) * 128 + n % (count * 8) * 16);
    show_to_engines();
    meet(4, 128 * Shape::groups);
  }

  HEED_DEVICE Query query(int i) const {
    return {tile->b, tile->h, i, tile->first_row + i - tile->first_query};
  }
  HEED_DEVICE int rows_here() const { return tile->rows - group * 64; }

  HEED_DEVICE void finish() {
    bool is_left[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) is_left[r] = close(r);
    if (team.thread() == 0) wait_for_stores_to_read();
    team.sync();
    put_out();
    show_to_engines();
    const bool any_left = team.any(is_left[0] || is_left[1]);
    store_out();
    if (any_left) complete(is_left);
    if (!Shape::out_has_room) {
      if (team.thread() == 0) wait_for_stores_to_read();
      team.sync();
      release(shared.queries_used());
    }
  }

  // Turns the sums of row r into outputs; returns whether one of them is no number.
  HEED_DEVICE bool close(int r) {
    sum[r] += from_lane_across(sum[r], 1);
    sum[r] += from_lane_across(sum[r], 2);
    const int i = row(r);
    const bool is_row = i < tile->first_query + tile->rows;
    // A row whose every score left the range of f32 downwards looks as if it saw no key.
    if (sum[r] == 0 && tile->begin_of(i) < tile->end_of(i)) sum[r] = __builtin_nanf("");
    float times = sum[r] == 0 ? 0.0f : 1.0f / sum[r];
    if (is_row && (c.sink.data || c.log_sum_exp.data)) {
      const ClosedRow row = closed(c, query(i), {max[r] * scale, sum[r] * lowered<type>});
      times = row.out() * lowered<type>;
      if (c.log_sum_exp.data && lane % 4 == 0)
        write(row_of(c.log_sum_exp, query(i)), 0, static_cast<float>(row.log_sum_exp()));
    }
    float poison = 0;  // 0 * x is 0 for every finite x
#pragma unroll
    for (int n = 0; n < dim / 8; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = o[4 * n + 2 * r + e];
        x *= times;
        poison = fmaf(x, 0.0f, poison);
      }
    return is_row && poison != 0;
  }

  // The rows of this warpgroup to shared memory, turned as the copy engine has it.
  HEED_DEVICE void put_out() const {
    const int at = thread_index() % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < dim / 16; ++n) {
      const int sixteenth = n % 4 * 2 + lane / 16;
      store_matrices(
          out_piece(n / 4) + at * 128 + (sixteenth ^ at % 8) * 16, side_by_side<type>(o[8 * n], o[8 * n + 1]),
          side_by_side<type>(o[8 * n + 2], o[8 * n + 3]), side_by_side<type>(o[8 * n + 4], o[8 * n + 5]),
          side_by_side<type>(o[8 * n + 6], o[8 * n + 7]));
    }
  }
  HEED_DEVICE SharedAddress out_piece(int piece) const {
    return shared.out() + (piece * Shape::rows + group * 64) * 128;
  }

  // By the copy engine where all 64 rows are the sequence's own.
  HEED_DEVICE void store_out() const {
    const int here = rows_here();
    const Query first = query(tile->first_query + group * 64);
    if (here >= 64) {
      if (team.thread() != 0) return;
#pragma unroll
      for (int piece = 0; piece < Shape::pieces; ++piece)
        store_box(&plan.out,
                  {piece * 64, static_cast<int>(first.row), c.out.heads == 0 ? 0 : tile->h,
                   c.out.batch == 0 ? 0 : tile->b},
                  out_piece(piece));
      close_stores();
      return;
    }
    for (int n = team.thread(); n < here * dim / 8; n += 128) {
      const int r = n / (dim / 8), eight = n % (dim / 8);
      const uint4 x = load_shared16(out_piece(eight / 8) + r * 128 + (eight % 8 ^ r % 8) * 16);
      const Row to = row_of(c.out, {first.b, first.h, first.i + r, first.row + r});
      *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(const_cast<void*>(to.data)) + to.first +
                                eight * 8) = x;
    }
  }

  // Rows that f32 could not finish, once more in double precision. The outputs' memory is free when they are
  // written.
  HEED_DEVICE void complete(const bool (&is_left)[2]) {
    if (team.thread() == 0) wait_for_stores();
    double* scratch = static_cast<double*>(__cvta_shared_to_generic(out_piece(0)));
    team.sync();
    for (int r = 0; r < 64 && r < rows_here(); ++r) {
      const bool mine = (row_in_group == r && is_left[0]) || (row_in_group + 8 == r && is_left[1]);
      if (!team.any(mine)) continue;
      complete_row(team, c, query(tile->first_query + group * 64 + r), {0, dim}, scratch);
    }
    team.sync();
  }

  const Call& c;
  const PrefillPlan& plan;
  const PrefillMemory<Shape> shared;
  const int group;
  const Warpgroup team;
  int lane, row_in_group;
  float scale;
  Operand queries, first_keys, first_values;
  const RowTile* tile = nullptr;  // in shared memory, until it is released
  unsigned taken = 0;             // tiles of values
  float max[2], sum[2], factor[2];
  float o[dim / 2], s[keys / 2];
  std::uint32_t p[keys / 4];
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
