// SPDX-License-Identifier: Apache-2.0
// dK and dV of wide heads. A block has 64 keys: one of its warpgroups finds scores and dV, the other dP and
// dK, so that each has one sum in its registers.
//
//   S = K Q^T    P = 2^(S - log-sum-exp)    dV += P dO      the first
//   dP = V dO^T  dS = P * (dP - delta)      dK += dS Q      the second, which gets P through shared memory
//
// Four products where a kernel for each of the sums had five: with dQ and all else, 32 heads of 4096 x 256
// over 8 took 2.96 ms instead of 3.58, 1.57 instead of 1.96 under a causal mask (H200, November 2026).
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/backward/hopper/consumer.cuh"
#include "cuda/backward/hopper/products.cuh"
#include "cuda/prefill/producer.cuh"
#include "cuda/runtime/launch_early.cuh"

namespace heed::cuda {

template <int keys_dim, int values_dim, Type element, BackwardKind kind>
struct WideKeysShape {
  static constexpr Type type = element;
  static constexpr bool capped = kind == BackwardKind::capped, masked = false, sloped = false, biased = false,
                        dropping = false;
  static constexpr int dim = keys_dim, value_dim = values_dim;
  static constexpr int keys = 64, rows = 64, groups = 2, threads = 128 * (groups + 1);
  static_assert(2 * keys == backward_keys);
  // S of the next step is asked for before dV of this one, so that products go on while scores become
  // weights. Not with a softcap: what dV is multiplied with is not what the scores become.
  static constexpr bool scores_first = !capped;
  static constexpr int producer_registers = 24, consumer_registers = 240;

  // The last dimensions of its keys, or values, a warpgroup has in registers: that makes room for a third
  // stage of queries, which wait for S, P, dS and dK (1.72 ms with it, 1.89 without). 128 would be too many.
  static constexpr int held = dim > 192 ? 64 : 0, own_dim = dim - held, own_value_dim = value_dim - held;
  static constexpr int piece_bytes = rows * 128, key_bytes = keys * own_dim * 2,
                       value_bytes = keys * own_value_dim * 2, query_bytes = rows * dim * 2,
                       gradient_bytes = rows * value_dim * 2, row_bytes = 2 * rows * 4,
                       weight_bytes = keys * rows * 4;
  static constexpr int stages = 3;  // of queries
  // Offsets from a multiple of 1024. The first 512 bytes are barriers and the description of the tile.
  static constexpr int rows_at = 512, keys_at = (rows_at + stages * row_bytes + 1023) / 1024 * 1024,
                       values_at = keys_at + key_bytes, queries_at = values_at + value_bytes,
                       gradients_at = queries_at + stages * query_bytes,
                       weights_at = gradients_at + 2 * gradient_bytes,
                       shared_bytes = 1024 + weights_at + weight_bytes;  // 1024: to align by hand
  static_assert(shared_bytes <= 232448);
};

// What warps of a block share.
template <class Shape>
struct WideKeysShared {
  unsigned char* memory;  // at a multiple of 1024
  SharedAddress at;       // the same

  HEED_DEVICE explicit WideKeysShared(unsigned char* any) : memory(any), at(align_1024(memory)) {}

  HEED_DEVICE KeyTile& tile() const { return *reinterpret_cast<KeyTile*>(memory + 256); }
  HEED_DEVICE RowsAt keys() const { return {at + Shape::keys_at, Shape::piece_bytes}; }
  HEED_DEVICE RowsAt values() const { return {at + Shape::values_at, Shape::piece_bytes}; }
  HEED_DEVICE RowsAt queries(unsigned n) const {
    return {at + Shape::queries_at + n % Shape::stages * Shape::query_bytes, Shape::piece_bytes};
  }
  HEED_DEVICE RowsAt gradients(unsigned n) const {
    return {at + Shape::gradients_at + n % 2 * Shape::gradient_bytes, Shape::piece_bytes};
  }
  HEED_DEVICE SharedAddress rows(unsigned n) const {
    return at + Shape::rows_at + n % Shape::stages * Shape::row_bytes;
  }
  HEED_DEVICE SharedAddress weights() const { return at + Shape::weights_at; }

