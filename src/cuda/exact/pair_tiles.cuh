// SPDX-License-Identifier: Apache-2.0
// Tiles of pairs of a row and a key, for the exact gradients: P and dS of 96 rows and 96 keys, and their
// products with rows and with keys. The operations are the CPU's, in the CPU's order
// (src/cpu/backward/backward.hpp).
//
// A thread has 6 rows and 12 keys of a tile, and 6 items and 8 dimensions of a sum: nine of ten instructions
// of the loops are multiply-adds. With 12 items, and half as many threads, all takes half as long again
// (H200).
#pragma once
#include <cstdint>

#include "cuda/backward/pairs.cuh"
#include "cuda/exact/plan.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

constexpr int pair_threads = 128;
constexpr int pair_items = 96;              // rows of a tile, and its keys
constexpr int pair_pitch = pair_items + 4;  // floats: neighbouring rows begin in different banks
constexpr int pair_depth = 16;              // dimensions of rows and keys that are in shared memory together
constexpr int depth_pitch = pair_depth + 4;
constexpr int pair_stage = 48;  // or items, with a slab of dimensions
constexpr int pair_slab = GradientCall::slab_dims;

struct PairKeys {
  std::int64_t first;
  std::int64_t at[2][pair_items];  // in k and in v
};

struct PairsShared {
  alignas(16) float tile[pair_items][pair_pitch];  // P after dropout, then dS: (rows, keys)
  // What is multiplied next, and what now: dimensions of rows and of keys, or items and a slab.
  alignas(16) float stages[2][2 * pair_items * depth_pitch];
  PairItems<pair_items> rows;
  PairKeys keys;
  PairRows of;
  unsigned number;  // of this block
  unsigned char is_finite[pair_items];
};
static_assert(pair_stage * pair_slab <= 2 * pair_items * depth_pitch);

// Where a thread's rows of a product begin, of sixteen, and its columns, of eight. A warp reads 16 bytes of
// shared memory for each thread in two steps, not in four, where of every four neighbours two read the same
// and two read the same across.
HEED_DEVICE int pair_down() {
  const int t = thread_index();
  return t / 32 * 4 + t % 32 / 8 % 2 * 2 + t % 2;
}
HEED_DEVICE int pair_across() {
  const int t = thread_index();
  return t % 32 / 16 * 4 + t % 8 / 2;
}

// What dS is the gradient by: the score, or the product before the softcap.
enum class By : std::uint8_t { score, product };

// The sums that a block has, of the slab that begins at this dimension.
struct PairSums {
  std::int64_t first_dim;
  bool of_values, of_keys;
};

// What becomes of a thread's pairs where anything but ranges of keys concerns them: the weight before
// dropout, what dropout multiplies with, and the slope of the softcap.
struct PairOption {
  float weight, keep, slope;
};
using PairOptions = PairOption[pair_items * pair_items / pair_threads];

// Whether rows are copied as they lie, and else element by element.
constexpr bool lies_in_place(const GradientCall& g) {
  const Call& c = g.forward;
  return lies_in_fours(c.q) && lies_in_fours(c.k) && lies_in_fours(c.v) && lies_in_fours(g.out_gradient) &&
         c.dim % 4 == 0 && c.value_dim % 4 == 0;
}

// Of the three numbers that a multiply-add reads, one is that of the one before it: it need not come from
// its bank of registers again.
template <int rows, int columns>
HEED_DEVICE void add_products(float (&sums)[rows][columns], const float (&x)[rows],
                              const float (&y)[columns]) {
#pragma unroll
  for (int m = 0; m < rows; ++m)
#pragma unroll
    for (int step = 0; step < columns; ++step) {
      const int n = m % 2 == 0 ? step : columns - 1 - step;
      sums[m][n] = fmaf(x[m], y[n], sums[m][n]);
    }
}

