// SPDX-License-Identifier: Apache-2.0
// The backward pass in bf16 and f16 for every mask and option, on the matrix units of every GPU since Ampere.
//
// Two kernels of one text: a block of threads owns a tile of rows and walks the keys that they see, or owns a
// tile of keys and walks the rows that see them, in order, while copies of the next tile are in flight. Owned
// items lie on the rows of the matrix instructions, walked ones on their columns:
//
//   S = X0 Y0^T     dP = X1 Y1^T     P = 2^(S - log-sum-exp)     dS = P * (dP - delta)
//   rows owned, X = (Q, dO), Y = (K, V):  dQ += dS Y0
//   keys owned, X = (K, V), Y = (Q, dO):  dK += dS Y0, dV += P Y1
//
// so that P and dS are operands of the sums as they leave the registers of S and dP. A sum has one block, and
// the order of the walked items, whoever runs beside.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/backward/pairs.cuh"
#include "cuda/general/one_pass.cuh"
#include "cuda/general/scores.cuh"
#include "cuda/general/sources.cuh"

namespace heed::cuda::general {

// Which sums a block makes. All of them need S, and those but V's need dP.
enum Gradient : unsigned { of_q = 1, of_k = 2, of_v = 4 };

template <Type element, unsigned gradients, int width, int tiles_of_warp, int items_walked,
          PairStage stage_of_pairs, int warp_count = 4>
struct BackwardShape {
  static constexpr Type type = element;
  static constexpr bool makes_k = gradients & of_k, makes_v = gradients & of_v, makes_q = gradients & of_q;
  static constexpr Owned owned = makes_q ? Owned::rows : Owned::keys;
  static constexpr PairStage stage = stage_of_pairs;
  static constexpr int dim = width;  // of keys and of values: a multiple of 64; a call's may be smaller
  static constexpr int warps = warp_count, threads = 32 * warps;
  static constexpr int row_tiles = tiles_of_warp, warp_items = 16 * row_tiles, items = warps * warp_items;
  static constexpr int walked = items_walked, walked_tiles = walked / 8, walked_steps = walked / 16;
  static constexpr int pitch = dim * 2 + 16;  // eight rows of a column lie in different banks
  static constexpr bool needs_values = makes_q || makes_k;
  static constexpr int owned_operands = needs_values ? 2 : 1;

  static_assert(dim % 64 == 0 && walked % 32 == 0 && items <= threads);
};

// Owned items of a warp and walked ones of a tile are what registers hold: sums of 128 floats in each thread,
// and pairs of 64.
template <Type type, int dim, PairStage stage>
struct BackwardShapes {
  using Q = BackwardShape<type, of_q, dim, 1, 32, stage>;
  using Kv = BackwardShape<type, of_k | of_v, dim, 1, 32, stage>;
};
template <Type type>
struct BackwardShapes<type, 64, PairStage::ranges> {
  using Q = BackwardShape<type, of_q, 64, 2, 64, PairStage::ranges>;
  using Kv = BackwardShape<type, of_k | of_v, 64, 2, 32, PairStage::ranges>;
};
template <Type type>
struct BackwardShapes<type, 128, PairStage::ranges> {
  using Q = BackwardShape<type, of_q, 128, 2, 32, PairStage::ranges>;
  using Kv = BackwardShape<type, of_k | of_v, 128, 1, 64, PairStage::ranges>;
};
// No room for the sums of both: keys are walked twice. Eight warps want 204 KB of shared memory, four 136.
template <Type type, PairStage stage, int warps>
struct WideShapes {
  using Q = BackwardShape<type, of_q, 256, 1, 32, stage, warps>;
  using K = BackwardShape<type, of_k, 256, 1, 32, stage, warps>;
  using V = BackwardShape<type, of_v, 256, 1, 32, stage, warps>;
};
template <Type type, PairStage stage>
struct BackwardShapes<type, 256, stage> : WideShapes<type, stage, 4> {
  using Larger = WideShapes<type, stage, 8>;
};

// Whether all operands of the products have one type of 16 bits.
constexpr bool has_one_type(const GradientCall& g) {
  const Call& c = g.forward;
  return (c.q.type == Type::bf16 || c.q.type == Type::f16) && c.k.type == c.q.type && c.v.type == c.q.type &&
         g.out_gradient.type == c.q.type;
}

// Calls run.operator()<type, dim>() for the type of a call and the width that its heads fit into.
template <class Run>
void for_width(const GradientCall& g, const Run& run) {
  const std::int64_t dim = std::max(g.forward.dim, g.forward.value_dim);
  const auto run_type = [&]<Type type> {
    if (dim <= 64)
      run.template operator()<type, 64>();
    else if (dim <= 128)
      run.template operator()<type, 128>();
    else
      run.template operator()<type, 256>();
  };
  g.forward.q.type == Type::bf16 ? run_type.template operator()<Type::bf16>()
                                 : run_type.template operator()<Type::f16>();
}

// What a launch tells the kernel besides the call.
struct BackwardPlan {
  int tiles;                                           // of the longest sequence
  bool q_in_16, k_in_16, v_in_16, out_gradient_in_16;  // rows can be copied 16 bytes at a time