  // Full: the data has arrived. Empty: its readers are done with it.
  HEED_DEVICE SharedAddress keys_full() const { return at; }
  HEED_DEVICE SharedAddress values_full() const { return at + 8; }
  HEED_DEVICE SharedAddress queries_full(unsigned n) const { return at + 16 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress queries_empty(unsigned n) const { return at + 40 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress gradients_full(unsigned n) const { return at + 64 + n % 2 * 8; }
  HEED_DEVICE SharedAddress gradients_empty(unsigned n) const { return at + 80 + n % 2 * 8; }
  HEED_DEVICE SharedAddress weights_full() const { return at + 96; }
  HEED_DEVICE SharedAddress weights_empty() const { return at + 104; }
  // Of the n-th use of a stage of queries, or of one of two.
  HEED_DEVICE static unsigned phase(unsigned n) { return n / Shape::stages & 1; }
  HEED_DEVICE static unsigned phase_of_two(unsigned n) { return n / 2 & 1; }

  HEED_DEVICE void init() const {
    barrier_init(keys_full(), 1), barrier_init(values_full(), 1);
    for (unsigned n = 0; n < Shape::stages; ++n)
      barrier_init(queries_full(n), 1), barrier_init(queries_empty(n), 128 * Shape::groups);
    for (unsigned n = 0; n < 2; ++n)
      barrier_init(gradients_full(n), 1), barrier_init(gradients_empty(n), 128 * Shape::groups);
    barrier_init(weights_full(), 128), barrier_init(weights_empty(), 128);
    publish_barriers();
  }
};

// The tile of keys of which a block has a half, and the queries that see that half. Returns false where it is
// nobody's.
template <class Shape>
HEED_DEVICE bool find_key_tile(const GradientCall& g, const BackwardPlan& plan, int half, KeyTile& tile) {
  const Call& c = g.forward;
  const PrefillOrder& order = plan.wide.of_keys;
  const int heads = static_cast<int>(c.kv_heads);
  // The longest first under a causal mask.
  const auto [of_all, from_last] = order[static_cast<int>(block_index() / 2)];
  const int head = of_all % heads, n = order.tiles - 1 - from_last;
  TileOfEntry at{of_all / heads, n};
  if (plan.keys.each == 0) at = plan.keys.find(n, [&](int entry) { return c.sequence(entry).first_key; });
  const auto [b, t] = at;
  const Sequence& s = c.sequence(b);
  tile = {b, head, t};
  tile.key_count = static_cast<int>(s.key_count), tile.queries = static_cast<int>(s.queries);
  tile.first_offset = static_cast<int>(s.first_offset), tile.end_offset = static_cast<int>(s.end_offset);
  tile.first_query_row = static_cast<int>(s.first_query);
  tile.first_key_row = static_cast<int>(s.first_key) + t * backward_keys;
  tile.line = plan.queries.first(b, s.first_query);
  const QueryTiles seen = query_tiles_of(s, 2 * t + half, Shape::rows, Shape::keys);
  tile.first = seen.first, tile.last = seen.last;
  tile.keys = static_cast<int>(s.keys) - t * backward_keys;
  tile.first_head = static_cast<int>(c.head(head, 0)),
  tile.head_step = c.tiled_heads ? static_cast<int>(c.kv_heads) : 1;
  return tile.keys > half * Shape::keys;
}

// Two threads: one loads keys and queries, the other values and gradients.
template <class Shape>
struct WideKeysLoader {
  const GradientCall& g;
  const BackwardPlan& plan;
  const WideKeysShared<Shape> shared;
  const KeyTile& tile;
  int half;  // of the tile

  HEED_DEVICE void run_queries() const {
    if (tile.last < tile.first) return;
    load_own<Shape::own_dim>({shared.keys().at, shared.keys_full(), &plan.k, &g.forward.k, evict_first});
    BackwardStep step(tile, plan.group);
    for (unsigned n = 0; !step.is_over(); step.advance(plan.group), ++n) {
      barrier_wait(shared.queries_empty(n), shared.phase(n) ^ 1);
      barrier_arrive_expecting(shared.queries_full(n), Shape::query_bytes + Shape::row_bytes);
      load_bytes(shared.rows(n),
                 plan.rows + plan.tile(tile.line + step.tile, tile.head(step.member)) * 2 * Shape::rows,
                 Shape::row_bytes, shared.queries_full(n));
      load_walked<Shape::dim>(
          {shared.queries(n).at, shared.queries_full(n), &plan.q, &g.forward.q, evict_last}, step);
    }
  }
  HEED_DEVICE void run_gradients() const {
    if (tile.last < tile.first) return;
    load_own<Shape::own_value_dim>(
        {shared.values().at, shared.values_full(), &plan.v, &g.forward.v, evict_first});
    BackwardStep step(tile, plan.group);
    for (unsigned n = 0; !step.is_over(); step.advance(plan.group), ++n) {
      barrier_wait(shared.gradients_empty(n), shared.phase_of_two(n) ^ 1);
      barrier_arrive_expecting(shared.gradients_full(n), Shape::gradient_bytes);
      load_walked<Shape::value_dim>(
          {shared.gradients(n).at, shared.gradients_full(n), &plan.out_gradient, &g.out_gradient, evict_last},
          step);
    }
  }

 private:
  template <int dim>
  HEED_DEVICE void load_own(const BoxCopy& copy) const {
    load_pieces<Shape::keys, dim / 64>(copy, tile.kv_head, tile.b, tile.first_key_row + half * Shape::keys);
  }
  // Of which the barrier already knows.
  template <int dim>
  HEED_DEVICE void load_walked(const BoxCopy& copy, const BackwardStep& step) const {
    load_boxes<Shape::rows, dim / 64>(copy, tile.head(step.member), tile.b,
                                      tile.first_query_row + step.tile * Shape::rows);
  }
};

// A warpgroup. Both go through the same steps.
template <class Shape>
class WideKeysConsumer {
  static constexpr Type type = Shape::type;
  static constexpr int rows = Shape::rows;
  using Scores = float[rows / 2];

 public:
  HEED_DEVICE WideKeysConsumer(const GradientCall& call, const BackwardPlan& launch,
                               WideKeysShared<Shape> memory, int half)
      : g(call), plan(launch), shared(memory), keys{half} {
    keys.tile = &shared.tile();
  }

  HEED_DEVICE void find_values() {
    float dv[Shape::value_dim / 2];
#pragma unroll
    for (int n = 0; n < Shape::value_dim / 2; ++n) dv[n] = 0;
    if (keys.tile->first <= keys.tile->last) add_values(dv);
    write(dv, {g.v, g.rows.unfinished_v, g.forward.value_dim, lowered<type>});
  }
  HEED_DEVICE void find_keys() {
    float dk[Shape::dim / 2];
#pragma unroll
    for (int n = 0; n < Shape::dim / 2; ++n) dk[n] = 0;
    if (keys.tile->first <= keys.tile->last) add_keys(dk);
    write(dk, {g.k, g.rows.unfinished_k, g.forward.dim, g.scale * lowered<type>});
  }

 private:
  HEED_DEVICE void add_values(float (&dv)[Shape::value_dim / 2]) {
    Scores s;
    BackwardWeights w;
    BackwardStep step(*keys.tile, plan.group);
    hold(g.forward.k, static_cast<int>(g.forward.dim) - Shape::own_dim, Shape::own_dim);
    barrier_wait(shared.keys_full(), 0);
    clear_own<Shape::own_dim>(shared.keys().at, 2);
    begin_scores(s, step, 0);
    wait_for_products<0>();
    pin(s);
    give_weights(s, w, step, 0);
#pragma unroll 1
    for (unsigned n = 0;; ++n) {
      step.advance(plan.group);
      barrier_wait(shared.gradients_full(n), shared.phase_of_two(n));
      if (step.is_over()) {
        add_rows<type>(dv, w, shared.gradients(n));
        break;
      }
      if constexpr (Shape::scores_first) {
        begin_scores(s, step, n + 1);
        add_rows<type>(dv, w, shared.gradients(n));
        wait_for_products<1>();
        pin(s);
        BackwardWeights unused;  // those at hand are an operand still
        give_weights(s, unused, step, n + 1);
        wait_for_products<0>();
        pin(dv);
        keys.release_own(shared.gradients_empty(n));
        scores().narrow(w, s, 0);
      } else {
        add_rows<type>(dv, w, shared.gradients(n));
        begin_scores(s, step, n + 1);
        wait_for_products<1>();
        pin(dv);
        keys.release_own(shared.gradients_empty(n));
        wait_for_products<0>();
        pin(s);
        give_weights(s, w, step, n + 1);
      }
    }
    wait_for_products<0>();
    pin(dv);
  }

  // The last dimensions of the thread's two keys, as the first operand of products: zeros where there are
  // none, and of keys that are not the sequence's own. `dims`: how many there are.
  HEED_DEVICE void hold(const Tensor& from, int dims, int first) {
    const KeyTile& tile = *keys.tile;
    const int own = tile.key_count - tile.first_key();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Row row = row_of(from, tile.b, tile.kv_head, tile.first_key_row + keys.key(r));
      const auto* const at = static_cast<const std::uint16_t*>(row.data) + row.first + first;
#pragma unroll
      for (int k = 0; k < Shape::held / 8; ++k) {
        const int d = 8 * k + keys.lane % 4 * 2;
        held[2 * k + r] = keys.key(r) < own && d < dims ? *reinterpret_cast<const std::uint32_t*>(at + d) : 0;
      }
    }
  }
  // a b^T, of which the last dimensions of a are held.
  template <int dim>
  HEED_DEVICE void multiply_own(Scores& s, const RowsAt& of_a, const RowsAt& of_b) {
    const Operand a = operand_anew(of_a.at), b = operand_anew(of_b.at);
    pin(held), pin(s);
    fence_products();
#pragma unroll
    for (int k = 0; k < dim / 16; ++k)
      multiply<type, 0>(s, advanced(a, k / 4 * of_a.piece_bytes + k % 4 * 32),
                        advanced(b, k / 4 * of_b.piece_bytes + k % 4 * 32), k != 0);
#pragma unroll
    for (int k = dim / 16; k < (dim + Shape::held) / 16; ++k)
      multiply<type, 0>(s, held + 4 * (k - dim / 16), advanced(b, k / 4 * of_b.piece_bytes + k % 4 * 32));
    commit_products();
    pin(s), pin(held);
  }

  HEED_DEVICE void begin_scores(Scores& s, const BackwardStep& step, unsigned n) {
    barrier_wait(shared.queries_full(n), shared.phase(n));
    clear_walked(step.tile, n);
    multiply_own<Shape::own_dim>(s, shared.keys(), shared.queries(n));
  }
  // Scores of step n become weights, to multiply with and for the other warpgroup.
  HEED_DEVICE void give_weights(Scores& s, BackwardWeights& w, const BackwardStep& step, unsigned n) const {
    if constexpr (Shape::capped) scores().cap(s);
    scores().hide(s, step.tile * rows);
    scores().weigh(s, w, shared.rows(n), 0);
    keys.release_own(shared.queries_empty(n));
    barrier_wait(shared.weights_empty(), n & 1 ^ 1);
    const SharedAddress to = shared.weights() + thread_index() % 128 * 16;
#pragma unroll
    for (int i = 0; i < rows / 8; ++i)
      store_shared_floats(to + i * 2048, s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
    keys.release_own(shared.weights_full());
  }

  HEED_DEVICE void add_keys(float (&dk)[Shape::dim / 2]) {
    Scores dp;
    BackwardWeights ds;
    BackwardStep step(*keys.tile, plan.group);
    hold(g.forward.v, static_cast<int>(g.forward.value_dim) - Shape::own_value_dim, Shape::own_value_dim);
    barrier_wait(shared.values_full(), 0);
    clear_own<Shape::own_value_dim>(shared.values().at, 3);
    begin_gradients(dp, step, 0);
    wait_for_products<0>();
    pin(dp);
    keys.release_own(shared.gradients_empty(0));
    differentiate(dp, ds, 0);
#pragma unroll 1
    for (unsigned n = 0;; ++n) {
      step.advance(plan.group);
      add_rows<type>(dk, ds, shared.queries(n));
      if (step.is_over()) break;
      begin_gradients(dp, step, n + 1);
      wait_for_products<1>();
      pin(dk);
      keys.release_own(shared.queries_empty(n));
      wait_for_products<0>();
      pin(dp);
      keys.release_own(shared.gradients_empty(n + 1));
      differentiate(dp, ds, n + 1);
    }
    wait_for_products<0>();
    pin(dk);
  }

  HEED_DEVICE void begin_gradients(Scores& dp, const BackwardStep& step, unsigned n) {
    barrier_wait(shared.gradients_full(n), shared.phase_of_two(n));
    clear_walked(step.tile, n);
    multiply_own<Shape::own_value_dim>(dp, shared.values(), shared.gradients(n));
  }
  HEED_DEVICE void differentiate(const Scores& dp, BackwardWeights& ds, unsigned n) const {
    barrier_wait(shared.queries_full(n), shared.phase(n));  // with what rows have to themselves
    barrier_wait(shared.weights_full(), n & 1);
    const SharedAddress from = shared.weights() + thread_index() % 128 * 16,
                        deltas = shared.rows(n) + rows * 4 + keys.lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < rows / 8; ++i) {
      const uint4 p = load_shared16(from + i * 2048);
      const float2 delta = load_shared8(deltas + i * 32);
      const auto of = [&](std::uint32_t weight, int e) {
        return __uint_as_float(weight) * (dp[4 * i + e] - (e % 2 == 0 ? delta.x : delta.y));
      };
      ds[2 * i] = pack2<type>(of(p.x, 0), of(p.y, 1)), ds[2 * i + 1] = pack2<type>(of(p.z, 2), of(p.w, 3));
    }
    keys.release_own(shared.weights_empty());
  }

  // Keys that are not the sequence's own have weights of 0, but may be NaN; so may queries beyond the last.
  // `barrier`: of the warpgroup.
  template <int dim>
  HEED_DEVICE void clear_own(SharedAddress block, int barrier) const {
    const int from = keys.tile->key_count - keys.tile->first_key() - keys.group * Shape::keys;
    if (from >= Shape::keys) return;
    clear<dim>(block, from, thread_index() % 128, 128);
    fence_async_proxy();
    named_sync(barrier, 128);
  }
  HEED_DEVICE void clear_walked(int tile, unsigned n) const {
    const int from = keys.tile->queries - tile * rows;
    if (from >= rows) return;
    barrier_wait(shared.queries_full(n), shared.phase(n));
    barrier_wait(shared.gradients_full(n), shared.phase_of_two(n));
    clear<Shape::dim>(shared.queries(n).at, from, thread_index() - 128, 256);
    clear<Shape::value_dim>(shared.gradients(n).at, from, thread_index() - 128, 256);
    fence_async_proxy();
    keys.sync_both();
  }
  // Rows of a block from this one on.
  template <int dim>
  HEED_DEVICE static void clear(SharedAddress block, int from, int thread, int threads) {
    from = max_of(from, 0);
    const int count = rows - from;
    for (int n = thread; n < dim / 64 * count * 8; n += threads)
      clear_shared16(block + (n / (count * 8) * rows + from) * 128 + n % (count * 8) * 16);
  }

  template <int count>
  HEED_DEVICE void write(const float (&sums)[count], const GradientTarget& to) const {
    if (!to.tensor.data) return;
    const KeyTile& tile = *keys.tile;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own = keys.key(r);
      const std::int64_t row = tile.first_key_row + own;
      const TargetRow target{row_of(to.tensor, tile.b, tile.kv_head, row), g.key(tile.b, tile.kv_head, row),
                             own < tile.keys};
#pragma unroll
      for (int slab = 0; slab < count / 32; ++slab)
        write_slab(g, to, target, slab, reinterpret_cast<const SlabSums&>(sums[32 * slab]), r);
    }
  }