// Tiles of pairs, and what they are multiplied with. Operands come in pieces, in the order in which the
// products need them: one is copied while the one before it is multiplied.
class Pairs {
 public:
  HEED_DEVICE Pairs(const GradientCall& call, PairsShared& memory, PairOptions& own, const PairSums& sums)
      : g(call), c(call.forward), shared(memory), options(own), wanted(sums), in_place(lies_in_place(call)) {}

  // The keys of all tiles; by all threads.
  HEED_DEVICE void own(std::int64_t first) {
    const Sequence& s = c.sequence(shared.of.b);
    sync();
    if (thread_index() == 0) shared.keys.first = first;
    for (int n = thread_index(); n < pair_items; n += pair_threads) {
      const bool is_key = first + n < s.key_count;
      const std::int64_t row = s.first_key + first + n;
      shared.keys.at[0][n] = is_key ? row_of(c.k, shared.of.b, shared.of.kv_head, row).first : no_item;
      shared.keys.at[1][n] = is_key ? row_of(c.v, shared.of.b, shared.of.kv_head, row).first : no_item;
    }
  }

  // P of the tile of rows that begins here, after dropout. A row that is no number is zeros: whoever is seen
  // by it has no number anyway (G6).
  HEED_DEVICE void weigh(std::int64_t first) {
    PairItems<pair_items>& rows = shared.rows;
    sync();
    for (int n = thread_index(); n < pair_items; n += pair_threads) {
      rows.find_row(g, shared.of, first, n);
      if (rows.rows[n].lse != rows.rows[n].lse) rows.at[0][n] = rows.at[1][n] = no_item;
    }
    sync();
    piece = {Product::scores, 0};
    pieces = pieces_of(Product::scores);
    load_piece();
    const bool are_all_seen = !any(!see_every_key());
    Scores s;
    multiply(s, c.dim);
    if (!has_only_ranges(c) || c.drop_below != 0)
      weigh_with_options(s);
    else if (are_all_seen)
      weigh_scores(s, [](const RowOfPair&, int) { return true; });
    else
      weigh_scores(s, [](const RowOfPair& row, int j) { return row.sees(j); });
  }

  // dS in place of P; and a copy of it in a tile of device memory, or null.
  HEED_DEVICE void differentiate(By by, float* copy) {
    Scores dp;
    multiply(dp, c.value_dim);
    if (!has_only_ranges(c) || c.drop_below != 0)
      differentiate_with_options(dp, by);
    else
      differentiate_weights(dp);
    if (!copy) return;
#pragma unroll
    for (int m = 0; m < 6; ++m)
#pragma unroll
      for (int four = 0; four < 12; four += 4)
        store4(copy + tile_row(m) * pair_items + tile_key(four), dp[m] + four);
  }

  // A chain of the sums of 6 items and 8 dimensions, for this thread.
  using Sums = float[6][8];
  HEED_DEVICE int dim(int e) const { return across * 4 + (e < 4 ? e : 28 + e); }

  // chain += the tile's transpose times its rows of dO, or of q.
  HEED_DEVICE void add_rows(Sums& chain) {
#pragma unroll 1
    for (int first = 0; first < pair_items; first += pair_stage) {
      const float *values = take() + across * 4, *p = &shared.tile[first][0];
#pragma unroll 4
      for (int w = 0; w < pair_stage; ++w, values += pair_slab, p += pair_pitch) {
        float x[6], y[8];
        load4(x, p + down * 4), load2(x + 4, p + 64 + down * 2);
        load4(y, values), load4(y + 4, values + 32);
        add_products(chain, x, y);
      }
    }
  }

 private:
  using Scores = float[6][12];  // [row][key]

  // The products, in their order, and the pieces of each.
  enum class Product : std::uint8_t { scores, of_values, weights, of_keys, end };
  struct Piece {
    Product product;
    int index;
  };

  HEED_DEVICE int pieces_of(Product product) const {
    if (product == Product::scores) return pieces_of(c.dim);
    if (product == Product::weights) return pieces_of(c.value_dim);
    const bool is_wanted = product == Product::of_values ? wanted.of_values : wanted.of_keys;
    return is_wanted ? pair_items / pair_stage : 0;
  }
  HEED_DEVICE static int pieces_of(std::int64_t dim) {
    return static_cast<int>((max(1, dim) + pair_depth - 1) / pair_depth);
  }