  template <class Shape>
  static BackwardPlan of(const GradientCall& g) {
    const Call& c = g.forward;
    const std::int64_t items = Shape::owned == Owned::rows ? c.queries * c.group() : c.keys;
    return {static_cast<int>((items + Shape::items - 1) / Shape::items), lies_in_16(c.q, c.dim),
            lies_in_16(c.k, c.dim), lies_in_16(c.v, c.value_dim), lies_in_16(g.out_gradient, c.value_dim)};
  }
};

// Calls run.operator()<Shape>() for every shape that makes a gradient that was asked for.
template <class Shapes, class Run>
void for_each_shape(const GradientCall& g, const Run& run) {
  if constexpr (requires { typename Shapes::Kv; }) {
    if (g.k.data || g.v.data) run.template operator()<typename Shapes::Kv>();
  } else {
    if (g.k.data) run.template operator()<typename Shapes::K>();
    if (g.v.data) run.template operator()<typename Shapes::V>();
  }
  if (g.q.data) run.template operator()<typename Shapes::Q>();
}

// Tiles of walked items that owned ones may see, or be seen by: those of the front, then those of the band.
template <class Shape>
struct Walk {
  int front, begin, end;
  IntRange whole;  // keys that every owned row sees by its range, where rows are owned

  HEED_DEVICE static int tile_of(std::int64_t item) { return static_cast<int>(item / Shape::walked); }
  HEED_DEVICE static int tiles_up_to(std::int64_t item) {
    return static_cast<int>((item + Shape::walked - 1) / Shape::walked);
  }

  HEED_DEVICE Walk(const Call& c, const PairRows& rows, KeyRange owned) {
    const Sequence& s = c.sequence(rows.b);
    if constexpr (Shape::owned == Owned::rows) {
      const Seen seen = seen_by(c, rows.b, owned.begin / rows.group, (owned.end - 1) / rows.group);
      front = tiles_up_to(max(0, seen.front)), begin = tile_of(seen.begin),
      end = tiles_up_to(max(0, seen.end));
    } else {
      // fault: cuda-gradient-of-the-front
      // Query i sees keys before i + end_offset, from i + first_offset on or in the front.
      const std::int64_t first = max(0, owned.begin - s.end_offset + 1),
                         last =
                             owned.begin < c.front ? s.queries : min(s.queries, owned.end - s.first_offset);
      front = 0, begin = tile_of(first * rows.group);
      end = owned.begin < s.key_count && first < last ? tiles_up_to(last * rows.group) : 0;
    }
  }

  HEED_DEVICE int first() const { return front > 0 ? 0 : begin; }
  HEED_DEVICE int next(int tile) const { return tile + 1 >= front && tile + 1 < begin ? begin : tile + 1; }
  HEED_DEVICE bool is_end(int tile) const { return tile >= end; }
};

template <class Shape>
struct BackwardMemory {
  static constexpr int tile_bytes = Shape::walked * Shape::pitch;

