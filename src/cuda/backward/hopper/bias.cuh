// SPDX-License-Identifier: Apache-2.0
// The gradient by a bias on Hopper's matrix units: dS, summed over the batch entries and heads that share an
// element. A block owns a tile of 128 keys times 128 queries of the bias and goes through those entries and
// heads in order, finding S and dP of each anew: no sum leaves the block.
//
// A thread loads; two warpgroups multiply, 64 keys each. Scores are keys by queries, as in consumer.cuh.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/backward/hopper/consumer.cuh"
#include "cuda/backward/hopper/products.cuh"
#include "cuda/prefill/producer.cuh"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

// Operands lie in blocks of 64 rows, each in pieces of 64 dimensions. Two blocks of queries and two of keys,
// or of gradients of out and of values, are a slot.
template <int head_dim, Type element>
struct BiasShape {
  static constexpr Type type = element;
  static constexpr bool capped = false, masked = true, sloped = false, biased = true, dropping = false;
  static constexpr int dim = head_dim, groups = 2, rows = 64, halves = 2, threads = 128 * (groups + 1);
  static constexpr int producer_registers = 24, consumer_registers = 240;

  static constexpr int piece_bytes = rows * 128, block_bytes = rows * dim * 2, slot_bytes = 4 * block_bytes;
  static constexpr int slots = 3, row_bytes = halves * 2 * rows * 4,
                       bias_bytes = halves * rows * backward_keys * 2;
  // Offsets from a multiple of 1024. The first 512 bytes are barriers.
  static constexpr int rows_at = 512, bias_at = 2048, slots_at = bias_at + bias_bytes;
  static_assert(rows_at + row_bytes <= bias_at);
  static_assert(slots * slot_bytes >= 2 * rows * 132 * 4);
  static constexpr int shared_bytes = 1024 + slots_at + slots * slot_bytes;  // 1024: to align by hand
  static_assert(shared_bytes <= 232448);
};

template <class Shape>
struct BiasShared {
  SharedAddress at;  // a multiple of 1024

  HEED_DEVICE explicit BiasShared(unsigned char* any) : at(align_1024(any)) {}

  HEED_DEVICE SharedAddress slot(unsigned n) const {
    return at + Shape::slots_at + n % Shape::slots * Shape::slot_bytes;
  }
  // Of the gradient, in the memory of the slots. Rows of 132 floats have those of four lanes in other banks.
  HEED_DEVICE SharedAddress sums(int query, int key) const {
    return at + Shape::slots_at + (query * 132 + key) * 4;
  }
  HEED_DEVICE SharedAddress rows() const { return at + Shape::rows_at; }
  HEED_DEVICE SharedAddress bias(int half) const {
    return at + Shape::bias_at + half * (Shape::bias_bytes / Shape::halves);
  }
  // Full: the data has arrived. Empty: its readers are done with it.
  HEED_DEVICE SharedAddress bias_full() const { return at; }
  HEED_DEVICE SharedAddress rows_full() const { return at + 8; }
  HEED_DEVICE SharedAddress rows_empty() const { return at + 16; }
  HEED_DEVICE SharedAddress slot_full(unsigned n) const { return at + 24 + n % Shape::slots * 8; }
  HEED_DEVICE SharedAddress slot_empty(unsigned n) const { return at + 48 + n % Shape::slots * 8; }
  HEED_DEVICE static unsigned phase(unsigned n) { return n / Shape::slots & 1; }

  HEED_DEVICE void init() const {
    barrier_init(bias_full(), 1), barrier_init(rows_full(), 1),
        barrier_init(rows_empty(), 128 * Shape::groups);
    for (unsigned n = 0; n < Shape::slots; ++n)
      barrier_init(slot_full(n), 1), barrier_init(slot_empty(n), Shape::groups);
    publish_barriers();
  }
};

// The tile of a block, and the entry and head at hand of those that share it.
struct BiasTile {
  int key_tile, query_tile;  // of 128 each
  Sharing entries, heads;
  int b, h;
  KeyTile keys{};  // of the sequence at hand

