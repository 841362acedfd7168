// SPDX-License-Identifier: Apache-2.0
// The scorers of the long exact kernel: scores, maxima, weights and their sums, one block of keys ahead of
// those who add up the values. The scores of a block's halves wait in shared memory until its maximum is
// known.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_long_thread.cuh"
#include "cuda/algorithm/finish.cuh"

namespace heed::cuda {

class ExactLongScores : private ExactLongThread {
 public:
  HEED_DEVICE ExactLongScores(const Call& call, const ExactPlan& launch, ExactLongShared& memory)
      : ExactLongThread(call, launch, memory) {}

  HEED_DEVICE void run() {
    const KeyRange all = work.all_chunks();
    std::int64_t chunk = -1;
    start(all);
    for (std::int64_t block = work.first_block(all); block < all.end; block = work.next_block(block, all)) {
      if (chunk >= 0 && block / chunk_keys != chunk) end_chunk();
      chunk = block / chunk_keys;
      score_block(block);
    }
    end_chunk();
    if (is_first) return close();
    wait_for(LongBarrier::first_half_free), wait_for(LongBarrier::second_half_free);
    close();
  }

 private:
  // Keys of this thread in a half: fours.
  static constexpr int columns = long_scorers / 16, thread_keys = long_keys / columns;
  HEED_DEVICE int key(int m) const { return (column + m / 4 * columns) * 4 + m % 4; }

  HEED_DEVICE void score_block(std::int64_t block) {
    const Halves halves = halves_of(block);
    float top[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) top[n] = minus_infinity;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      float s[thread_keys][8];
      const bool is_seen = half == 0 ? halves.first : halves.second;
      const int first = half * long_keys;
      if (is_seen) score(s, top, block + first);
      if (!is_first && half == 0) wait_for(LongBarrier::first_half_free);
      if (!is_first && half == 1) wait_for(LongBarrier::second_half_free);
      if (is_seen) put(s, first);
    }
    find_max(top);
    meet_at(LongBarrier::scorers, long_scorers);
    move_max();
    weigh(halves);
    if (halves.first) sum_weights(0);
    if (halves.second) sum_weights(long_keys);
    is_first = false;
  }

  HEED_DEVICE void score(float (&s)[thread_keys][8], float (&top)[8], std::int64_t first_key) {
#pragma unroll
    for (int m = 0; m < thread_keys; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) s[m][n] = 0;
    for (int d = 0; d < c.dim; d += long_depth)
      multiply(s, shared.q[d], take(), static_cast<int>(min(long_depth, c.dim - d)));
    if (work.all_see(c, {first_key, first_key + long_keys}))
      take_scores(s, top);
    else
      take_seen_scores(s, top, first_key);
  }

