// SPDX-License-Identifier: Apache-2.0
// Prefill's consumers: warpgroups of 64 rows of one head each. While the product with one tile of values
// runs, a warpgroup exponentiates the scores of the next tile, and warpgroups alternate at the matrix units.
// Tiles of keys are counted from key 0 and visited from the last to the first, so a row's bits depend on its
// own keys alone (O3): a tile that a row does not see adds nothing to it.
//
// A consumer is made of parts: which rows a thread has, the two products, the softmax, and the output.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/options.cuh"
#include "cuda/prefill/output.cuh"
#include "cuda/prefill/plan.hpp"
#include "cuda/prefill/producer.cuh"
#include "cuda/prefill/rows.cuh"
#include "cuda/prefill/sixteens.cuh"
#include "cuda/tile/block.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// The running softmax of a thread's two rows, each over the thread's own columns.
template <class Shape>
struct PrefillSoftmax {
  static constexpr int value_dim = Shape::value_dim, keys = Shape::keys;
  static constexpr Type type = Shape::type;

  float scale;                      // of scores, to base 2
  float max[2], sum[2], factor[2];  // factor: of the sums so far, since the last maximum

  HEED_DEVICE explicit PrefillSoftmax(const Call& c)
      : scale(Shape::bounded  ? 1.0f
              : Shape::capped ? 2 * c.softcap_log2e
              : Shape::biased ? 1.0f
                              : c.scale_log2e) {}

  HEED_DEVICE void clear() { max[0] = max[1] = Shape::bounded ? 0.0f : minus_infinity, sum[0] = sum[1] = 0; }

  // Scores become weights and are added to the sums. Of the first `columns`: no row sees another.
  template <int columns = keys>
  HEED_DEVICE void weigh(float (&s)[keys / 2]) {
    if constexpr (Shape::bounded)
      weigh_against_zero<columns>(s);
    else
      weigh_against_max<columns>(s);
  }

  // The threads' shares of row r's sum become the row's.
  HEED_DEVICE void add_up(int r) {
    sum[r] += shuffle_xor(sum[r], 1);
    sum[r] += shuffle_xor(sum[r], 2);
  }

  HEED_DEVICE void rescale(float (&o)[value_dim / 2]) const {
    if constexpr (!Shape::bounded) {
      if (!warp_any(factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
      for (int n = 0; n < value_dim / 8; ++n) {
        o[4 * n] *= factor[0], o[4 * n + 1] *= factor[0];
        o[4 * n + 2] *= factor[1], o[4 * n + 3] *= factor[1];
      }
    }
  }

 private:
  // The row's maximum follows when it is exceeded by 2^8, which weights can bear: only then are the sums so
  // far rescaled.
  template <int columns>
  HEED_DEVICE void weigh_against_max(float (&s)[keys / 2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = max[r];
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) now = fmaxf(now, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
      now = fmaxf(now, shuffle_xor(now, 1));
      now = fmaxf(now, shuffle_xor(now, 2));
      const bool moves = (now - max[r]) * scale > 8.0f;
      factor[r] = moves ? fast_exp2((max[r] - now) * scale) : 1.0f;
      max[r] = moves ? now : max[r];
      const float subtract = (max[r] == minus_infinity ? 0.0f : max[r] * scale) - lift<type>;
      float total = sum[r] * factor[r];
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
        float &a = s[4 * n + 2 * r], &b = s[4 * n + 2 * r + 1];
        a = fast_exp2(fmaf(a, scale, -subtract)), b = fast_exp2(fmaf(b, scale, -subtract));
        total += a + b;
      }
      sum[r] = total;
      if (Shape::weighs_beside_values && r == 0) stay_before_waits(total);
    }
  }

  template <int columns>
  HEED_DEVICE void weigh_against_zero(float (&s)[keys / 2]) {
#pragma unroll
    for (int n = 0; n < columns / 8; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float &a = s[4 * n + 2 * r], &b = s[4 * n + 2 * r + 1];
        a = fast_exp2(a), b = fast_exp2(b);
        sum[r] += a + b;
        if (Shape::weighs_beside_values && r == 1 && n + 1 == columns / 16)
          stay_before_waits(sum[0] + sum[1]);
      }
  }
};

// The two products, over operands that the producer loaded. They run on after these functions return:
// wait_for_products() comes before their sums are read.
template <class Shape>
struct PrefillProducts {
  static constexpr int dim = Shape::dim, value_dim = Shape::value_dim, keys = Shape::keys;
  static constexpr Type type = Shape::type;