  HEED_DEVICE explicit BiasTile(const GradientCall& g)
      : key_tile(static_cast<int>(block_index() % tiles(g.forward.keys))),
        query_tile(static_cast<int>(block_index() / tiles(g.forward.keys))),
        entries(g.bias.batch, block_in_column() / g.bias.heads, g.forward.batch),
        heads(g.bias.heads, block_in_column() % g.bias.heads, g.forward.heads),
        b(static_cast<int>(entries.begin)),
        h(static_cast<int>(heads.begin)) {
    find(g.forward);
  }
  static constexpr std::int64_t tiles(std::int64_t rows) {
    return (rows + backward_keys - 1) / backward_keys;
  }

  HEED_DEVICE bool is_over() const { return b >= entries.end; }
  HEED_DEVICE void advance(const Call& c) {
    if (++h < heads.end) return;
    // fault: hopper-bias-gradient-of-one-entry
    h = static_cast<int>(heads.begin), ++b;
    if (!is_over()) find(c);
  }
  // Whether ranges let some query of the tile see some of its keys.
  HEED_DEVICE bool is_seen() const { return keys.first <= 2 * query_tile + 1 && keys.last >= 2 * query_tile; }

 private:
  HEED_DEVICE void find(const Call& c) {
    const Sequence& s = c.sequence(b);
    const QueryTiles seen = query_tiles_of(s, key_tile, 64);
    keys.b = b, keys.tile = key_tile, keys.first = seen.first, keys.last = seen.last;
    keys.key_count = static_cast<int>(s.key_count), keys.queries = static_cast<int>(s.queries);
    keys.first_offset = static_cast<int>(s.first_offset), keys.end_offset = static_cast<int>(s.end_offset);
  }
};

// One thread.
template <class Shape>
struct BiasLoader {
  const GradientCall& g;
  const BackwardPlan& plan;
  const BiasShared<Shape> shared;

  HEED_DEVICE void run() const {
    const Call& c = g.forward;
    BiasTile tile(g);
    load_bias(tile);
    for (unsigned n = 0; !tile.is_over(); tile.advance(c)) {
      if (!tile.is_seen()) continue;
      const int kv_head = static_cast<int>(c.kv_head(tile.h));
      load_slot(2 * n, tile, {&plan.q, &c.q, tile.h}, {&plan.k, &c.k, kv_head});
      load_rows(n, tile);
      load_slot(2 * n + 1, tile, {&plan.out_gradient, &g.out_gradient, tile.h}, {&plan.v, &c.v, kv_head});
      ++n;
    }
  }

 private:
  struct Source {
    const CUtensorMap* map;
    const Tensor* tensor;
    int head;
  };

  // Boxes of 64 queries and 64 keys, two of each.
  HEED_DEVICE void load_bias(const BiasTile& tile) const {
    const Tensor& bias = g.forward.bias;
    barrier_arrive_expecting(shared.bias_full(), Shape::bias_bytes);
    for (int n = 0; n < 2 * Shape::halves; ++n)
      load_box(
          shared.bias(n / 2) + n % 2 * Shape::piece_bytes, &plan.bias,
          {tile.key_tile * backward_keys + n % 2 * 64, tile.query_tile * backward_keys + n / 2 * Shape::rows,
           bias.stride.heads == 0 ? 0 : tile.h, bias.stride.batch == 0 ? 0 : tile.b},
          shared.bias_full(), evict_first);
  }
  HEED_DEVICE void load_rows(unsigned n, const BiasTile& tile) const {
    constexpr int bytes = Shape::row_bytes / Shape::halves;
    barrier_wait(shared.rows_empty(), n & 1 ^ 1);
    barrier_arrive_expecting(shared.rows_full(), Shape::row_bytes);
    for (int half = 0; half < Shape::halves; ++half) {
      // A tile beyond the last has the numbers of the last, which nobody reads.
      const int in_entry = min_of(2 * tile.query_tile + half, plan.queries.each - 1);
      load_bytes(shared.rows() + half * bytes,
                 plan.rows + plan.tile(tile.b * plan.queries.each + in_entry, tile.h) * 2 * Shape::rows,
                 bytes, shared.rows_full());
    }
  }
  HEED_DEVICE void load_slot(unsigned n, const BiasTile& tile, const Source& queries,
                             const Source& keys) const {
    barrier_wait(shared.slot_empty(n), shared.phase(n) ^ 1);
    barrier_arrive_expecting(shared.slot_full(n), Shape::slot_bytes);
    for (int block = 0; block < 4; ++block) {
      const Source& from = block < 2 ? queries : keys;
      const int row = (block < 2 ? tile.query_tile : tile.key_tile) * backward_keys + block % 2 * Shape::rows;
#pragma unroll
      for (int piece = 0; piece < Shape::dim / 64; ++piece)
        load_box(shared.slot(n) + block * Shape::block_bytes + piece * Shape::piece_bytes, from.map,
                 {piece * 64, row, from.tensor->stride.heads == 0 ? 0 : from.head,
                  from.tensor->stride.batch == 0 ? 0 : tile.b},
                 shared.slot_full(n), evict_last);
    }
  }
};

