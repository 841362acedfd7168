// SPDX-License-Identifier: Apache-2.0
// Consumers of Hopper's backward pass: two warpgroups of 64 keys each. All that a step finds is transposed,
// keys by queries, so that weights P and gradients of scores dS leave one product in the registers where the
// next one wants its first operand:
//
//   S = K Q^T     P = 2^(S - log-sum-exp)     dP = V dO^T     dS = P * (dP - delta)
//   dV += P dO    dK += dS Q                  dQ = dS^T K
//
// For dQ, which sums over the keys of both warpgroups, dS goes through shared memory, and each of them finds
// a half: 64 queries of 128, or half the dimensions of 64.
#pragma once
#include <cstdint>

#include "cuda/backward/hopper/fragment.cuh"
#include "cuda/backward/hopper/options.cuh"
#include "cuda/backward/hopper/products.cuh"
#include "cuda/backward/hopper/shared.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// The five products of a step.
template <class Shape>
struct BackwardProducts {
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, rows = Shape::rows, keys = Shape::keys;
  using Scores = float[rows / 2];             // S, dP
  using KeySums = float[dim / 2];             // dK, dV
  using QuerySums = float[rows * dim / 256];  // a half of dQ

  const SharedAddress memory;
  const int group;

  HEED_DEVICE static int stage(unsigned n) {
    return uniform(static_cast<int>(n % Shape::stages)) * Shape::query_bytes;
  }

  // S = K Q^T and dP = V dO^T.
  HEED_DEVICE void multiply_queries(Scores& s, unsigned n) const {
    multiply_rows<type, dim>(s, own_keys(Shape::keys_at), queries(Shape::queries_at, n));
  }
  HEED_DEVICE void multiply_gradients(Scores& dp, unsigned n) const {
    multiply_rows<type, dim>(dp, own_keys(Shape::values_at), queries(Shape::gradients_at, n));
  }

  // dV += P dO and dK += dS Q, over the queries of one half of the step.
  HEED_DEVICE void add_values(KeySums& dv, BackwardWeights& p, unsigned n, int half) const {
    add_rows<type>(dv, p, queries(Shape::gradients_at + half * 64 * 128, n));
  }
  HEED_DEVICE void add_keys(KeySums& dk, BackwardWeights& ds, unsigned n, int half) const {
    add_rows<type>(dk, ds, queries(Shape::queries_at + half * 64 * 128, n));
  }

  // dQ = dS^T K. With a bias dS lies as the bias does, queries by keys.
  HEED_DEVICE void multiply_scores(QuerySums& dq, unsigned n) const {
    const int buffer = Shape::scores_at + static_cast<int>(n % 2) * Shape::score_bytes;
    constexpr int dims_apart = rows == 128 ? 0 : dim == 64 ? 64 : keys * 128;  // bytes
    const Operand a = operand_anew(memory + buffer + (rows == 128 ? group : 0) * keys * 128),
                  b = operand_anew(memory + Shape::keys_at + group * dims_apart);
    pin(dq);
    fence_products();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) {
      const int of_keys = Shape::biased ? k / 4 * rows * 128 + k % 4 * 32 : k * 2048;
      multiply<type, 1, 128, !Shape::biased>(dq, advanced(a, of_keys), advanced(b, k * 2048), k != 0);
    }
    commit_products();
    pin(dq);
  }

 private:
  HEED_DEVICE RowsAt own_keys(int offset) const { return {memory + offset + group * 64 * 128, keys * 128}; }
  HEED_DEVICE RowsAt queries(int offset, unsigned n) const {
    return {memory + offset + stage(n), rows * 128};
  }
};

// From scores to weights and to gradients of scores. Queries run along the columns.
template <class Shape>
struct BackwardScores {
  static constexpr Type type = Shape::type;
  static constexpr int rows = Shape::rows;
  using Scores = float[rows / 2];
  using Weights = BackwardWeights;

  const Call& c;
  const BackwardKeys& keys;

  // Scores of keys that a query does not see become -inf. The tile begins at query i.
  HEED_DEVICE void hide(Scores& s, int i) const {
    if (keys.tile->hides_after(i)) hide_after(s, i);
    if (keys.tile->hides_before(i + rows - 1)) hide_before(s, i);
  }

  // Products become tanh of what a softcap gets.
  HEED_DEVICE void cap(Scores& s) const {
    const float factor = in_register(c.scale_over_softcap);
#pragma unroll
    for (int i = 0; i < rows / 2; ++i) s[i] = fast_tanh(s[i] * factor);
  }

