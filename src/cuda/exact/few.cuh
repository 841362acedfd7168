// SPDX-License-Identifier: Apache-2.0
// The exact kernel for few rows, as decoding has them: f32 keys and values as they lie, in rows or in the
// pages of a cache, at most 8 rows that share a KV head, heads of at most 128, masks that are ranges of keys.
// A block of threads does a chunk of keys, each of its warps a block of keys, by the operations of
// general.cuh in the same order; the block that arrives last merges the chunks. Rows that f32 cannot finish
// are left to the general kernel, which follows.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/exact/state.cuh"
#include "cuda/exact/work.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

constexpr int few_warps = chunk_keys / block_keys, few_threads = 32 * few_warps;
constexpr int few_keys = 64;   // whose scores a warp adds up at once
constexpr int few_depth = 16;  // dimensions of them in a stage
constexpr int few_stages = 4;

template <int rows>
struct ExactFewShared {
  alignas(16) float q[few_dims][rows];
  // (keys, depth); the fours of a key are swizzled by half its number, so that eight keys are read without
  // conflicts. Of a cache as its pages have them: (keys / 16, depth, 16).
  alignas(16) float stages[few_warps][few_stages][few_keys * few_depth];
  alignas(16) float p[few_warps][block_keys + 8][rows];  // scores, and then weights; the last eight are 0
  float max[few_warps][rows], factor[few_warps][rows];
  float chains[few_warps][block_keys / chain_keys][rows];  // of weights
  bool is_seen[few_warps];                                 // whether some row sees some key of the block
  int begin[rows], end[rows];                              // keys that each row sees
  RowEnd row[rows];
  ExactWork work;
  unsigned arrived;

  // A warp's weighted values, where its keys have been.
  HEED_DEVICE float* sums(int warp, int row) { return stages[warp][0] + row * few_dims; }
};

// A warp and its block of keys: the scores, with two keys of 64 in every lane, then the weights, and the
// values under them, with four dimensions in every lane. Keys come through a ring of stages of its own,
// values straight from memory: it waits for the other warps only once, for the maxima of the blocks before.
template <int rows, bool paged>
class ExactFewWarp {
  static constexpr int tile = cache::PageLayout::tile;
  static_assert(few_depth == 16 && few_keys % tile == 0);

 public:
  HEED_DEVICE ExactFewWarp(const Call& call, ExactFewShared<rows>& memory, KeyRange chunk)
      : c(call),
        work(memory.work),
        shared(memory),
        lane(thread_index() % 32),
        warp(thread_index() / 32),
        block(chunk.begin / chunk_keys * chunk_keys + warp * block_keys),
        seen(work.part_of(block)) {
    depths = static_cast<int>((c.dim + few_depth - 1) / few_depth);
    if (lane == 0) shared.is_seen[warp] = seen.begin < seen.end;
  }

  HEED_DEVICE void score() {
    float top[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) top[r] = minus_infinity;
    const int first = static_cast<int>(max(0, seen.begin - block)) / few_keys * few_keys,
              end = static_cast<int>(seen.end - block);
    pieces = seen.begin < seen.end ? (end - first + few_keys - 1) / few_keys * depths : 0;
    for (int key = lane; key < block_keys + 8; key += 32)
#pragma unroll
      for (int r = 0; r < rows; ++r) shared.p[warp][key][r] = key < block_keys ? minus_infinity : 0.0f;
    for (int n = 0; n < few_stages - 1; ++n) load(first, n);
    float s[2][rows];
    for (int n = 0; n < pieces; ++n) {
      wait_for_copies<few_stages - 2>();
      sync_own_warp();
      load(first, n + few_stages - 1);
      const int depth = n % depths;
      if (depth == 0) clear(s);
      multiply(s, shared.stages[warp][n % few_stages], depth * few_depth);
      if (depth + 1 == depths) take(s, top, first + n / depths * few_keys);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
#pragma unroll
      for (int bits = 1; bits < 32; bits *= 2) top[r] = fmaxf(top[r], shuffle_xor(top[r], bits));
      if (lane == 0) shared.max[warp][r] = top[r];
    }
  }

