// SPDX-License-Identifier: Apache-2.0
// The general exact kernel's loads to shared memory: queries once, scaled; keys and values piece by piece
// through a ring of two stages, one being filled while the other is used. Pieces follow each other in the
// order in which the kernel wants them: for every block of keys, tile by tile and depth by depth, then the
// values.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/exact/work.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// In place: K and V lie in fours and dim is a multiple of four, so asynchronous copies take them as they are.
// Others are widened one by one.
template <int slabs, bool in_place>
class ExactLoads {
 public:
  static constexpr int dims = 64 * slabs, value_keys = exact_stage / dims;
  // Of the queries in shared memory; wider ones are read again for every piece of keys.
  static constexpr int query_depth = dims;

  struct Shared {
    alignas(16) float q[query_depth][exact_rows];
    alignas(16) float stage[2][exact_stage];
  };

  HEED_DEVICE ExactLoads(const Call& call, const ExactWork& block_work, Shared& memory)
      : c(call), work(block_work), shared(memory) {}

  HEED_DEVICE void load_queries() {
    if (c.dim <= query_depth) load_queries(0, c.dim);
  }
  // Dimensions [d, d + exact_depth) of all rows, (dims, rows).
  HEED_DEVICE const float* queries(std::int64_t d) {
    if (c.dim <= query_depth) return shared.q[d];
    sync();
    load_queries(d, min(c.dim, d + exact_depth));
    sync();
    return shared.q[0];
  }

  // Starts at the first block of these keys.
  HEED_DEVICE void start(KeyRange all) {
    end = static_cast<int>(all.end);
    enter(work.first_block(all));
    taken = 0;
    load_next(shared.stage[0]);
  }
  // The next piece, visible to every thread; the piece before it is no longer needed.
  HEED_DEVICE float* take() {
    wait_for_copies<0>();
    sync();
    float* const stage = shared.stage[taken++ % 2];
    load_next(shared.stage[taken % 2]);
    return stage;
  }
  HEED_DEVICE void drain() {
    wait_for_copies<0>();
    sync();
  }

  // Values that are not finite become 0, so that an unseen key's 0 * v is 0; returns whether there were any.
  HEED_DEVICE static bool clear_poison(float* values) {
    bool found = false;
    for (int n = thread_index(); n < value_keys * dims; n += exact_threads) {
      if (is_finite(values[n])) continue;
      values[n] = 0;
      found = true;
    }
    return any(found);
  }

  // The keys of whole pieces of values.
  HEED_DEVICE static KeyRange value_groups(KeyRange part) {
    return {part.begin / value_keys * value_keys, (part.end + value_keys - 1) / value_keys * value_keys};
  }

 private:
  HEED_DEVICE void load_queries(std::int64_t first_dim, std::int64_t end_dim) {
    const std::int64_t padded = (end_dim - first_dim + 3) / 4 * 4;
    for (std::int64_t n = thread_index(); n < padded * exact_rows; n += exact_threads) {
      const int r = static_cast<int>(n % exact_rows);
      const std::int64_t d = first_dim + n / exact_rows;
      shared.q[n / exact_rows][r] =
          d < end_dim && work.is_row(r) ? read(row_of(c.q, work.query(r)), d) * c.scaling.query : 0.0f;
    }
  }

  HEED_DEVICE void enter(std::int64_t next) {
    block = static_cast<int>(next);
    if (block >= end) return;
    const KeyRange part = work.part_of(block);
    part_begin = static_cast<int>(part.begin), part_end = static_cast<int>(part.end);
    tile = part_begin / exact_tile * exact_tile;
    depth = 0;
    group = part_begin / value_keys * value_keys;
  }

  // Fills a stage with the next piece, if there is one.
  HEED_DEVICE void load_next(float* stage) {
    if (block < end) {
      if (tile < part_end) {
        load_keys(stage);
        depth += exact_depth;
        if (depth >= c.dim) depth = 0, tile += exact_tile;
      } else {
        load_values(stage);
        group += value_keys;
        if (group >= part_end) enter(work.next_block(block, {0, end}));
      }
    }
    commit_copies();
  }

  HEED_DEVICE bool is_wanted(int j) const { return part_begin <= j && j < part_end; }

  // (keys, depth); the fours of a key are swizzled by its number, so that eight keys are read without
  // conflicts.
  HEED_DEVICE void load_keys(float* stage) const {
    if constexpr (in_place) {
      constexpr int pieces = exact_depth / 4,
                    together = exact_threads / pieces;  // keys that are copied at once
      const int piece = thread_index() % pieces, key = thread_index() / pieces;
      // Keys that one thread copies are eights apart, so all are swizzled alike.
      float* const to = stage + key * exact_depth + (piece ^ key % 8) * 4;
      const bool has_depth = depth + piece * 4 < c.dim;
      const float* from = static_cast<const float*>(work.first_key) + depth + piece * 4;
      copy_rows<exact_tile / together, together * exact_depth>(
          {to, from, c.k.stride.length, tile + key, together}, has_depth);
    } else {
      for (int n = thread_index(); n < exact_stage; n += exact_threads) {
        const int d = n % exact_depth, key = n / exact_depth;
        const int j = tile + key;
        const bool is_valid = is_wanted(j) && depth + d < c.dim;
        stage[key * exact_depth + (d / 4 ^ key % 8) * 4 + d % 4] =
            is_valid ? read(key_row(c, work.b, work.kv_head, j), depth + d) : 0.0f;
      }
    }
  }

  // (keys, dims)
  HEED_DEVICE void load_values(float* stage) const {
    if constexpr (in_place) {
      constexpr int pieces = dims / 4, together = exact_threads / pieces;
      const int piece = thread_index() % pieces, key = thread_index() / pieces;
      const std::int64_t d = work.first_dim + piece * 4;
      const float* from = static_cast<const float*>(work.first_value) + d;
      copy_rows<value_keys / together, together * dims>(
          {stage + key * dims + piece * 4, from, c.v.stride.length, group + key, together}, d < c.value_dim);
    } else {
      for (int n = thread_index(); n < exact_stage; n += exact_threads) {
        const std::int64_t d = work.first_dim + n % dims;
        const int j = group + n / dims;
        const bool is_valid = is_wanted(j) && d < c.value_dim;
        stage[n] = is_valid ? read(value_row(c, work.b, work.kv_head, j), d) : 0.0f;
      }
    }
  }

  // Four floats of each of a thread's keys, the first `j` and the others `apart`; zeros for keys that nobody
  // wants.
  struct Copies {
    float* to;
    const float* from;
    std::int64_t stride;
    int j, apart;
  };
  template <int count, int to_step>
  HEED_DEVICE void copy_rows(const Copies& of, bool is_valid) const {
    const float* from = of.from + of.j * of.stride;
    const std::int64_t step = of.apart * of.stride;
    if (is_valid && is_wanted(of.j) && is_wanted(of.j + (count - 1) * of.apart)) {
#pragma unroll
      for (int n = 0; n < count; ++n, from += step) copy16(of.to + n * to_step, from, true);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < count; ++n, from += step) {
      const bool is_one_valid = is_valid && is_wanted(of.j + n * of.apart);
      copy16(of.to + n * to_step, is_one_valid ? from : static_cast<const float*>(work.first_key),
             is_one_valid);
    }
  }

  const Call& c;
  const ExactWork& work;
  Shared& shared;
  // Of the piece that will be loaded next; keys fit 31 bits.
  int end = 0, block = 0, part_begin = 0, part_end = 0, tile = 0, depth = 0, group = 0;
  int taken = 0;
};

}  // namespace heed::cuda