  // The piece that was copied last, for all to read; and the copy of the next one begins.
  HEED_DEVICE const float* take() {
    wait_for_copies<0>();
    if (piece.product == Product::scores) scale_queries();
    sync();
    const float* const stage = shared.stages[stage_index];
    stage_index = 1 - stage_index;
    ++piece.index;
    while (piece.index == pieces && piece.product != Product::end) {
      piece = {static_cast<Product>(static_cast<int>(piece.product) + 1), 0};
      pieces = piece.product == Product::end ? 0 : pieces_of(piece.product);
    }
    if (piece.product != Product::end) load_piece();
    return stage;
  }

  HEED_DEVICE void load_piece() {
    const bool is_scores = piece.product == Product::scores;
    float* const to = shared.stages[stage_index];
    if (is_scores || piece.product == Product::weights) {
      const int which = is_scores ? 0 : 1;
      const std::int64_t end = is_scores ? c.dim : c.value_dim;
      load_dims(is_scores ? c.q : g.out_gradient, shared.rows.at[which], end, to, thread_index() / 4);
      load_dims(is_scores ? c.k : c.v, shared.keys.at[which], end, to + pair_items * depth_pitch,
                key_slot(thread_index() / 4));
    } else {
      const bool is_values = piece.product == Product::of_values;
      load_items(is_values ? g.out_gradient : c.q,
                 shared.rows.at[is_values ? 1 : 0] + piece.index * pair_stage,
                 is_values ? c.value_dim : c.dim, to);
    }
    commit_copies();
  }

  // Where a key lies in a piece of dimensions: those that eight threads read together lie side by side. Rows
  // lie in their order.
  HEED_DEVICE static int key_slot(int k) { return k / 32 * 32 + k % 32 / 4 + k % 4 * 8; }

  // Four dimensions of three items for each thread, 32 after each other; the first goes to this slot.
  HEED_DEVICE void load_dims(const Tensor& t, const std::int64_t* at, std::int64_t end, float* to,
                             int slot) const {
    const int e = thread_index() % 4 * 4;
    const std::int64_t from = piece.index * pair_depth + e;
    to += slot * depth_pitch + e, at += thread_index() / 4;
    if (in_place) {
      const float* const data = static_cast<const float*>(t.data) + from;
      std::int64_t item[pair_items / 32];  // before the copies: each would wait for what was read before it
#pragma unroll
      for (int n = 0; n < pair_items / 32; ++n) item[n] = at[32 * n];
#pragma unroll
      for (int n = 0; n < pair_items / 32; ++n)
        copy16_if(to + 32 * n * depth_pitch, data + item[n], item[n] != no_item && from < end);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < pair_items / 32 * 4; ++n) {
      const int place = n / 4 * 32, x = n % 4;
      const Row row{t.data, at[place], t.stride.dim, t.type, 16 * t.stride.dim};
      to[place * depth_pitch + x] = row.first != no_item && from + x < end ? read(row, from + x) : 0.0f;
    }
  }

  // Of the piece that has arrived, each thread what it has copied.
  HEED_DEVICE void scale_queries() const {
    float* const from =
        shared.stages[stage_index] + thread_index() / 4 * depth_pitch + thread_index() % 4 * 4;
#pragma unroll
    for (int n = 0; n < pair_items; n += 32) {
      float x[4];
      load4(x, from + n * depth_pitch);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = x[e] * c.scaling.query;
      store4(from + n * depth_pitch, x);
    }
  }