template <class Shape>
class BiasConsumer {
  static constexpr Type type = Shape::type;
  static constexpr int rows = Shape::rows;
  using Scores = float[rows / 2];

 public:
  HEED_DEVICE BiasConsumer(const GradientCall& call, const BackwardPlan& launch, BiasShared<Shape> memory)
      : g(call), plan(launch), shared(memory), tile(call) {}

  HEED_DEVICE void run() {
#pragma unroll
    for (int n = 0; n < rows / 2; ++n) sums[0][n] = sums[1][n] = 0;
    barrier_wait(shared.bias_full(), 0);
    unsigned n = 0;
#pragma unroll 1
    for (; !tile.is_over(); tile.advance(g.forward))
      if (tile.is_seen()) add(n++);
    keys.sync_both();
    put(0), put(1);
    keys.sync_both();
    write();
  }

 private:
  HEED_DEVICE void add(unsigned n) {
    Scores s[2], dp[2];
    multiply(s, 2 * n);
    multiply(dp, 2 * n + 1);
    wait_for_products<2>();
    pin(s[0]), pin(s[1]);
    keys.release(shared.slot_empty(2 * n));
    barrier_wait(shared.rows_full(), n & 1);
    weigh(s[0], 0), weigh(s[1], 1);
    wait_for_products<0>();
    pin(dp[0]), pin(dp[1]);
    keys.release(shared.slot_empty(2 * n + 1));
    differentiate(s[0], dp[0], 0), differentiate(s[1], dp[1], 1);
    keys.release_own(shared.rows_empty());
  }

  HEED_DEVICE void multiply(Scores (&s)[2], unsigned n) const {
    barrier_wait(shared.slot_full(n), shared.phase(n));
    const SharedAddress from = shared.slot(n);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      multiply_rows<type, Shape::dim>(s[half],
                                      {from + (2 + keys.group) * Shape::block_bytes, Shape::piece_bytes},
                                      {from + half * Shape::block_bytes, Shape::piece_bytes});
  }

  // Of tile `half` of queries.
  HEED_DEVICE void weigh(Scores& s, int half) {
    const int query_tile = 2 * tile.query_tile + half;
    BackwardKeys of_tile = keys;  // in `keys` the pointer would force all registers here into memory
    of_tile.tile = &tile.keys;
    const BackwardScores<Shape> scores{g.forward, of_tile};
    const BackwardOptions<Shape> options{g.forward, of_tile, tile.h, query_tile * rows};
    options.add_bias(s, shared.bias(half));
    if (plan.mask.words) {
      const KeyBits* const bits = plan.mask.tile(tile.b, tile.h, query_tile, tile.key_tile);
      options.hide(s, 0, bits[keys.key(0)]), options.hide(s, 1, bits[keys.key(1)]);
    }
    scores.hide(s, query_tile * rows);
    BackwardWeights unused;
    scores.weigh(s, unused, numbers(half), 0);
  }
  HEED_DEVICE void differentiate(const Scores& p, const Scores& dp, int half) {
    // Values beyond the last key have weights of 0, but may be NaN.
    const int count = tile.keys.key_count - tile.keys.first_key();
    const bool is_key[2] = {keys.key(0) < count, keys.key(1) < count};
#pragma unroll
    for (int n = 0; n < rows / 8; ++n) {
      const float2 delta = load_shared8(numbers(half) + (rows + 8 * n) * 4 + keys.lane % 4 * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float gradient = p[4 * n + e] * (dp[4 * n + e] - (e % 2 == 0 ? delta.x : delta.y));
        if (is_key[e / 2]) sums[half][4 * n + e] += gradient;
      }
    }
  }

