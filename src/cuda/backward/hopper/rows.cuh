// SPDX-License-Identifier: Apache-2.0
// Before and after the products of Hopper's backward pass: what rows have to themselves, in tiles, and dQ
// from its sums. A block of threads for each tile of queries of a head.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/backward/hopper/fragment.cuh"
#include "cuda/backward/hopper/plan.hpp"
#include "cuda/backward/rows.cuh"
#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// The tile of queries of this block.
struct QueryTile {
  int b, head, first_query;
  std::int64_t first_row;  // of q
  std::int64_t number;     // in the plan
  int queries;             // of the sequence

  HEED_DEVICE QueryTile(const GradientCall& g, const BackwardPlan& plan)
      : QueryTile(g, plan, static_cast<int>(block_index()), block_in_column()) {}
  // `line`: of the line of all tiles.
  HEED_DEVICE QueryTile(const GradientCall& g, const BackwardPlan& plan, int line, int of_head)
      : head(of_head) {
    const auto found = plan.queries.find(line, [&](int b) { return g.forward.sequence(b).first_query; });
    const Sequence& s = g.forward.sequence(found.b);
    b = found.b, first_query = found.tile * plan.queries.rows, queries = static_cast<int>(s.queries);
    first_row = s.first_query + first_query, number = plan.tile(line, head);
  }
  HEED_DEVICE Query query(int r) const { return {b, head, first_query + r, first_row + r}; }
  HEED_DEVICE bool has(int r) const { return first_query + r < queries; }
};

template <Type type>
HEED_DEVICE float widened(std::uint32_t two, int which) {
  const auto bits = static_cast<std::uint16_t>(two >> 16 * which);
  return type == Type::bf16 ? from_bf16(bits) : from_f16(bits);
}

// Rows of dO and out, eight dimensions to a lane: their products become delta.
template <class Shape>
struct BackwardRows {
  static constexpr int threads = 256, lanes = Shape::value_dim / 8, rows_at_once = threads / lanes;

  const GradientCall& g;
  const BackwardPlan& plan;

  HEED_DEVICE void run() const {
    launch_dependents();
    const QueryTile tile(g, plan);
    if (plan.adds && thread_index() == 0) plan.adds[tile.number] = 0;
    // Read when the products are there: on its way meanwhile.
    const int own_row = row(thread_index() % lanes);
    if (thread_index() % lanes < passes && tile.has(own_row)) {
      const Row from = row_of(g.forward.log_sum_exp, tile.query(own_row));
      prefetch_l2(static_cast<const float*>(from.data) + from.first);
    }
    float product[passes];
    multiply(tile, product);
#pragma unroll
    for (int n = 0; n < passes; ++n)
#pragma unroll
      for (int bits = lanes / 2; bits > 0; bits /= 2) product[n] += shuffle_xor(product[n], bits);
    // Every lane of a row has its sum: the first one writes that of the first pass, and so on.
    const int lane = thread_index() % lanes;
    float own = product[0];
#pragma unroll
    for (int n = 1; n < passes; ++n) own = lane == n ? product[n] : own;
    if (lane < passes) write(tile, row(lane), own);
  }

 private:
  static constexpr int passes = Shape::rows / rows_at_once;
  static_assert(passes <= lanes);

  HEED_DEVICE static int row(int pass) { return thread_index() / lanes + pass * rows_at_once; }

  // Of this lane's eight dimensions, all loads before the first product.
  HEED_DEVICE void multiply(const QueryTile& tile, float (&product)[passes]) const {
    const int d = thread_index() % lanes * 8;
    uint4 x[passes], y[passes];
#pragma unroll
    for (int n = 0; n < passes; ++n) {
      const bool is_row = tile.has(row(n)) && d < g.forward.value_dim;
      x[n] = is_row ? eight(row_of(g.out_gradient, tile.query(row(n))), d) : uint4{0, 0, 0, 0};
      y[n] = is_row ? eight(row_of(g.forward.out, tile.query(row(n))), d) : uint4{0, 0, 0, 0};
    }
#pragma unroll
    for (int n = 0; n < passes; ++n) {
      const std::uint32_t xs[4] = {x[n].x, x[n].y, x[n].z, x[n].w}, ys[4] = {y[n].x, y[n].y, y[n].z, y[n].w};
      product[n] = 0;
#pragma unroll
      for (int e = 0; e < 8; ++e)
        product[n] =
            fmaf(widened<Shape::type>(xs[e / 2], e % 2), widened<Shape::type>(ys[e / 2], e % 2), product[n]);
    }
  }
  HEED_DEVICE static uint4 eight(const Row& row, int d) {
    return *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(row.data) + row.first + d);
  }

  // A row that gives nothing to anybody has a log-sum-exp of +inf, and so weights of 0.
  HEED_DEVICE void write(const QueryTile& tile, int r, float product) const {
    float* const numbers = plan.rows + tile.number * 2 * Shape::rows;
    const Query q = tile.query(r);
    const std::int64_t n = g.row(q.b, q.h, q.row);
    const bool is_row = tile.has(r), is_padding = !is_row && plan.queries.each > 0 && q.row < g.query_rows;
    RowNumbers of{-minus_infinity, 0.0f};
    if (is_row) of = write_row_numbers(g, n, q, product, true);
    if (is_padding) write_no_row(g, n, q);
    // fault: hopper-gradient-not-lifted
    numbers[r] = lift<Shape::type> - of.log_sum_exp, numbers[Shape::rows + r] = of.delta;
  }
};

