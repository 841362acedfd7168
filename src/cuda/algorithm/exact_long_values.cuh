// SPDX-License-Identifier: Apache-2.0
// Those of the long exact kernel who add up the values under the weights that the scorers leave.
#pragma once
#include <cstdint>

#include "cuda/algorithm/exact_long_thread.cuh"

namespace heed::cuda {

class ExactLongValues : private ExactLongThread {
 public:
  HEED_DEVICE ExactLongValues(const Call& call, const ExactPlan& launch, ExactLongShared& memory)
      : ExactLongThread(call, launch, memory) {}

  HEED_DEVICE void run() {
    const KeyRange all = work.all_chunks();
    std::int64_t chunk = -1;
    bool has_total = false;
    Sums total;  // the chunks before, touched once in 1024 keys
    keep_in_memory(total);
    start(all);
    clear(o);
    for (std::int64_t block = work.first_block(all); block < all.end; block = work.next_block(block, all)) {
      weigh(halves_of(block));
      if (chunk >= 0 && block / chunk_keys != chunk) {
        if (has_total) merge(total);
        has_total = true;
        copy(total, o);
        clear(o);
      }
      chunk = block / chunk_keys;
      add_block(block);
    }
    wait_for(LongBarrier::weights_there);
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
    load_rows(a, shared.of_total), load_rows(b, shared.of_part);
#pragma unroll
    for (int e = 0; e < 8; ++e)
#pragma unroll
      for (int n = 0; n < 8; ++n) o[e][n] = fmaf(o[e][n], b[n], total[e][n] * a[n]);
  }

  HEED_DEVICE void add_block(std::int64_t block) {
    float factor[8];
    load_rows(factor, shared.factor);
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
    bool has_told = false;
    for (std::int64_t first = seen.begin / long_value_keys * long_value_keys; first < seen.end;
         first += long_value_keys) {
      if (!has_told && first >= block + long_keys) tell(LongBarrier::first_half_free), has_told = true;
      add_values(take(), shared.p[first - block], sums);
    }
    if (!has_told) tell(LongBarrier::first_half_free);
    tell(LongBarrier::second_half_free);
#pragma unroll
    for (int e = 0; e < 8; ++e)
#pragma unroll
      for (int n = 0; n < 8; ++n) o[e][n] = o[e][n] + sums[e][n];
  }

  HEED_DEVICE void add_values(const float* values, const float* p, Sums& sums) const {
    values += column * 4;
#pragma unroll 4
    for (int j = 0; j < long_value_keys; ++j, p += long_rows, values += long_dims) {
      float x[8], y[8];
      load_rows(x, p);
      load4(y, values), load4(y + 4, values + 32);
      add_products(sums, x, y);
    }
  }

  HEED_DEVICE void finish() {
    const bool in_fours = lies_in_fours(c.out);
    bool is_number = true;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (!work.is_row(row(n))) continue;
      const float factor = shared.factor[row(n)];
      const Row out = row_of(c.out, work.query(row(n)));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[e] = o[4 * half + e][n] * factor + 0.0f;  // every zero has one sign
          is_number = is_number && is_finite(x[e]);
        }
        const std::int64_t d = column * 4 + 32 * half;
        if (in_fours && d + 4 <= c.value_dim)
          store4(static_cast<float*>(const_cast<void*>(out.data)) + out.first + d, x);
        else
          write_four(out, d, c.value_dim, {x[0], x[1], x[2], x[3]});
      }
    }
    if (!is_number) leave();
  }

  // Values come in pieces of so many keys, one being filled while the other is used.
  HEED_DEVICE void start(KeyRange all) {
    all_end = all.end;
    enter(work.first_block(all));
    load_next();
  }
  HEED_DEVICE void enter(std::int64_t next) {
    load_block = next;
    if (next >= all_end) return;
    part = work.part_of(next);
    load_first = part.begin / long_value_keys * long_value_keys;
  }
  HEED_DEVICE const float* take() {
    wait_for_copies<0>();
    meet_at(LongBarrier::adders, long_adders);
    const float* const stage = &shared.values[(loaded - 1) % 2][0][0];
    load_next();
    return stage;
  }
  HEED_DEVICE void load_next() {
    if (load_block < all_end) {
      load_values(shared.values[loaded % 2]);
      load_first += long_value_keys;
      if (load_first >= part.end) enter(work.next_block(load_block, {0, all_end}));
    }
    ++loaded;
    close_copies();
  }
  HEED_DEVICE void load_values(float (&stage)[long_value_keys][long_dims]) const {
    constexpr int together = long_adders * 4 / long_dims;  // keys that are copied at once
    const int d = thread % 16 * 4, key = thread / 16;
    const float* const head = static_cast<const float*>(work.first_value);
    const float* from = head + d + (load_first + key) * c.v.length;
    const std::int64_t step = together * c.v.length;
    const bool has_dim = d < c.value_dim;
    if (part.begin <= load_first && load_first + long_value_keys <= part.end) {
#pragma unroll
      for (int n = 0; n < long_value_keys; n += together, from += step)
        copy16(&stage[n + key][d], has_dim ? from : head, has_dim);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < long_value_keys; n += together, from += step) {
      const std::int64_t j = load_first + n + key;
      const bool is_there = has_dim && part.begin <= j && j < part.end;
      copy16(&stage[n + key][d], is_there ? from : head, is_there);
    }
  }

  Sums o;
  std::int64_t all_end = 0, load_block = 0, load_first = 0;
  KeyRange part{};
  unsigned loaded = 0;
};

}  // namespace heed::cuda
