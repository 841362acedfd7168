// SPDX-License-Identifier: Apache-2.0
// The backward pass in bf16 for every mask and option, on the matrix units of every GPU since Ampere.
//
// Two kernels of one text: a block of threads owns a tile of rows and walks the keys that they see, or owns a
// tile of keys and walks the rows that see them, in order, while copies of the next tile are in flight. Owned
// items lie on the rows of the matrix instructions, walked ones on their columns:
//
//   S = X0 Y0^T     dP = X1 Y1^T     P = 2^(S - log-sum-exp)     dS = P * (dP - delta)
//   rows owned, X = (Q, dO), Y = (K, V):  dQ += dS Y0
//   keys owned, X = (K, V), Y = (Q, dO):  dK += dS Y0, dV += P Y1
//
// so that P and dS are operands of the sums as they leave the registers of S and dP. No two blocks add to one
// sum: the order of every sum is that of the walked items, whoever runs beside.
#pragma once
#include <cstdint>

#include "cuda/backward/pairs.cuh"
#include "cuda/general/sources.cuh"

namespace heed::cuda::general {

// Which sums a block makes. All of them need S, and those but V's need dP.
enum Gradient : unsigned { of_q = 1, of_k = 2, of_v = 4 };

// What a stage of pairs can do: ranges of keys, in registers; or everything, pair by pair in shared memory.
enum class PairStage : std::uint8_t { ranges, every_option };

template <unsigned gradients, int width, int tiles_of_warp, int items_walked, PairStage stage_of_pairs>
struct BackwardShape {
  static constexpr Type type = Type::bf16;
  static constexpr bool makes_k = gradients & of_k, makes_v = gradients & of_v, makes_q = gradients & of_q;
  static constexpr Owned owned = makes_q ? Owned::rows : Owned::keys;
  static constexpr PairStage stage = stage_of_pairs;
  static constexpr int dim = width;  // of keys and of values: a multiple of 64; a call's may be smaller
  static constexpr int warps = 4, threads = 32 * warps;
  static constexpr int row_tiles = tiles_of_warp, warp_items = 16 * row_tiles, items = warps * warp_items;
  static constexpr int walked = items_walked, walked_tiles = walked / 8, walked_steps = walked / 16;
  static constexpr int pitch = dim * 2 + 16;  // eight rows of a column lie in different banks
  static constexpr bool needs_values = makes_q || makes_k;

  static_assert(dim % 64 == 0 && walked % 16 == 0 && items <= threads);
};

// What a launch tells the kernel besides the call.
struct BackwardPlan {
  int tiles;                                           // of the longest sequence
  bool q_in_16, k_in_16, v_in_16, out_gradient_in_16;  // rows can be copied 16 bytes at a time
};

template <class Shape>
struct BackwardMemory {
  static constexpr int tile_bytes = Shape::walked * Shape::pitch;
  static constexpr int pair_items = Shape::stage == PairStage::every_option ? Shape::items : 1;

  alignas(16) unsigned char owned[2][Shape::items * Shape::pitch];
  alignas(16) unsigned char ring[2][2][tile_bytes];  // stages of two operands
  PairItems<Shape::items> owned_items;
  PairItems<Shape::walked> walked_items[3];  // of the tile at hand, the one in flight and the one after it
  PairRows rows;
  float scores[pair_items][Shape::walked + 1], gradients[pair_items][Shape::walked + 1];
};

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
    sync();
    walked_count = owns_rows ? s.keys : shared.rows.count(c);
    copy_operands<OwnedCopy>(shared.owned_items, shared.owned[0], shared.owned[1], owns_rows);
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

