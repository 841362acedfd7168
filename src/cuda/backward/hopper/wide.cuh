// SPDX-License-Identifier: Apache-2.0
// The backward pass of wide heads by Hopper's matrix units. Registers do not hold dK and dV of 64 keys times
// 256 dimensions beside each other, nor is there memory for dQ on its way: dK and dV have a kernel
// (wide_keys.cuh) and dQ another, which finds the scores anew. Seven products in place of five, and no sum
// leaves a block.
//
//   dQ += dS K      128 queries of a block, 64 keys at a time, scores are queries by keys
//
// A block has a thread that loads and two warpgroups that multiply, 64 queries each.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/backward/hopper/consumer.cuh"
#include "cuda/backward/hopper/products.cuh"
#include "cuda/backward/hopper/rows.cuh"
#include "cuda/backward/hopper/wide_keys.cuh"
#include "cuda/prefill/producer.cuh"
#include "cuda/runtime/launch_early.cuh"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

// `first` are keys or queries, which scores are made of; `second` are values or gradients of out. Operands
// lie in blocks of 64 rows, each in pieces of 64 dimensions.
template <int keys_dim, int values_dim, Type element, BackwardKind kind>
struct WideShape {
  static constexpr Type type = element;
  static constexpr bool capped = kind == BackwardKind::capped;
  static constexpr int dim = keys_dim, value_dim = values_dim;
  static constexpr int groups = 2, rows = 64, owned = rows * groups, threads = 128 * (groups + 1);
  static constexpr int producer_registers = 24, consumer_registers = 240;

  static constexpr int piece_bytes = rows * 128, first_bytes = rows * dim * 2,
                       second_bytes = rows * value_dim * 2;
  static constexpr int stages = 2, second_stages = dim > 192 ? 1 : 2;
  // Offsets from a multiple of 1024. The first 512 bytes are barriers and the description of the tile.
  static constexpr int own_first_at = 1024, own_second_at = own_first_at + groups * first_bytes,
                       first_at = own_second_at + groups * second_bytes,
                       second_at = first_at + stages * first_bytes,
                       shared_bytes =
                           1024 + second_at + second_stages * second_bytes;  // 1024: to align by hand
  static_assert(shared_bytes <= 232448);
};

template <class Shape>
struct WideShared {
  unsigned char* memory;  // at a multiple of 1024
  SharedAddress at;       // the same

  HEED_DEVICE explicit WideShared(unsigned char* any) : memory(any), at(align_1024(memory)) {}

  HEED_DEVICE KeyTile& tile() const { return *reinterpret_cast<KeyTile*>(memory + 256); }
  HEED_DEVICE SharedAddress own_first(int group) const {
    return at + Shape::own_first_at + group * Shape::first_bytes;
  }
  HEED_DEVICE SharedAddress own_second(int group) const {
    return at + Shape::own_second_at + group * Shape::second_bytes;
  }
  HEED_DEVICE SharedAddress first(unsigned n) const {
    return at + Shape::first_at + n % Shape::stages * Shape::first_bytes;
  }
  HEED_DEVICE SharedAddress second(unsigned n) const {
    return at + Shape::second_at + n % Shape::second_stages * Shape::second_bytes;
  }