  // Scores become weights, the first 64 queries of them in 16 bits too; with a softcap, after that, weights
  // times the slope of the score. `numbers`: what the queries have to themselves.
  // `remain`: which of the weights in 16 bits are not dropped.
  HEED_DEVICE void weigh(Scores& s, Weights& p, SharedAddress numbers, std::uint32_t remain) const {
    const float scale = Shape::capped ? c.softcap_log2e : Shape::biased ? 1.0f : c.scale_log2e;
#pragma unroll
    for (int n = 0; n < rows / 8; ++n) {
      const float2 subtracted = load_shared8(numbers + n * 32 + keys.lane % 4 * 8);
      float weight[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        weight[e] = fast_exp2(fmaf(s[4 * n + e], scale, e % 2 == 0 ? subtracted.x : subtracted.y));
      const auto applied = [&](int e) { return is_dropped(remain, 4 * n + e) ? 0.0f : weight[e]; };
      if (n < 8)
        p[2 * n] = pack2<type>(applied(0), applied(1)), p[2 * n + 1] = pack2<type>(applied(2), applied(3));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[4 * n + e];
        x = Shape::capped ? weight[e] * fmaxf(fmaf(-x, x, 1.0f), 0.0f) : weight[e];  // 0 where x is -inf
      }
    }
  }

  // Of half `half` of the queries.
  HEED_DEVICE static void narrow(Weights& p, const Scores& s, int half) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      p[2 * n] = pack2<type>(s[4 * (8 * half + n)], s[4 * (8 * half + n) + 1]);
      p[2 * n + 1] = pack2<type>(s[4 * (8 * half + n) + 2], s[4 * (8 * half + n) + 3]);
    }
  }

  // dS = P (dP - delta), of half of the queries, whose deltas are those of `numbers`.
  HEED_DEVICE void differentiate(Weights& ds, const float* p, const float* dp, SharedAddress numbers,
                                 std::uint32_t remain) const {
    const float kept = Shape::dropping ? in_register(c.keep_scale) : 1.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 delta = load_shared8(numbers + n * 32 + keys.lane % 4 * 8);
      const auto of = [&](int e) {
        // fault: hopper-gradient-of-dropped-delta
        const float of_weight = is_dropped(remain, 4 * n + e) ? 0.0f : dp[4 * n + e],
                    subtracted = e % 2 == 0 ? delta.x : delta.y,
                    less = Shape::dropping ? fmaf(of_weight, kept, -subtracted) : of_weight - subtracted;
        return Shape::biased ? fmaf(p[4 * n + e], less, 0.0f) : p[4 * n + e] * less;  // every zero is +0
      };
      ds[2 * n] = pack2<type>(of(0), of(1)), ds[2 * n + 1] = pack2<type>(of(2), of(3));
    }
  }

 private:
  HEED_DEVICE static bool is_dropped(std::uint32_t remain, int score) {
    return Shape::dropping && !(remain >> score & 1);
  }
  // Keys at or beyond the end of what a query sees: hidden from queries up to this one.
  HEED_DEVICE void hide_after(Scores& s, int i) const {
    const KeyTile& tile = *keys.tile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int j = tile.first_key() + keys.key(r);
      // fault: hopper-gradient-of-a-later-key
      const int from = j >= tile.key_count ? rows + 8 : j - tile.end_offset + 1 - i - 2 * (keys.lane % 4);
#pragma unroll
      for (int n = 0; n < rows / 8; ++n) {
        if (8 * n < from) s[4 * n + 2 * r] = minus_infinity;
        if (8 * n + 1 < from) s[4 * n + 2 * r + 1] = minus_infinity;
      }
    }
  }
  // Keys before what a query sees: hidden from queries after this one.
  HEED_DEVICE void hide_before(Scores& s, int i) const {
    const KeyTile& tile = *keys.tile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int to = tile.first_key() + keys.key(r) - tile.first_offset - i - 2 * (keys.lane % 4);
#pragma unroll
      for (int n = 0; n < rows / 8; ++n) {
        if (8 * n > to) s[4 * n + 2 * r] = minus_infinity;
        if (8 * n + 1 > to) s[4 * n + 2 * r + 1] = minus_infinity;
      }
    }
  }
};

template <class Shape>
class BackwardConsumer {
  static constexpr int dim = Shape::dim, rows = Shape::rows, halves = Shape::halves;
  static constexpr Type type = Shape::type;
  static constexpr bool writes_marked = Shape::writes_marked;
  using Products = BackwardProducts<Shape>;

