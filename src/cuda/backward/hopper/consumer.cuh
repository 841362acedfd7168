// SPDX-License-Identifier: Apache-2.0
// Consumers of Hopper's backward pass: two warpgroups of 64 keys each. All that a step finds is transposed,
// keys by queries, so that weights P and gradients of scores dS leave one product in the registers where the
// next one wants its first operand:
//
//   S = K Q^T     P = 2^(S - log-sum-exp)     dP = V dO^T     dS = P * (dP - delta)
//   dV += P dO    dK += dS Q                  dQ = dS^T K
//
// For dQ, which sums over the keys of both warpgroups, dS goes through shared memory, and each of them finds
// a half: 64 dimensions of 64 queries.
#pragma once
#include <cstdint>

#include "cuda/backward/hopper/fragment.cuh"
#include "cuda/backward/hopper/shared.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// The two keys of a thread, eight apart, in the tile at hand.
struct BackwardKeys {
  const int group = warpgroup_index() - 1;
  int lane = thread_index() % 32;
  KeyTile* tile = nullptr;  // in shared memory, until it is released

  // Of the tile.
  HEED_DEVICE int key(int r) const { return thread_index() / 32 % 4 * 16 + lane / 4 + group * 64 + 8 * r; }

  // Once for the warpgroup.
  HEED_DEVICE static void release(SharedAddress barrier) {
    if (thread_index() % 128 == 0) barrier_arrive(barrier);
  }
  HEED_DEVICE void sync_both() const { named_sync(1, 256); }
};

// The five products. They run on after these functions return: wait_for_products() comes before their sums
// are read, and before a loop begins anew, or ptxas lets each one wait for the one before (C7514).
template <class Shape>
struct BackwardProducts {
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, rows = Shape::rows, keys = Shape::keys;
  using Scores = float[rows / 2];     // S, dP
  using Weights = std::uint32_t[16];  // 64 queries of P or dS, in 16 bits
  using KeySums = float[dim / 2];     // dK, dV

  const SharedAddress memory;
  const int group;

  HEED_DEVICE static int stage(unsigned n) {
    return uniform(static_cast<int>(n % Shape::stages)) * Shape::query_bytes;
  }

  // S = K Q^T and dP = V dO^T.
  HEED_DEVICE void multiply_queries(Scores& s, unsigned n) const {
    multiply_rows(s, Shape::keys_at, Shape::queries_at + stage(n));
  }
  HEED_DEVICE void multiply_gradients(Scores& dp, unsigned n) const {
    multiply_rows(dp, Shape::values_at, Shape::gradients_at + stage(n));
  }

  // dV += P dO and dK += dS Q, over the queries of one half of the step.
  HEED_DEVICE void add_values(KeySums& dv, Weights& p, unsigned n, int half) const {
    add_rows(dv, p, Shape::gradients_at + stage(n) + half * 64 * 128);
  }
  HEED_DEVICE void add_keys(KeySums& dk, Weights& ds, unsigned n, int half) const {
    add_rows(dk, ds, Shape::queries_at + stage(n) + half * 64 * 128);
  }

  // dQ = dS^T K
  HEED_DEVICE void multiply_scores(SlabSums& dq, unsigned n) const {
    const int buffer = Shape::scores_at + static_cast<int>(n % 2) * Shape::score_bytes;
    const Operand a = anew(buffer + (dim == 64 ? group : 0) * keys * 128),
                  b = anew(Shape::keys_at + (dim == 64 ? 0 : group) * keys * 128);
    pin(dq);
    fence_products();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k)
      multiply<type, 1, 128, 1>(dq, advanced(a, k * 2048), advanced(b, k * 2048), k != 0);
    commit_products();
    pin(dq);
  }

 private:
  // An operand at this offset. Not held in registers from one step to the next: there are none for it.
  HEED_DEVICE Operand anew(int offset, int next = 16) const {
    Operand x = operand(memory + offset, next);
    asm volatile("" : "+r"(x));
    return x;
  }

  HEED_DEVICE void multiply_rows(Scores& s, int own, int all) const {
    const Operand a = anew(own + group * 64 * 128), b = anew(all);
    pin(s);
    fence_products();
#pragma unroll
    for (int k = 0; k < dim / 16; ++k)
      multiply<type, 0>(s, advanced(a, k / 4 * keys * 128 + k % 4 * 32),
                        advanced(b, k / 4 * rows * 128 + k % 4 * 32), k != 0);
    commit_products();
    pin(s);
  }

  HEED_DEVICE void add_rows(KeySums& sums, Weights& w, int below) const {
    const Operand b = anew(below, rows * 128);
    pin(w), pin(sums);
    fence_products();
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply<type, 1>(sums, w + 4 * k, advanced(b, k * 2048));
    commit_products();
    pin(sums), pin(w);
  }
};