  HEED_DEVICE BackwardScores<Shape> scores() const { return {g.forward, keys}; }

  const GradientCall& g;
  const BackwardPlan& plan;
  const WideKeysShared<Shape> shared;
  std::uint32_t held[Shape::held > 0 ? Shape::held / 4 : 1];
  BackwardKeys keys;  // whose group is the half of the tile
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    wide_keys_kernel(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
  extern __shared__ unsigned char memory[];
  const WideKeysShared<Shape> shared(memory);
  const int half = static_cast<int>(block_index() % 2);
  bool is_nobodys = false;
  if (thread_index() == 0) {
    shared.init();
    prefetch_map(&plan.q), prefetch_map(&plan.k), prefetch_map(&plan.v), prefetch_map(&plan.out_gradient);
    is_nobodys = !find_key_tile<Shape>(g, plan, half, shared.tile());
  }
  is_nobodys = any(is_nobodys);
  wait_for_prior_launches();
  launch_dependents();  // which find what rows have to themselves
  if (is_nobodys) return;
  if (thread_index() < 128) {
    lower_registers<Shape::producer_registers>();
    const WideKeysLoader<Shape> loader{g, plan, shared, shared.tile(), half};
    const int warp = uniform(thread_index() / 32);
    if (warp == 0 && elect_one()) loader.run_queries();
    if (warp == 1 && elect_one()) loader.run_gradients();
  } else {
    raise_registers<Shape::consumer_registers>();
    WideKeysConsumer<Shape> consumer(g, plan, shared, half);
    warpgroup_index() == 1 ? consumer.find_values() : consumer.find_keys();
  }
}

template <class Shape>
void launch_wide_keys(const GradientCall& g, const BackwardPlan& plan, Stream stream) {
  const auto kernel = wide_keys_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  const PrefillOrder& order = plan.wide.of_keys;
  const auto halves = static_cast<unsigned>(order.heads * order.tiles * 2);
  launch_early(kernel, {halves, Shape::threads, Shape::shared_bytes}, stream, g, plan);
}

}  // namespace heed::cuda