  Operand first_queries, first_keys, first_values;
  Operand queries;  // of the tile at hand

  HEED_DEVICE PrefillProducts(const PrefillShared<Shape>& shared, int group)
      : first_queries(operand(shared.queries(0) + group * 64 * 128)),
        first_keys(operand(shared.keys(0), Shape::in_sixteens ? dim * 32 : 16)),
        first_values(operand(shared.values(0), Shape::in_sixteens ? 512 : keys * 128)) {}

  HEED_DEVICE void take_queries(unsigned n) {
    queries =
        advanced(first_queries, uniform(static_cast<int>(n % Shape::query_stages)) * Shape::query_bytes);
  }
  HEED_DEVICE static int stage(unsigned n) { return uniform(static_cast<int>(n % Shape::stages)); }

  // s = queries * keys^T
  template <int columns = keys>
  HEED_DEVICE void multiply_keys(float (&s)[keys / 2], int at) const {
    auto& sums = first_sums<columns / 2>(s);
    const Operand b = advanced(first_keys, at * Shape::key_bytes);
    pin(sums);
    fence_products();
#pragma unroll
    for (int k = 0; k < dim / 16; ++k) {
      const Operand a = advanced(queries, k / 4 * Shape::rows * 128 + k % 4 * 32);
      if constexpr (Shape::in_sixteens)
        multiply<type, 1, 32>(sums, a, advanced(b, k * 512), k != 0);
      else
        multiply<type, 0>(sums, a, advanced(b, k / 4 * keys * 128 + k % 4 * 32), k != 0);
    }
    commit_products();
    pin(sums);
  }

  // o += p * values, of which the first `rows` have weights.
  template <int rows = keys>
  HEED_DEVICE void multiply_values(float (&o)[value_dim / 2], std::uint32_t (&p)[keys / 4], int at) const {
    const Operand b = advanced(first_values, at * Shape::value_bytes);
    pin(p), pin(o);
    fence_products();
#pragma unroll
    for (int k = 0; k < rows / 16; ++k)
      multiply<type, 1, Shape::in_sixteens ? 32 : 128>(
          o, p + 4 * k, advanced(b, k * (Shape::in_sixteens ? value_dim * 32 : 2048)));
    commit_products();
    pin(o), pin(p);
  }
};

template <class Shape>
class PrefillConsumer {
  static constexpr int dim = Shape::value_dim, keys = Shape::keys;
  static constexpr Type type = Shape::type;

 public:
  HEED_DEVICE PrefillConsumer(const Call& call, const PrefillPlan& launch, PrefillShared<Shape> memory)
      : c(call), plan(launch), shared(memory), softmax(call), products(shared, rows.group) {}

  HEED_DEVICE void run() {
    if (rows.group == 0) named_arrive(1, 256);  // it is the first at the matrix units
    if constexpr (Shape::cut) rows.share(plan.tile_heads, Shape::rows);
    for (unsigned n = 0;; ++n) {
      barrier_wait(shared.slot_full(n), shared.slot_phase(n));
      rows.tile = shared.slot(n);
      if (rows.tile->b < 0) break;
      rows.tile->again ? attend_again(n) : attend(n);
      output().finish(o, softmax);
      sync_warp();
      // Every thread, for what it has read itself. In two instructions: one of all lanes moves registers of
      // the loops over keys, and 64 heads of 16384 x 128 took 13.07 ms instead of 12.90 (H200, November
      // 2026).
      if (rows.lane == 0) barrier_arrive(shared.slot_empty(n));
      if (rows.lane != 0) barrier_arrive(shared.slot_empty(n));
    }
    if (rows.team.thread() == 0) wait_for_stores_to_read();
  }

