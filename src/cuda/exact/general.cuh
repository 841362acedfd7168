// SPDX-License-Identifier: Apache-2.0
// Attention in f32 with the bits of the CPU's kernels (O2): every score, sum and output has the CPU's chains
// in the CPU's order, the softmax moves by blocks of 256 keys and chunks of 1024, and the exponential is the
// CPU's. All options, any type of element, widened to f32.
//
// A block of threads does 64 rows that share a KV head. Keys come through a ring of stages in pieces of 128
// keys x 32 dimensions, values in pieces of as many floats. A thread holds the scores of 8 rows and 2 x 8
// keys in registers, so that a block's maximum is known before the first exponential, and the sums of 8 rows
// and 4 dimensions of each slab of 64.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/exact/loads.cuh"
#include "cuda/exact/state.cuh"
#include "cuda/exact/work.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

template <int slabs, bool in_place>
struct ExactShared {
  static constexpr int rows = exact_rows;
  typename ExactLoads<slabs, in_place>::Shared loads;
  alignas(16) float p[exact_tile][rows];  // the weights of one tile of keys
  alignas(16) float warp_max[4][rows];
  ExactWork work;
  int begin[rows], end[rows];  // keys that ranges let each row see; none where there is no row
  float factor[rows];
  int unfinished[rows];
  unsigned arrived;
};

// Which rows, keys and dimensions are a thread's: 8 rows, 8 keys of each tile, 4 dimensions of each slab.
struct ExactPlace {
  int row_group, column;
  int own_row;  // whose sum is this thread's; -1: of none

  HEED_DEVICE ExactPlace() {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    row_group = lane % 8;
    column = warp * 4 + lane / 8;
    own_row = lane < 16 ? warp * 16 + lane : -1;
  }

  // Row n of this thread's eight, and key m of its eight in a tile.
  HEED_DEVICE int row(int n) const { return n < 4 ? row_group * 4 + n : 28 + row_group * 4 + n; }
  HEED_DEVICE int key(int m) const { return column + 16 * m; }
};

// The scores of a block of keys, in the registers of their threads: products in the CPU's chains, then what
// options and masks do to them, and the maximum of each row.
template <int slabs, bool in_place>
class ExactScores {
  using Loads = ExactLoads<slabs, in_place>;
  using Shared = ExactShared<slabs, in_place>;
  static constexpr int threads = exact_threads, rows = exact_rows;

 public:
  HEED_DEVICE ExactScores(const Call& call, const ExactPlace& of, Shared& memory)
      : c(call), place(of), work(memory.work), shared(memory) {}

  // Of tiles [first, last] of the block; the other, if there is one, is as if nobody saw it.
  HEED_DEVICE void score_block(Loads& loads, std::int64_t block, int first, int last) {
    score_tile<0>(loads, block, first <= 0 && 0 <= last);
    score_tile<1>(loads, block, first <= 1 && 1 <= last);
  }

  // Finds the new maxima over the block's scores and rescales what was measured against the old ones.
  HEED_DEVICE void move_max(ExactState<slabs>& state) const {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    float top[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      top[n] = s[0][0][n];
#pragma unroll
      for (int m = 0; m < 16; ++m) top[n] = fmaxf(top[n], s[m / 8][m % 8][n]);
      top[n] = fmaxf(top[n], shuffle_xor(top[n], 8));
      top[n] = fmaxf(top[n], shuffle_xor(top[n], 16));
    }
    if (lane < 8) {
      store4(&shared.warp_max[warp][place.row(0)], top);
      store4(&shared.warp_max[warp][place.row(4)], top + 4);
    }
    sync();
    float factor[8];
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 8; half += 4) {
      float of[4][4];
#pragma unroll
      for (int w = 0; w < 4; ++w) load4(of[w], &shared.warp_max[w][place.row(half)]);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float now =
            fmaxf(state.max[half + n], fmaxf(fmaxf(of[0][n], of[1][n]), fmaxf(of[2][n], of[3][n])));
        factor[half + n] = rescaling(state.max[half + n], now, power_of(c));
        moved = moved || factor[half + n] != 1.0f;
        state.max[half + n] = now;
      }
    }
    if (moved) state.scale(factor);
    if (place.own_row < 0) return;
    const float before = state.own_max;
