// SPDX-License-Identifier: Apache-2.0
// dK and dV of wide heads. A cluster of two blocks has a tile of 128 keys, 64 each: one warpgroup of a block
// finds scores and dV, the other dP and dK, so that each has a sum in its registers.
//
//   S = K Q^T    P = 2^(S - log-sum-exp)    dV += P dO          one warpgroup
//   dP = V dO^T  dS = P * (dP - delta)      dK += dS Q          the other, which gets P through shared memory
//
// Both blocks walk the same 64 queries at a time: each loads half of the rows, to both.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/backward/hopper/consumer.cuh"
#include "cuda/backward/hopper/products.cuh"
#include "cuda/prefill/producer.cuh"
#include "cuda/tile/cluster.cuh"

#ifndef HEED_MULTICAST
#define HEED_MULTICAST 1
#endif
#ifndef HEED_EARLY
#define HEED_EARLY 1
#endif
#ifndef HEED_SCORES_FIRST
#define HEED_SCORES_FIRST 1
#endif
#ifndef HEED_HELD
#define HEED_HELD 64
#endif

namespace heed::cuda {

template <int keys_dim, int values_dim, Type element, BackwardKind kind>
struct WideKeysShape {
  static constexpr Type type = element;
  static constexpr bool capped = kind == BackwardKind::capped, masked = false, sloped = false, biased = false,
                        dropping = false;
  static constexpr int dim = keys_dim, value_dim = values_dim;
  static constexpr int blocks = 2, keys = 64, owned = keys * blocks;  // of a cluster
  static_assert(owned == backward_keys);
  static constexpr int rows = 64, groups = 2, threads = 128 * (groups + 1);
  static constexpr bool scores_first = HEED_SCORES_FIRST && !capped;
  static constexpr int producer_registers = 24, consumer_registers = 240;

  // The last dimensions of its keys, or values, a warpgroup has in registers: so shared memory holds a third
  // stage of queries, and is read less.
  static constexpr int held = dim > 192 ? HEED_HELD : 0, own_dim = dim - held,
                       own_value_dim = value_dim - held;
  static constexpr int piece_bytes = rows * 128, key_bytes = keys * own_dim * 2,
                       value_bytes = keys * own_value_dim * 2, query_bytes = rows * dim * 2,
                       gradient_bytes = rows * value_dim * 2, row_bytes = 2 * rows * 4,
                       weight_bytes = keys * rows * 4;
  static constexpr int stages = held > 0 || dim <= 192 ? 3 : 2, weight_buffers = held == 64 ? 1 : 2;
  // Offsets from a multiple of 1024. The first 512 bytes are barriers and the description of the tile.
  static constexpr int rows_at = 512, keys_at = (rows_at + stages * row_bytes + 1023) / 1024 * 1024,
                       values_at = keys_at + key_bytes, queries_at = values_at + value_bytes,
                       gradients_at = queries_at + stages * query_bytes,
                       weights_at = gradients_at + 2 * gradient_bytes,
                       shared_bytes = 1024 + weights_at + weight_buffers * weight_bytes;  // 1024: to align by hand
  static_assert(shared_bytes <= 232448);
};

// What warps of a block share, and in part the other block.
template <class Shape>
struct WideKeysShared {
  unsigned char* memory;  // at a multiple of 1024
  SharedAddress at;       // the same

  HEED_DEVICE explicit WideKeysShared(unsigned char* any) {
    at = (shared_address(any) + 1023u) & ~1023u;
    memory = any + (at - shared_address(any));
  }

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
  HEED_DEVICE SharedAddress weights(unsigned n) const {
    return at + Shape::weights_at + n % Shape::weight_buffers * Shape::weight_bytes;
  }