  alignas(16) unsigned char owned[Shape::owned_operands][Shape::items * Shape::pitch];
  alignas(16) unsigned char ring[2][2][tile_bytes];  // stages of two operands
  PairItems<Shape::items> owned_items;
  PairItems<Shape::walked> walked_items[3];  // of the tile at hand, the one in flight and the one after it
  PairRows rows;
  Walk<Shape> walk;
  unsigned char is_whole[3][Shape::walked / 32];  // every row of a tile sees all owned keys; by 32 rows
};

// Called where masks are more than ranges.
inline __device__ __noinline__ bool is_allowed(const Call& c, const Query& q, std::int64_t j) {
  return in_range(c, q, j) && masks_allow(c, q, j);
}

template <class Shape>
class Backward {
  static constexpr bool owns_rows = Shape::owned == Owned::rows;
  using Pairs = float[Shape::row_tiles][Shape::walked_tiles][4];
  using Sums = float[Shape::row_tiles][Shape::dim / 8][4];
  using OwnedCopy = RowCopy<Shape::threads, Shape::items, Shape::dim, Shape::pitch>;
  using WalkedCopy = RowCopy<Shape::threads, Shape::walked, Shape::dim, Shape::pitch>;
  using Walked = PairItems<Shape::walked>;

 public:
  using Shared = BackwardMemory<Shape>;

  HEED_DEVICE Backward(const GradientCall& call, const BackwardPlan& launch, Shared& memory)
      : g(call), c(call.forward), plan(launch), shared(memory), warp(warp_index()) {}

  HEED_DEVICE void run() {
    const int number = static_cast<int>(block_index()), tile = number % plan.tiles,
              head = number / plan.tiles;
    const std::int64_t b = head / c.kv_heads;
    const Sequence& s = c.sequence(b);
    // The tiles that see most come first.
    const std::int64_t first = std::int64_t{owns_rows ? plan.tiles - 1 - tile : tile} * Shape::items,
                       items = owns_rows ? s.queries * c.group() : s.keys;
    if (first >= items) return;
    if (thread_index() == 0) shared.rows = PairRows::of_group(c, b, head % c.kv_heads);
    sync();
    find(shared.owned_items, first, owns_rows);
    if (thread_index() == 0)
      shared.walk = Walk<Shape>(c, shared.rows, {first, min(first + Shape::items, items)});
    sync();
    if constexpr (owns_rows) find_whole_keys();
    copy_operand<OwnedCopy, 0>(shared.owned_items, shared.owned[0], owns_rows);
    if constexpr (Shape::needs_values)
      copy_operand<OwnedCopy, 1>(shared.owned_items, shared.owned[1], owns_rows);
    walk();
    write();
  }

 private:
  template <class Items>
  HEED_DEVICE void find(Items& items, std::int64_t first, bool are_rows) {
    if (are_rows)
      items.find_rows(g, shared.rows, first);
    else
      items.find_keys(g, shared.rows, first);
  }

  // The keys that all owned rows see.
  HEED_DEVICE void find_whole_keys() {
    if (warp != 0) return;
    IntRange whole{0, 0x7fffffff};
    for (int r = lane_index(); r < Shape::items; r += 32) {
      const RowOfPair& row = shared.owned_items.rows[r];
      whole = {max_of(whole.begin, row.begin), min_of(whole.end, row.end)};
    }
    shared.walk.whole = {max_of_warp(whole.begin), min_of_warp(whole.end)};
  }

  // Of some items q or k (operand 0), or dO or v (operand 1).
  template <class Copy, int operand, class Items>
  HEED_DEVICE void copy_operand(const Items& items, unsigned char* to, bool are_rows) {
    const Tensor& t = operand == 0 ? (are_rows ? c.q : c.k) : are_rows ? g.out_gradient : c.v;
    const bool in_16 = operand == 0 ? (are_rows ? plan.q_in_16 : plan.k_in_16)
                                    : (are_rows ? plan.out_gradient_in_16 : plan.v_in_16);
    copy_rows<Copy>(items.at[operand], to, t, static_cast<int>(operand == 0 ? c.dim : c.value_dim), in_16);
  }
  template <class Copy>
  HEED_DEVICE static void copy_rows(const std::int64_t* at, unsigned char* to, const Tensor& t, int dim,
                                    bool in_16) {
    Copy::run(
        shared_address(to), dim, in_16,
        [&](int r) -> Row { return {t.data, r < 0 ? 0 : at[r], t.stride.dim, t.type, 0}; },
        [&](int r) { return at[r] != no_item; });
  }