  // Both operands of some items: q and dO, or k and v.
  template <class Copy, class Items>
  HEED_DEVICE void copy_operands(const Items& items, unsigned char* first, unsigned char* second,
                                 bool are_rows) {
    copy_rows<Copy>(items.at[0], first, are_rows ? c.q : c.k, static_cast<int>(c.dim),
                    are_rows ? plan.q_in_16 : plan.k_in_16);
    copy_rows<Copy>(items.at[1], second, are_rows ? g.out_gradient : c.v, static_cast<int>(c.value_dim),
                    are_rows ? plan.out_gradient_in_16 : plan.v_in_16);
  }
  template <class Copy>
  HEED_DEVICE static void copy_rows(const std::int64_t* at, unsigned char* to, const Tensor& t, int dim,
                                    bool in_16) {
    Copy::run(
        shared_address(to), dim, in_16,
        [&](int r) -> Row { return {t.data, r < 0 ? 0 : at[r], t.stride.dim, t.type, 0}; },
        [&](int r) { return at[r] != no_item; });
  }

  // The first tile from `tile` on of which a pair may be seen.
  HEED_DEVICE std::int64_t next_seen(std::int64_t tile) const {
    const std::int64_t first = shared.owned_items.first, end = first + shared.owned_items.count;
    for (; tile * Shape::walked < walked_count; ++tile) {
      const std::int64_t begin = tile * Shape::walked, last = min(begin + Shape::walked, walked_count);
      const KeyRange keys = owns_rows ? KeyRange{begin, last} : KeyRange{first, end};
      const KeyRange rows = owns_rows ? KeyRange{first, end} : KeyRange{begin, last};
      const KeyRange part =
          seen_by(c, shared.rows.b, rows.begin / shared.rows.group, (rows.end - 1) / shared.rows.group)
              .within(keys);
      if (part.begin < part.end) break;
    }
    return tile;
  }

  HEED_DEVICE void walk() {
    clear(sums), clear(value_sums);
    std::int64_t tile = next_seen(0), second = next_seen(tile + 1);
    find(shared.walked_items[0], tile * Shape::walked, !owns_rows);
    find(shared.walked_items[1], second * Shape::walked, !owns_rows);
    sync();
    prefetch(0, 0);
#pragma unroll 1
    for (int n = 0; tile * Shape::walked < walked_count; ++n) {
      const std::int64_t third = next_seen(second + 1);
      wait_for_copies<0>();
      sync();
      if (second * Shape::walked < walked_count) prefetch((n + 1) % 2, (n + 1) % 3);
      if (third * Shape::walked < walked_count)
        find(shared.walked_items[(n + 2) % 3], third * Shape::walked, !owns_rows);
      add_tile(shared.walked_items[n % 3], shared_address(shared.ring[n % 2][0]),
               shared_address(shared.ring[n % 2][1]));
      tile = second, second = third;
    }
    wait_for_copies<0>();
  }
  HEED_DEVICE void prefetch(int stage, int items) {
    copy_operands<WalkedCopy>(shared.walked_items[items], shared.ring[stage][0], shared.ring[stage][1],
                              !owns_rows);
    commit_copies();
  }

