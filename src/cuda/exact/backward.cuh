// SPDX-License-Identifier: Apache-2.0
// The backward pass in f32 with the bits of the CPU's kernel (O2, src/cpu/backward/backward.hpp):
//
//   S = Q K^T      P = 2^(S - log-sum-exp)      dP = dO V^T      dS = P * (dP - delta)
//   dQ += dS K     dK += dS^T Q                 dV += P^T dO
//
// S and dP are chains over dimensions; dQ is a chain over each 192 keys, dK and dV over each 96 rows, counted
// from the sequence's first, and chains are added in order. Two kernels of one text: a block of threads owns
// 64 rows and walks the keys that they see, or owns 64 keys and walks the rows that see them, 96 at a time.
// Each block has a slab of 64 dimensions of the sums, and computes S and dP for itself.
#pragma once
#include <cstdint>

#include "cuda/backward/pairs.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Of sums over keys and over rows: the CPU's (cpu/backward/call.hpp).
constexpr std::int64_t gradient_keys = 192, gradient_rows = 96;

constexpr int pair_threads = 128, pair_owned = 64, pair_walked = 96;
constexpr int pair_depth = 32;  // dimensions that are in shared memory together

// One owned tile and one walked tile, (walked, owned).
struct PairsShared {
  alignas(16) float walked[pair_depth][pair_walked + 4];  // some dimensions of both, transposed
  alignas(16) float owned[pair_depth][pair_owned + 4];
  alignas(16) float weights[pair_walked][pair_owned];    // S, then P after dropout
  alignas(16) float gradients[pair_walked][pair_owned];  // dP, then dS
  PairItems<pair_walked> walked_items;
  PairItems<pair_owned> owned_items;
  PairRows rows;

  // The same memory while sums are computed: items and dimensions of a slab.
  static constexpr int stage_items = 48;
  HEED_DEVICE float* stage() { return &walked[0][0]; }
};
static_assert(PairsShared::stage_items * GradientCall::slab_dims <= pair_depth * (pair_walked + 4));

// What dS is the gradient by: the score, or the product before the softcap.
enum class By : std::uint8_t { score, product };

// In place: rows lie in fours, and dimensions are a multiple of four.
template <Owned owned, bool in_place>
class Pairs {
 public:
  HEED_DEVICE Pairs(const GradientCall& call, PairsShared& memory)
      : g(call), c(call.forward), shared(memory) {
    const int lane = thread_index() % 32, warp = thread_index() / 32;
    owned_group = lane % 8, walked_group = warp * 4 + lane / 8;
  }

  // The tiles; by all threads, which meet before they are read.
  HEED_DEVICE void own(std::int64_t first) {
    if constexpr (owned == Owned::rows)
      shared.owned_items.find_rows(g, shared.rows, first);
    else
      shared.owned_items.find_keys(g, shared.rows, first);
  }
  HEED_DEVICE void walk_to(std::int64_t first) {
    sync();  // what was there has been read
    if constexpr (owned == Owned::rows)
      shared.walked_items.find_keys(g, shared.rows, first);
    else
      shared.walked_items.find_rows(g, shared.rows, first);
  }

  // P and dS of both tiles.
  HEED_DEVICE void differentiate(By by) {
    const Tensor &of_walked = owned == Owned::keys ? c.q : c.k, &of_owned = owned == Owned::keys ? c.k : c.q;
    const Tensor &next_walked = owned == Owned::keys ? g.out_gradient : c.v,
                 &next_owned = owned == Owned::keys ? c.v : g.out_gradient;
    const float walked_scale = owned == Owned::keys ? c.scaling.query : 1.0f,
                owned_scale = owned == Owned::keys ? 1.0f : c.scaling.query;
    multiply<0>({of_walked, walked_scale}, {of_owned, owned_scale}, c.dim, shared.weights);
    multiply<1>({next_walked, 1.0f}, {next_owned, 1.0f}, c.value_dim, shared.gradients);
    sync();
    for (int n = thread_index(); n < pair_walked * pair_owned; n += pair_threads)
      differentiate_pair(n / pair_owned, n % pair_owned, by);
    sync();
  }