 public:
  HEED_DEVICE BackwardConsumer(const GradientCall& call, const BackwardPlan& launch,
                               BackwardShared<Shape> memory)
      : g(call), plan(launch), shared(memory), products{shared.at, keys.group} {}

  HEED_DEVICE void run() {
#pragma unroll 1
    for (unsigned n = 0;; ++n) {
      barrier_wait(shared.slot_full(n), shared.phase_of_two(n));
      keys.tile = shared.slot(n);
      if (keys.tile->b < 0) break;
#pragma unroll
      for (int i = 0; i < dim / 2; ++i) dk[i] = dv[i] = 0;
      if (keys.tile->first <= keys.tile->last) attend();
      const GradientTarget of_values{g.v, g.rows.unfinished_v, g.forward.value_dim, lowered<type> * kept()},
          of_keys{g.k, g.rows.unfinished_k, g.forward.dim, g.scale * lowered<type>};
      if (Shape::copies && keys.tile->is_copied)
        give_sums(of_values, of_keys);
      else
        write(dv, of_values), write(dk, of_keys);
      keys.release_own(shared.slot_empty(n));
    }
    if (stores_bias()) wait_for_stores();
  }

 private:
  // All steps of the tile of keys at hand. While a step's scores become weights its dP is found, and while
  // the weights become dS, dV is. dQ goes to memory while dK is found, whose first operand is in registers,
  // so that the two do not meet in shared memory: with dK before it, and dQ on its way while the next step's
  // S is found, 64 heads of 4096 x 128 over 8 reached 511 TFLOP/s instead of 559 (H200, November 2026). Of 64
  // dimensions options and f16 have that order all the same, since ptxas lets their products wait in the
  // other (C7511).
  HEED_DEVICE void attend() {
    const int group = plan.group;
    BackwardStep step(*keys.tile, group);
    if constexpr (Shape::dropping) remain = options_of(step).drawn(0);
    barrier_wait(shared.keys_full(), key_tiles & 1);
    clear_keys();
    barrier_wait(shared.queries_full(steps), shared.phase(steps));
    clear_queries(step.tile);
    products.multiply_queries(s, steps);
    barrier_wait(shared.values_full(), key_tiles & 1);
    barrier_wait(shared.gradients_full(steps), shared.phase(steps));
    products.multiply_gradients(dp, steps);
    weigh(step);
    if constexpr (Shape::copies)
      barrier_wait(shared.copy_empty(), copies & 1 ^ 1);  // give_sums() puts dK where dS will be
#pragma unroll 1
    for (;;) {
      const unsigned n = steps++;
      differentiate(n);
      if (stores_bias()) wait_for_stores_to_read();  // of the step before, whose memory is the next one's
      keys.sync_both();
      products.multiply_scores(query_sums(), n);
      if constexpr (Shape::biased) store_bias(step, n);
      if constexpr (Shape::dropping) remain = options_of(step.next(group)).drawn(0);  // while sums are found
      if constexpr (Shape::keys_come_last) {
        products.add_keys(dk, ds[halves - 1], n, halves - 1);
        step.advance(group);
        wait_for_products<1>();
        pin(dv), pin(query_sums());
        if (Shape::copies && step.is_over()) keys.release_own(shared.keys_empty());
        give(n);
        wait_for_products<0>();
        pin(dk);
        if constexpr (!Shape::copies) keys.release_own(shared.stage_empty(n));
        if (step.is_over()) break;
        if constexpr (Shape::copies) keys.release_own(shared.stage_empty(n));
        barrier_wait(shared.queries_full(steps), shared.phase(steps));
        clear_queries(step.tile);
        products.multiply_queries(s, steps);
      } else {
        wait_for_products<1>();
        pin(dv), pin(dk);
        keys.release_own(shared.stage_empty(n));
        step.advance(group);
        if (step.is_over()) {
          wait_for_products<0>();
          pin(query_sums());
          give(n);
          break;
        }
        barrier_wait(shared.queries_full(steps), shared.phase(steps));
        wait_for_products<0>();
        pin(query_sums());
        clear_queries(step.tile);
        products.multiply_queries(s, steps);
        give(n);
      }
      barrier_wait(shared.gradients_full(steps), shared.phase(steps));
      products.multiply_gradients(dp, steps);
      weigh(step);
    }
    // Both warpgroups are past their last products, whose operands may be written over.
    keys.sync_both();
    if constexpr (!Shape::copies)
      keys.release_own(shared.keys_empty());
    else if (!keys.tile->is_copied)
      keys.release_own(shared.stage_empty(steps - 1));
    ++key_tiles;
  }

