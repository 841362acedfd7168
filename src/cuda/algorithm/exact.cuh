// SPDX-License-Identifier: Apache-2.0
// Attention in f32 with the bits of the CPU's kernels (O2): every score, sum and output has the CPU's chains in
// the CPU's order, the softmax moves by blocks of 256 keys and chunks of 1024, and the exponential is the
// CPU's. All options, any type of element, widened to f32.
//
// A block of threads does 64 rows that share a KV head. Keys come through a ring of stages in pieces of 128
// keys x 32 dimensions, values in pieces of as many floats. A thread keeps the scores of 8 rows and 2 x 8
// keys in registers, so that a block's maximum is known before the first exponential, and the sums of 8 rows
// and 4 dimensions of each slab of 64.
#pragma once
#include <cstdint>

#include "cuda/algorithm/dropout.cuh"
#include "cuda/algorithm/exact_loads.cuh"
#include "cuda/algorithm/exact_state.cuh"
#include "cuda/algorithm/finish.cuh"
#include "cuda/algorithm/visible.cuh"
#include "cuda/algorithm/wide_row.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

template <int slabs, bool in_place>
class Exact : private ExactState<slabs> {
  using Loads = ExactLoads<slabs, in_place>;
  using State = ExactState<slabs>;
  using Total = ExactTotal<slabs>;
  using State::max, State::own_max, State::own_sum, State::o;

 public:
  static constexpr int threads = exact_threads, rows = exact_rows, dims = 64 * slabs;
  static constexpr std::int64_t state_floats = rows * (2 + dims);

  struct Shared {
    typename Loads::Shared loads;
    alignas(16) float p[exact_tile][rows];  // the weights of one tile of keys
    alignas(16) float warp_max[4][rows];
    ExactWork work;
    int begin[rows], end[rows];  // keys that ranges let each row see; none where there is no row
    float factor[rows];
    int left[rows];
    unsigned arrived;
  };

  HEED_DEVICE Exact(const Call& call, const ExactPlan& launch, Shared& memory)
      : c(call), plan(launch), work(memory.work), shared(memory), loads(call, memory.work, memory.loads) {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    row_group = lane % 8;
    column = warp * 4 + lane / 8;
    own_row = lane < 16 ? warp * 16 + lane : -1;
  }

  HEED_DEVICE void run() {
    if (thread_index() == 0) shared.work.find(c, plan, dims);
    sync();
    if (!work.has_rows()) return;
    if (plan.splits > 1 && !work.has_chunk()) return;
    find_ranges();
    loads.load_queries();
    KeyRange keys = work.chunks(plan);
    for (bool careful = false;; careful = true) {
      attend(keys, careful);
      if (plan.splits > 1 && !careful && !take_all_chunks()) return;
      finish(careful);
      if (careful || !any(found_poison)) {
        if (careful) complete();
        return keep_ends();
      }
      keys = work.all_chunks();
    }
  }

 private:
  // Row n of this thread's eight, and key m of its eight in a tile.
  HEED_DEVICE int row(int n) const { return n < 4 ? row_group * 4 + n : 28 + row_group * 4 + n; }
  HEED_DEVICE int key(int m) const { return column + 16 * m; }

  HEED_DEVICE void find_ranges() {
    const int t = thread_index();
    if (t >= rows) return;
    shared.begin[t] = shared.end[t] = 0;
    if (!work.is_row(t)) return;
    const KeyRange seen = visible_keys(c, work.b, work.query(t).i);
    shared.begin[t] = static_cast<int>(seen.begin), shared.end[t] = static_cast<int>(most(0, seen.end));
  }

  // Over the blocks of these chunks; leaves the merged state in max, own_max, own_sum and o.
  HEED_DEVICE void attend(KeyRange keys, bool careful) {
    Total total;
    State::clear();
    loads.start(keys);
    std::int64_t chunk = -1;
    for (std::int64_t block = work.first_block(keys); block < keys.end;
         block = work.next_block(block, keys)) {
      if (chunk >= 0 && block / chunk_keys != chunk) {
        merge(total);
        total.keep(*this);
        State::clear();
      }
      chunk = block / chunk_keys;
      attend_block(block, careful);
    }
    merge(total);
    loads.drain();
  }