  // When every warp has scored.
  HEED_DEVICE void add() {
    if (seen.end <= seen.begin) return;
    weigh();
    sync_own_warp();
    sum_weights();
    add_values();
  }

 private:
  HEED_DEVICE void sync_own_warp() const { named_sync(1 + warp, 32); }

  HEED_DEVICE static void clear(float (&s)[2][rows]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < rows; ++r) s[i][r] = 0;
  }

  // Piece n: few_depth dimensions of 64 keys, or nothing past the last.
  HEED_DEVICE void load(int first, int n) const {
    if (paged && n < pieces) {
      load_from_pages(first, n);
    } else if (n < pieces) {
      float* const stage = shared.stages[warp][n % few_stages];
      const int d = n % depths * few_depth + lane % 4 * 4;
      const float* const head = static_cast<const float*>(work.first_key);
#pragma unroll
      for (int key = lane / 4; key < few_keys; key += 8) {
        const std::int64_t j = block + first + n / depths * few_keys + key;
        const bool is_valid = seen.begin <= j && j < seen.end && d < c.dim;
        copy16(stage + key * few_depth + (lane % 4 ^ key / 2 % 4) * 4,
               is_valid ? head + j * c.k.stride.length + d : head, is_valid);
      }
    }
    commit_copies();
  }

  // Keys of the last tile that nobody sees are whatever the page has: their scores are not used.
  HEED_DEVICE void load_from_pages(int first, int n) const {
    float* const stage = shared.stages[warp][n % few_stages];
    const int d = n % depths * few_depth;
    const std::int64_t from = block + first + n / depths * few_keys;
#pragma unroll
    for (int t = 0; t < few_keys / tile; ++t) {
      const bool is_there = from + t * tile < seen.end;
      const std::int64_t j = is_there ? from + t * tile : from;
      const float* const keys = token_at(j) + c.layout.key_element(j % c.layout.page_size, d);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int four = half * 32 + lane;  // of the tile's, dimension by dimension
        const bool is_valid = is_there && d + four / 4 < c.dim;
        copy16(stage + t * tile * few_depth + four * 4, is_valid ? keys + four * 4 : keys, is_valid);
      }
    }
  }
  // The head's part of the page that has token j.
  HEED_DEVICE const float* token_at(std::int64_t j) const {
    return reinterpret_cast<const float*>(head_in_page(c, work.b, work.kv_head, j));
  }

  HEED_DEVICE static float key_at(const float* stage, int key, int depth) {
    return stage[(key / tile * few_depth + depth) * tile + key % tile];
  }

  // One dimension after the other.
  HEED_DEVICE void multiply(float (&s)[2][rows], const float* stage, int first_dim) const {
#pragma unroll
    for (int piece = 0; piece < few_depth / 4; ++piece) {
      float y[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if constexpr (paged) {
#pragma unroll
          for (int e = 0; e < 4; ++e) y[i][e] = key_at(stage, lane + 32 * i, piece * 4 + e);
        } else {
          load4(y[i], stage + (lane + 32 * i) * few_depth + (piece ^ lane / 2 % 4) * 4);
        }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float x[rows];
        load_rows(x, shared.q[first_dim + piece * 4 + e]);
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
          for (int r = 0; r < rows; ++r) s[i][r] = fmaf(x[r], y[i][e], s[i][r]);
      }
    }
  }
  HEED_DEVICE static void load_rows(float (&x)[rows], const float* from) {
#pragma unroll
    for (int r = 0; r < rows; r += 4) load4(x + r, from + r);
  }

  HEED_DEVICE void take(const float (&s)[2][rows], float (&top)[rows], int first) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first + lane + 32 * i;
      const int j = static_cast<int>(block) + key;
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const bool is_hidden = j < shared.begin[r] || j >= shared.end[r];
        const float score = is_hidden ? minus_infinity : infinity_to_nan(s[i][r]);
        shared.p[warp][key][r] = score;
        top[r] = fmaxf(top[r], score);
      }
    }
  }

  HEED_DEVICE void weigh() {
    float top[rows];
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      top[r] = minus_infinity;
      for (int b = 0; b <= warp; ++b) top[r] = fmaxf(top[r], shared.max[b][r]);
      top[r] = finite_max(top[r]);
    }
    for (int key = lane; key < block_keys; key += 32)