  // A chain of the sums of 8 owned items and 4 dimensions of a slab, for this thread.
  using Sums = float[8][4];
  HEED_DEVICE int item(int n) const { return n < 4 ? owned_group * 4 + n : 28 + owned_group * 4 + n; }
  HEED_DEVICE int dim(int e) const { return walked_group * 4 + e; }

  // chain += pairs^T * the walked items' numbers: q or k, or dO.
  template <int which>
  HEED_DEVICE void add(const Tensor& t, std::int64_t first_dim, std::int64_t end_dim,
                       const float (&pairs)[pair_walked][pair_owned], Sums& chain) {
    constexpr int slab = GradientCall::slab_dims;
    for (int first = 0; first < pair_walked; first += PairsShared::stage_items) {
      sync();
      stage_items<which>(t, first, first_dim, end_dim);
      sync();
      const float *values = shared.stage() + walked_group * 4, *p = &pairs[first][owned_group * 4];
#pragma unroll 8
      for (int w = 0; w < PairsShared::stage_items; ++w, values += slab, p += pair_owned) {
        float x[8], y[4];
        load4(x, p), load4(x + 4, p + 32), load4(y, values);
#pragma unroll
        for (int n = 0; n < 8; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) chain[n][e] = fmaf(x[n], y[e], chain[n][e]);
      }
    }
  }

 private:
  struct Operand {
    const Tensor& tensor;
    float scale;
  };

  // to = walked * owned^T, in chains over the dimensions.
  template <int which>
  HEED_DEVICE void multiply(const Operand& of_walked, const Operand& of_owned, std::int64_t dim,
                            float (&to)[pair_walked][pair_owned]) {
    float chain[6][8];
    for (std::int64_t first = 0; first < max(1, dim); first += chain_terms) {
#pragma unroll
      for (auto& row : chain)
#pragma unroll
        for (float& x : row) x = 0;
      const std::int64_t end = min(first + chain_terms, dim);
      for (std::int64_t d = first; d < end; d += pair_depth) {
        sync();
        load_piece<pair_walked + 4, which>(shared.walked_items, of_walked, {d, end}, &shared.walked[0][0]);
        load_piece<pair_owned + 4, which>(shared.owned_items, of_owned, {d, end}, &shared.owned[0][0]);
        sync();
        multiply_piece(static_cast<int>(min(pair_depth, end - d)), chain);
      }
      put_chain(chain, first == 0, to);
    }
  }

  HEED_DEVICE void multiply_piece(int depth, float (&chain)[6][8]) const {
#pragma unroll 4
    for (int d = 0; d < depth; ++d) {
      float x[6], y[8];
      load4(x, &shared.walked[d][walked_group * 4]), load2(x + 4, &shared.walked[d][64 + walked_group * 2]);
      load4(y, &shared.owned[d][owned_group * 4]), load4(y + 4, &shared.owned[d][32 + owned_group * 4]);
#pragma unroll
      for (int m = 0; m < 6; ++m)
#pragma unroll
        for (int n = 0; n < 8; ++n) chain[m][n] = fmaf(x[m], y[n], chain[m][n]);
    }
  }