  HEED_DEVICE void walk() {
    clear(sums), clear(value_sums);
    const Walk<Shape>& walk = shared.walk;
    int tile = walk.first(), second = walk.next(tile);
    find_walked(0, tile), find_walked(1, second);
    sync();
    prefetch(0, 0);
    int stage = 0, at = 0;  // of the tile at hand
#pragma unroll 1
    for (; !walk.is_end(tile); tile = second, second = walk.next(second)) {
      // fault: cuda-gradient-of-stale-rows
      const int following = at == 2 ? 0 : at + 1, after = at == 0 ? 2 : at - 1;
      wait_for_copies<0>();
      sync();
      if (!walk.is_end(second)) prefetch(1 - stage, following);
      add_tile(at, shared_address(shared.ring[stage][0]), shared_address(shared.ring[stage][1]));
      const int third = walk.next(second);
      if (!walk.is_end(third)) find_walked(after, third);
      stage = 1 - stage, at = following;
    }
    wait_for_copies<0>();
  }
  HEED_DEVICE void find_walked(int at, int tile) {
    Walked& items = shared.walked_items[at];
    find(items, std::int64_t{tile} * Shape::walked, !owns_rows);
    const int n = thread_index();
    if (owns_rows || n >= Shape::walked) return;
    const int first = static_cast<int>(shared.owned_items.first);
    // fault: cuda-gradient-of-hidden-keys
    const bool sees_all = items.rows[n].begin <= first && items.rows[n].end >= first + Shape::items;
    shared.is_whole[at][n / 32] = all_of_warp(sees_all);
  }
  HEED_DEVICE void prefetch(int stage, int items) {
    copy_operand<WalkedCopy, 0>(shared.walked_items[items], shared.ring[stage][0], !owns_rows);
    copy_operand<WalkedCopy, 1>(shared.walked_items[items], shared.ring[stage][1], !owns_rows);
    commit_copies();
  }

  HEED_DEVICE void add_tile(int at, SharedAddress y0, SharedAddress y1) {
    const Walked& walked = shared.walked_items[at];
    Pairs p, ds;
    multiply(p, shared_address(shared.owned[0]), y0);                                      // S
    if constexpr (Shape::needs_values) multiply(ds, shared_address(shared.owned[1]), y1);  // dP
    if constexpr (Shape::stage == PairStage::ranges)
      is_whole(at) ? differentiate_ranges<false>(p, ds, walked) : differentiate_ranges<true>(p, ds, walked);
    else
      differentiate_options(p, ds, walked);
    if constexpr (Shape::makes_v) add(value_sums, p, y1);
    if constexpr (Shape::needs_values) add(sums, ds, y0);
  }