#pragma unroll
      for (int r = 0; r < rows; ++r) shared.p[warp][key][r] = power_of(c)(shared.p[warp][key][r] - top[r]);
  }

  HEED_DEVICE void sum_weights() {
    for (int n = lane; n < block_keys / chain_keys * rows; n += 32) {
      const int r = n % rows, first = n / rows * static_cast<int>(chain_keys);
      float chain = 0;
#pragma unroll 8
      for (int j = 0; j < chain_keys; ++j) chain = chain + shared.p[warp][first + j][r];
      shared.chains[warp][n / rows][r] = chain;
    }
  }

  // One key after the other; eight are read while the eight before are added.
  HEED_DEVICE void add_values() {
    constexpr int together = 8;
    float sums[4][rows];  // [dim][row]
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int r = 0; r < rows; ++r) sums[e][r] = 0;
    float y[together][4], next[together][4];
    read_values<together>(y, seen.begin);
    const float* weights = shared.p[warp][seen.begin - block];
    for (std::int64_t j = seen.begin; j < seen.end; j += together, weights += together * rows) {
      read_values<together>(next, j + together);
#pragma unroll
      for (int n = 0; n < together; ++n) {
        float x[rows];
        load_rows(x, weights + n * rows);
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
          for (int r = 0; r < rows; ++r) sums[e][r] = fmaf(x[r], y[n][e], sums[e][r]);
      }
#pragma unroll
      for (int n = 0; n < together; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) y[n][e] = next[n][e];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int r = 0; r < rows; ++r) shared.sums(warp, r)[lane * 4 + e] = sums[e][r];
  }
  // Zeros past the last key, and past the last dimension: they change no sum.
  template <int together>
  HEED_DEVICE void read_values(float (&y)[together][4], std::int64_t j) const {
    const float* const head = static_cast<const float*>(work.first_value);
#pragma unroll
    for (int n = 0; n < together; ++n) {
      if (j + n < seen.end && lane * 4 < c.value_dim)
        load4(y[n], paged ? value_in_page(j + n) : head + (j + n) * c.v.stride.length + lane * 4);
      else
        y[n][0] = y[n][1] = y[n][2] = y[n][3] = 0;
    }
  }

  HEED_DEVICE const float* value_in_page(std::int64_t j) const {
    return token_at(j) + c.layout.values_at() / 4 + c.layout.value_element(j % c.layout.page_size, lane * 4);
  }

  const Call& c;
  const ExactWork& work;
  ExactFewShared<rows>& shared;
  const int lane, warp;
  const std::int64_t block;
  const KeyRange seen;
  int depths, pieces = 0;
};

template <int rows, bool paged>
class ExactFew {
 public:
  using Shared = ExactFewShared<rows>;
  static constexpr std::int64_t state_floats = rows * (2 + few_dims);

  HEED_DEVICE ExactFew(const Call& call, const ExactPlan& launch, Shared& memory)
      : c(call), plan(launch), work(memory.work), shared(memory), thread(thread_index()) {}

  HEED_DEVICE void run() {
    if (thread == 0) shared.work.find(c, plan, {rows, few_dims});
    sync();
    if (!work.has_rows() || !work.has_chunk()) return;
    load_queries();
    sync();
    ExactFewWarp<rows, paged> warp(c, shared, work.chunks(plan));
    warp.score();
    sync();
    warp.add();
    sync();
    end_chunk();
    if (plan.splits > 1 && !merge_chunks()) return;
    finish();
  }