  // Through the memory of the slots, queries by keys, so that a warp writes neighbours.
  HEED_DEVICE void put(int half) const {
#pragma unroll
    for (int n = 0; n < rows / 2; ++n) {
      const int query = half * rows + n / 4 * 8 + keys.lane % 4 * 2 + n % 2;
      store_shared4(shared.sums(query, keys.key(n / 2 % 2)), __float_as_uint(sums[half][n]));
    }
  }
  HEED_DEVICE void write() const {
    const SharedGradient& to = g.bias;
    const std::int64_t b = block_in_column() / to.heads, h = block_in_column() % to.heads;
    const int key = thread_index() % 16 * 8;
    const std::int64_t j = tile.key_tile * backward_keys + key;
    if (j >= to.dim) return;
#pragma unroll 2
    for (int query = thread_index() / 16 - 8; query < backward_keys; query += 8 * Shape::groups) {
      const std::int64_t i = tile.query_tile * backward_keys + query;
      if (i >= to.length) return;
      float eight[8], poison = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        eight[n] = load_shared_float(shared.sums(query, key + n)) * lowered<type> + 0.0f;
        poison = fmaf(eight[n], 0.0f, poison);
      }
      if (poison == 0)
        write_eight(row_of(to.tensor, b, h, i), static_cast<int>(j), eight, g.accumulates);
      else
        for (int n = 0; n < 8; ++n)  // the others of the eight, too: what is marked is not written
          leave_unfinished(g, g.rows.unfinished_bias, ((b * to.heads + h) * to.length + i) * to.dim + j + n);
    }
  }

  HEED_DEVICE SharedAddress numbers(int half) const {
    return shared.rows() + half * (Shape::row_bytes / Shape::halves);
  }

  const GradientCall& g;
  const BackwardPlan& plan;
  const BiasShared<Shape> shared;
  BiasTile tile;
  BackwardKeys keys{};
  Scores sums[2];
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    bias_gradient_kernel(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
  extern __shared__ unsigned char memory[];
  const BiasShared<Shape> shared(memory);
  if (thread_index() == 0) shared.init();
  sync();
  if (thread_index() < 128) {
    lower_registers<Shape::producer_registers>();
    if (uniform(thread_index() / 32) == 0 && elect_one()) BiasLoader<Shape>{g, plan, shared}.run();
  } else {
    raise_registers<Shape::consumer_registers>();
    BiasConsumer<Shape>(g, plan, shared).run();
  }
}

// After the rows are prepared.
template <int dim, Type type>
void launch_bias_gradient(const GradientCall& g, BackwardPlan plan, Stream stream) {
  const Call& c = g.forward;
  using Shape = BiasShape<dim, type>;
  plan.q = tensor_map(c.q, {c.dim, g.query_rows, c.heads, c.batch}, Shape::rows);
  plan.out_gradient = tensor_map(g.out_gradient, {c.value_dim, g.query_rows, c.heads, c.batch}, Shape::rows);
  plan.k = tensor_map(c.k, {c.dim, g.key_rows, c.kv_heads, c.batch}, Shape::rows);
  plan.v = tensor_map(c.v, {c.value_dim, g.key_rows, c.kv_heads, c.batch}, Shape::rows);
  plan.bias = tensor_map(c.bias, {c.keys, g.query_rows, c.heads, c.batch}, Shape::rows);
  const dim3 tiles(static_cast<unsigned>(BiasTile::tiles(c.keys) * BiasTile::tiles(c.queries)),
                   static_cast<unsigned>(g.bias.batch * g.bias.heads));
  const auto kernel = bias_gradient_kernel<Shape>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::shared_bytes),
        "cudaFuncSetAttribute");
  kernel<<<tiles, Shape::threads, Shape::shared_bytes, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.backward: bias");
}

}  // namespace heed::cuda