 private:
  // Where a tile of rows is longer than one of keys, a warpgroup may see fewer tiles than the others do.
  // Elsewhere only a tile that is not full may leave one idle: where keys are cut, most are not.
  // Not with masks, whose producer says which tiles come, nor where warps release keys, or a bias,
  // themselves.
  static constexpr bool may_pass = (Shape::rows > keys && !Shape::masked && !Shape::scaled) || Shape::cut;
  // Every second warpgroup sees half of its last tile under a causal mask, and does no more of it: 90 us
  // instead of 93 for 256 heads of 1024 x 64. With heads of 128 of its values too: 142.6 instead of 147.8
  // (H200, November 2026).
  static constexpr bool may_halve = keys == 128 && !Shape::masked && !Shape::scaled;
  // With a softcap registers do not suffice for it: ptxas reports C7511.
  static constexpr bool may_halve_values = may_halve && !may_pass && !Shape::capped;

  // Tiles of keys that some row of this warpgroup sees, and those that every row sees whole; last < first:
  // none.
  struct OwnTiles {
    int first, last, plain_begin, plain_end;
  };
  // Reads rows.tile each time: with a pointer of its own ptxas makes other code of the whole kernel.
  HEED_DEVICE OwnTiles own_tiles() const {
    if constexpr (!may_pass)
      return {rows.tile->first, rows.tile->last, rows.tile->plain_begin, rows.tile->plain_end};
    const bool is_shared = Shape::cut && plan.tile_heads > 1;
    const int before = is_shared ? 0 : rows.group * 64, here = min_of(rows.tile->rows - before, 64),
              i0 = rows.tile->first_query + before, i1 = i0 + here - 1;
    if (here <= 0 || rows.tile->begin_of(i0) >= rows.tile->end_of(i1))
      return {rows.tile->last + 1, rows.tile->last};
    if constexpr (Shape::cut)
      return {rows.tile->first, rows.tile->last, rows.tile->plain_begin, rows.tile->plain_end};
    return {uniform(rows.tile->begin_of(i0) / keys), uniform((rows.tile->end_of(i1) - 1) / keys),
            uniform((rows.tile->begin_of(i1) + keys - 1) / keys),
            uniform(max_of(rows.tile->end_of(i0), 0) / keys)};
  }

  // What the producer says of the tile of keys that comes now.
  HEED_DEVICE PrefillVisit next_visit(unsigned n) const {
    wait_for_keys(n);
    return *shared.visit(n);
  }

  // Until a tile has arrived.
  HEED_DEVICE void wait_for_keys(unsigned n) const { barrier_wait(shared.keys_full(n), shared.phase(n)); }
  HEED_DEVICE void wait_for_values(unsigned n) const { barrier_wait(shared.values_full(n), shared.phase(n)); }

  HEED_DEVICE void attend(unsigned n) {
    const OwnTiles own = own_tiles();
    begin_rows(n);
    if constexpr (Shape::masked) visit = next_visit(taken);
    const bool sees_any = !may_pass || own.first <= own.last;
    // The matrix units are passed on once for each tile but one: that where the first scores are found.
#pragma unroll 1
    for (int j = rows.tile->last; may_pass && j > (sees_any ? own.last : rows.tile->first - 1); --j)
      pass({.is_last = j == rows.tile->last, .has_units = sees_any || j < rows.tile->last});
    if (sees_any) {
      const bool halves = may_halve && rows.tile->end_of(rows.tile->first_query + rows.group * 64 + 63) <=
                                           own.last * keys + keys / 2;
      if (halves)
        begin<may_halve ? keys / 2 : keys>(own);
      else
        begin<keys>(own);
      if (own.last == rows.tile->last && rows.tile->tail < keys) clear_tail();

      // Tiles with a mask in loops of their own: one loop for all took 3 % longer (H200, November 2026).
      int j = own.last - 1;
      if constexpr (Shape::masked) {
#pragma unroll 1
        while (!visit.is_last()) {
          visit = next_visit(taken + 1);
          step(visit.tile(), {visit.tile() < own.plain_begin, visit.tile() >= own.plain_end});
        }
        j = -1;
      }
      if (may_halve_values && halves && j < own.plain_end && j >= max_of(own.plain_begin, own.first))
        step<keys / 2>(j--, {false, false});
#pragma unroll 1
      for (; j >= max_of(own.plain_end, own.first); --j) step(j, {j < own.plain_begin, true});
#pragma unroll 1
      for (; j >= max_of(own.plain_begin, own.first); --j) step(j, {false, false});
#pragma unroll 1
      for (; j >= own.first; --j) step(j, {true, false});

      if (Shape::out_has_memory) rows.release(shared.queries_empty(n));
      wait_for_values(taken);
      products.multiply_values(o, p, products.stage(taken));
      wait_for_products<0>();
      pin(o), pin(p);
      rows.release(shared.values_empty(taken));
      ++taken;
#pragma unroll 1
      for (; may_pass && j >= rows.tile->first; --j) pass({.is_last = false, .has_units = true});
    } else if (Shape::out_has_memory) {
      rows.release(shared.queries_empty(n));
    }
  }