template <class Shape>
__global__ void __launch_bounds__(BackwardRows<Shape>::threads)
    backward_rows_kernel(const __grid_constant__ GradientCall g, const __grid_constant__ BackwardPlan plan) {
  BackwardRows<Shape>{g, plan}.run();
}

template <class Shape>
void launch_backward_rows(const GradientCall& g, const BackwardPlan& plan, Stream stream) {
  const dim3 tiles(static_cast<unsigned>(plan.queries.count), static_cast<unsigned>(g.forward.heads));
  backward_rows_kernel<Shape><<<tiles, BackwardRows<Shape>::threads, 0, stream>>>(g, plan);
  check(cudaGetLastError(), "cuda.backward: rows");
}

// Each thread takes what one of a consumer's threads has put there, or one of each warpgroup: 64 dimensions
// of 64 queries to 128 threads. Blocks begin where multiprocessors have no more tiles of keys, while others
// still have, and wait for the sum of their own tile: nobody waits for them.
template <class Shape>
struct BackwardQueries {
  static constexpr int threads = Shape::rows * Shape::dim / 32;

  const GradientCall& g;
  const BackwardPlan& plan;

  HEED_DEVICE void run() const {
    const auto [head, behind] = plan.of_queries[static_cast<int>(block_index())];
    const int tile = plan.from_the_first ? plan.of_queries.tiles - 1 - behind : behind,
              entry = head / plan.heads;  // packed: 0
    write(QueryTile(g, plan, entry * plan.of_queries.tiles + tile, head % plan.heads));
    // So that whatever comes next on the stream comes after the products, too.
    if (block_index() + 1 == gridDim.x) wait_for_prior_launches();
  }

 private:
  HEED_DEVICE void write(const QueryTile& tile) const {
    if (tile.first_query >= tile.queries) return;
    const int adds =
        key_tiles_of(g.forward.sequence(tile.b), tile.first_query / Shape::rows, Shape::rows).count();
    if (thread_index() == 0)
      while (load_acquire(plan.adds + tile.number) != static_cast<unsigned>(adds)) {
      }
    sync();
    SlabSums x;
    load(tile.number, adds > 0, x);
    const GradientTarget to{g.q, g.rows.unfinished_q, g.forward.dim, g.scale * lowered<Shape::type>};
    const int slab = Shape::dim == 64 ? 0 : thread_index() / 128;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Query q = tile.query(row(r));
      const bool is_written = tile.has(row(r)) && g.q.data;
      write_slab(g, to, {row_of(g.q, q), g.row(q.b, q.h, q.row), is_written}, slab, x, r);
      if constexpr (Shape::biased)
        if (plan.bias_gradient == BiasGradient::of_products && tile.has(row(r)) && slab == 0 &&
            !all_finite(x, r, to.factor))
          mark_bias(q);
    }
  }

  // What is no number in a row of the gradient by the bias, by four lanes.
  HEED_DEVICE void mark_bias(const Query& q) const {
    wait_for_prior_launches();  // of which other tiles of keys may still be at the row
    const SharedGradient& bias = g.bias;
    const Row row = row_of(bias.tensor, q.b, q.h, q.i);
    for (std::int64_t j = thread_index() % 4; j < bias.dim; j += 4)
      if (!is_finite(read(row, j)))
        leave_unfinished(g, g.rows.unfinished_bias,
                         ((q.b * bias.heads + q.h) * bias.length + q.i) * bias.dim + j);
  }

  // Of the tile, and of this thread.
  HEED_DEVICE static int row(int r) {
    const int of_group = Shape::dim == 64 ? thread_index() / 128 * 64 : 0;
    return of_group + thread_index() % 128 / 32 * 16 + thread_index() % 32 / 4 + 8 * r;
  }
  // Zeros where no tile of keys has added.
  HEED_DEVICE void load(std::int64_t tile, bool has_sum, SlabSums& x) const {
    const float* const from = plan.sums + tile * (Shape::rows * Shape::dim) + thread_index() / 128 * 4096 +
                              thread_index() % 128 * 4;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float4 four =
          has_sum ? __ldcg(reinterpret_cast<const float4*>(from + n * 512)) : float4{0, 0, 0, 0};
      x[4 * n] = four.x, x[4 * n + 1] = four.y, x[4 * n + 2] = four.z, x[4 * n + 3] = four.w;
    }
  }
};

}  // namespace heed::cuda