#pragma unroll
    for (int w = 0; w < 4; ++w) state.own_max = fmaxf(state.own_max, shared.warp_max[w][place.own_row]);
    state.own_sum = state.own_sum * rescaling(before, state.own_max, power_of(c));
  }

  // Writes change(score, n) of the tile to shared.p, n being the row of this thread.
  template <int tile, class Change>
  HEED_DEVICE void put_tile(const Change& change) const {
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      float x[8];
#pragma unroll
      for (int n = 0; n < 8; ++n) x[n] = change(s[tile][m][n], n);
      store4(&shared.p[place.key(m)][place.row(0)], x);
      store4(&shared.p[place.key(m)][place.row(4)], x + 4);
    }
  }

 private:
  // Scores of keys [block + 128 * tile, + 128).
  template <int tile>
  HEED_DEVICE void score_tile(Loads& loads, std::int64_t block, bool is_wanted) {
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) s[tile][m][n] = is_wanted ? 0.0f : minus_infinity;
    if (!is_wanted) return;
    for (std::int64_t d = 0; d < c.dim; d += exact_depth) {
      const float* keys = loads.take();
      if (d > 0 && d % chain_terms == 0) end_chain<tile>({.is_first = d == chain_terms});
      multiply<tile>(loads.queries(d), keys, static_cast<int>(min(exact_depth, c.dim - d) + 3) / 4);
    }
    if (c.dim > chain_terms) end_chain<tile>({.is_last = true});
    const std::int64_t first_key = block + tile * exact_tile;
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int n = 0; n < 8; ++n) s[tile][m][n] = infinity_to_nan(s[tile][m][n]);
    if (!only_ranges(c))
      change_scores<tile>(first_key);
    else if (!work.all_see(c, {first_key, first_key + exact_tile}))
      hide_unseen<tile>(static_cast<int>(first_key));
  }

  // A chain has ended. What the chains so far come to waits in shared.p, each thread's where no other looks.
  struct Chain {
    bool is_first = false, is_last = false;
  };
  template <int tile>
  HEED_DEVICE void end_chain(const Chain& chain) {
#pragma unroll
    for (int m = 0; m < 8; ++m)
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        float* const sums = &shared.p[place.key(m)][place.row(half)];
        float so_far[4];
        load4(so_far, sums);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          float& score = s[tile][m][half + n];
          so_far[n] = chain.is_first ? score : so_far[n] + score;
          score = chain.is_last ? so_far[n] : 0.0f;
        }
        store4(sums, so_far);
      }
  }

  // Adds the products of `fours` times four dimensions, one after the other.
  template <int tile>
  HEED_DEVICE void multiply(const float* queries, const float* keys, int fours) {
    const int swizzle = place.column % 8;  // of the pieces of a key (ExactLoads)
    keys += place.column * exact_depth;
    queries += place.row_group * 4;
#pragma unroll 2
    for (int piece = 0; piece < fours; ++piece, queries += 4 * rows) {
      const float* at = keys + (piece ^ swizzle) * 4;
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
      const int begin = shared.begin[place.row(n)] - first_key - place.column,
                end = shared.end[place.row(n)] - first_key - place.column;
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
                             softcapped_score(c.softcap, raw_score(c, work.b, work.kv_head, j, score)));
    }
    sync();
#pragma unroll
    for (int m = 0; m < 8; ++m) {
      load4(s[tile][m], &shared.p[place.key(m)][place.row(0)]);
      load4(s[tile][m] + 4, &shared.p[place.key(m)][place.row(4)]);
    }
  }

  const Call& c;
  const ExactPlace place;  // a copy: a reference into what owns this would send all of it to memory
  const ExactWork& work;
  Shared& shared;
  float s[2][8][8];  // of two tiles, [key][row]
};

template <int slabs, bool in_place>
class Exact {
  using Loads = ExactLoads<slabs, in_place>;
  using State = ExactState<slabs>;
  using Total = ExactTotal<slabs>;

 public:
  using Shared = ExactShared<slabs, in_place>;
  static constexpr int threads = exact_threads, rows = exact_rows, dims = 64 * slabs;
  static constexpr std::int64_t state_floats = rows * (2 + dims);

  HEED_DEVICE Exact(const Call& call, const ExactPlan& launch, Shared& memory)
      : c(call),
        plan(launch),
        work(memory.work),
        shared(memory),
        loads(call, memory.work, memory.loads),
        scores(call, place, memory) {}

  HEED_DEVICE void run() {
    if (thread_index() == 0) shared.work.find(c, plan, {rows, dims});
    sync();
    if (!work.has_rows() || !work.has_unfinished(c, plan)) return;
    if (plan.splits > 1 && !work.has_chunk()) return;
    find_ranges();
    loads.load_queries();
    KeyRange keys = work.chunks(plan);
    for (Pass pass = Pass::plain;; pass = Pass::careful) {
      attend(keys, pass);
      if (plan.splits > 1 && pass == Pass::plain && !merge_chunks()) return;
      finish(pass);
      if (pass == Pass::careful || !any(found_poison)) {
        if (pass == Pass::careful) complete();
        return save_ends();
      }
      keys = work.all_chunks();
    }
  }