  // Rows that have seen nothing yet, and their queries.
  HEED_DEVICE void begin_rows(unsigned n) {
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) o[i] = 0;
    softmax.clear();
    products.take_queries(n);
    barrier_wait(shared.queries_full(n), shared.query_phase(n));
    if constexpr (Shape::in_sixteens)
      turn_queries<Shape::pieces, Shape::rows * 128>(rows.team, shared.queries(n) + rows.group * 64 * 128);
  }

  // The weights of the last tile of keys, whose products nothing hides.
  template <int columns>
  HEED_DEVICE void begin(const OwnTiles& own) {
    wait_for_keys(taken);
    products.template multiply_keys<columns>(s, products.stage(taken));
    prepare(own.last, taken);
    wait_for_products<0>();
    pin(first_sums<columns / 2>(s));
    rows.release(shared.keys_empty(taken));
    weigh<columns>(own.last, {own.last < own.plain_begin, own.last >= own.plain_end});
    narrow<columns>();
  }

  struct Passed {
    bool is_last, has_units;  // has_units: the matrix units are handed on
  };
  // A tile that only other warpgroups see. Released when all threads have seen that it arrived: they could
  // not tell its phase from a later one.
  HEED_DEVICE void pass(const Passed& of) {
    wait_for_keys(taken);
    if (of.is_last && rows.tile->tail < keys) clear_tail();
    if (of.has_units) {
      named_sync(1 + rows.group, 256);
      named_arrive(1 + (rows.group + 1) % Shape::groups, 256);
    }
    wait_for_values(taken);
    rows.team.sync();
    rows.release(shared.keys_empty(taken)), rows.release(shared.values_empty(taken));
    ++taken;
  }

  // The scores of tile j, while the product of the last weights with the first `value_rows` of their values
  // runs.
  template <int value_rows = keys>
  HEED_DEVICE void step(int j, HiddenColumns hidden) {
    const unsigned next = taken + 1;
    const int keys_at = products.stage(next), values_at = products.stage(taken);
    wait_for_keys(next);
    named_sync(1 + rows.group, 256);  // until the matrix units are this warpgroup's
    products.multiply_keys(s, keys_at);
    wait_for_values(taken);
    products.template multiply_values<value_rows>(o, p, values_at);
    named_arrive(1 + (rows.group + 1) % Shape::groups, 256);
    prepare(j, next);
    wait_for_products<1>();
    pin(s);
    rows.release(shared.keys_empty(next));
    weigh(j, hidden);
    if constexpr (Shape::scaled) pin(first_sums<keys / 4>(s));
    wait_for_products<0>();
    pin(o), pin(p);
    rows.release(shared.values_empty(taken));
    narrow();
    softmax.rescale(o);
    taken = next;
  }

