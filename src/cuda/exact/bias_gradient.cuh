// SPDX-License-Identifier: Apache-2.0
// The gradient by the bias with the bits of the CPU's kernel. Batch entries, heads, queries and keys may
// share an element: one block of threads goes through all that do, batch entry by batch entry, head by head,
// query by query, with the keys of each query summed first (G8).
#pragma once
#include <cstdint>

#include "cuda/exact/pair_tiles.cuh"

namespace heed::cuda {

// Blocks are (batch, heads, tiles of rows, tiles of keys) of the bias, the last of them fastest. Packed
// sequences have rows of their own.
struct BiasTiles {
  std::int64_t entries, heads, rows, keys;

  explicit constexpr BiasTiles(const GradientCall& g)
      : entries(has_packed_rows(g) ? g.forward.batch : g.bias.batch),
        heads(g.bias.heads),
        rows(g.bias.length == 1
                 ? 1
                 : ((g.shares_query_rows ? g.forward.queries : g.bias.length) + pair_items - 1) / pair_items),
        keys(g.bias.dim == 1 ? 1 : (g.bias.dim + pair_items - 1) / pair_items) {}
  static constexpr bool has_packed_rows(const GradientCall& g) {
    return g.shares_query_rows && g.bias.length != 1;
  }
  constexpr std::int64_t blocks() const { return entries * heads * rows * keys; }
};

class ExactBiasGradient {
  // Of the pairs of a thread; where rows or keys are shared, of those items that have its number.
  using Sums = float[pair_items * pair_items / pair_threads];
  static constexpr int items = (pair_items + pair_threads - 1) / pair_threads;
  using ItemSums = float[items];

 public:
  struct Shared : PairsShared {
    float of_rows[pair_items];
  };

  HEED_DEVICE ExactBiasGradient(const GradientCall& call, Shared& memory, PairOptions& options)
      : g(call),
        c(call.forward),
        shared(memory),
        pairs(call, memory, options, {}),
        shares_rows(call.bias.length == 1),
        shares_keys(call.bias.dim == 1) {
    const BiasTiles tiles(g);
    std::int64_t n = block_index();
    first_key = n % tiles.keys * pair_items, n /= tiles.keys;
    first_row = n % tiles.rows * pair_items, n /= tiles.rows;
    own_h = n % tiles.heads, own_b = n / tiles.heads;
  }

  HEED_DEVICE void run() {
    const bool shares_batch = g.bias.batch == 1 && !BiasTiles::has_packed_rows(g);
    const Sharing entries(shares_batch ? 1 : 0, own_b, c.batch), heads(g.bias.heads, own_h, c.heads);
    Sums sums = {};
    force_to_memory(sums);
    for (std::int64_t b = entries.begin; b < entries.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end; ++h) add_head(b, h, sums);
    write(sums);
  }

 private:
  HEED_DEVICE void add_head(std::int64_t b, std::int64_t h, Sums& sums) {
    sync();
    if (thread_index() == 0) shared.of = PairRows::of_head(c, b, h);
    sync();
    const std::int64_t queries = c.sequence(b).queries;
    const std::int64_t end = shares_rows ? queries : min(queries, first_row + pair_items);
    for (std::int64_t row = shares_rows ? 0 : first_row; row < end; row += pair_items)
      add_rows(row, min(pair_items, end - row), sums);
  }

  HEED_DEVICE void add_rows(std::int64_t row, std::int64_t count, Sums& sums) {
    const std::int64_t b = shared.of.b, keys = c.sequence(b).keys,
                       end = shares_keys ? keys : min(keys, first_key + pair_items);
    const Seen seen = seen_by(c, b, row, row + count - 1);
    ItemSums of_rows = {};
    for (std::int64_t key = shares_keys ? 0 : first_key; key < end; key += pair_items) {
      const KeyRange part = seen.within({key, min(key + pair_items, end)});
      if (part.end <= part.begin) continue;
      pairs.own(key);
      pairs.weigh(row);
      pairs.differentiate(By::score, nullptr);
      sync();
      add_pairs(of_rows, sums);
    }
    if (shares_keys) add_row_sums(of_rows, count, sums);
  }

  // A thread has some rows, some keys, or some of the pairs.
  template <class Step>
  HEED_DEVICE static void for_each_item(const Step& step) {
#pragma unroll
    for (int n = 0; n < items; ++n)
      if (thread_index() + n * pair_threads < pair_items) step(n, thread_index() + n * pair_threads);
  }

  HEED_DEVICE void add_pairs(ItemSums& of_rows, Sums& sums) const {
    if (shares_keys) {
      for_each_item([&](int n, int r) {
        for (int w = 0; w < pair_items; ++w) of_rows[n] = of_rows[n] + shared.tile[r][w];
      });
    } else if (shares_rows) {
      for_each_item([&](int n, int w) {
        for (int r = 0; r < pair_items; ++r) sums[n] = sums[n] + shared.tile[r][w];
      });
    } else {
      for (int n = 0; n < pair_items * pair_items / pair_threads; ++n) {
        const int at = thread_index() + n * pair_threads;
        sums[n] = sums[n] + shared.tile[at / pair_items][at % pair_items];
      }
    }
  }

  HEED_DEVICE void add_row_sums(const ItemSums& of_rows, std::int64_t count, Sums& sums) {
    if (!shares_rows) {
      for_each_item([&](int n, int) { sums[n] = sums[n] + of_rows[n]; });
      return;
    }
    sync();
    for_each_item([&](int n, int r) { shared.of_rows[r] = of_rows[n]; });
    sync();
    // fault: cuda-bias-gradient-of-one-row
    for (int r = 0; r < count && thread_index() == 0; ++r) sums[0] = sums[0] + shared.of_rows[r];
  }

  HEED_DEVICE void write(const Sums& sums) const {
    if (shares_keys && shares_rows) {
      if (thread_index() == 0) write(0, 0, sums[0]);
    } else if (shares_keys) {
      for_each_item([&](int n, int r) { write(r, 0, sums[n]); });
    } else if (shares_rows) {
      for_each_item([&](int n, int w) { write(0, w, sums[n]); });
    } else {
      for (int n = 0; n < pair_items * pair_items / pair_threads; ++n) {
        const int at = thread_index() + n * pair_threads;
        write(at / pair_items, at % pair_items, sums[n]);
      }
    }
  }
  // Row r and key w of the block's tile.
  HEED_DEVICE void write(int r, int w, float x) const {
    const SharedGradient& to = g.bias;
    const Sequence& s = c.sequence(own_b);
    const bool is_packed = BiasTiles::has_packed_rows(g);
    const std::int64_t i = first_row + r, key = first_key + w, row = (is_packed ? s.first_query : 0) + i;
    if (i >= (is_packed ? s.queries : to.length) || key >= to.dim) return;
    x = x + 0.0f;
    const std::int64_t entry = is_packed ? 0 : own_b;
    if (is_finite(x))
      write_gradient(g, row_of(to.tensor, entry, own_h, row), key, x);
    else
      leave_unfinished(g, g.rows.unfinished_bias,
                       ((entry * to.heads + own_h) * to.length + row) * to.dim + key);
  }

  const GradientCall& g;
  const Call& c;
  Shared& shared;
  Pairs pairs;
  const bool shares_rows, shares_keys;
  std::int64_t own_b, own_h, first_row, first_key;
};

}  // namespace heed::cuda