  HEED_DEVICE void put_chain(const float (&chain)[6][8], bool is_first,
                             float (&to)[pair_walked][pair_owned]) const {
#pragma unroll
    for (int m = 0; m < 6; ++m)
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        float* const at = &to[m < 4 ? walked_group * 4 + m : 60 + walked_group * 2 + m][item(half)];
        float sum[4];
        if (!is_first) load4(sum, at);
#pragma unroll
        for (int n = 0; n < 4; ++n) sum[n] = is_first ? chain[m][half + n] : sum[n] + chain[m][half + n];
        store4(at, sum);
      }
  }

  // Dimensions [dims.begin, + pair_depth) of items, (dims, items): zeros beyond dims.end. Four lanes have
  // sixteen neighbouring items and eight have all dimensions: stores of a quarter of a warp lie in different
  // banks.
  template <int pitch, int which, int capacity>
  HEED_DEVICE void load_piece(const PairItems<capacity>& items, const Operand& of, KeyRange dims,
                              float* to) const {
    const int lane = thread_index() % 32, d = lane / 4 * 4;
    for (int sixteen = thread_index() / 32; sixteen < capacity / 16; sixteen += pair_threads / 32) {
      const int first = sixteen * 16 + lane % 4 * 4;
      float x[4][4];  // [item][dim]
#pragma unroll
      for (int n = 0; n < 4; ++n)
        load_four(of.tensor, items.at[which][first + n], {dims.begin + d, dims.end}, x[n]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float across[4] = {x[0][e] * of.scale, x[1][e] * of.scale, x[2][e] * of.scale,
                                 x[3][e] * of.scale};
        store4(to + (d + e) * pitch + first, across);
      }
    }
  }

  // Numbers [dims.begin, + 4) of a row, zeros beyond dims.end or where there is no row.
  HEED_DEVICE static void load_four(const Tensor& t, std::int64_t at, KeyRange dims, float (&x)[4]) {
    if (at != no_item && in_place && dims.begin < dims.end) {
      load4(x, static_cast<const float*>(t.data) + at + dims.begin);
      return;
    }
    const Row row{t.data, at, t.stride.dim, t.type, 16 * t.stride.dim};
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[e] = at != no_item && dims.begin + e < dims.end ? read(row, dims.begin + e) : 0.0f;
  }

  // Walked items [first, + stage_items) and dimensions of a slab, as they lie. What is not finite is 0: it
  // reaches nobody who does not see it, and those who do have no number anyway (G6).
  template <int which>
  HEED_DEVICE void stage_items(const Tensor& t, int first, std::int64_t first_dim, std::int64_t end_dim) {
    constexpr int fours = GradientCall::slab_dims / 4;
    for (int n = thread_index(); n < PairsShared::stage_items * fours; n += pair_threads) {
      float x[4];
      load_four(t, shared.walked_items.at[which][first + n / fours], {first_dim + n % fours * 4, end_dim}, x);
#pragma unroll
      for (float& each : x) each = is_finite(each) ? each : 0.0f;
      store4(shared.stage() + n * 4, x);
    }
  }

  // S and dP of one pair become P and dS.
  HEED_DEVICE void differentiate_pair(int w, int o, By by) {
    float &p = shared.weights[w][o], &ds = shared.gradients[w][o];
    const int r = owned == Owned::rows ? o : w;
    const std::int64_t row = row_first() + r, j = key_first() + (owned == Owned::rows ? w : o);
    const PairScore of = score(r, row, j, infinity_to_nan(p));
    if (of.exponent == minus_infinity) {  // hidden, whatever it holds
      p = ds = 0;
      return;
    }
    p = exp2(of.exponent);
    if (c.drop_below == 0) {
      ds = p * (ds - numbers_of(r).delta);
    } else {
      const float keep = drops(c, shared.rows.query(c, row), j) ? 0.0f : c.keep_scale;
      ds = p * (ds * keep - numbers_of(r).delta);
      p = p * keep;
    }
    if (by == By::product && c.softcap.cap != 0) ds = ds * of.slope;
  }

  HEED_DEVICE PairScore score(int r, std::int64_t row, std::int64_t j, float s) const {
    if (r >= row_count() || j >= c.sequence(shared.rows.b).keys) return {minus_infinity, 1};
    const RowOfPair& numbers = numbers_of(r);
    if (has_only_ranges(c)) return {numbers.sees(static_cast<int>(j)) ? s - numbers.lse : minus_infinity, 1};
    const float rest = owned == Owned::rows ? shared.owned_items.rest[r] : shared.walked_items.rest[r];
    return score_of(c, shared.rows.query(c, row), j, {s, numbers.lse, rest});
  }

  // Of row r of the tile that has rows.
  HEED_DEVICE const RowOfPair& numbers_of(int r) const {
    return owned == Owned::rows ? shared.owned_items.rows[r] : shared.walked_items.rows[r];
  }
  HEED_DEVICE std::int64_t row_first() const {
    return owned == Owned::rows ? shared.owned_items.first : shared.walked_items.first;
  }
  HEED_DEVICE std::int64_t row_count() const {
    return owned == Owned::rows ? shared.owned_items.count : shared.walked_items.count;
  }
  HEED_DEVICE std::int64_t key_first() const {
    return owned == Owned::rows ? shared.walked_items.first : shared.owned_items.first;
  }

  const GradientCall& g;
  const Call& c;
  PairsShared& shared;
  int owned_group, walked_group;
};