  // Full: the data has arrived. Empty: its readers are done with it.
  HEED_DEVICE SharedAddress own_first_full() const { return at; }
  HEED_DEVICE SharedAddress own_second_full() const { return at + 8; }
  HEED_DEVICE SharedAddress first_full(unsigned n) const { return at + 16 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress first_empty(unsigned n) const { return at + 32 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress second_full(unsigned n) const { return at + 48 + n % Shape::second_stages * 8; }
  HEED_DEVICE SharedAddress second_empty(unsigned n) const { return at + 64 + n % Shape::second_stages * 8; }
  HEED_DEVICE static unsigned phase(unsigned n) { return n / Shape::stages & 1; }
  HEED_DEVICE static unsigned second_phase(unsigned n) { return n / Shape::second_stages & 1; }

  HEED_DEVICE void init() const {
    barrier_init(own_first_full(), 1), barrier_init(own_second_full(), 1);
    for (unsigned n = 0; n < 2; ++n) {
      barrier_init(at + 16 + n * 8, 1), barrier_init(at + 32 + n * 8, 128 * Shape::groups);
      barrier_init(at + 48 + n * 8, 1), barrier_init(at + 64 + n * 8, 128 * Shape::groups);
    }
    publish_barriers();
  }
};

// The tile of queries of a block; `first` and `last` are tiles of 64 keys that it sees. Returns false where
// it is nobody's.
template <class Shape>
HEED_DEVICE bool find_wide_tile(const GradientCall& g, const BackwardPlan& plan, KeyTile& tile) {
  const Call& c = g.forward;
  const TileLine& line = plan.wide.queries;
  const int heads = static_cast<int>(c.heads);
  // The longest first under a causal mask: the last queries.
  const auto [of_all, n] = plan.wide.of_queries[static_cast<int>(block_index())];
  const int head = of_all % heads;
  TileOfEntry at{of_all / heads, n};
  if (line.each == 0) at = line.find(n, [&](int entry) { return c.sequence(entry).first_query; });
  const auto [b, t] = at;
  const Sequence& s = c.sequence(b);
  tile = {b, static_cast<int>(c.kv_head(head)), t};
  tile.key_count = static_cast<int>(s.key_count), tile.queries = static_cast<int>(s.queries);
  tile.first_offset = static_cast<int>(s.first_offset), tile.end_offset = static_cast<int>(s.end_offset);
  tile.first_query_row = static_cast<int>(s.first_query), tile.first_key_row = static_cast<int>(s.first_key);
  tile.line = plan.queries.first(b, s.first_query);
  const int begin = t * Shape::owned, last = min_of(begin + Shape::owned, tile.queries) - 1;
  const int from = max_of(begin + tile.first_offset, 0), to = min_of(last + tile.end_offset, tile.key_count);
  tile.first = from / Shape::rows, tile.last = to > from ? (to - 1) / Shape::rows : tile.first - 1;
  tile.first_head = head, tile.head_step = 0;
  return begin < tile.queries;
}

// One thread.
template <class Shape>
struct WideLoader {
  const GradientCall& g;
  const BackwardPlan& plan;
  const WideShared<Shape> shared;
  const KeyTile& tile;

  HEED_DEVICE void run() const {
    unsigned n = 0;
    for (int j = tile.last; j >= tile.first; --j, ++n) {
      const int row = tile.first_key_row + j * Shape::rows;
      if (n == 0)
        load_own<Shape::dim>(
            {shared.own_first(0), shared.own_first_full(), &plan.q, &g.forward.q, evict_first});
      barrier_wait(shared.first_empty(n), shared.phase(n) ^ 1);
      load_pieces<Shape::rows, Shape::dim / 64>(
          {shared.first(n), shared.first_full(n), &plan.k, &g.forward.k, evict_last}, tile.kv_head, tile.b,
          row);
      if (n == 0)
        load_own<Shape::value_dim>({shared.own_second(0), shared.own_second_full(), &plan.out_gradient,
                                    &g.out_gradient, evict_first});
      barrier_wait(shared.second_empty(n), shared.second_phase(n) ^ 1);
      load_pieces<Shape::rows, Shape::value_dim / 64>(
          {shared.second(n), shared.second_full(n), &plan.v, &g.forward.v, evict_last}, tile.kv_head, tile.b,
          row);
    }
  }

 private:
  // Both blocks of rows count at one barrier.
  template <int dim>
  HEED_DEVICE void load_own(BoxCopy copy) const {
    barrier_arrive_expecting(copy.full, Shape::owned * dim * 2);
    const int row = tile.first_query_row + tile.tile * Shape::owned;
#pragma unroll
    for (int group = 0; group < Shape::groups; ++group, copy.to += Shape::rows * dim * 2)
      load_boxes<Shape::rows, dim / 64>(copy, tile.first_head, tile.b, row + group * Shape::rows);
  }
};

// Scores of 64 queries by 64 keys: what a thread's two queries have to themselves is in registers.
template <class Shape>
struct WideQueryScores {
  static constexpr Type type = Shape::type;
  static constexpr int columns = Shape::rows;
  using Scores = float[columns / 2];

  const Call& c;
  const KeyTile& tile;
  int i;  // the first of the two queries; the other is eight further down
  float subtracted[2], delta[2];

  // Numbers of the tiles of 64 queries, of the warpgroup's.
  HEED_DEVICE WideQueryScores(const GradientCall& g, const BackwardPlan& plan, const KeyTile& of, int group)
      : c(g.forward), tile(of) {
    const int of_line = 2 * tile.tile + group, r = thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4;
    const float* const numbers =
        plan.rows + plan.tile(tile.line + of_line, tile.first_head) * 2 * Shape::rows;
    i = of_line * Shape::rows + r;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const bool is_row = i + 8 * n < tile.queries;
      subtracted[n] = is_row ? numbers[r + 8 * n] : minus_infinity;
      delta[n] = is_row ? numbers[Shape::rows + r + 8 * n] : 0.0f;
    }
  }

  // Of tile j of keys.
  HEED_DEVICE void hide(Scores& s, int j) const {
    const int first_query = i - i % Shape::rows, first = j * columns;
    const bool hides_after = min_of(
        first_query + tile.end_offset,
        tile.key_count)<first + columns, hides_before = first_query + Shape::rows - 1 + tile.first_offset>
        first;
    if (!hides_after && !hides_before) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int from = first + thread_index() % 4 * 2, begin = i + 8 * r + tile.first_offset - from,
                end = min_of(i + 8 * r + tile.end_offset, tile.key_count) - from;
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * n + e < begin || 8 * n + e >= end) s[4 * n + 2 * r + e] = minus_infinity;
    }
  }

  // Products become tanh of what a softcap gets.
  HEED_DEVICE void cap(Scores& s) const {
    const float factor = in_register(c.scale_over_softcap);
#pragma unroll
    for (int n = 0; n < columns / 2; ++n) s[n] = fast_tanh(s[n] * factor);
  }

  // Scores become weights, times the slope of a softcap.
  HEED_DEVICE void weigh(Scores& s) const {
    const float scale = Shape::capped ? c.softcap_log2e : c.scale_log2e;
#pragma unroll
    for (int n = 0; n < columns / 2; ++n) {
      const float weight = fast_exp2(fmaf(s[n], scale, subtracted[n / 2 % 2]));
      s[n] = Shape::capped ? weight * fmaxf(fmaf(-s[n], s[n], 1.0f), 0.0f) : weight;  // 0 where it is -inf
    }
  }

  // dS = P (dP - delta)
  HEED_DEVICE void differentiate(BackwardWeights& ds, const Scores& p, const Scores& dp) const {
#pragma unroll
    for (int n = 0; n < 16; ++n)
      ds[n] =
          pack2<type>(p[2 * n] * (dp[2 * n] - delta[n % 2]), p[2 * n + 1] * (dp[2 * n + 1] - delta[n % 2]));
  }
};