  HEED_DEVICE void add_tile(const Walked& walked, SharedAddress y0, SharedAddress y1) {
    Pairs p, ds;
    multiply(p, shared_address(shared.owned[0]), y0);                                      // S
    if constexpr (Shape::needs_values) multiply(ds, shared_address(shared.owned[1]), y1);  // dP
    if constexpr (Shape::stage == PairStage::ranges)
      differentiate_ranges(p, ds, walked);
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

  // What a pair needs of its row.
  struct RowNumbers {
    float lse, delta;
    int begin;
    unsigned count;

    template <class Items>
    HEED_DEVICE RowNumbers(const Items& rows, int r)
        : lse(rows.lse[r]),
          delta(rows.delta[r]),
          begin(rows.begin[r]),
          count(static_cast<unsigned>(max_of(0, rows.end[r] - rows.begin[r]))) {}
  };

  // S and dP become P and dS: nothing but ranges of keys.
  HEED_DEVICE void differentiate_ranges(Pairs& p, Pairs& ds, const Walked& walked) const {
    const float scale = c.scaling.query;
    const auto pair = [&](float& s, float& dp, const RowNumbers& row, int j) {
      const bool is_seen = static_cast<unsigned>(j - row.begin) < row.count;
      s = is_seen ? fast_exp2(fmaf(s, scale, -row.lse)) : 0.0f;
      if constexpr (Shape::needs_values) dp = is_seen ? s * (dp - row.delta) : 0.0f;
    };
    if constexpr (owns_rows) {
      const int first_key = static_cast<int>(walked.first);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const RowNumbers row(shared.owned_items, item(m, r));
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
          const RowNumbers row(walked, column(n) + e);
#pragma unroll
          for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r)
              pair(p[m][n][2 * r + e], ds[m][n][2 * r + e], row, first_key + item(m, r));
        }
    }
  }

  // The same with every option: pairs go through shared memory, so that the code for one is there once.
  HEED_DEVICE void differentiate_options(Pairs& p, Pairs& ds, const Walked& walked) {
    sync();  // pairs of the last tile have been read
    each_pair(p, [&](float& x, int o, int w) { shared.scores[o][w] = x; });
    if constexpr (Shape::needs_values)
      each_pair(ds, [&](float& x, int o, int w) { shared.gradients[o][w] = x; });
    sync();
#pragma unroll 1
    for (int n = thread_index(); n < Shape::items * Shape::walked; n += Shape::threads) {
      // Neighbouring threads have neighbouring keys.
      const int o = owns_rows ? n / Shape::walked : n % Shape::items,
                w = owns_rows ? n % Shape::walked : n / Shape::items;
      differentiate_pair(shared.scores[o][w], shared.gradients[o][w], owns_rows ? o : w,
                         owns_rows ? walked.first + w : shared.owned_items.first + o, walked);
    }
    sync();
    each_pair(p, [&](float& x, int o, int w) { x = shared.scores[o][w]; });
    if constexpr (Shape::needs_values)
      each_pair(ds, [&](float& x, int o, int w) { x = shared.gradients[o][w]; });
  }
  template <class Visit>
  HEED_DEVICE void each_pair(Pairs& x, const Visit& visit) const {
#pragma unroll
    for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < Shape::walked_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) visit(x[m][n][e], item(m, e / 2), column(n) + e % 2);
  }
  HEED_DEVICE void differentiate_pair(float& p, float& ds, int r, std::int64_t j,
                                      const Walked& walked) const {
    if constexpr (owns_rows)
      differentiate_pair(p, ds, shared.owned_items, r, j);
    else
      differentiate_pair(p, ds, walked, r, j);
  }
  template <class Items>
  HEED_DEVICE void differentiate_pair(float& p, float& ds, const Items& rows, int r, std::int64_t j) const {
    PairScore of{minus_infinity, 1};
    Query q{};
    if (r < rows.count && j < c.sequence(shared.rows.b).keys) {
      q = shared.rows.query(c, rows.first + r);
      of = score_of(c, q, j, {infinity_to_nan(p * c.scaling.query), rows.lse[r], rows.rest[r]});
    }
    if (of.exponent == minus_infinity) {  // hidden, whatever it holds
      p = ds = 0;
      return;
    }
    const float keep = c.drop_below == 0 ? 1.0f
                       : drops(c, q, j)  ? 0.0f
                                         : c.keep_scale,
                weight = fast_exp2(of.exponent);
    p = weight * keep;
    ds = weight * (ds * keep - rows.delta[r]) * of.slope;
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
    bool is_number = true;
#pragma unroll
    for (int n = slab * 8; n < slab * 8 + 8; ++n)
      is_number = is_number && is_finite(from[n][2 * r] * target.factor) &&
                  is_finite(from[n][2 * r + 1] * target.factor);
    std::uint32_t all = is_number;
    all &= shuffle_xor(all, 1);
    all &= shuffle_xor(all, 2);
    if (!is_item || slab * 64 >= target.dim) return true;
    if (!all) return false;
#pragma unroll
    for (int n = slab * 8; n < slab * 8 + 8; ++n) {
      const int d = column(n);
      const float x = from[n][2 * r] * target.factor + 0.0f, y = from[n][2 * r + 1] * target.factor + 0.0f;
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
  std::int64_t walked_count = 0;
  Sums sums, value_sums;  // dQ or dK; dV. What a shape does not make is never touched
};

}  // namespace heed::cuda::general
