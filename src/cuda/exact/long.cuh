// SPDX-License-Identifier: Apache-2.0
// The exact kernel for long plain problems: f32 keys and values as they lie, heads of at most 64, masks that
// are ranges of keys. A block of threads does 128 rows that share a KV head, by the operations of general.cuh
// in the same order. Rows that f32 cannot finish are left to the general kernel, which follows.
//
// 128 threads score the keys, 128 add up the values of the block of keys before, and all exponentiate: each
// scheduler has a warp of both teams. A thread has 8 rows and 16 keys of a half block of keys, or 8 rows and
// 8 dimensions. Its loops hold as few instructions as hide the loads: the cache of instructions must have
// both. No register may be spilled, or the compiler no longer spreads the sums over the banks of registers.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/exact/state.cuh"
#include "cuda/exact/work.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

constexpr int long_scorers = 128, long_adders = 128, long_threads = long_scorers + long_adders;
constexpr int long_keys = 128;       // half a block of keys, scored at once
constexpr int long_depth = 32;       // dimensions of keys that are in shared memory together
constexpr int long_value_keys = 32;  // keys whose values are
constexpr int long_dims = 64;        // of keys and values, at most

struct ExactLongShared {
  alignas(16) float q[long_dims][long_rows];
  // (dims, keys): a dimension's begin four banks after the last one's, so that eight dimensions of four keys
  // are written without conflicts.
  alignas(16) float keys[2][long_depth][long_keys + 4];
  alignas(16) float values[2][long_value_keys][long_dims];
  alignas(16) float p[2 * long_keys][long_rows];  // the scores of a block of keys, and then its weights
  alignas(16) float warp_max[long_scorers / 64][long_rows];
  alignas(16) float top[long_rows];  // what is subtracted from a row's scores
  // What a row's values are multiplied with: those before this block, the chunks before this chunk, and this
  // chunk.
  alignas(16) float factor[long_rows], of_total[long_rows], of_part[long_rows];
  int begin[long_rows], end[long_rows];
  ExactWork work;
};

// Barriers. A half of p is free when its weights have been added.
enum class LongBarrier : int {
  scorers = 1,
  adders,
  scores_full,
  weights_full,
  first_half_free,
  second_half_free
};

HEED_DEVICE void sync_team(LongBarrier b, int threads) { named_sync(static_cast<int>(b), threads); }
HEED_DEVICE void arrive_at(LongBarrier b) { named_arrive(static_cast<int>(b), long_threads); }
HEED_DEVICE void wait_for(LongBarrier b) { named_sync(static_cast<int>(b), long_threads); }

// What a thread of either team has.
struct ExactLongThread {
  HEED_DEVICE ExactLongThread(const Call& call, const ExactPlan& launch, ExactLongShared& memory)
      : c(call), plan(launch), work(memory.work), shared(memory), thread(thread_index() % long_scorers) {
    const int lane = thread % 32, warp = thread / 32;
    row_group = lane % 8 + warp % 2 * 8;
    column = lane / 8 + warp / 2 * 4;
  }

  // Row n of this thread's eight.
  HEED_DEVICE int row(int n) const { return row_group * 4 + (n < 4 ? n : 60 + n); }
  HEED_DEVICE void load_rows(float (&x)[8], const float* from) const {
    load4(x, from + row_group * 4), load4(x + 4, from + row_group * 4 + 64);
  }