template <class Shape>
class WideConsumer {
  static constexpr Type type = Shape::type;
  static constexpr int rows = Shape::rows;

 public:
  HEED_DEVICE WideConsumer(const GradientCall& call, const BackwardPlan& launch, WideShared<Shape> memory)
      : g(call), plan(launch), shared(memory), scores(call, launch, memory.tile(), keys.group) {
    keys.tile = &shared.tile();
  }

  HEED_DEVICE void run() {
#pragma unroll
    for (int n = 0; n < Shape::dim / 2; ++n) sums[n] = 0;
    if (keys.tile->first <= keys.tile->last) attend();
    write();
  }

 private:
  // While the scores of a step become weights its dP is found; the next step's S while dQ takes the last.
  HEED_DEVICE void attend() {
    BackwardStep step(*keys.tile, 1);
    barrier_wait(shared.own_first_full(), 0);
    barrier_wait(shared.own_second_full(), 0);
    begin(step);
    find_weights(step);
#pragma unroll 1
    for (unsigned n = 0;; ++n) {
      scores.differentiate(w, s, dp);
      add_rows<type>(sums, w, {shared.first(n), Shape::piece_bytes});
      step.advance(1);
      steps = n + 1;
      if (step.is_over()) break;
      begin(step);
      wait_for_products<1>();
      pin(sums);
      keys.release_own(shared.first_empty(n));
      find_weights(step);
    }
    wait_for_products<0>();
    pin(sums);
  }

  // S of the step.
  HEED_DEVICE void begin(const BackwardStep& step) {
    barrier_wait(shared.first_full(steps), shared.phase(steps));
    clear_walked(step.tile);
    multiply_rows<type, Shape::dim>(s, {shared.own_first(keys.group), Shape::piece_bytes},
                                    {shared.first(steps), Shape::piece_bytes});
  }

  // And dP; the weights take the place of S.
  HEED_DEVICE void find_weights(const BackwardStep& step) {
    barrier_wait(shared.second_full(steps), shared.second_phase(steps));
    multiply_rows<type, Shape::value_dim>(dp, {shared.own_second(keys.group), Shape::piece_bytes},
                                          {shared.second(steps), Shape::piece_bytes});
    wait_for_products<1>();
    pin(s);
    if constexpr (Shape::capped) scores.cap(s);
    scores.hide(s, step.tile);
    scores.weigh(s);
    wait_for_products<0>();
    pin(dp);
    keys.release_own(shared.second_empty(steps));
  }

