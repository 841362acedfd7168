// SPDX-License-Identifier: Apache-2.0
// Scores become weights, and the values under them are added up.
#pragma once
#include <cstdint>

#include "cuda/algorithm/dropout.cuh"
#include "cuda/algorithm/exact_scores.cuh"

namespace heed::cuda {

template <int slabs, bool in_place>
class ExactValues : public ExactScores<slabs, in_place> {
  using Scores = ExactScores<slabs, in_place>;
  using Thread = ExactThread<slabs, in_place>;
  using typename Thread::Loads;

 protected:
  using Scores::Scores;
  using Thread::c, Thread::work, Thread::shared, Thread::loads, Thread::threads, Thread::rows, Thread::dims;
  using Thread::max, Thread::own_sum, Thread::o;
  using Thread::row, Thread::row_group, Thread::column, Thread::own_row;

  // Of tiles [first, last] of the block, the part that some row sees.
  HEED_DEVICE void add_block(std::int64_t block, KeyRange seen, int first, int last, bool careful) {
    float values[slabs][4][8] = {};  // this block's, weighted: a chain of their own
    if (first <= 0 && 0 <= last) add_tile<0>(block, seen, careful, values);
    if (first <= 1 && 1 <= last) add_tile<1>(block, seen, careful, values);
    ExactState<slabs>::add(values);
  }

 private:
  // Turns the tile's scores into weights and adds its values.
  template <int tile>
  HEED_DEVICE void add_tile(std::int64_t block, KeyRange seen, bool careful, float (&sums)[slabs][4][8]) {
    const std::int64_t first_key = block + tile * exact_tile;
    sync();  // the last tile's weights have been read
#pragma unroll
    for (int n = 0; n < 8; ++n) top_of[n] = finite_max(max[n]);
    Scores::template put_tile<tile>([&](float x, int n) { return power_of(c)(x - top_of[n]); });
    bool is_first = true;
    const KeyRange groups =
        Loads::value_groups({max(seen.begin, first_key), min(seen.end, first_key + exact_tile)});
    for (std::int64_t group = groups.begin; group < groups.end; group += Loads::value_keys) {
      float* values = loads.take();
      if (is_first) {
        sum_weights();
        if (c.drop_below || c.layout.is_quantized) change_weights(first_key);
      }
      is_first = false;
      const bool poisoned = careful && Loads::clear_poison(values);
      add_values(values, &shared.p[group - first_key][row_group * 4], sums);
      if (poisoned) spread_poison(group);
    }
  }

  // Each row's weights in chains in the order of the keys, by the one thread that owns the row.
  HEED_DEVICE void sum_weights() {
    if (own_row < 0) return;
    for (int first = 0; first < exact_tile; first += chain_keys) {
      float chain = 0;
#pragma unroll 16
      for (int j = first; j < first + chain_keys; ++j) chain = chain + shared.p[j][own_row];
      own_sum = own_sum + chain;
    }
  }

  HEED_DEVICE void change_weights(std::int64_t first_key) {
    sync();
    for (int n = thread_index(); n < exact_tile * rows; n += threads) {
      const int r = n % rows;
      const std::int64_t j = first_key + n / rows;
      if (!work.is_row(r) || j >= work.keys) continue;
      float weight = after_dropout(c, work.query(r), j, shared.p[n / rows][r]);
      if (c.layout.is_quantized) weight = weight * value_scale(c, work.b, work.kv_head, j);
      shared.p[n / rows][r] = weight;
    }
    sync();
  }

  HEED_DEVICE void add_values(const float* values, const float* p, float (&sums)[slabs][4][8]) {
    values += column * 4;
#pragma unroll 8
    for (int j = 0; j < Loads::value_keys; ++j, p += rows, values += dims) {
      float x[8], y[slabs][4];
      load4(x, p), load4(x + 4, p + 32);
#pragma unroll
      for (int v = 0; v < slabs; ++v) load4(y[v], values + 64 * v);
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
          for (int n = 0; n < 8; ++n) sums[v][e][n] = fmaf(x[n], y[v][e], sums[v][e][n]);
    }
  }

  // The rows that see such a value have no number there, until complete() says what they have (S4).
  HEED_DEVICE void spread_poison(std::int64_t group) {
    for (std::int64_t j = group; j < min(group + Loads::value_keys, work.keys); ++j) {
      const Row value = value_row(c, work.b, work.kv_head, j);
      unsigned seen_by_row = 0;
#pragma unroll 1
      for (int n = 0; n < 8; ++n)
        if (work.is_row(row(n)) && sees(c, work.query(row(n)), j)) seen_by_row |= 1u << n;
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const std::int64_t d = work.first_dim + 64 * v + column * 4 + e;
          if (d >= c.value_dim || is_finite(read(value, d))) continue;
#pragma unroll
          for (int n = 0; n < 8; ++n)
            if (seen_by_row >> n & 1u) o[v][e][n] = __builtin_nanf("");
        }
    }
  }

  float top_of[8];  // what is subtracted from the scores of this thread's rows
};

}  // namespace heed::cuda