 private:
  // A row that comes out as no number is done again, carefully: values that are not finite are kept out of
  // the sums of rows that do not see them.
  enum class Pass : bool { plain, careful };

  HEED_DEVICE void find_ranges() {
    const int t = thread_index();
    if (t >= rows) return;
    shared.begin[t] = shared.end[t] = 0;
    if (!work.is_row(t)) return;
    const KeyRange seen = visible_keys(c, work.b, work.query(t).i);
    shared.begin[t] = static_cast<int>(seen.begin), shared.end[t] = static_cast<int>(max(0, seen.end));
  }

  // Over the blocks of these chunks; leaves the merged state in `state`.
  HEED_DEVICE void attend(KeyRange keys, Pass pass) {
    Total total;
    force_to_memory(total);
    state.clear();
    loads.start(keys);
    std::int64_t chunk = -1;
    for (std::int64_t block = work.first_block(keys); block < keys.end;
         block = work.next_block(block, keys)) {
      if (chunk >= 0 && block / chunk_keys != chunk) {
        merge(total);
        total.set(state);
        state.clear();
      }
      chunk = block / chunk_keys;
      attend_block(block, pass);
    }
    merge(total);
    loads.drain();
  }

  HEED_DEVICE void attend_block(std::int64_t block, Pass pass) {
    const KeyRange seen = work.part_of(block);
    const int first = static_cast<int>((seen.begin - block) / exact_tile),
              last = static_cast<int>((seen.end - 1 - block) / exact_tile);
    scores.score_block(loads, block, first, last);
    scores.move_max(state);
    float values[slabs][4][8] = {};  // this block's, weighted: a chain of their own
    if (first <= 0 && 0 <= last) add_tile<0>(block, seen, pass, values);
    if (first <= 1 && 1 <= last) add_tile<1>(block, seen, pass, values);
    state.add(values);
  }