  // Keys that are not the sequence's own have weights of 0, but may be NaN.
  HEED_DEVICE void clear_walked(int tile) const {
    const int from = keys.tile->key_count - tile * rows;
    if (from >= rows) return;
    barrier_wait(shared.second_full(steps), shared.second_phase(steps));
    clear<Shape::dim>(shared.first(steps), from);
    clear<Shape::value_dim>(shared.second(steps), from);
    fence_async_proxy();
    keys.sync_both();
  }
  // Rows of a block from this one on, by both warpgroups.
  template <int dim>
  HEED_DEVICE static void clear(SharedAddress block, int from) {
    from = max_of(from, 0);
    const int count = rows - from;
    for (int n = thread_index() - 128; n < dim / 64 * count * 8; n += 128 * Shape::groups)
      clear_shared16(block + (n / (count * 8) * rows + from) * 128 + n % (count * 8) * 16);
  }

  HEED_DEVICE void write() const {
    const KeyTile& tile = *keys.tile;
    const GradientTarget to{g.q, g.rows.unfinished_q, g.forward.dim, g.scale * lowered<type>};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int i = tile.tile * Shape::owned + keys.key(r);
      const Query q{tile.b, tile.first_head, i, tile.first_query_row + i};
      const TargetRow target{row_of(g.q, q), g.row(q.b, q.h, q.row), i < tile.queries};
#pragma unroll
      for (int slab = 0; slab < Shape::dim / 64; ++slab)
        write_slab(g, to, target, slab, reinterpret_cast<const SlabSums&>(sums[32 * slab]), r);
    }
  }

  const GradientCall& g;
  const BackwardPlan& plan;
  const WideShared<Shape> shared;
  BackwardKeys keys{};
  WideQueryScores<Shape> scores;
  unsigned steps = 0;  // that are over
  float sums[Shape::dim / 2], s[rows / 2], dp[rows / 2];
  BackwardWeights w;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    wide_queries_kernel(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
  extern __shared__ unsigned char memory[];
  const WideShared<Shape> shared(memory);
  bool is_nobodys = false;
  if (thread_index() == 0) {
    shared.init();
    prefetch_map(&plan.q), prefetch_map(&plan.k), prefetch_map(&plan.v), prefetch_map(&plan.out_gradient);
    is_nobodys = !find_wide_tile<Shape>(g, plan, shared.tile());
  }
  is_nobodys = any(is_nobodys);
  if (!is_nobodys && thread_index() < 128) {
    lower_registers<Shape::producer_registers>();
    if (uniform(thread_index() / 32) == 0 && elect_one())
      WideLoader<Shape>{g, plan, shared, shared.tile()}.run();
  } else if (!is_nobodys) {
    raise_registers<Shape::consumer_registers>();
    WideConsumer<Shape>(g, plan, shared).run();
  }
  // So that whatever comes next on the stream comes after the launch ahead, too.
  if (block_index() + 1 == gridDim.x) wait_for_prior_launches();
}

template <class Shape>
void launch_wide_queries(const GradientCall& g, const BackwardPlan& plan, Stream stream) {
  const PrefillOrder& order = plan.wide.of_queries;
  const auto kernel = wide_queries_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  const Grid grid{static_cast<unsigned>(order.heads * order.tiles), Shape::threads, Shape::shared_bytes};
  if ((g.v.data || g.k.data)) return launch_early(kernel, grid, stream, g, plan);
  kernel<<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.backward: wide heads");
}

template <int dim, int value_dim, Type type, BackwardKind kind>
void launch_wide_backward(const GradientCall& g, BackwardPlan plan, Stream stream) {
  const Call& c = g.forward;
  using Queries = WideShape<dim, value_dim, type, kind>;
  plan.q = tensor_map(c.q, {c.dim, g.query_rows, c.heads, c.batch}, Queries::rows);
  plan.out_gradient =
      tensor_map(g.out_gradient, {c.value_dim, g.query_rows, c.heads, c.batch}, Queries::rows);
  plan.k = tensor_map(c.k, {c.dim, g.key_rows, c.kv_heads, c.batch}, Queries::rows);
  plan.v = tensor_map(c.v, {c.value_dim, g.key_rows, c.kv_heads, c.batch}, Queries::rows);
  launch_backward_rows<Queries>(g, plan, stream);
  if (g.v.data || g.k.data) launch_wide_keys<WideKeysShape<dim, value_dim, type, kind>>(g, plan, stream);
  if (g.q.data) launch_wide_queries<Queries>(g, plan, stream);
}

}  // namespace heed::cuda