  HEED_DEVICE static void take_scores(float (&s)[thread_keys][8], float (&top)[8]) {
#pragma unroll
    for (int m = 0; m < thread_keys; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        s[m][n] = spoil_infinity(s[m][n]);
        top[n] = fmaxf(top[n], s[m][n]);
      }
  }
  HEED_DEVICE void take_seen_scores(float (&s)[thread_keys][8], float (&top)[8],
                                    std::int64_t first_key) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int begin = shared.begin[row(n)] - static_cast<int>(first_key),
                end = shared.end[row(n)] - static_cast<int>(first_key);
#pragma unroll
      for (int m = 0; m < thread_keys; ++m) {
        s[m][n] = key(m) < begin || key(m) >= end ? minus_infinity : spoil_infinity(s[m][n]);
        top[n] = fmaxf(top[n], s[m][n]);
      }
    }
  }

  // Adds the products of so many dimensions, a multiple of four, one after the other.
  HEED_DEVICE void multiply(float (&s)[thread_keys][8], const float* queries, const float* keys,
                            int dims) const {
    keys += column * 4;
#pragma unroll 1
    for (int first = 0; first < dims; first += 4)
#pragma unroll
      for (int d = 0; d < 4; ++d, queries += long_rows, keys += long_keys + 4) {
        float x[8], y[thread_keys];
        load_rows(x, queries);
#pragma unroll
        for (int m = 0; m < thread_keys; m += 4) load4(y + m, keys + columns * m);
        add_products(s, x, y);
      }
  }

  HEED_DEVICE void put(const float (&s)[thread_keys][8], int first) {
#pragma unroll
    for (int m = 0; m < thread_keys; ++m) {
      float* const to = shared.p[first + key(m)] + row_group * 4;
      store4(to, s[m]), store4(to + 64, s[m] + 4);
    }
  }

  // The largest of each row among the keys of a warp.
  HEED_DEVICE void find_max(float (&top)[8]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      top[n] = fmaxf(top[n], from_lane_across(top[n], 8));
      top[n] = fmaxf(top[n], from_lane_across(top[n], 16));
    }
    if (thread % 32 >= 8) return;
    float* const to = shared.warp_max[thread / 64] + row_group * 4;
    store4(to, top), store4(to + 64, top + 4);
  }

  // Each thread for the one row that is its own.
  HEED_DEVICE void move_max() {
    const float before = own.max;
    own.max = fmaxf(own.max, fmaxf(shared.warp_max[0][thread], shared.warp_max[1][thread]));
    const float factor = rescaling(before, own.max, power_of(c));
    own.sum = own.sum * factor;
    shared.top[thread] = finite_max(own.max);
    shared.factor[thread] = factor;
    put_merge();
  }

  // A row's weights in chains in the order of the keys, four chains at a time.
  HEED_DEVICE void sum_weights(int half) {
    constexpr int chains = long_keys / chain_keys;
    float chain[chains] = {};
#pragma unroll 4
    for (int j = 0; j < chain_keys; ++j)
#pragma unroll
      for (int n = 0; n < chains; ++n)
        chain[n] = chain[n] + shared.p[half + n * static_cast<int>(chain_keys) + j][thread];
#pragma unroll
    for (int n = 0; n < chains; ++n) own.sum = own.sum + chain[n];
  }

  // The chunk becomes the total: as it is, or merged with the total so far.
  HEED_DEVICE void end_chunk() {
    if (has_total) {
      const float now = fmaxf(total.max, own.max), subtract = finite_max(now);
      of_total = power_of(c)(total.max - subtract), of_part = power_of(c)(own.max - subtract);
      own = {now, fmaf(own.sum, of_part, total.sum * of_total)};
    }
    has_total = true;
    total = own;
    own = {minus_infinity, 0};
  }
  HEED_DEVICE void put_merge() { shared.of_total[thread] = of_total, shared.of_part[thread] = of_part; }

  HEED_DEVICE void close() {
    put_merge();
    if (work.is_row(thread)) {
      const Query q = work.query(thread);
      if (!c.sink.data && !c.log_sum_exp.data) {
        shared.factor[thread] = sees_no_key(total) ? 0.0f : 1.0f / total.sum;
      } else {
        const ClosedRow row = closed(c, q, total, c.scaling);
        shared.factor[thread] = row.out();
        if (c.log_sum_exp.data) write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
      }
      if (!is_finite(shared.factor[thread])) leave();
    }
    tell(LongBarrier::weights_there);
  }

  // Keys come in pieces of so many dimensions of half a block, one being filled while the other is used.
  HEED_DEVICE void start(KeyRange all) {
    all_end = all.end;
    enter(work.first_block(all));
    load_next();
  }
  HEED_DEVICE void enter(std::int64_t next) {
    load_block = next;
    if (next >= all_end) return;
    part = work.part_of(next);
    load_first = part.begin / long_keys * long_keys, load_dim = 0;
  }
  HEED_DEVICE const float* take() {
    wait_for_copies<0>();
    meet_at(LongBarrier::scorers, long_scorers);
    const float* const stage = &shared.keys[(loaded - 1) % 2][0][0];
    load_next();
    return stage;
  }
  HEED_DEVICE void load_next() {
    if (load_block < all_end) {
      load_keys(shared.keys[loaded % 2]);
      load_dim += long_depth;
      if (load_dim >= c.dim) load_dim = 0, load_first += long_keys;
      if (load_first >= part.end) enter(work.next_block(load_block, {0, all_end}));
    }
    ++loaded;
    close_copies();
  }
  // A warp copies eight dimensions of four keys at once.
  HEED_DEVICE void load_keys(float (&stage)[long_depth][long_keys + 4]) const {
    const int d = thread % 8, first = thread / 8;
    const float* const head = static_cast<const float*>(work.first_key);
    const float* from = head + load_dim + d + (load_first + first) * c.k.length;
    const std::int64_t step = 16 * c.k.length;
    if (part.begin <= load_first && load_first + long_keys <= part.end && load_dim + long_depth <= c.dim) {
#pragma unroll
      for (int key = 0; key < long_keys; key += 16, from += step)
#pragma unroll
        for (int e = 0; e < long_depth; e += 8) copy4(&stage[d + e][first + key], from + e, true);
      return;
    }
#pragma unroll 1
    for (int key = first; key < long_keys; key += 16, from += step) {
      const std::int64_t j = load_first + key;
      const bool is_wanted = part.begin <= j && j < part.end;
#pragma unroll 1
      for (int e = 0; e < long_depth; e += 8) {
        const bool is_there = is_wanted && load_dim + d + e < c.dim;
        copy4(&stage[d + e][key], is_there ? from + e : head, is_there);
      }
    }
  }

  RowEnd own{minus_infinity, 0}, total{minus_infinity, 0};  // of one row: this chunk's, and all before it
  float of_total = 1, of_part = 1;
  bool is_first = true, has_total = false;
  // What is loaded next.
  std::int64_t all_end = 0, load_block = 0, load_first = 0;
  KeyRange part{};
  int load_dim = 0;
  unsigned loaded = 0;
};

}  // namespace heed::cuda