  HEED_DEVICE void attend_block(std::int64_t block, bool careful) {
    const KeyRange seen = work.part_of(block);
    const int first = static_cast<int>((seen.begin - block) / exact_tile),
              last = static_cast<int>((seen.end - 1 - block) / exact_tile);
    score_tile<0>(block, first <= 0 && 0 <= last);
    score_tile<1>(block, first <= 1 && 1 <= last);
    move_max();
    float values[slabs][4][8] = {};  // this block's, weighted: a chain of their own
    if (first <= 0 && 0 <= last) add_tile<0>(block, seen, careful, values);
    if (first <= 1 && 1 <= last) add_tile<1>(block, seen, careful, values);
    State::add(values);
  }

  // Scores of keys [block + 128 * tile, + 128).
  template <int tile>
  HEED_DEVICE void score_tile(std::int64_t block, bool is_wanted) {
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) s[tile][m][n] = is_wanted ? 0.0f : minus_infinity;
    if (!is_wanted) return;
    for (std::int64_t d = 0; d < c.dim; d += exact_depth) {
      const float* keys = loads.take();
      if (d > 0 && d % chain_terms == 0) end_chain<tile>(d == chain_terms, false);
      multiply<tile>(loads.queries(d), keys, static_cast<int>(least(exact_depth, c.dim - d) + 3) / 4);
    }
    if (c.dim > chain_terms) end_chain<tile>(false, true);
    const std::int64_t first_key = block + tile * exact_tile;
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) s[tile][m][n] = spoil_infinity(s[tile][m][n]);
    if (!only_ranges(c))
      change_scores<tile>(first_key);
    else if (!work.all_see(c, {first_key, first_key + exact_tile}))
      hide_unseen<tile>(static_cast<int>(first_key));
  }

  // A chain has ended. What the chains so far come to waits in shared.p, each thread's where no other looks.
  template <int tile>
  HEED_DEVICE void end_chain(bool is_first, bool is_last) {
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        float* const kept = &shared.p[key(m)][row(half)];
        float so_far[4];
        load4(so_far, kept);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float& score = s[tile][m][half + n];
          so_far[n] = is_first ? score : so_far[n] + score;
          score = is_last ? so_far[n] : 0.0f;
        }
        store4(kept, so_far);
      }
  }

  // Adds the products of `fours` times four dimensions, one after the other.
  template <int tile>
  HEED_DEVICE void multiply(const float* queries, const float* keys, int fours) {
    const int turn = column % 8;  // how ExactLoads turns the pieces of a key
    keys += column * exact_depth;
    queries += row_group * 4;
#pragma unroll 2
    for (int piece = 0; piece < fours; ++piece, queries += 4 * rows) {
      const float* at = keys + (piece ^ turn) * 4;
      constexpr int together = slabs == 1 ? 4 : 2;  // dimensions whose keys wait in registers
#pragma unroll
      for (int d = 0; d < 4; d += together) {
        float y[8][together];
#pragma unroll
        for (int m = 0; m < 8; ++m) load_keys(y[m], at + m * 16 * exact_depth + d);
#pragma unroll
        for (int e = 0; e < together; ++e) {
          float x[8];
          load4(x, queries + (d + e) * rows), load4(x + 4, queries + (d + e) * rows + 32);
#pragma unroll
          for (int m = 0; m < 8; ++m)
#pragma unroll
            for (int n = 0; n < 8; ++n) s[tile][m][n] = fmaf(x[n], y[m][e], s[tile][m][n]);
        }
      }
    }
  }
  HEED_DEVICE static void load_keys(float (&to)[4], const float* from) { load4(to, from); }
  HEED_DEVICE static void load_keys(float (&to)[2], const float* from) { load2(to, from); }

  template <int tile>
  HEED_DEVICE void hide_unseen(int first_key) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int begin = shared.begin[row(n)] - first_key - column,
                end = shared.end[row(n)] - first_key - column;