  // Adds the products of eight rows with as many columns to their sums. Of the three numbers that a
  // multiply-add reads, the one that the one before has read, too, need not come from its bank of registers
  // again: so neighbours share a column, and at its end a row.
  template <int columns>
  HEED_DEVICE static void add_products(float (&sums)[columns][8], const float (&x)[8],
                                       const float (&y)[columns]) {
#pragma unroll
    for (int m = 0; m < columns; ++m)
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int n = m % 2 == 0 ? step : 7 - step;
        sums[m][n] = fmaf(x[n], y[m], sums[m][n]);
      }
  }

  // Halves of the block that some row sees.
  struct Halves {
    bool first, second;
  };
  HEED_DEVICE Halves halves_of(std::int64_t block) const {
    const KeyRange part = work.part_of(block);
    const std::int64_t middle = block + long_keys;
    return {.first = part.begin<middle, .second = part.end> middle};
  }

  // Scores become weights, when their maximum is known: the work of both teams, a warp for every eighth key.
  HEED_DEVICE void weigh(Halves halves) const {
    wait_for(LongBarrier::scores_full);
    const int row = thread_index() % 32 * 4;
    float top[4];
    load4(top, shared.top + row);
    const int begin = halves.first ? 0 : long_keys, end = halves.second ? 2 * long_keys : long_keys;
#pragma unroll 2
    for (int key = begin + thread_index() / 32; key < end; key += long_threads / 32) {
      float x[4];
      load4(x, shared.p[key] + row);
#pragma unroll
      for (int n = 0; n < 4; ++n) x[n] = power_of(c)(x[n] - top[n]);
      store4(shared.p[key] + row, x);
    }
    wait_for(LongBarrier::weights_full);
  }

  // Something that f32 could not finish: the general kernel does these rows again.
  HEED_DEVICE void mark_unfinished() const { *work.unfinished(c, plan) = 1; }

  const Call& c;
  const ExactPlan& plan;
  const ExactWork& work;
  ExactLongShared& shared;
  const int thread;  // of its team
  int row_group, column;
};

// The piece of `keys` keys that a team loads next, over the blocks that some row sees.
template <int keys>
struct LongPieces {
  std::int64_t end = 0, block = 0, first = 0;
  KeyRange part{};  // of the block
  unsigned loaded = 0;

  HEED_DEVICE void start(const ExactWork& work, KeyRange all) {
    end = all.end;
    enter(work, work.first_block(all));
  }
  HEED_DEVICE bool is_any() const { return block < end; }
  HEED_DEVICE void advance(const ExactWork& work) {
    first += keys;
    if (first >= part.end) enter(work, work.next_block(block, {0, end}));
  }

 private:
  HEED_DEVICE void enter(const ExactWork& work, std::int64_t next) {
    block = next;
    if (next >= end) return;
    part = work.part_of(next);
    first = part.begin / keys * keys;
  }
};

// The scorers: scores, maxima, weights and their sums, one block of keys ahead of those who add up the
// values. The scores of a block's halves wait in shared memory until its maximum is known.
class ExactLongScores {
 public:
  HEED_DEVICE ExactLongScores(const Call& call, const ExactPlan& launch, ExactLongShared& memory)
      : c(call), work(memory.work), shared(memory), place(call, launch, memory) {}