  // Rows that are not the sequence's own have weights of 0, but may be NaN.
  HEED_DEVICE void clear_keys() const {
    const int from = keys.tile->key_count - keys.tile->first_key();
    if (from >= Shape::keys) return;
    barrier_wait(shared.values_full(), key_tiles & 1);
    clear<Shape::keys>(shared.keys(), from);
    clear<Shape::keys>(shared.values(), from);
    fence_async_proxy();
    keys.sync_both();
  }
  HEED_DEVICE void clear_queries(int tile) const {
    const int from = keys.tile->queries - tile * rows;
    if (from >= rows) return;
    barrier_wait(shared.gradients_full(steps), shared.phase(steps));
    clear<rows>(shared.queries(steps), from);
    clear<rows>(shared.gradients(steps), from);
    fence_async_proxy();
    keys.sync_both();
  }
  // Rows of an operand from this one on, by both warpgroups.
  template <int all>
  HEED_DEVICE static void clear(SharedAddress operand, int from) {
    const int count = all - from;
    for (int n = thread_index() - 128; n < Shape::pieces * count * 8; n += 128 * Shape::groups)
      clear_shared16(operand + (n / (count * 8) * all + from) * 128 + n % (count * 8) * 16);
  }

  // Ends with dP complete.
  HEED_DEVICE void weigh(const BackwardStep& step) {
    const BackwardOptions<Shape> options = options_of(step);
    if constexpr (Shape::dropping) remain = options.remaining(remain | options.drawn(1));
    wait_for_products<1>();
    pin(s);
    if constexpr (Shape::capped) scores().cap(s);
    if constexpr (Shape::sloped) options.add_slopes(s);
    if constexpr (Shape::biased) {
      barrier_wait(shared.bias_full(), steps & 1);
      options.add_bias(s, shared.bias());
      keys.release_own(shared.bias_empty());
    }
    if constexpr (Shape::masked)
      if (plan.mask.words) options.hide(s, shared.mask(steps));
    scores().hide(s, step.tile * rows);
    scores().weigh(s, p[0], shared.rows(steps), remain);
    wait_for_products<0>();
    pin(dp);
  }