// Writes the sums of a slab of rows, or marks those that are no numbers.
struct SlabEnd {
  const Tensor& to;
  std::uint32_t* marks;
  float factor;
  std::int64_t dim, slab;
};

// What a block has to do: blocks are (batch, KV heads, slabs, tiles), the last of them fastest.
struct BackwardBlock {
  std::int64_t b, kv_head, slab, tile;

  HEED_DEVICE BackwardBlock(const Call& c, std::int64_t tiles, std::int64_t slabs) {
    std::int64_t n = block_index();
    tile = n % tiles, n /= tiles;
    slab = n % slabs, n /= slabs;
    kv_head = n % c.kv_heads, b = n / c.kv_heads;
  }
};

template <Owned owned, bool in_place>
class ExactBackward {
  using Tiles = Pairs<owned, in_place>;
  using Sums = typename Tiles::Sums;
  static constexpr std::int64_t slab_dims = GradientCall::slab_dims;

 public:
  using Shared = PairsShared;

  HEED_DEVICE ExactBackward(const GradientCall& call, PairsShared& memory)
      : g(call), c(call.forward), shared(memory), pairs(call, memory) {}

  // Tiles of the longest sequence, and slabs.
  static constexpr std::int64_t tiles(const GradientCall& g) {
    const std::int64_t items = owned == Owned::rows ? g.forward.queries * g.forward.group() : g.forward.keys;
    return (items + pair_owned - 1) / pair_owned;
  }
  static constexpr std::int64_t slabs(const GradientCall& g) {
    const std::int64_t of_dim = g.slabs(g.forward.dim), of_value = g.slabs(g.forward.value_dim);
    return owned == Owned::rows || of_dim > of_value ? of_dim : of_value;
  }

  HEED_DEVICE void run() {
    const BackwardBlock block(c, tiles(g), slabs(g));
    const Sequence& s = c.sequence(block.b);
    const std::int64_t items = owned == Owned::rows ? s.queries * c.group() : s.keys;
    // The rows that see most come first.
    const std::int64_t first = (owned == Owned::rows ? tiles(g) - 1 - block.tile : block.tile) * pair_owned;
    if (first >= items) return;
    if (thread_index() == 0) shared.rows = PairRows::of_group(c, block.b, block.kv_head);
    sync();
    pairs.own(first);
    if constexpr (owned == Owned::rows)
      walk_keys(first, min(pair_owned, items - first), block.slab);
    else
      walk_rows({first, min(first + pair_owned, items)}, block.slab);
  }

 private:
  HEED_DEVICE Seen seen_by_rows(std::int64_t first, std::int64_t count) const {
    return seen_by(c, shared.rows.b, first / shared.rows.group, (first + count - 1) / shared.rows.group);
  }

  // dQ: a chain goes through two tiles of keys.
  HEED_DEVICE void walk_keys(std::int64_t first_row, std::int64_t count, std::int64_t slab) {
    static_assert(gradient_keys == 2 * pair_walked);
    const Seen seen = seen_by_rows(first_row, count);
    const std::int64_t keys = c.sequence(shared.rows.b).keys;
    const std::int64_t first_dim = slab * slab_dims;
    Sums sums = {}, chain = {};
    std::int64_t block = 0;
    for (std::int64_t key = 0; key < keys; key += pair_walked) {
      const KeyRange part = seen.within({key, min(key + pair_walked, keys)});
      if (part.end <= part.begin) continue;
      // fault: cuda-gradient-chain
      if (key / gradient_keys != block) end_chain(chain, sums);
      block = key / gradient_keys;
      pairs.walk_to(key);
      pairs.differentiate(By::product);
      pairs.template add<0>(c.k, first_dim, c.dim, shared.gradients, chain);
    }
    end_chain(chain, sums);
    write(sums, {g.q, g.rows.unfinished_q, g.scale, c.dim, slab});
  }