  HEED_DEVICE void run() {
    const KeyRange all = work.all_chunks();
    std::int64_t chunk = -1;
    pieces.start(work, all);
    load_next();
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
  HEED_DEVICE int key(int m) const { return (place.column + m / 4 * columns) * 4 + m % 4; }

  HEED_DEVICE void score_block(std::int64_t block) {
    const ExactLongThread::Halves halves = place.halves_of(block);
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
    sync_team(LongBarrier::scorers, long_scorers);
    move_max();
    place.weigh(halves);
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
        s[m][n] = infinity_to_nan(s[m][n]);
        top[n] = fmaxf(top[n], s[m][n]);
      }
  }
  HEED_DEVICE void take_seen_scores(float (&s)[thread_keys][8], float (&top)[8],
                                    std::int64_t first_key) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int begin = shared.begin[place.row(n)] - static_cast<int>(first_key),
                end = shared.end[place.row(n)] - static_cast<int>(first_key);
#pragma unroll
      for (int m = 0; m < thread_keys; ++m) {
        s[m][n] = key(m) < begin || key(m) >= end ? minus_infinity : infinity_to_nan(s[m][n]);
        top[n] = fmaxf(top[n], s[m][n]);
      }
    }
  }

  // Adds the products of `dims` dimensions, a multiple of four, one after the other.
  HEED_DEVICE void multiply(float (&s)[thread_keys][8], const float* queries, const float* keys,
                            int dims) const {
    keys += place.column * 4;
#pragma unroll 1
    for (int first = 0; first < dims; first += 4)
#pragma unroll
      for (int d = 0; d < 4; ++d, queries += long_rows, keys += long_keys + 4) {
        float x[8], y[thread_keys];
        place.load_rows(x, queries);
#pragma unroll
        for (int m = 0; m < thread_keys; m += 4) load4(y + m, keys + columns * m);
        place.add_products(s, x, y);
      }
  }

  HEED_DEVICE void put(const float (&s)[thread_keys][8], int first) {
#pragma unroll
    for (int m = 0; m < thread_keys; ++m) {
      float* const to = shared.p[first + key(m)] + place.row_group * 4;
      store4(to, s[m]), store4(to + 64, s[m] + 4);
    }
  }

  // The largest of each row among the keys of a warp.
  HEED_DEVICE void find_max(float (&top)[8]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      top[n] = fmaxf(top[n], shuffle_xor(top[n], 8));
      top[n] = fmaxf(top[n], shuffle_xor(top[n], 16));
    }
    if (place.thread % 32 >= 8) return;
    float* const to = shared.warp_max[place.thread / 64] + place.row_group * 4;
    store4(to, top), store4(to + 64, top + 4);
  }

  // Each thread for the one row that is its own.
  HEED_DEVICE void move_max() {
    const float before = own.max;
    own.max = fmaxf(own.max, fmaxf(shared.warp_max[0][place.thread], shared.warp_max[1][place.thread]));
    const float factor = rescaling(before, own.max, power_of(c));
    own.sum = own.sum * factor;
    shared.top[place.thread] = finite_max(own.max);
    shared.factor[place.thread] = factor;
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
        chain[n] = chain[n] + shared.p[half + n * static_cast<int>(chain_keys) + j][place.thread];
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
  HEED_DEVICE void put_merge() {
    shared.of_total[place.thread] = of_total, shared.of_part[place.thread] = of_part;
  }

  HEED_DEVICE void close() {
    put_merge();
    if (work.is_row(place.thread)) {
      const Query q = work.query(place.thread);
      if (!c.sink.data && !c.log_sum_exp.data) {
        shared.factor[place.thread] = sees_no_key(total) ? 0.0f : 1.0f / total.sum;
      } else {
        const ClosedRow row = closed(c, q, total, c.scaling);
        shared.factor[place.thread] = row.out();
        if (c.log_sum_exp.data) write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
      }
      if (!is_finite(shared.factor[place.thread])) place.mark_unfinished();
    }
    arrive_at(LongBarrier::weights_full);
  }

  // Keys come in pieces of long_depth dimensions of half a block, one being filled while the other is used.
  HEED_DEVICE const float* take() {
    wait_for_copies<0>();
    sync_team(LongBarrier::scorers, long_scorers);
    const float* const stage = &shared.keys[(pieces.loaded - 1) % 2][0][0];
    load_next();
    return stage;
  }
  HEED_DEVICE void load_next() {
    if (pieces.is_any()) {
      load_keys(shared.keys[pieces.loaded % 2]);
      load_dim += long_depth;
      if (load_dim >= c.dim) load_dim = 0, pieces.advance(work);
    }
    ++pieces.loaded;
    commit_copies();
  }
  // A warp copies eight dimensions of four keys at once.
  HEED_DEVICE void load_keys(float (&stage)[long_depth][long_keys + 4]) const {
    const int d = place.thread % 8, first = place.thread / 8;
    const float* const head = static_cast<const float*>(work.first_key);
    const float* from = head + load_dim + d + (pieces.first + first) * c.k.stride.length;
    const std::int64_t step = 16 * c.k.stride.length;
    if (pieces.part.begin <= pieces.first && pieces.first + long_keys <= pieces.part.end &&
        load_dim + long_depth <= c.dim) {
#pragma unroll
      for (int key = 0; key < long_keys; key += 16, from += step)
#pragma unroll
        for (int e = 0; e < long_depth; e += 8) copy4(&stage[d + e][first + key], from + e, true);
      return;
    }
#pragma unroll 1
    for (int key = first; key < long_keys; key += 16, from += step) {
      const std::int64_t j = pieces.first + key;
      const bool is_wanted = pieces.part.begin <= j && j < pieces.part.end;
#pragma unroll 1
      for (int e = 0; e < long_depth; e += 8) {
        const bool is_valid = is_wanted && load_dim + d + e < c.dim;
        copy4(&stage[d + e][key], is_valid ? from + e : head, is_valid);
      }
    }
  }

  const Call& c;
  const ExactWork& work;
  ExactLongShared& shared;
  const ExactLongThread place;
  RowEnd own{minus_infinity, 0}, total{minus_infinity, 0};  // of one row: this chunk's, and all before it
  float of_total = 1, of_part = 1;
  bool is_first = true, has_total = false;
  LongPieces<long_keys> pieces{};
  int load_dim = 0;  // of the next piece
};