  // Some items, with the slab's dimensions.
  HEED_DEVICE void load_items(const Tensor& t, const std::int64_t* at, std::int64_t end, float* to) const {
    constexpr int fours = pair_slab / 4, together = pair_threads / fours;
    const int d = thread_index() % fours * 4, first = thread_index() / fours;
    const std::int64_t from = wanted.first_dim + d;
    to += first * pair_slab + d, at += first;
    if (in_place) {
      const float* const data = static_cast<const float*>(t.data) + from;
      std::int64_t item[pair_stage / together];
#pragma unroll
      for (int n = 0; n < pair_stage / together; ++n) item[n] = at[n * together];
#pragma unroll
      for (int n = 0; n < pair_stage / together; ++n)
        copy16_if(to + n * together * pair_slab, data + item[n], item[n] != no_item && from < end);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < pair_stage / together * 4; ++n) {
      const int place = n / 4 * together, e = n % 4;
      const Row row{t.data, at[place], t.stride.dim, t.type, 16 * t.stride.dim};
      to[place * pair_slab + e] = row.first != no_item && from + e < end ? read(row, from + e) : 0.0f;
    }
  }

  // Row m and key n of this thread, in the tile.
  HEED_DEVICE int tile_row(int m) const { return down + 16 * m; }
  HEED_DEVICE int tile_key(int n) const { return across * 4 + n % 4 + n / 4 * 32; }
  template <class Step>
  HEED_DEVICE static void for_each(const Step& step) {
#pragma unroll
    for (int m = 0; m < 6; ++m)
#pragma unroll
      for (int n = 0; n < 12; ++n) step(m, n);
  }

  // Rows times keys: chains of chain_terms dimensions, which are added in order.
  HEED_DEVICE void multiply(Scores& chain, std::int64_t dim) {
    Scores sums;  // of the chains before, in heads of more dimensions than a chain has
    force_to_memory(sums);
    for_each([&](int m, int n) { chain[m][n] = 0; });
    for (std::int64_t d = 0; d < max(1, dim); d += pair_depth) {
      if (d > 0 && d % chain_terms == 0)
        for_each([&](int m, int n) {
          sums[m][n] = d == chain_terms ? chain[m][n] : sums[m][n] + chain[m][n];
          chain[m][n] = 0;
        });
      multiply_piece(take(), static_cast<int>(min(pair_depth, dim - d)), chain);
    }
    if (dim > chain_terms) for_each([&](int m, int n) { chain[m][n] = sums[m][n] + chain[m][n]; });
  }

  // Four dimensions of six rows at a time, and of one key after the other. With eight in the loop registers
  // are spilled, and a pass takes 12.6 ms, not 10.6 (H200, November 2026).
  HEED_DEVICE void multiply_piece(const float* stage, int depth, Scores& chain) const {
    const float *rows = stage + down * depth_pitch, *keys = stage + (pair_items + across) * depth_pitch;
#pragma unroll 1
    for (int d = 0; d < depth; d += 4, rows += 4, keys += 4) {
      float x[6][4];
#pragma unroll
      for (int m = 0; m < 6; ++m) load4(x[m], rows + 16 * m * depth_pitch);
#pragma unroll
      for (int n = 0; n < 12; ++n) {
        float y[4];
        load4(y, keys + 8 * n * depth_pitch);
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
          for (int step = 0; step < 6; ++step) {
            const int m = e % 2 == 0 ? step : 5 - step;
            chain[m][n] = fmaf(x[m][e], y[e], chain[m][n]);
          }
      }
    }
  }

  // Whether the rows that have this thread's number see all keys of the tile.
  HEED_DEVICE bool see_every_key() const {
    bool all = true;
    for (int n = thread_index(); n < pair_items; n += pair_threads) {
      const RowOfPair& row = shared.rows.rows[n];
      all = all && row.begin <= shared.keys.first && shared.keys.first + pair_items <= row.end;
    }
    return all;
  }

  // The weight of a key that a row does not see: its gradient is 0, whatever it is multiplied with.
  static constexpr float hidden = -0.0f;
  HEED_DEVICE static bool is_hidden(float weight) { return __float_as_int(weight) == __float_as_int(hidden); }

