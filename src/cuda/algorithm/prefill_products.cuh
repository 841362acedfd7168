// SPDX-License-Identifier: Apache-2.0
// The two products of prefill's consumers, over operands that the producer brought: queries with a tile of
// keys, weights with a tile of values.
#pragma once
#include "cuda/algorithm/prefill_end.cuh"

namespace heed::cuda {

template <class Shape, bool capped>
class PrefillProducts : public PrefillEnd<Shape, capped> {
  using Thread = PrefillThread<Shape, capped>;
  static constexpr Type type = Shape::type;

 protected:
  using Thread::o, Thread::s, Thread::p;
  using Thread::shared, Thread::group, Thread::dim, Thread::keys, Thread::max, Thread::sum;

  HEED_DEVICE PrefillProducts(const Call& call, const PrefillPlan& launch, PrefillMemory<Shape> memory)
      : PrefillEnd<Shape, capped>(call, launch, memory) {
    first_queries = operand(shared.queries(0) + group * 64 * 128);
    first_keys = operand(shared.keys(0)), first_values = operand(shared.values(0), keys * 128);
  }

  // Rows that have seen nothing yet, and their queries.
  HEED_DEVICE void begin_rows(unsigned n) {
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) o[i] = 0;
    max[0] = max[1] = minus_infinity, sum[0] = sum[1] = 0;
    queries = moved(first_queries, uniform(static_cast<int>(n % Shape::query_stages)) * Shape::query_bytes);
    barrier_wait(shared.queries_there(n), shared.query_phase(n));
  }

  HEED_DEVICE static int stage(unsigned n) { return uniform(static_cast<int>(n % Shape::stages)); }

  // s = queries * keys^T
  template <int columns = keys>
  HEED_DEVICE void multiply_keys(int at) {
    auto& sums = first_sums<columns / 2>(s);
    const Operand b = moved(first_keys, at * Shape::key_bytes);
    pin(sums);
    begin_products();
#pragma unroll
    for (int k = 0; k < dim / 16; ++k)
      multiply<type, 0>(sums, moved(queries, k / 4 * Shape::rows * 128 + k % 4 * 32),
                        moved(b, k / 4 * keys * 128 + k % 4 * 32), k != 0);
    close_products();
    pin(sums);
  }

  // o += p * values, of which the first `rows` have weights.
  template <int rows = keys>
  HEED_DEVICE void multiply_values(int at) {
    const Operand b = moved(first_values, at * Shape::key_bytes);
    pin(p), pin(o);
    begin_products();
#pragma unroll
    for (int k = 0; k < rows / 16; ++k) multiply<type, 1>(o, p + 4 * k, moved(b, k * 2048));
    close_products();
    pin(o), pin(p);
  }

  unsigned taken = 0;  // tiles of values

 private:
  Operand first_queries, first_keys, first_values, queries;  // queries: of the tile at hand
};

}  // namespace heed::cuda