// From scores to weights and to gradients of scores. Queries run along the columns.
template <class Shape>
struct BackwardScores {
  static constexpr Type type = Shape::type;
  static constexpr int rows = Shape::rows;
  using Scores = float[rows / 2];
  using Weights = std::uint32_t[16];

  const Call& c;
  const BackwardKeys& keys;

  // Scores of keys that a query does not see become -inf. The tile begins at query i.
  HEED_DEVICE void hide(Scores& s, int i) const {
    if (keys.tile->hides_after(i)) hide_after(s, i);
    if (keys.tile->hides_before(i + rows - 1)) hide_before(s, i);
  }

  // Products become tanh of what a softcap gets.
  HEED_DEVICE void cap(Scores& s) const {
    const float reciprocal = 1.0f / c.softcap_log2e,
                inverse = reciprocal > max_finite ? max_finite : reciprocal;
#pragma unroll
    for (int i = 0; i < rows / 2; ++i) s[i] = tanh_of_few_registers(s[i] * c.scale_log2e * inverse);
  }

  // Scores become weights, the first 64 queries of them in 16 bits too; with a softcap, after that, weights
  // times the slope of the score. `numbers`: what the queries have to themselves.
  HEED_DEVICE void weigh(Scores& s, Weights& p, SharedAddress numbers) const {
    const float scale = Shape::capped ? c.softcap_log2e : c.scale_log2e;
#pragma unroll
    for (int n = 0; n < rows / 8; ++n) {
      const float2 subtracted = load_shared8(numbers + n * 32 + keys.lane % 4 * 8);
      float weight[4];
#pragma unroll
      for (int e = 0; e < 4; ++e)
        weight[e] = fast_exp2(fmaf(s[4 * n + e], scale, e % 2 == 0 ? subtracted.x : subtracted.y));
      if (n < 8)
        p[2 * n] = pack2<type>(weight[0], weight[1]), p[2 * n + 1] = pack2<type>(weight[2], weight[3]);
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

  // dS = P (dP - delta)
  HEED_DEVICE void differentiate(Weights& ds, const Scores& p, const Scores& dp, SharedAddress numbers,
                                 int half) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int at = 8 * half + n;
      const float2 delta = load_shared8(numbers + rows * 4 + at * 32 + keys.lane % 4 * 8);
      ds[2 * n] = pack2<type>(p[4 * at] * (dp[4 * at] - delta.x), p[4 * at + 1] * (dp[4 * at + 1] - delta.y));
      ds[2 * n + 1] =
          pack2<type>(p[4 * at + 2] * (dp[4 * at + 2] - delta.x), p[4 * at + 3] * (dp[4 * at + 3] - delta.y));
    }
  }