#pragma unroll
      for (int m = 0; m < 8; ++m)
        if (16 * m < begin || 16 * m >= end) s[tile][m][n] = minus_infinity;
    }
  }

  // Everything else that happens to scores: one after the other, in shared memory.
  template <int tile>
  HEED_DEVICE void change_scores(std::int64_t first_key) {
    sync();
    put_tile<tile>([](float x, int) { return x; });
    sync();
    for (int n = thread_index(); n < exact_tile * rows; n += threads) {
      const int r = n % rows;
      const std::int64_t j = first_key + n / rows;
      float& score = shared.p[n / rows][r];
      if (!work.is_row(r) || j >= work.keys)
        score = minus_infinity;
      else
        score = biased_score(c, work.query(r), j,
                             softcapped_score(c, raw_score(c, work.b, work.kv_head, j, score)));
    }
    sync();
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      load4(s[tile][m], &shared.p[key(m)][row(0)]);
      load4(s[tile][m] + 4, &shared.p[key(m)][row(4)]);
    }
  }

  // Writes change(score, n) of the tile to shared.p, n being the row of this thread.
  template <int tile, class Change>
  HEED_DEVICE void put_tile(const Change& change) {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      float x[8];
#pragma unroll
      for (int n = 0; n < 8; ++n) x[n] = change(s[tile][m][n], n);
      store4(&shared.p[key(m)][row(0)], x);
      store4(&shared.p[key(m)][row(4)], x + 4);
    }
  }

  // Finds the new maxima over the block's scores and rescales what was measured against the old ones.
  HEED_DEVICE void move_max() {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    float top[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      top[n] = s[0][0][n];
#pragma unroll
      for (int m = 0; m < 16; ++m) top[n] = fmaxf(top[n], s[m / 8][m % 8][n]);
      top[n] = fmaxf(top[n], from_lane_across(top[n], 8));
      top[n] = fmaxf(top[n], from_lane_across(top[n], 16));
    }
    if (lane < 8) {
      store4(&shared.warp_max[warp][row(0)], top);
      store4(&shared.warp_max[warp][row(4)], top + 4);
    }
    sync();
    float factor[8];
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      float of[4][4];
#pragma unroll
      for (int w = 0; w < 4; ++w) load4(of[w], &shared.warp_max[w][row(half)]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float now = fmaxf(max[half + n], fmaxf(fmaxf(of[0][n], of[1][n]), fmaxf(of[2][n], of[3][n])));
        factor[half + n] = rescaling(max[half + n], now);
        moved = moved || factor[half + n] != 1.0f;
        max[half + n] = now;
      }
    }
    if (moved) State::scale(factor);
    if (own_row < 0) return;
    const float before = own_max;