  // s = x * y^T, of this warp's items.
  HEED_DEVICE void multiply(Pairs& s, SharedAddress x, SharedAddress y) const {
    const int lane = lane_index();
    const SharedAddress a_at = x + (warp * Shape::warp_items + lane % 16) * Shape::pitch + lane / 16 * 16,
                        b_at = y + (lane / 16 * 8 + lane % 8) * Shape::pitch + lane / 8 % 2 * 16;
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Shape::walked_tiles; ++n) s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < Shape::dim / 16; ++k) {
      std::uint32_t a[Shape::row_tiles][4];
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m) load_matrices(a[m], a_at + m * 16 * Shape::pitch + k * 32);
#pragma unroll
      for (int n = 0; n < Shape::walked_tiles; n += 2) {
        std::uint32_t b[4];
        load_matrices(b, b_at + n * 8 * Shape::pitch + k * 32);
#pragma unroll
        for (int m = 0; m < Shape::row_tiles; ++m) {
          add_product<Shape::type>(s[m][n], a[m], b[0], b[1]);
          add_product<Shape::type>(s[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // sums += x * y, x rounded to operands.
  HEED_DEVICE static void add(Sums& to, const Pairs& x, SharedAddress y) {
    const int lane = lane_index();
    const SharedAddress at = y + lane % 16 * Shape::pitch + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < Shape::walked_steps; ++k) {
      std::uint32_t a[Shape::row_tiles][4];
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float(&of)[4] = x[m][2 * k + n / 2];
          a[m][n] = pack2<Shape::type>(of[n % 2 * 2], of[n % 2 * 2 + 1]);
        }
#pragma unroll
      for (int n = 0; n < Shape::dim / 16; ++n) {
        std::uint32_t b[4];
        load_matrices_transposed(b, at + k * 16 * Shape::pitch + n * 32);
#pragma unroll
        for (int m = 0; m < Shape::row_tiles; ++m) {
          add_product<Shape::type>(to[m][2 * n], a[m], b[0], b[1]);
          add_product<Shape::type>(to[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Item of this lane: half r of row tile m; and the first of two neighbouring walked ones of column tile n.
  HEED_DEVICE int item(int m, int r) const {
    return warp * Shape::warp_items + m * 16 + r * 8 + lane_index() / 4;
  }
  HEED_DEVICE static int column(int n) { return 8 * n + lane_index() % 4 * 2; }

  // Whether all pairs of a tile are seen.
  HEED_DEVICE bool is_whole(int at) const {
    if constexpr (owns_rows) {
      const int first = static_cast<int>(shared.walked_items[at].first);
      return shared.walk.whole.begin <= first && first + Shape::walked <= shared.walk.whole.end;
    }
    bool all = true;
#pragma unroll
    for (int n = 0; n < Shape::walked / 32; ++n) all = all && shared.is_whole[at][n];
    return all;
  }

  // Of what 2 is raised to: P and dS are operands, 2^lift as large as they are, and so are the sums.
  HEED_DEVICE static float lifted(float exponent) {
    // fault: cuda-gradient-not-lifted
    return Shape::type == Type::f16 ? exponent + lift<Shape::type> : exponent;
  }

  // S and dP become P and dS: nothing but ranges of keys.
  template <bool hides>
  HEED_DEVICE void differentiate_ranges(Pairs& p, Pairs& ds, const Walked& walked) const {
    const float scale = c.scaling.query;
    const auto pair = [&](float& s, float& dp, const RowOfPair& row, int j) {
      const bool is_seen = !hides || row.sees(j);
      s = is_seen ? fast_exp2(fmaf(s, scale, lifted(-row.lse))) : 0.0f;
      if constexpr (Shape::needs_values) dp = is_seen ? s * (dp - row.delta) : 0.0f;
    };
    if constexpr (owns_rows) {
      const int first_key = static_cast<int>(walked.first);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const RowOfPair row = shared.owned_items.rows[item(m, r)];
#pragma unroll
          for (int n = 0; n < Shape::walked_tiles; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
              pair(p[m][n][2 * r + e], ds[m][n][2 * r + e], row, first_key + column(n) + e);
        }
    } else {
      const int first_key = static_cast<int>(shared.owned_items.first);
#pragma unroll
      for (int n = 0; n < Shape::walked_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const RowOfPair row = walked.rows[column(n) + e];
#pragma unroll
          for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              pair(p[m][n][2 * r + e], ds[m][n][2 * r + e], row, first_key + item(m, r));
        }
    }
  }

  // The same with every option, one after the other: a call passes the code of those alone that it has.
  HEED_DEVICE void differentiate_options(Pairs& p, Pairs& ds, const Walked& walked) const {
    Pairs slope;  // of the softcap
    const bool has_cap = c.softcap.cap != 0;
    each_pair(walked, [&](const PairAt& at) {
      const RowOfPair row = at.rows.row;
      float s = infinity_to_nan(at.of(p) * c.scaling.query);
      if (has_cap) {
        const float t = fast_tanh(s * c.softcap.argument);
        // fault: cuda-gradient-without-slope
        at.of(slope) = fmaf(-t, t, 1.0f);
        s = fmaf(t, c.softcap.cap, -row.lse) + fmaf(t, c.softcap.rest, -at.rows.rest);
      }
      at.of(p) = row.lse == -minus_infinity ? minus_infinity : s;
    });
    if (c.alibi.of_heads || c.bias.data) bias_pairs(p, walked);
    hide_pairs(p, walked);
    each_pair(walked, [&](const PairAt& at) {
      float& s = at.of(p);
      const bool is_seen = s != minus_infinity;
      s = is_seen ? fast_exp2(lifted(has_cap ? s : s - at.rows.row.lse)) : 0.0f;
      const float keep = c.drop_below > 0 ? (is_dropped(at) ? 0.0f : c.keep_scale) : 1.0f;
      if constexpr (Shape::needs_values) {
        // fault: cuda-gradient-of-dropped-delta
        const float x = s * (at.of(ds) * keep - at.rows.row.delta);
        at.of(ds) = !is_seen ? 0.0f : has_cap ? x * at.of(slope) : x;
      }
      s = s * keep;
    });
  }

  // What a row has, of those that pairs of a lane have in common.
  struct RowFactsOfPairs {
    RowOfPair row;
    float rest;
    int i, h;
  };
  // A pair, as a lane has it: element e of column tile n of row tile m.
  struct PairAt {
    int m, n, e;
    const RowFactsOfPairs& rows;
    int j;

    HEED_DEVICE float& of(Pairs& x) const { return x[m][n][e]; }
  };
  template <class Items>
  HEED_DEVICE static RowFactsOfPairs row_of_pairs(const Items& items, int r) {
    return {items.rows[r], items.rest[r], items.i[r], items.h[r]};
  }
  template <class Visit>
  HEED_DEVICE void each_pair(const Walked& walked, const Visit& visit) const {
    const int first_key = static_cast<int>(owns_rows ? walked.first : shared.owned_items.first);
    if constexpr (owns_rows) {
#pragma unroll
      for (int x = 0; x < 2 * Shape::row_tiles; ++x) {
        const RowFactsOfPairs row = row_of_pairs(shared.owned_items, item(x / 2, x % 2));
#pragma unroll
        for (int y = 0; y < 2 * Shape::walked_tiles; ++y)
          visit(PairAt{x / 2, y / 2, x % 2 * 2 + y % 2, row, first_key + column(y / 2) + y % 2});
      }
    } else {
#pragma unroll
      for (int y = 0; y < 2 * Shape::walked_tiles; ++y) {
        const RowFactsOfPairs row = row_of_pairs(walked, column(y / 2) + y % 2);
#pragma unroll
        for (int x = 0; x < 2 * Shape::row_tiles; ++x)
          visit(PairAt{x / 2, y / 2, x % 2 * 2 + y % 2, row, first_key + item(x / 2, x % 2)});
      }
    }
  }
  HEED_DEVICE Query query(const RowFactsOfPairs& of) const {
    return {shared.rows.b, of.h, of.i, c.sequence(shared.rows.b).first_query + of.i};
  }

  // A bias of -inf hides, and no other does (S3).
  HEED_DEVICE void bias_pairs(Pairs& p, const Walked& walked) const {
    const int keys = static_cast<int>(c.sequence(shared.rows.b).keys);
    each_pair(walked, [&](const PairAt& at) {
      float& s = at.of(p);
      if (s == minus_infinity || at.j >= keys) return;
      s = with_bias(c, query(at.rows), at.j, s);
    });
  }

  HEED_DEVICE void hide_pairs(Pairs& p, const Walked& walked) const {
    const bool is_simple = c.mask_count == 0 && c.document_count == 0 && c.gap_count == 0 && c.front == 0;
    const int keys = static_cast<int>(c.sequence(shared.rows.b).keys);
    each_pair(walked, [&](const PairAt& at) {
      float& s = at.of(p);
      const bool is_seen = is_simple
                               ? at.rows.row.sees(at.j)
                               : s != minus_infinity && at.j < keys && is_allowed(c, query(at.rows), at.j);
      if (!is_seen) s = minus_infinity;
    });
  }

  HEED_DEVICE bool is_dropped(const PairAt& at) const {
    const auto [x] = softmax::dropout_words(c.seed, shared.rows.b * c.heads + at.rows.h, at.rows.i, at.j / 4);
    const int n = at.j % 4;
    return (n < 2 ? (n == 0 ? x[0] : x[1]) : (n == 2 ? x[2] : x[3])) < c.drop_below;
  }

  HEED_DEVICE static void clear(Sums& x) {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Shape::dim / 8; ++n) x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0;
  }

  // A gradient that sums become, and where its marks are.
  struct Target {
    const Tensor& to;
    unsigned char* marks;
    float factor;
    std::int64_t dim;
  };
  HEED_DEVICE void write() const {
    if constexpr (Shape::makes_q) write(sums, {g.q, g.rows.unfinished_q, g.scale, c.dim});
    if constexpr (Shape::makes_k)
      if (g.k.data) write(sums, {g.k, g.rows.unfinished_k, g.scale, c.dim});
    if constexpr (Shape::makes_v)
      if (g.v.data) write(value_sums, {g.v, g.rows.unfinished_v, 1.0f, c.value_dim});
  }
  HEED_DEVICE void write(const Sums& from, const Target& target) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool is_item = item(m, r) < shared.owned_items.count;
        const std::int64_t of = shared.owned_items.first + (is_item ? item(m, r) : 0);
        const Row row = gradient_row<Shape::owned>(c, shared.rows, target.to, of);
#pragma unroll
        for (int slab = 0; slab < Shape::dim / 64; ++slab)
          if (!write_slab(from[m], r, slab, is_item, row, target))
            leave_unfinished(
                g, target.marks,
                gradient_number<Shape::owned>(g, shared.rows, of) * GradientCall::slabs(target.dim) + slab);
      }
  }
  // 64 dimensions of an item, which four lanes have. Returns whether they are numbers.
  HEED_DEVICE bool write_slab(const float (&from)[Shape::dim / 8][4], int r, int slab, bool is_item,
                              const Row& row, const Target& target) const {
    const bool in_pairs = !g.accumulates && row.type == Shape::type && row.step == 1 && target.dim % 2 == 0 &&
                          (reinterpret_cast<std::uintptr_t>(row.data) / 2 + row.first) % 2 == 0;
    // Adding +0 gives every zero one sign.
    const auto gradient = [&](int n, int e) {
      return from[n][2 * r + e] * lowered<Shape::type> * target.factor + 0.0f;
    };
    bool is_number = true;
#pragma unroll
    for (int n = slab * 8; n < slab * 8 + 8; ++n)
      is_number = is_number && is_finite(gradient(n, 0)) && is_finite(gradient(n, 1));
    std::uint32_t all = is_number;
    all &= shuffle_xor(all, 1);
    all &= shuffle_xor(all, 2);
    if (!is_item || slab * 64 >= target.dim) return true;
    if (!all) return false;
#pragma unroll
    for (int n = slab * 8; n < slab * 8 + 8; ++n) {
      const int d = column(n);
      const float x = gradient(n, 0), y = gradient(n, 1);
      if (in_pairs && d < target.dim) {
        auto* to = static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first + d;
        *reinterpret_cast<std::uint32_t*>(to) = pack2<Shape::type>(x, y);
      } else {
        if (d < target.dim) write_gradient(g, row, d, x);
        if (d + 1 < target.dim) write_gradient(g, row, d + 1, y);
      }
    }
    return true;
  }

  const GradientCall& g;
  const Call& c;
  const BackwardPlan& plan;
  Shared& shared;
  const int warp;
  Sums sums, value_sums;  // dQ or dK; dV. What a shape does not make is never touched
};

}  // namespace heed::cuda::general