// The adders, who add up the values under the weights that the scorers leave.
class ExactLongValues {
 public:
  HEED_DEVICE ExactLongValues(const Call& call, const ExactPlan& launch, ExactLongShared& memory)
      : c(call), work(memory.work), shared(memory), place(call, launch, memory) {}

  HEED_DEVICE void run() {
    const KeyRange all = work.all_chunks();
    std::int64_t chunk = -1;
    bool has_total = false;
    Sums total;  // the chunks before, touched once in 1024 keys
    force_to_memory(total);
    pieces.start(work, all);
    load_next();
    clear(o);
    for (std::int64_t block = work.first_block(all); block < all.end; block = work.next_block(block, all)) {
      place.weigh(place.halves_of(block));
      if (chunk >= 0 && block / chunk_keys != chunk) {
        if (has_total) merge(total);
        has_total = true;
        copy(total, o);
        clear(o);
      }
      chunk = block / chunk_keys;
      add_block(block);
    }
    wait_for(LongBarrier::weights_full);
    if (has_total) merge(total);
    finish();
  }

 private:
  // [dim][row]: fours of dimensions, 32 apart.
  using Sums = float[8][8];

  HEED_DEVICE static void clear(Sums& x) {
#pragma unroll
    for (int e = 0; e < 8; ++e)
#pragma unroll
      for (int n = 0; n < 8; ++n) x[e][n] = 0;
  }
  HEED_DEVICE static void copy(Sums& to, const Sums& from) {
#pragma unroll
    for (int e = 0; e < 8; ++e)
#pragma unroll
      for (int n = 0; n < 8; ++n) to[e][n] = from[e][n];
  }

  HEED_DEVICE void merge(const Sums& total) {
    float a[8], b[8];
    place.load_rows(a, shared.of_total), place.load_rows(b, shared.of_part);
#pragma unroll
    for (int e = 0; e < 8; ++e)
#pragma unroll
      for (int n = 0; n < 8; ++n) o[e][n] = fmaf(o[e][n], b[n], total[e][n] * a[n]);
  }

  HEED_DEVICE void add_block(std::int64_t block) {
    float factor[8];
    place.load_rows(factor, shared.factor);
    bool moved = false;
#pragma unroll
    for (int n = 0; n < 8; ++n) moved = moved || factor[n] != 1.0f;
    if (moved) {
#pragma unroll
      for (int e = 0; e < 8; ++e)
#pragma unroll
        for (int n = 0; n < 8; ++n) o[e][n] = o[e][n] * factor[n];
    }
    const KeyRange seen = work.part_of(block);
    Sums sums;  // this block's, weighted: a chain of their own
    clear(sums);
    bool has_arrived = false;
    for (std::int64_t first = seen.begin / long_value_keys * long_value_keys; first < seen.end;
         first += long_value_keys) {
      if (!has_arrived && first >= block + long_keys)
        arrive_at(LongBarrier::first_half_free), has_arrived = true;
      add_values(take(), shared.p[first - block], sums);
    }
    if (!has_arrived) arrive_at(LongBarrier::first_half_free);
    arrive_at(LongBarrier::second_half_free);
#pragma unroll
    for (int e = 0; e < 8; ++e)
#pragma unroll
      for (int n = 0; n < 8; ++n) o[e][n] = o[e][n] + sums[e][n];
  }

