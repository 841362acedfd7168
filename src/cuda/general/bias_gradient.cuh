// SPDX-License-Identifier: Apache-2.0
// The gradient by a bias that has a row for each query and a column for each key. A block owns a tile of it,
// and goes through the batch entries and heads that share it in order, finding dS of each anew: no sum leaves
// the block's registers. Two blocks of a multiprocessor hide each other's copies.
#pragma once
#include <cstdint>

#include "cuda/backward/rows.cuh"
#include "cuda/general/backward.cuh"

namespace heed::cuda::general {

template <Type type, int dim>
using BiasShape = BackwardShape<type, dim, PairStage::every_option, TileShape<64, 64, 8, 2, 1, 2, 1, 1, 2>>;

constexpr bool has_bias_kernel(const GradientCall& g) {
  const Call& c = g.forward;
  return g.bias.elements() > 0 && !g.shares_query_rows && !g.shares_key_rows && g.bias.length == c.queries &&
         g.bias.dim == c.keys;
}

template <class Shape>
constexpr std::int64_t bias_tiles(const GradientCall& g) {
  return g.bias.batch * g.bias.heads * ((g.bias.length + Shape::rows - 1) / Shape::rows) *
         ((g.bias.dim + Shape::keys - 1) / Shape::keys);
}

template <class Shape>
struct BiasMemory {
  alignas(512) unsigned char k[Shape::keys * Shape::pitch];
  alignas(512) unsigned char v[Shape::keys * Shape::pitch];
  alignas(512) unsigned char q[Shape::rows * Shape::pitch];
  alignas(512) unsigned char out_gradient[Shape::rows * Shape::pitch];
  alignas(512) unsigned char bias[Shape::rows * Shape::score_pitch];
  alignas(16) KeyBits mask[Shape::keys];
  StepRows<Shape::rows, Shape::stage> rows;
};

template <class Shape>
class BiasGradient {
  using Layout = typename Shape::Scores;
  using KeyCopy = RowCopy<Shape::threads, Shape::keys, Shape::dim, Shape::pitch>;
  using RowsCopy = RowCopy<Shape::threads, Shape::rows, Shape::dim, Shape::pitch>;

 public:
  using Shared = BiasMemory<Shape>;

  HEED_DEVICE BiasGradient(const GradientCall& call, const BackwardPlan& launch, Shared& memory)
      : g(call), c(call.forward), plan(launch), shared(memory), pairs(c, launch.mask, memory.mask) {
    std::int64_t n = block_index();
    const auto next = [&](std::int64_t extent) {
      const auto found = static_cast<int>(n % extent);
      n /= extent;
      return found;
    };
    first_key = next((g.bias.dim + Shape::keys - 1) / Shape::keys) * Shape::keys;
    first_query = next((g.bias.length + Shape::rows - 1) / Shape::rows) * Shape::rows;
    own_h = next(g.bias.heads), own_b = static_cast<int>(n);
  }

  HEED_DEVICE void run() {
    Layout::clear(sums);
    const Sharing entries(g.bias.batch, own_b, c.batch), heads(g.bias.heads, own_h, c.heads);
    for (auto b = static_cast<int>(entries.begin); b < entries.end; ++b) {
      const QueryTiles seen =
          query_tiles_of(c.sequence(b), first_key / Shape::keys, Shape::rows, Shape::keys, c.front);
      if (first_query / Shape::rows < seen.first || first_query / Shape::rows > seen.last) continue;
      int loaded = -1;
      for (auto h = static_cast<int>(heads.begin); h < heads.end; ++h) add_head(b, h, loaded);
    }
    write();
  }

 private:
  // `loaded`: the KV head whose keys are in shared memory.
  HEED_DEVICE void add_head(int b, int h, int& loaded) {
    const PairTiles step(c, b, h, first_query, first_key);
    shared.rows.put(decltype(shared.rows)::find(g, step));
    sync();  // everybody has read what was there
    const auto kv_head = static_cast<int>(c.kv_head(h));
    if (kv_head != loaded) copy_keys(step, kv_head);
    loaded = kv_head;
    const bool has_all = shared.rows.has_all();
    const auto has_row = [&](int r) { return shared.rows.has(r); };
    copy_tile<RowsCopy>(shared_address(shared.q),
                        {c.q, step.first_of(c.q), static_cast<int>(c.dim), plan.q_in_16}, has_all, has_row);
    copy_tile<RowsCopy>(shared_address(shared.out_gradient),
                        {g.out_gradient, step.first_of(g.out_gradient), static_cast<int>(c.value_dim),
                         plan.out_gradient_in_16},
                        has_all, has_row);
    pairs.prefetch(step, shared_address(shared.bias), plan.bias_in_16);
    commit_copies();
    wait_for_copies<0>();
    if (pairs.sync_and_look()) add_pairs(step);
    sync();
  }
  HEED_DEVICE void copy_keys(const PairTiles& step, int kv_head) const {
    const std::int64_t row = c.sequence(step.b).first_key + first_key;
    const bool are_all = first_key + Shape::keys <= step.key_count;
    const auto is_key = [&](int r) { return first_key + r < step.key_count; };
    copy_tile<KeyCopy>(shared_address(shared.k),
                       {c.k, row_of(c.k, step.b, kv_head, row), static_cast<int>(c.dim), plan.k_in_16},
                       are_all, is_key);
    copy_tile<KeyCopy>(shared_address(shared.v),
                       {c.v, row_of(c.v, step.b, kv_head, row), static_cast<int>(c.value_dim), plan.v_in_16},
                       are_all, is_key);
  }
  HEED_DEVICE void add_pairs(const PairTiles& step) {
    using Found = PairGradients<Shape>;
    typename Layout::Sums p, ds;
    const PairOperands from{shared_address(shared.q), shared_address(shared.k),
                            shared_address(shared.out_gradient), shared_address(shared.v),
                            shared_address(shared.bias)};
    pairs.template find<Found::By::score>(p, ds, from, step, shared.rows);
    each_pair([&](int m, int n, int e) { sums[m][n][e] += ds[m][n][e]; });
  }

  template <class Visit>
  HEED_DEVICE static void each_pair(const Visit& visit) {
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Layout::column_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) visit(m, n, e);
  }
  HEED_DEVICE void write() const {
    const SharedGradient& to = g.bias;
#pragma unroll
    for (int x = 0; x < 2 * Layout::row_tiles; ++x) {
      const std::int64_t i = first_query + Layout::row(x / 2, x % 2);
      if (i >= to.length) continue;
      const Row row = row_of(to.tensor, own_b, own_h, i);
#pragma unroll
      for (int y = 0; y < 2 * Layout::column_tiles; ++y) {
        const std::int64_t j = first_key + Layout::column(y / 2) + y % 2;
        const float sum = sums[x / 2][y / 2][x % 2 * 2 + y % 2] * lowered<Shape::type> + 0.0f;
        if (j >= to.dim) continue;
        if (is_finite(sum))
          write_gradient(g, row, j, sum);
        else
          leave_unfinished(g, g.rows.unfinished_bias,
                           ((own_b * to.heads + own_h) * to.length + i) * to.dim + j);
      }
    }
  }

  const GradientCall& g;
  const Call& c;
  const BackwardPlan& plan;
  Shared& shared;
  const PairGradients<Shape> pairs;
  int first_key, first_query, own_h, own_b;
  typename Layout::Sums sums;
};

}  // namespace heed::cuda::general