 private:
  // Keys at or beyond the end of what a query sees: hidden from queries up to this one.
  HEED_DEVICE void hide_after(Scores& s, int i) const {
    const KeyTile& tile = *keys.tile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int j = tile.first_key() + keys.key(r);
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
      write(dv, {g.v, g.rows.unfinished_v, g.forward.value_dim, lowered<type>});
      write(dk, {g.k, g.rows.unfinished_k, g.forward.dim, g.scale * lowered<type>});
      // Every thread, for what it has read itself. In two instructions, as prefill does it: one of all lanes
      // moves registers of the loop, and ptxas lets products wait (C7511).
      sync_warp();
      if (keys.lane == 0) barrier_arrive(shared.slot_empty(n));
      if (keys.lane != 0) barrier_arrive(shared.slot_empty(n));
    }
  }

 private:
  // All steps of the tile of keys at hand. While a step's scores become weights its dP is found, and while
  // the weights become dS, dV is; the next step's S while dQ goes to memory.
  HEED_DEVICE void attend() {
    const int group = plan.group;
    BackwardStep step(*keys.tile, group);
    barrier_wait(shared.keys_full(), key_tiles & 1);
    clear_keys();
    barrier_wait(shared.queries_full(steps), shared.phase(steps));
    clear_queries(step.tile);
    products.multiply_queries(s, steps);
    barrier_wait(shared.values_full(), key_tiles & 1);
    barrier_wait(shared.gradients_full(steps), shared.phase(steps));
    products.multiply_gradients(dp, steps);
    weigh(step.tile);
#pragma unroll 1
    for (;;) {
      const unsigned n = steps++;
      differentiate(n);
      keys.sync_both();
      products.multiply_scores(query_sums(), n);
      wait_for_products<1>();
      pin(dv), pin(dk);
      keys.release(shared.stage_empty(n));
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
      barrier_wait(shared.gradients_full(steps), shared.phase(steps));
      products.multiply_gradients(dp, steps);
      weigh(step.tile);
    }
    // Both warpgroups are past their last dQ: the next keys may come.
    keys.sync_both();
    keys.release(shared.keys_empty());
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
  HEED_DEVICE void weigh(int tile) {
    wait_for_products<1>();
    pin(s);
    if constexpr (Shape::capped) scores().cap(s);
    scores().hide(s, tile * rows);
    scores().weigh(s, p[0], shared.rows(steps));
    wait_for_products<0>();
    pin(dp);
  }

  // dV and dK of step n, and its dS to shared memory.
  HEED_DEVICE void differentiate(unsigned n) {
#pragma unroll
    for (int half = 0; half < halves; ++half) {
      if (half > 0) scores().narrow(p[half], s, half);
      products.add_values(dv, p[half], n, half);
      scores().differentiate(ds[half], s, dp, shared.rows(n), half);
      put(ds[half], n, half);
      products.add_keys(dk, ds[half], n, half);
    }
  }

  // In the swizzle of operands: rows of 64 queries for each key.
  HEED_DEVICE void put(const std::uint32_t (&x)[16], unsigned n, int half) const {
    const int row = keys.group * 64 + thread_index() % 128 / 32 * 16 + keys.lane % 16;
    const SharedAddress to = shared.scores(n) + half * Shape::keys * 128 + row * 128;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      store_matrices(to + ((2 * k + keys.lane / 16) ^ row % 8) * 16, x[4 * k], x[4 * k + 1], x[4 * k + 2],
                     x[4 * k + 3]);
    fence_async_proxy();
  }

  // dQ of step n to those who add it.
  HEED_DEVICE void give(unsigned n) {
    const auto& dq = query_sums();
    barrier_wait(shared.sums_empty(), n & 1 ^ 1);
    const SharedAddress to = shared.sums() + keys.group * (Shape::sum_bytes / 2) + thread_index() % 128 * 16;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      store_shared_floats(to + i * 2048, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    fence_async_proxy();
    sync_warp();
    if (keys.lane == 0) barrier_arrive(shared.sums_full(n));
  }

  HEED_DEVICE void write(const float (&sums)[dim / 2], const GradientTarget& to) const {
    if (!to.tensor.data) return;
    const KeyTile& tile = *keys.tile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::int64_t row = tile.first_key_row + keys.key(r);
      const TargetRow target{row_of(to.tensor, tile.b, tile.kv_head, row), g.key(tile.b, tile.kv_head, row),
                             keys.key(r) < tile.keys};
#pragma unroll
      for (int slab = 0; slab < Shape::pieces; ++slab)
        write_slab(g, to, target, slab, reinterpret_cast<const SlabSums&>(sums[32 * slab]), r);
    }
  }

  HEED_DEVICE BackwardScores<Shape> scores() const { return {g.forward, keys}; }
  // dQ takes the place of dP, which has been read when it is begun.
  HEED_DEVICE SlabSums& query_sums() { return first_sums<32>(dp); }

  const GradientCall& g;
  const BackwardPlan& plan;
  const BackwardShared<Shape> shared;
  BackwardKeys keys{};
  const Products products;
  unsigned steps = 0, key_tiles = 0;  // so far; key_tiles: those that have steps
  float dk[dim / 2], dv[dim / 2], s[rows / 2], dp[rows / 2];
  std::uint32_t p[halves][16], ds[halves][16];
};

}  // namespace heed::cuda