 private:
  HEED_DEVICE void load_queries() {
    for (int n = thread; n < few_dims * rows; n += few_threads) {
      const int r = n % rows, d = n / rows;
      shared.q[d][r] =
          work.is_row(r) && d < c.dim ? read(row_of(c.q, work.query(r)), d) * c.scaling.query : 0.0f;
    }
    if (thread >= rows) return;
    shared.begin[thread] = shared.end[thread] = 0;
    if (!work.is_row(thread)) return;
    const KeyRange seen = visible_keys(c, work.b, work.query(thread).i);
    shared.begin[thread] = static_cast<int>(seen.begin);
    shared.end[thread] = static_cast<int>(max(0, seen.end));
  }

  // The state {max, sum, out} after the blocks of the chunk, one after the other.
  HEED_DEVICE void end_chunk() {
    if (thread < rows) {
      RowEnd own{minus_infinity, 0};
      for (int b = 0; b < few_warps; ++b) {
        if (!shared.is_seen[b]) continue;
        const float before = own.max;
        own.max = fmaxf(own.max, shared.max[b][thread]);
        shared.factor[b][thread] = rescaling(before, own.max, power_of(c));
        own.sum = own.sum * shared.factor[b][thread];
        for (int n = 0; n < block_keys / chain_keys; ++n) own.sum = own.sum + shared.chains[b][n][thread];
      }
      shared.row[thread] = own;
    }
    sync();
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      end[r] = shared.row[r], o[r] = 0;
      for (int b = 0; b < few_warps; ++b)
        if (shared.is_seen[b]) o[r] = o[r] * shared.factor[b][r] + shared.sums(b, r)[thread];
    }
  }

  // Stores this chunk's state and, in the block that arrives last, merges them all in order.
  HEED_DEVICE bool merge_chunks() {
    float* const stored = work.partial(plan, state_floats, work.split);
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (thread == 0) stored[2 * r] = end[r].max, stored[2 * r + 1] = end[r].sum;
      stored[2 * rows + r * few_dims + thread] = o[r];
    }
    sync();
    unsigned* const arrivals = plan.arrivals + few_tiles + work.number;
    if (thread == 0) shared.arrived = count_arrival(arrivals);
    sync();
    const std::int64_t chunks = work.chunk_count();
    if (shared.arrived + 1 != static_cast<unsigned>(chunks)) return false;
    for (std::int64_t n = 0; n < chunks; ++n) merge(work.partial(plan, state_floats, n), n == 0);
    return true;
  }
  HEED_DEVICE void merge(const float* state, bool is_first) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const RowEnd part{load_l2(state + 2 * r), load_l2(state + 2 * r + 1)};
      const float out = load_l2(state + 2 * rows + r * few_dims + thread);
      if (is_first) {
        end[r] = part, o[r] = out;
        continue;
      }
      const float now = fmaxf(end[r].max, part.max), subtract = finite_max(now);
      const float a = power_of(c)(end[r].max - subtract), b = power_of(c)(part.max - subtract);
      end[r] = {now, fmaf(part.sum, b, end[r].sum * a)};
      o[r] = fmaf(out, b, o[r] * a);
    }
  }

  HEED_DEVICE void finish() {
    bool is_number = true;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (!work.is_row(r)) continue;
      const Query q = work.query(r);
      float factor = sees_no_key(end[r]) ? 0.0f : 1.0f / end[r].sum;
      if (c.sink.data || c.log_sum_exp.data) {
        const ClosedRow row = closed(c, q, end[r], c.scaling);
        factor = row.out();
        if (c.log_sum_exp.data && thread == 0)
          write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
      }
      const float x = o[r] * factor + 0.0f;  // every zero has one sign
      if (thread < c.value_dim) write(row_of(c.out, q), thread, x);
      is_number = is_number && is_finite(factor) && (thread >= c.value_dim || is_finite(x));
    }
    if (!is_number) *work.unfinished(c, plan) = 1;
  }

  const Call& c;
  const ExactPlan& plan;
  const ExactWork& work;
  Shared& shared;
  const int thread;
  RowEnd end[rows];  // of every row
  float o[rows];     // of the dimension that is this thread's
};

}  // namespace heed::cuda