  // Full: the data has arrived. Empty: its readers in this block are done with it. Free: so are those of the
  // other block with theirs, which says so.
  HEED_DEVICE SharedAddress keys_full() const { return at; }
  HEED_DEVICE SharedAddress values_full() const { return at + 8; }
  HEED_DEVICE SharedAddress queries_full(unsigned n) const { return at + 16 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress queries_empty(unsigned n) const { return at + 40 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress queries_free(unsigned n) const { return at + 64 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress gradients_full(unsigned n) const { return at + 88 + n % 2 * 8; }
  HEED_DEVICE SharedAddress gradients_empty(unsigned n) const { return at + 104 + n % 2 * 8; }
  HEED_DEVICE SharedAddress gradients_free(unsigned n) const { return at + 120 + n % 2 * 8; }
  HEED_DEVICE SharedAddress weights_full(unsigned n) const { return at + 136 + n % Shape::weight_buffers * 8; }
  HEED_DEVICE SharedAddress weights_empty(unsigned n) const { return at + 152 + n % Shape::weight_buffers * 8; }
  // Of the n-th use of a stage of queries, or of one of two.
  HEED_DEVICE static unsigned phase(unsigned n) { return n / Shape::stages & 1; }
  HEED_DEVICE static unsigned weight_phase(unsigned n) { return n / Shape::weight_buffers & 1; }
  HEED_DEVICE static unsigned phase_of_two(unsigned n) { return n / 2 & 1; }

  HEED_DEVICE void init() const {
    barrier_init(keys_full(), 1), barrier_init(values_full(), 1);
    for (unsigned n = 0; n < Shape::stages; ++n) {
      barrier_init(queries_full(n), 1), barrier_init(queries_free(n), 1);
      barrier_init(queries_empty(n), 128 * Shape::groups);
    }
    for (unsigned n = 0; n < 2; ++n) {
      barrier_init(gradients_full(n), 1), barrier_init(gradients_free(n), 1);
      barrier_init(gradients_empty(n), 128 * Shape::groups);
      barrier_init(weights_full(n), 128), barrier_init(weights_empty(n), 128);
    }
    publish_barriers();
  }
};

// The tile of keys of a cluster. Returns false where it is nobody's.
HEED_DEVICE bool find_key_tile(const GradientCall& g, const BackwardPlan& plan, int rows, KeyTile& tile) {
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
  const QueryTiles seen = query_tiles_of(s, t, rows);
  tile.first = seen.first, tile.last = seen.last;
  tile.keys = static_cast<int>(s.keys) - t * backward_keys;
  tile.first_head = static_cast<int>(c.head(head, 0)),
  tile.head_step = c.tiled_heads ? static_cast<int>(c.kv_heads) : 1;
  return tile.keys > 0;
}

// Two threads: one loads keys and queries, the other values and gradients.
template <class Shape>
struct WideKeysLoader {
  const GradientCall& g;
  const BackwardPlan& plan;
  const WideKeysShared<Shape> shared;
  const KeyTile& tile;
  int block;  // of the cluster

  HEED_DEVICE void run_queries() const {
    if (tile.last < tile.first) return;
    load_own<Shape::own_dim>({shared.keys().at, shared.keys_full(), &plan.k, &g.forward.k, evict_first});
    BackwardStep step(tile, plan.group);
    for (unsigned n = 0; !step.is_over(); step.advance(plan.group), ++n) {
      barrier_wait(shared.queries_empty(n), shared.phase(n) ^ 1);
      barrier_arrive_expecting(shared.queries_full(n), Shape::query_bytes + Shape::row_bytes);
      agree(shared.queries_free(n), shared.phase(n));
      load_bytes(shared.rows(n),
                 plan.rows + plan.tile(tile.line + step.tile, tile.head(step.member)) * 2 * Shape::rows,
                 Shape::row_bytes, shared.queries_full(n));
      load_walked<Shape::dim>({shared.queries(n).at, shared.queries_full(n), &plan.q, &g.forward.q, evict_last},
                              step);
    }
  }
  HEED_DEVICE void run_gradients() const {
    if (tile.last < tile.first) return;
    load_own<Shape::own_value_dim>({shared.values().at, shared.values_full(), &plan.v, &g.forward.v, evict_first});
    BackwardStep step(tile, plan.group);
    for (unsigned n = 0; !step.is_over(); step.advance(plan.group), ++n) {
      barrier_wait(shared.gradients_empty(n), shared.phase_of_two(n) ^ 1);
      barrier_arrive_expecting(shared.gradients_full(n), Shape::gradient_bytes);
      agree(shared.gradients_free(n), shared.phase_of_two(n));
      load_walked<Shape::value_dim>(
          {shared.gradients(n).at, shared.gradients_full(n), &plan.out_gradient, &g.out_gradient, evict_last},
          step);
    }
  }

 private:
  // That both blocks may be written to.
  HEED_DEVICE void agree(SharedAddress free, unsigned phase) const {
#if HEED_MULTICAST
    barrier_arrive_remote(map_to_rank(free, block ^ 1));
    barrier_wait(free, phase);
#endif
  }
  template <int dim>
  HEED_DEVICE void load_own(const BoxCopy& copy) const {
    load_pieces<Shape::keys, dim / 64>(copy, tile.kv_head, tile.b, tile.first_key_row + block * Shape::keys);
  }
  // Half of the rows, to both blocks.
  template <int dim>
  HEED_DEVICE void load_walked(const BoxCopy& copy, const BackwardStep& step) const {
    constexpr int half = Shape::rows / 2;
    const int head = copy.from->stride.heads == 0 ? 0 : tile.head(step.member),
              b = copy.from->stride.batch == 0 ? 0 : tile.b,
              row = tile.first_query_row + step.tile * Shape::rows;
#pragma unroll
    for (int piece = 0; piece < dim / 64; ++piece) {
#if HEED_MULTICAST
      load_box_to_both(copy.to + piece * Shape::piece_bytes + block * half * 128, copy.map,
                       {piece * 64, row + block * half, head, b}, copy.full, copy.policy);
#else
      load_box(copy.to + piece * Shape::piece_bytes, copy.map, {piece * 64, row, head, b}, copy.full, copy.policy);
      load_box(copy.to + piece * Shape::piece_bytes + half * 128, copy.map, {piece * 64, row + half, head, b},
               copy.full, copy.policy);
#endif
    }
  }
};

// A warpgroup. Both go through the same steps.
template <class Shape>
class WideKeysConsumer {
  static constexpr Type type = Shape::type;
  static constexpr int rows = Shape::rows;
  using Scores = float[rows / 2];

 public:
  HEED_DEVICE WideKeysConsumer(const GradientCall& call, const BackwardPlan& launch, WideKeysShared<Shape> memory,
                               int block)
      : g(call), plan(launch), shared(memory), keys{block} {
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
        held[2 * k + r] =
            keys.key(r) < own && d < dims ? *reinterpret_cast<const std::uint32_t*>(at + d) : 0;
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
    barrier_wait(shared.weights_empty(n), shared.weight_phase(n) ^ 1);
    const SharedAddress to = shared.weights(n) + thread_index() % 128 * 16;
#pragma unroll
    for (int i = 0; i < rows / 8; ++i)
      store_shared_floats(to + i * 2048, s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]);
    keys.release_own(shared.weights_full(n));
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
    barrier_wait(shared.weights_full(n), shared.weight_phase(n));
    const SharedAddress from = shared.weights(n) + thread_index() % 128 * 16,
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
    keys.release_own(shared.weights_empty(n));
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
  BackwardKeys keys;  // whose group is the block of the cluster
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    wide_keys_kernel(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
  extern __shared__ unsigned char memory[];
  const WideKeysShared<Shape> shared(memory);
  const int block = static_cast<int>(block_index() % 2);
  bool is_nobodys = false;
  if (thread_index() == 0) {
    shared.init();
    prefetch_map(&plan.q), prefetch_map(&plan.k), prefetch_map(&plan.v), prefetch_map(&plan.out_gradient);
    is_nobodys = !find_key_tile(g, plan, Shape::rows, shared.tile());
  }
  if (any(is_nobodys)) return;  // so does the other block
  cluster_arrive();
  cluster_wait();
#if HEED_EARLY
  wait_for_prior_launches();
  launch_dependents();
#endif
  if (thread_index() < 128) {
    lower_registers<Shape::producer_registers>();
    const WideKeysLoader<Shape> loader{g, plan, shared, shared.tile(), block};
    const int warp = uniform(thread_index() / 32);
    if (warp == 0 && elect_one()) loader.run_queries();
    if (warp == 1 && elect_one()) loader.run_gradients();
  } else {
    raise_registers<Shape::consumer_registers>();
    WideKeysConsumer<Shape> consumer(g, plan, shared, block);
    warpgroup_index() == 1 ? consumer.find_values() : consumer.find_keys();
  }
}

template <class Shape>
void launch_wide_keys(const GradientCall& g, const BackwardPlan& plan, Stream stream) {
  const auto kernel = wide_keys_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = Shape::blocks;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  const PrefillOrder& order = plan.wide.of_keys;
  config.gridDim = dim3(static_cast<unsigned>(order.heads * order.tiles * Shape::blocks));
  config.blockDim = dim3(Shape::threads), config.dynamicSmemBytes = Shape::shared_bytes, config.stream = stream;
  config.attrs = attributes, config.numAttrs = 1 + HEED_EARLY;
  check(cudaLaunchKernelEx(&config, kernel, g, plan), "cuda.backward: keys of wide heads");
}

}  // namespace heed::cuda