  // While the products of tile j, which lies in stage n, run.
  HEED_DEVICE void prepare(int j, unsigned n) {
    if constexpr (Shape::masked)
      if (visit.is_mixed()) mask.fetch(plan.mask, rows, j);
    if constexpr (Shape::biased) {
      barrier_wait(shared.bias_full(n), shared.phase(n));
      bias_is_low = bias(n).is_low();
    }
    stage = n;
  }
  // What this warp has read beside products.
  HEED_DEVICE void release_own(SharedAddress barrier) const {
    sync_warp();
    if (rows.lane == 0) barrier_arrive(barrier);
  }
  template <int columns = keys>
  HEED_DEVICE void weigh(int j, HiddenColumns hidden) {
    if constexpr (Shape::sloped) PrefillSlopes<Shape>{c, rows}.apply(s, j);
    if constexpr (Shape::biased) bias(stage).apply(s, bias_is_low), release_own(shared.bias_empty(stage));
    if constexpr (Shape::scaled) scales().scale_scores(s);
    hide<columns>(j, hidden);
    if constexpr (Shape::capped) {
      PrefillSoftcap<Shape>(c).template apply<columns>(s);
      hide<columns>(j, hidden);
    }
    softmax.template weigh<columns>(s);
    if constexpr (Shape::dropping) PrefillDropout<Shape>{c, rows}.apply(s, j);
    if constexpr (Shape::scaled) scales().template scale_weights<0, keys / 2>(s);
  }
  template <int columns>
  HEED_DEVICE void hide(int j, HiddenColumns hidden) {
    if constexpr (Shape::masked)
      if (visit.is_mixed()) mask.hide(s, rows);
    if (hidden.before) hide_before<Shape, columns>(s, rows, j);
    if (hidden.after) hide_after<Shape, columns>(s, rows, j);
  }
  HEED_DEVICE PrefillScales<Shape> scales() const { return {shared.scales(stage), rows.lane}; }
  HEED_DEVICE PrefillBias<Shape> bias(unsigned n) const { return {c, rows, shared.bias(n)}; }

  // Weights in 16 bits: a thread's sums lie as an operand wants them. Half of an int8 cache's get their
  // scales here, beside exponentials that come after the wait for the last product: 8192 keys under 512
  // queries took 113 us, with all of them before it 123 (H200, November 2026).
  template <int columns = keys>
  HEED_DEVICE void narrow() {
    if constexpr (Shape::scaled) scales().template scale_weights<keys / 2, keys>(s);
#pragma unroll
    for (int n = 0; n < keys / 4; ++n) {
      const int turned = Shape::in_sixteens && n % 4 >= 2;  // tokens 8 to 15 of sixteen
      p[n] = n < columns / 4 ? pack2<type>(s[2 * n + turned], s[2 * n + 1 - turned]) : 0;
    }
  }

  // Values beyond the sequence's keys have weight 0, but may be NaN.
  HEED_DEVICE void clear_tail() {
    wait_for_values(taken);
    const int from = rows.tile->tail, count = keys - from;
    if constexpr (Shape::in_sixteens)
      for (int n = thread_index() - 128; n < Shape::value_dim / 8 * count; n += 128 * Shape::groups)
        clear_shared16(shared.values(taken) +
                       value_in_sixteens<Shape::value_dim>(from + n % count, n / count));
    else
      for (int n = thread_index() - 128; n < Shape::value_pieces * count * 8; n += 128 * Shape::groups)
        clear_shared16(shared.values(taken) + (n / (count * 8) * keys + from) * 128 + n % (count * 8) * 16);
    fence_async_proxy();
    named_sync(4, 128 * Shape::groups);
  }

  // The second pass over a tile of rows, since a row of it came out as no number. A weight of 0 times a value
  // that is NaN is NaN, so that it reaches rows which do not see it, and which of them depends on how rows
  // lie in tiles. Here every such value is taken for 0; rows that do see it get it back at the end. So each
  // row has the bits of its own keys (O3), and only what it sees sends it to double precision. The sums are
  // those of the first pass, one after the other: nothing runs beside them.
  HEED_DEVICE void attend_again(unsigned n) {
    begin_rows(n);
    if constexpr (Shape::masked) {
#pragma unroll 1
      do {
        visit = next_visit(taken);
        attend_tile_again(visit.tile());
      } while (!visit.is_last());
    } else {
#pragma unroll 1
      for (int j = rows.tile->last; j >= rows.tile->first; --j) attend_tile_again(j);
    }
    if (Shape::out_has_memory) rows.release(shared.queries_empty(n));
    restore_poison();
  }