  template <class Sees>
  HEED_DEVICE void weigh_scores(Scores& s, const Sees& sees) {
    const int first = static_cast<int>(shared.keys.first);
#pragma unroll
    for (int m = 0; m < 6; ++m) {
      const RowOfPair row = shared.rows.rows[tile_row(m)];
#pragma unroll
      for (int n = 0; n < 12; ++n)
        s[m][n] = sees(row, first + tile_key(n)) ? exp2(infinity_to_nan(s[m][n]) - row.lse) : hidden;
    }
    put(s);
  }

  HEED_DEVICE void differentiate_weights(Scores& dp) {
#pragma unroll
    for (int m = 0; m < 6; ++m) {
      const float delta = shared.rows.rows[tile_row(m)].delta;
#pragma unroll
      for (int four = 0; four < 12; four += 4) {
        float p[4];
        load4(p, &shared.tile[tile_row(m)][tile_key(four)]);
#pragma unroll
        for (int n = 0; n < 4; ++n)
          dp[m][four + n] = is_hidden(p[n]) ? 0.0f : p[n] * (dp[m][four + n] - delta);
      }
    }
    put(dp);
  }

  HEED_DEVICE void put(const Scores& x) {
#pragma unroll
    for (int m = 0; m < 6; ++m)
#pragma unroll
      for (int four = 0; four < 12; four += 4) store4(&shared.tile[tile_row(m)][tile_key(four)], x[m] + four);
  }

  // Each thread its own pairs, one at a time, out of the tile.
  HEED_DEVICE void weigh_with_options(const Scores& s) {
    put(s);
#pragma unroll 1
    for (int n = 0; n < 72; ++n) {
      const int r = tile_row(n / 12), k = tile_key(n % 12);
      float& p = shared.tile[r][k];
      const std::int64_t row = shared.rows.first + r, j = shared.keys.first + k;
      const PairScore of = score(r, row, j, infinity_to_nan(p));
      p = of.exponent == minus_infinity ? hidden : exp2(of.exponent);
      options[n] = {p, 1.0f, of.slope};
      if (c.drop_below == 0 || is_hidden(p)) continue;
      options[n].keep = drops(c, shared.of.query(c, row), j) ? 0.0f : c.keep_scale;
      p = p * options[n].keep;
    }
  }

  HEED_DEVICE void differentiate_with_options(Scores& dp, By by) {
    put(dp);
#pragma unroll 1
    for (int n = 0; n < 72; ++n) {
      const int r = tile_row(n / 12);
      float& ds = shared.tile[r][tile_key(n % 12)];
      const PairOption& of = options[n];
      ds = is_hidden(of.weight) ? 0.0f : of.weight * (ds * of.keep - shared.rows.rows[r].delta);
      if (by == By::product && c.softcap.cap != 0) ds = ds * of.slope;
    }
#pragma unroll
    for (int m = 0; m < 6; ++m)
#pragma unroll
      for (int four = 0; four < 12; four += 4) load4(dp[m] + four, &shared.tile[tile_row(m)][tile_key(four)]);
  }

  HEED_DEVICE PairScore score(int r, std::int64_t row, std::int64_t j, float s) const {
    if (r >= shared.rows.count || j >= c.sequence(shared.of.b).keys) return {minus_infinity, 1};
    const RowOfPair& numbers = shared.rows.rows[r];
    if (has_only_ranges(c)) return {numbers.sees(static_cast<int>(j)) ? s - numbers.lse : minus_infinity, 1};
    return score_of(c, shared.of.query(c, row), j, {s, numbers.lse, shared.rows.rest[r]});
  }

  const GradientCall& g;
  const Call& c;
  PairsShared& shared;
  PairOptions& options;
  const PairSums wanted;
  const bool in_place;
  // Where this thread's rows of a product begin, of sixteen, and its columns, of eight.
  const int down = pair_down(), across = pair_across();
  int stage_index = 0;
  Piece piece{};   // that was copied last
  int pieces = 0;  // of its product
};

}  // namespace heed::cuda