  // dK and dV: a tile of rows is a chain.
  HEED_DEVICE void walk_rows(KeyRange keys, std::int64_t slab) {
    static_assert(gradient_rows == pair_walked);
    const std::int64_t rows = shared.rows.count(c), first_dim = slab * slab_dims;
    const bool has_k = g.k.data && first_dim < c.dim, has_v = g.v.data && first_dim < c.value_dim;
    if (!has_k && !has_v) return;
    Sums of_k = {}, of_v = {};
    for (std::int64_t row = 0; row < rows; row += pair_walked) {
      const KeyRange part = seen_by_rows(row, min(pair_walked, rows - row)).within(keys);
      if (part.end <= part.begin) continue;
      pairs.walk_to(row);
      pairs.differentiate(By::product);
      Sums chain = {};
      if (has_v) pairs.template add<1>(g.out_gradient, first_dim, c.value_dim, shared.weights, chain);
      end_chain(chain, of_v);
      if (has_k) pairs.template add<0>(c.q, first_dim, c.dim, shared.gradients, chain);
      end_chain(chain, of_k);
    }
    if (has_k) write(of_k, {g.k, g.rows.unfinished_k, g.scale, c.dim, slab});
    if (has_v) write(of_v, {g.v, g.rows.unfinished_v, 1.0f, c.value_dim, slab});
  }

  // Adds a chain to the sums, and begins the next.
  HEED_DEVICE static void end_chain(Sums& chain, Sums& sums) {
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[n][e] = sums[n][e] + chain[n][e], chain[n][e] = 0;
  }

  // Through shared memory, so that one thread knows whether all of an item's numbers are finite.
  HEED_DEVICE void write(const Sums& sums, const SlabEnd& end) {
    float(&all)[pair_walked][pair_owned] = shared.weights;  // (dims, items)
    static_assert(slab_dims <= pair_walked);
    sync();
#pragma unroll
    for (int e = 0; e < 4; ++e)
#pragma unroll
      for (int half = 0; half < 8; half += 4) {
        const float across[4] = {sums[half][e] * end.factor + 0.0f, sums[half + 1][e] * end.factor + 0.0f,
                                 sums[half + 2][e] * end.factor + 0.0f,
                                 sums[half + 3][e] * end.factor + 0.0f};
        store4(&all[pairs.dim(e)][pairs.item(half)], across);
      }
    sync();
    const std::int64_t first_dim = end.slab * slab_dims, dims = min(slab_dims, end.dim - first_dim);
    for (int n = thread_index(); n < shared.owned_items.count; n += pair_threads) {
      bool is_number = true;
      for (int d = 0; d < dims; ++d) is_number = is_number && is_finite(all[d][n]);
      if (!is_number)
        leave_unfinished(g, end.marks,
                         gradient_number<owned>(g, shared.rows, shared.owned_items.first + n) *
                                 GradientCall::slabs(end.dim) +
                             end.slab);
      shared.owned_items.at[0][n] = is_number ? 0 : no_item;
    }
    sync();
    for (int n = thread_index(); n < shared.owned_items.count * dims; n += pair_threads) {
      const int m = static_cast<int>(n / dims), d = static_cast<int>(n % dims);
      if (shared.owned_items.at[0][m] == 0)
        write_gradient(g, gradient_row<owned>(c, shared.rows, end.to, shared.owned_items.first + m),
                       first_dim + d, all[d][m]);
    }
  }

  const GradientCall& g;
  const Call& c;
  PairsShared& shared;
  Tiles pairs;
};

}  // namespace heed::cuda