  // Makes weights of the tile's scores and adds its values.
  template <int tile>
  HEED_DEVICE void add_tile(std::int64_t block, KeyRange seen, Pass pass, float (&sums)[slabs][4][8]) {
    const std::int64_t first_key = block + tile * exact_tile;
    sync();        // the last tile's weights have been read
    float top[8];  // what is subtracted from the scores of this thread's rows
#pragma unroll
    for (int n = 0; n < 8; ++n) top[n] = finite_max(state.max[n]);
    scores.template put_tile<tile>([&](float x, int n) { return power_of(c)(x - top[n]); });
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
      const bool poisoned = pass == Pass::careful && Loads::clear_poison(values);
      add_values(values, &shared.p[group - first_key][place.row_group * 4], sums);
      if (poisoned) spread_poison(group);
    }
  }

  // Each row's weights in chains in the order of the keys, by the one thread that owns the row.
  HEED_DEVICE void sum_weights() {
    if (place.own_row < 0) return;
    for (int first = 0; first < exact_tile; first += chain_keys) {
      float chain = 0;
#pragma unroll 16
      for (int j = first; j < first + chain_keys; ++j) chain = chain + shared.p[j][place.own_row];
      state.own_sum = state.own_sum + chain;
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
    values += place.column * 4;
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

  // The rows that see such a value have no number there, until complete() writes what they have (S4).
  HEED_DEVICE void spread_poison(std::int64_t group) {
    for (std::int64_t j = group; j < min(group + Loads::value_keys, work.keys); ++j) {
      const Row value = value_row(c, work.b, work.kv_head, j);
      unsigned seen_by_row = 0;
#pragma unroll 1
      for (int n = 0; n < 8; ++n)
        if (work.is_row(place.row(n)) && sees(c, work.query(place.row(n)), j)) seen_by_row |= 1u << n;
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const std::int64_t d = work.first_dim + 64 * v + place.column * 4 + e;
          if (d >= c.value_dim || is_finite(read(value, d))) continue;
#pragma unroll
          for (int n = 0; n < 8; ++n)
            if (seen_by_row >> n & 1u) state.o[v][e][n] = __builtin_nanf("");
        }
    }
  }

  // The part = the total merged with the part. The first part is the total so far: merging it into an empty
  // state would change nothing.
  HEED_DEVICE void merge(const Total& total) {
    if (!total.is_empty) state.merge(total.state, power_of(c));
  }

  // Where chunks run apart: stores this one's state and, in the block that arrives last, merges them all in
  // order.
  HEED_DEVICE bool merge_chunks() {
    float* stored = work.partial(plan, state_floats, work.split);
    move_state(stored, [](float* memory, float& x) { *memory = x; });
    sync();
    unsigned* arrivals = plan.arrivals + work.number;
    if (thread_index() == 0) shared.arrived = count_arrival(arrivals);
    sync();
    const std::int64_t chunks = work.chunk_count();
    if (shared.arrived + 1 != static_cast<unsigned>(chunks)) return false;
    if (thread_index() == 0) *arrivals = 0;
    Total total;
    for (std::int64_t n = 0; n < chunks; ++n) {
      move_state(work.partial(plan, state_floats, n),
                 [](const float* memory, float& x) { x = load_l2(memory); });
      merge(total);
      total.set(state);
    }
    return true;
  }

  template <class Memory, class Move>
  HEED_DEVICE void move_state(Memory* stored, const Move& move) {
    if (place.own_row >= 0)
      move(stored + rows + place.own_row, state.own_sum), move(stored + place.own_row, state.own_max);
    // Threads that share rows have the same maxima; they read them when all have written.
    sync();
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      move(stored + place.row(n), state.max[n]);
#pragma unroll
      for (int v = 0; v < slabs; ++v)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          move(stored + (2 + 64 * v + place.column * 4 + e) * rows + place.row(n), state.o[v][e][n]);
    }
  }

  // Closes the rows and writes them. Found_poison is whether anything written is not finite; on the careful
  // pass shared.unfinished has which rows.
  HEED_DEVICE void finish(Pass pass) {
    sync();
    if (place.own_row >= 0) {
      shared.unfinished[place.own_row] = 0;
      if (work.is_row(place.own_row)) close_row();
    }
    sync();
    found_poison = false;
    const bool in_fours = lies_in_fours(c.out);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if (!work.is_row(place.row(n))) continue;
      const float factor = shared.factor[place.row(n)];
      const Row out = row_of(c.out, work.query(place.row(n)));
      bool is_number = true;
#pragma unroll
      for (int v = 0; v < slabs; ++v) {
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[e] = state.o[v][e][n] * factor + 0.0f;  // every zero has one sign
          is_number = is_number && is_finite(x[e]);
        }
        const std::int64_t d = work.first_dim + 64 * v + place.column * 4;
        if (in_fours && d + 4 <= c.value_dim)
          store4(static_cast<float*>(const_cast<void*>(out.data)) + out.first + d, x);
        else
          write_four(out, d, c.value_dim, {x[0], x[1], x[2], x[3]});
      }
      if (is_number) continue;
      found_poison = true;
      if (pass == Pass::careful) shared.unfinished[place.row(n)] = 1;
    }
    if (place.own_row >= 0 && work.is_row(place.own_row)) {
      const float factor = shared.factor[place.own_row];
      if (!is_finite(factor)) found_poison = true, shared.unfinished[place.own_row] = 1;
    }
  }

  // The factor of the row's output, and its log-sum-exp.
  HEED_DEVICE void close_row() {
    const Query q = work.query(place.own_row);
    const RowEnd end{state.own_max, state.own_sum};
    if (!c.sink.data && !c.bias.data && !c.alibi.of_heads && !c.log_sum_exp.data) {
      shared.factor[place.own_row] = sees_no_key(end) ? 0.0f : 1.0f / end.sum;
      return;
    }
    const ClosedRow row = closed(c, q, end, c.scaling);
    shared.factor[place.own_row] = row.out();
    if (c.log_sum_exp.data && work.first_dim == 0)
      write(row_of(c.log_sum_exp, q), 0, static_cast<float>(row.log_sum_exp()));
  }

  // Rows that f32 could not finish, once more in double precision.
  HEED_DEVICE void complete() {
    sync();
    double* scratch = reinterpret_cast<double*>(&shared.p[0][0]);
    const KeyRange dims_here{work.first_dim, min(work.first_dim + dims, c.value_dim)};
    for (int r = 0; r < rows; ++r) {
      if (!shared.unfinished[r]) continue;
      const Query q = work.query(r);
      const DoubleEnd end = complete_row(WholeBlock<threads>(), c, q, dims_here, scratch);
      if (thread_index() == 0 && plan.ends && work.first_dim == 0) saved_end(q).in_double = end;
    }
  }

  HEED_DEVICE void save_ends() {
    if (!plan.ends || work.first_dim != 0 || place.own_row < 0 || !work.is_row(place.own_row)) return;
    saved_end(work.query(place.own_row)).row = {state.own_max, state.own_sum};
  }
  HEED_DEVICE SavedEnd& saved_end(const Query& q) const {
    return plan.ends[(q.b * c.heads + q.h) * c.queries + q.i];
  }

  const Call& c;
  const ExactPlan& plan;
  const ExactWork& work;
  Shared& shared;
  const ExactPlace place{};
  Loads loads;
  ExactScores<slabs, in_place> scores;
  State state;
  bool found_poison = false;
};

}  // namespace heed::cuda