  HEED_DEVICE void add_values(const float* values, const float* p, Sums& sums) const {
    values += place.column * 4;
#pragma unroll 4
    for (int j = 0; j < long_value_keys; ++j, p += long_rows, values += long_dims) {
      float x[8], y[8];
      place.load_rows(x, p);
      load4(y, values), load4(y + 4, values + 32);
      place.add_products(sums, x, y);
    }
  }

  HEED_DEVICE void finish() {
    const bool in_fours = lies_in_fours(c.out);
    bool is_number = true;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (!work.is_row(place.row(n))) continue;
      const float factor = shared.factor[place.row(n)];
      const Row out = row_of(c.out, work.query(place.row(n)));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[e] = o[4 * half + e][n] * factor + 0.0f;  // every zero has one sign
          is_number = is_number && is_finite(x[e]);
        }
        const std::int64_t d = place.column * 4 + 32 * half;
        if (in_fours && d + 4 <= c.value_dim)
          store4(static_cast<float*>(const_cast<void*>(out.data)) + out.first + d, x);
        else
          write_four(out, d, c.value_dim, {x[0], x[1], x[2], x[3]});
      }
    }
    if (!is_number) place.mark_unfinished();
  }

  // Values come in pieces of long_value_keys keys, one being filled while the other is used.
  HEED_DEVICE const float* take() {
    wait_for_copies<0>();
    sync_team(LongBarrier::adders, long_adders);
    const float* const stage = &shared.values[(pieces.loaded - 1) % 2][0][0];
    load_next();
    return stage;
  }
  HEED_DEVICE void load_next() {
    if (pieces.is_any()) {
      load_values(shared.values[pieces.loaded % 2]);
      pieces.advance(work);
    }
    ++pieces.loaded;
    commit_copies();
  }
  HEED_DEVICE void load_values(float (&stage)[long_value_keys][long_dims]) const {
    constexpr int together = long_adders * 4 / long_dims;  // keys that are copied at once
    const int d = place.thread % 16 * 4, key = place.thread / 16;
    const float* const head = static_cast<const float*>(work.first_value);
    const float* from = head + d + (pieces.first + key) * c.v.stride.length;
    const std::int64_t step = together * c.v.stride.length;
    const bool has_dim = d < c.value_dim;
    if (pieces.part.begin <= pieces.first && pieces.first + long_value_keys <= pieces.part.end) {
#pragma unroll
      for (int n = 0; n < long_value_keys; n += together, from += step)
        copy16(&stage[n + key][d], has_dim ? from : head, has_dim);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < long_value_keys; n += together, from += step) {
      const std::int64_t j = pieces.first + n + key;
      const bool is_valid = has_dim && pieces.part.begin <= j && j < pieces.part.end;
      copy16(&stage[n + key][d], is_valid ? from : head, is_valid);
    }
  }

  const Call& c;
  const ExactWork& work;
  ExactLongShared& shared;
  const ExactLongThread place;
  Sums o;
  LongPieces<long_value_keys> pieces{};
};

HEED_DEVICE void attend_long(const Call& c, const ExactPlan& plan, ExactLongShared& shared) {
  const int t = thread_index();
  if (t == 0) shared.work.find(c, plan, {long_rows, long_dims});
  sync();
  const ExactWork& work = shared.work;
  if (!work.has_rows()) return;
  if (t < long_rows) {
    shared.begin[t] = shared.end[t] = 0;
    if (work.is_row(t)) {
      const KeyRange seen = visible_keys(c, work.b, work.query(t).i);
      shared.begin[t] = static_cast<int>(seen.begin), shared.end[t] = static_cast<int>(max(0, seen.end));
    }
  }
  for (int n = t; n < c.dim * long_rows; n += long_threads) {
    const int r = n % long_rows, d = n / long_rows;
    shared.q[d][r] = work.is_row(r) ? read(row_of(c.q, work.query(r)), d) * c.scaling.query : 0.0f;
  }
  sync();
  if (t < long_scorers)
    ExactLongScores(c, plan, shared).run();
  else
    ExactLongValues(c, plan, shared).run();
}

}  // namespace heed::cuda