#pragma unroll
    for (int w = 0; w < 4; ++w) own_max = fmaxf(own_max, shared.warp_max[w][own_row]);
    own_sum = own_sum * rescaling(before, own_max);
  }

  // Turns the tile's scores into weights and adds its values.
  template <int tile>
  HEED_DEVICE void add_tile(std::int64_t block, KeyRange seen, bool careful, float (&sums)[slabs][4][8]) {
    const std::int64_t first_key = block + tile * exact_tile;
    sync();  // the last tile's weights have been read
#pragma unroll
    for (int n = 0; n < 8; ++n) top_of[n] = finite_max(max[n]);
    put_tile<tile>([&](float x, int n) { return exp2(x - top_of[n]); });
    bool is_first = true;
    const KeyRange groups =
        Loads::value_groups({most(seen.begin, first_key), least(seen.end, first_key + exact_tile)});
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
    for (std::int64_t j = group; j < least(group + Loads::value_keys, work.keys); ++j) {
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

  // The part = the total merged with the part. The first part is the total so far: merging it into an empty
  // state would change nothing.
  HEED_DEVICE void merge(const Total& total) {
    if (!total.is_empty) State::merge(total.state);
  }

  // Where chunks run apart: leaves this one's state and, in the block that arrives last, merges them all in
  // order.
  HEED_DEVICE bool take_all_chunks() {
    float* state = work.partial(plan, state_floats, work.split);
    move_state(state, [](float* memory, float& x) { *memory = x; });
    sync();
    unsigned* arrivals = plan.arrivals + work.number;
    if (thread_index() == 0) shared.arrived = arrive(arrivals);
    sync();
    const std::int64_t chunks = work.chunk_count();
    if (shared.arrived + 1 != static_cast<unsigned>(chunks)) return false;
    if (thread_index() == 0) *arrivals = 0;
    Total total;
    for (std::int64_t n = 0; n < chunks; ++n) {
      move_state(work.partial(plan, state_floats, n),
                 [](const float* memory, float& x) { x = written_elsewhere(memory); });
      merge(total);
      total.keep(*this);
    }
    return true;
  }

  template <class Memory, class Move>
  HEED_DEVICE void move_state(Memory* state, const Move& move) {
    if (own_row >= 0) move(state + rows + own_row, own_sum), move(state + own_row, own_max);
    // Threads that share rows have the same maxima; they read them when all have written.
    sync();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      move(state + row(n), max[n]);
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e) move(state + (2 + 64 * v + column * 4 + e) * rows + row(n), o[v][e][n]);
    }
  }

  // Closes the rows and writes them. Found_poison says whether anything written is not a number; with
  // `careful`, shared.left says which rows.
  HEED_DEVICE void finish(bool careful) {
    sync();
    if (own_row >= 0) {
      shared.left[own_row] = 0;
      if (work.is_row(own_row)) close_row();
    }
    sync();
    found_poison = false;
    const bool in_fours = lies_in_fours(c.out);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (!work.is_row(row(n))) continue;
      const float factor = shared.factor[row(n)];
      const Row out = row_of(c.out, work.query(row(n)));
      bool is_number = true;
#pragma unroll
      for (int v = 0; v < slabs; ++v) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[e] = o[v][e][n] * factor + 0.0f;  // every zero has one sign
          is_number = is_number && is_finite(x[e]);
        }
        const std::int64_t d = work.first_dim + 64 * v + column * 4;
        if (in_fours && d + 4 <= c.value_dim)
          store4(static_cast<float*>(const_cast<void*>(out.data)) + out.first + d, x);
        else
          write_four(out, d, c.value_dim, {x[0], x[1], x[2], x[3]});
      }
      if (is_number) continue;
      found_poison = true;
      if (careful) shared.left[row(n)] = 1;
    }
    if (own_row >= 0 && work.is_row(own_row)) {
      const float factor = shared.factor[own_row];
      if (!is_finite(factor)) found_poison = true, shared.left[own_row] = 1;
    }
  }

  // The factor of the row's output, and its log-sum-exp.
  HEED_DEVICE void close_row() {
    const Query q = work.query(own_row);
    const RowEnd end{own_max, own_sum};
    if (!c.sink.data && !c.bias.data && !c.alibi.of_heads && !c.log_sum_exp.data) {
      shared.factor[own_row] = sees_no_key(end) ? 0.0f : 1.0f / end.sum;
      return;
    }
    const ClosedRow row = closed(c, q, end);
    shared.factor[own_row] = row.out();
    if (c.log_sum_exp.data && work.first_dim == 0)
      write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
  }

  // Rows that f32 could not finish, once more in double precision.
  HEED_DEVICE void complete() {
    sync();
    double* scratch = reinterpret_cast<double*>(&shared.p[0][0]);
    const KeyRange dims_here{work.first_dim, least(work.first_dim + dims, c.value_dim)};
    for (int r = 0; r < rows; ++r) {
      if (!shared.left[r]) continue;
      const Query q = work.query(r);
      const WideEnd end = complete_row(WholeBlock<threads>(), c, q, dims_here, scratch);
      if (thread_index() == 0 && plan.ends && work.first_dim == 0) kept_end(q).wide = end;
    }
  }

  HEED_DEVICE KeptEnd& kept_end(const Query& q) const {
    return plan.ends[(q.b * c.heads + q.h) * c.queries + q.i];
  }
  HEED_DEVICE void keep_ends() {
    if (!plan.ends || work.first_dim != 0 || own_row < 0 || !work.is_row(own_row)) return;
    kept_end(work.query(own_row)).row = {own_max, own_sum};
  }

  const Call& c;
  const ExactPlan& plan;
  const ExactWork& work;
  Shared& shared;
  Loads loads;
  int row_group, column, own_row;
  float s[2][8][8];  // scores, of two tiles, [key][row]
  float top_of[8];   // what is subtracted from those of this thread's rows
  bool found_poison = false;
};

}  // namespace heed::cuda