  // dV and dK of step n, but for dK of the last half where it comes last, and its dS to shared memory.
  HEED_DEVICE void differentiate(unsigned n) {
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      if (half > 0) scores().narrow(p[half], s, half);
      products.add_values(dv, p[half], n, half);
      scores().differentiate(ds[half], s + 32 * half, dp + 32 * half, shared.rows(n) + (rows + half * 64) * 4,
                             remain);
      put(ds[half], n, half);
      if (!Shape::keys_come_last || half < halves - 1) products.add_keys(dk, ds[half], n, half);
    }
  }

  // In the swizzle of operands: rows of 64 queries for each key; with a bias, of 64 keys for each query.
  HEED_DEVICE void put(const BackwardWeights& x, unsigned n, int half) const {
    if constexpr (Shape::biased) return put_queries(x, n);
    const int row = keys.group * 64 + thread_index() % 128 / 32 * 16 + keys.lane % 16;
    const SharedAddress to = shared.scores(n) + half * Shape::keys * 128 + row * 128;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      store_matrices(to + ((2 * k + keys.lane / 16) ^ row % 8) * 16, x[4 * k], x[4 * k + 1], x[4 * k + 2],
                     x[4 * k + 3]);
    fence_async_proxy();
  }

  HEED_DEVICE void put_queries(const BackwardWeights& x, unsigned n) const {
    const SharedAddress to = keys.in_queries(shared.scores(n));
#pragma unroll
    for (int k = 0; k < 4; ++k)
      store_matrices_transposed(to + k * 16 * 128, x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
    fence_async_proxy();
  }

  // dS of step n is the gradient by the bias: the copy engine takes the warpgroup's 64 keys. A row that has
  // what is no number has a dQ that is none, by which it is found (rows.cuh).
  HEED_DEVICE void store_bias(const BackwardStep& step, unsigned n) const {
    if (!stores_bias()) return;
    const KeyTile& tile = *keys.tile;
    // fault: hopper-bias-gradient-of-another-head
    store_box(&plan.to_bias,
              {tile.first_key() + keys.group * 64, step.tile * rows, tile.head(step.member), tile.b},
              shared.scores(n) + keys.group * rows * 128, evict_first);
    commit_stores();
  }
  // One thread of a warpgroup.
  HEED_DEVICE bool stores_bias() const {
    return Shape::biased && type == Type::bf16 && plan.bias_gradient == BiasGradient::of_products &&
           thread_index() % 128 == 0;
  }

  // dQ of step n to those who add it.
  HEED_DEVICE void give(unsigned n) {
    const auto& dq = query_sums();
    barrier_wait(shared.sums_empty(n), shared.phase_of_sums(n) ^ 1);
    const SharedAddress to = shared.sums(n) + keys.group * (Shape::sum_bytes / 2) + thread_index() % 128 * 16;
#pragma unroll
    for (int i = 0; i < rows * dim / 1024; ++i)
      store_shared_floats(to + i * 2048, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    fence_async_proxy();
    keys.release_own(shared.sums_full(n));
  }

  // dV and dK of the tile, for the copy engine.
  HEED_DEVICE void give_sums(const GradientTarget& of_values, const GradientTarget& of_keys) {
    put_sums(dv, shared.copied_values(keys.group, steps - 1), of_values);
    put_sums(dk, shared.copied_keys(keys.group), of_keys);
    fence_async_proxy();
    keys.release_own(shared.copy_full());
    ++copies;
  }
  // As write() does it, in the swizzle of operands. What is no number is marked, too; that it is written
  // harms nobody.
  HEED_DEVICE void put_sums(const float (&sums)[dim / 2], const RowsAt& rows_at,
                            const GradientTarget& to) const {
    const int row = thread_index() % 128 / 32 * 16 + keys.lane % 16;
    float poison[2] = {0, 0};
#pragma unroll
    for (int piece = 0; piece < Shape::pieces; ++piece)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t two[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int at = 32 * piece + 8 * k + 2 * n;
          const float x = fmaf(sums[at], to.factor, 0.0f), y = fmaf(sums[at + 1], to.factor, 0.0f);
          poison[0] = fmaf(x, 0.0f, poison[0]), poison[1] = fmaf(y, 0.0f, poison[1]);
          two[n] = pack2<type>(x, y);
        }
        store_matrices(
            rows_at.at + piece * rows_at.piece_bytes + row * 128 + ((2 * k + keys.lane / 16) ^ row % 8) * 16,
            two[0], two[1], two[2], two[3]);
      }
    if (warp_any(poison[0] + poison[1] != 0)) mark(sums, to);
  }
  HEED_DEVICE void mark(const float (&sums)[dim / 2], const GradientTarget& to) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const TargetRow target = row_of_target(to, r);
#pragma unroll
      for (int slab = 0; slab < Shape::pieces; ++slab)
        if (!all_finite(reinterpret_cast<const SlabSums&>(sums[32 * slab]), r, to.factor))
          mark_slab(g, to, target, slab);
    }
  }

  HEED_DEVICE void write(const float (&sums)[dim / 2], const GradientTarget& to) const {
    if (!to.tensor.data) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const TargetRow target = row_of_target(to, r);
#pragma unroll
      for (int slab = 0; slab < Shape::pieces; ++slab)
        write_slab<writes_marked>(g, to, target, slab, reinterpret_cast<const SlabSums&>(sums[32 * slab]), r);
    }
  }

  // Of the thread's key r.
  HEED_DEVICE TargetRow row_of_target(const GradientTarget& to, int r) const {
    const KeyTile& tile = *keys.tile;
    const std::int64_t row = tile.first_key_row + keys.key(r);
    return {row_of(to.tensor, tile.b, tile.kv_head, row), g.key(tile.b, tile.kv_head, row),
            keys.key(r) < tile.keys};
  }

  HEED_DEVICE BackwardScores<Shape> scores() const { return {g.forward, keys}; }
  HEED_DEVICE BackwardOptions<Shape> options_of(const BackwardStep& step) const {
    return {g.forward, keys, keys.tile->head(step.member), step.tile * rows};
  }
  // dQ takes the place of dP, which has been read when it is begun.
  HEED_DEVICE typename Products::QuerySums& query_sums() { return first_sums<rows * dim / 256>(dp); }
  // What weights that are not dropped are multiplied with.
  HEED_DEVICE float kept() const { return Shape::dropping ? g.forward.keep_scale : 1.0f; }

  const GradientCall& g;
  const BackwardPlan& plan;
  const BackwardShared<Shape> shared;
  BackwardKeys keys{};
  const Products products;
  unsigned steps = 0, key_tiles = 0, copies = 0;  // so far; key_tiles: those that have steps
  float dk[dim / 2], dv[dim / 2], s[rows / 2], dp[rows / 2];
  BackwardWeights p[halves], ds[halves];
  std::uint32_t remain = 0;  // after dropout, a bit for each score
};

}  // namespace heed::cuda