  HEED_DEVICE void attend_tile_again(int j) {
    wait_for_keys(taken);
    products.multiply_keys(s, products.stage(taken));
    prepare(j, taken);
    wait_for_products<0>();
    pin(s);
    rows.release(shared.keys_empty(taken));
    weigh(j, {true, true});
    narrow();
    softmax.rescale(o);
    wait_for_values(taken);
    clear_poison();
    products.multiply_values(o, p, products.stage(taken));
    wait_for_products<0>();
    pin(o), pin(p);
    rows.release(shared.values_empty(taken));
    ++taken;
  }

  // In the tile of values at hand, by all warpgroups.
  HEED_DEVICE void clear_poison() const {
    constexpr int pieces = Shape::value_bytes / 16;
    for (int n = thread_index() - 128; n < pieces; n += 128 * Shape::groups) {
      const SharedAddress at = shared.values(taken) + n * 16;
      const uint4 x = load_shared16(at);
      store_shared16(at, {finite_or_zero<type>(x.x), finite_or_zero<type>(x.y), finite_or_zero<type>(x.z),
                          finite_or_zero<type>(x.w)});
    }
    fence_async_proxy();
    named_sync(4, 128 * Shape::groups);
  }

  using RowBits = unsigned long long;  // one for each row of a warpgroup

  // NaN to the sums of every row that sees a value which is not finite. The outputs' memory holds the rows of
  // each dimension.
  HEED_DEVICE void restore_poison() {
    if (rows.team.thread() == 0) wait_for_stores_to_read();
    rows.team.sync();
    auto* const poisoned = static_cast<RowBits*>(__cvta_shared_to_generic(output().piece_at(0)));
    for (int d = rows.team.thread(); d < dim; d += 128) poisoned[d] = rows_poisoned_in(d);
    rows.team.sync();
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) {
      const int d = i / 4 * 8 + rows.lane % 4 * 2 + i % 2, r = rows.row_in_group + i / 2 % 2 * 8;
      if (poisoned[d] >> r & 1) o[i] = __builtin_nanf("");
    }
    rows.team.sync();
  }

  HEED_DEVICE RowBits rows_poisoned_in(int d) const {
    const RowTile* const tile = rows.tile;
    const int i0 = tile->first_query + rows.group * 64, i1 = i0 + 63;
    const std::int64_t kv_head = c.kv_head(tile->h);
    RowBits found = 0;
    if (d >= c.value_dim) return found;
    for (int j = tile->begin_of(i0); j < tile->end_of(i1); ++j) {
      if (is_finite(read(value_row(c, tile->b, kv_head, j), d))) continue;
      const RowBits in_range =
          rows_before(j - tile->first_offset + 1 - i0) & ~rows_before(j - tile->end_offset + 1 - i0);
      found |= Shape::masked ? shown(in_range & ~found, j) : in_range;
    }
    return found;
  }
  // Those of these rows that masks and a bias let see key j.
  HEED_DEVICE RowBits shown(RowBits of, int j) const {
    RowBits found = 0;
    for (; of != 0; of &= of - 1) {
      const int r = __ffsll(static_cast<long long>(of)) - 1, i = rows.tile->first_query + rows.group * 64 + r;
      if (r >= rows.rows_here()) break;
      if (plan.mask.words && !(plan.mask.row(rows.tile->b, rows.tile->h, i)[j / 32] >> j % 32 & 1)) continue;
      if (c.bias.data && read(row_of(c.bias, rows.query(i)), j) == minus_infinity) continue;
      found |= RowBits{1} << r;
    }
    return found;
  }
  HEED_DEVICE static RowBits rows_before(int r) {
    return r <= 0 ? 0 : r >= 64 ? ~RowBits{0} : (RowBits{1} << r) - 1;
  }

  HEED_DEVICE PrefillOutput<Shape> output() const { return {c, plan, shared, rows}; }

  const Call& c;
  const PrefillPlan& plan;
  const PrefillShared<Shape> shared;
  PrefillRows rows{};
  PrefillSoftmax<Shape> softmax;
  PrefillProducts<Shape> products;
  unsigned taken = 0;    // tiles of values
  PrefillVisit visit{};  // with masks: the tile of keys at hand
  PrefillMask<Shape> mask;
  unsigned stage = 0;  // of the tile of keys that is weighed
  bool bias_is_low = false;
  float o[dim / 2], s[keys / 2];
  std::uint32_t p[keys / 4];  // weights
};

}  // namespace heed::cuda
