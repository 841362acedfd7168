// SPDX-License-Identifier: Apache-2.0
// The backward pass in bf16 and f16 for every mask and option, on the matrix units of every GPU since Ampere.
// backward/order.hpp says what a block owns, and in which order it adds.
//
//   P, dS of a step (pair_gradients.cuh)     dV += P^T dO     dK += dS^T Q     dQ = dS K
//
// The warps of a block share every product. P and dS go through shared memory, as operands of all warps; dK
// and dV stay in registers; dQ is added to its sum in memory.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/backward/order.hpp"
#include "cuda/general/pair_gradients.cuh"
#include "cuda/general/products.cuh"
#include "cuda/general/sources.cuh"

namespace heed::cuda::general {

// Tiles of rows x keys for some warps, and how many of them share the rows of scores, of the keys' sums and
// of the queries' sums. An operand of one stage is copied while dQ is made, of two stages a step before.
template <int rows_of_tile, int keys_of_tile, int warps_of_block, int score_warps, int key_warps,
          int query_warps, int stages_of_q, int stages_of_out_gradient, int blocks_at_once>
struct TileShape {
  static constexpr int rows = rows_of_tile, keys = keys_of_tile, warps = warps_of_block, threads = 32 * warps;
  static constexpr int score_row_warps = score_warps, key_row_warps = key_warps,
                       query_row_warps = query_warps;
  static constexpr int q_stages = stages_of_q, out_gradient_stages = stages_of_out_gradient;
  static constexpr int blocks = blocks_at_once;  // of a multiprocessor
};

template <Type element, int width, PairStage stage_of_pairs, class Tile>
struct BackwardShape : Tile {
  using Tile::keys, Tile::rows, Tile::warps;
  static constexpr Type type = element;
  static constexpr PairStage stage = stage_of_pairs;
  static constexpr int dim = width;  // of keys and of values: a multiple of 64; a call's may be smaller
  static constexpr int pitch = dim * 2 + 16, score_pitch = keys * 2 + 16;  // eight rows: different banks

  using Scores = SumLayout<rows, keys, Tile::score_row_warps, warps / Tile::score_row_warps>;
  using KeySums = SumLayout<keys, dim, Tile::key_row_warps, warps / Tile::key_row_warps>;
  using QuerySums = SumLayout<rows, dim, Tile::query_row_warps, warps / Tile::query_row_warps>;
};

// The larger ones take up to 163 KB of shared memory, which 8.0 has, the smaller ones up to 99.
template <int dim, PairStage>
struct Tiles {
  using Larger = TileShape<64, 128, 8, 2, 4, 2, 2, 1, 1>;
  using Smaller = TileShape<64, 64, 8, 2, 2, 2, 1, 1, 1>;
};
template <>
struct Tiles<64, PairStage::ranges> {
  using Larger = TileShape<128, 128, 8, 4, 4, 4, 1, 1, 1>;
  using Smaller = TileShape<64, 64, 8, 2, 4, 4, 2, 1, 1>;
};
template <>
struct Tiles<64, PairStage::every_option> {
  using Larger = TileShape<64, 128, 8, 2, 4, 4, 2, 1, 1>;
  using Smaller = TileShape<64, 64, 8, 2, 4, 4, 2, 1, 1>;
};
template <PairStage stage>
struct Tiles<256, stage> {
  using Larger = TileShape<64, 64, 8, 4, 2, 2, 1, 1, 1>;
  using Smaller = Larger;
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

// Masks of more bytes are asked for their bits tile by tile.
constexpr bool is_packed(const MaskTiles& mask) { return mask.bytes() <= 256'000'000; }

// What a launch tells the kernel besides the call.
struct BackwardPlan {
  TileLine queries, keys;
  PrefillOrder order;  // of tiles of keys: its heads are the KV heads of all entries, or of all packed rows
  int heads;           // of q
  unsigned* claims;    // 0 before and after
  // Where dQ is asked for, for every tile of queries of every head: its sum so far, as registers lie, and how
  // many tiles of keys are through with it.
  float* sums;
  unsigned* adds;  // twice their number, and 1 if there is a sum
  MaskTiles mask;
  bool q_in_16, k_in_16, v_in_16, out_gradient_in_16, bias_in_16;  // rows can be copied 16 bytes at a time

  constexpr std::int64_t tile(int in_line, int head) const { return std::int64_t{in_line} * heads + head; }
  constexpr std::int64_t tiles() const { return std::int64_t{queries.count} * heads; }
  constexpr int blocks() const { return order.heads * order.tiles; }

  // For a device that runs `at_once` blocks. No memory yet.
  template <class Shape>
  static BackwardPlan of(const GradientCall& g, int at_once) {
    const Call& c = g.forward;
    const TileLine of_queries = TileLine::over(g.query_rows, Shape::rows, g.shares_query_rows, c.batch),
                   of_keys = TileLine::over(g.key_rows, Shape::keys, g.shares_key_rows, c.batch);
    const int tiles = of_keys.each > 0 ? of_keys.each : of_keys.count;
    const std::int64_t heads = (of_keys.each > 0 ? c.batch : 1) * c.kv_heads;
    return {.queries = of_queries,
            .keys = of_keys,
            .order = claim_order(steps_of<Shape>(c, tiles), static_cast<int>(heads), tiles, at_once),
            .heads = static_cast<int>(c.heads),
            .claims = nullptr,
            .sums = nullptr,
            .adds = nullptr,
            .mask = {},
            .q_in_16 = lies_in_16(c.q, c.dim),
            .k_in_16 = lies_in_16(c.k, c.dim),
            .v_in_16 = lies_in_16(c.v, c.value_dim),
            .out_gradient_in_16 = lies_in_16(g.out_gradient, c.value_dim),
            .bias_in_16 = c.bias.data && lies_in_16(c.bias, c.keys)};
  }
  constexpr std::int64_t add_bytes() const { return (tiles() * 4 + 255) / 256 * 256; }
  template <class Shape>
  constexpr std::int64_t bytes() const {
    return add_bytes() + tiles() * Shape::rows * Shape::dim * 4;
  }
  void take(unsigned* counters, std::byte* memory) {
    claims = counters, adds = reinterpret_cast<unsigned*>(memory);
    sums = reinterpret_cast<float*>(memory + add_bytes());
  }

 private:
  // Where sequences differ, as if every query saw every key.
  template <class Shape>
  static TileSteps steps_of(const Call& c, int tiles) {
    const std::int64_t group = c.group();
    TileSteps steps;
    for (int n = 0; n < tiles; ++n) {
      const QueryTiles seen = c.sequences ? QueryTiles{0, static_cast<int>((c.queries - 1) / Shape::rows)}
                                          : query_tiles_of(c.each, n, Shape::rows, Shape::keys, c.front);
      const std::int64_t of_tile = (seen.last - seen.first + 1) * group;
      steps.all += of_tile, steps.max = steps.max > of_tile ? steps.max : of_tile;
    }
    return steps;
  }
};

// Sums of threads on their way to a gradient. Rows have marks of 64 dimensions, whose parts several warps
// have: one that is not finite keeps all of them from being written (S13).
template <Type type, class Layout, int rows, int slabs>
struct GradientWriter {
  using Unfinished = unsigned char[rows][slabs];

  const GradientCall& g;
  unsigned char* marks;
  std::int64_t dim;
  float factor;
  Unfinished& unfinished;

  // at(row) says where a row of the tile is written; all threads of the block call this together.
  template <class At>
  HEED_DEVICE void write(const typename Layout::Sums& x, const At& at) const {
    for (int n = thread_index(); n < rows * slabs; n += Layout::threads) unfinished[n / slabs][n % slabs] = 0;
    sync();
    each(x, [&](int row, int d, float a, float b) {
      if (!is_finite(a) || !is_finite(b)) unfinished[row][d / 64] = 1;
    });
    sync();
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = Layout::row(m, r);
        const auto [to_row, number, is_real] = at(row);
        if (is_real) write_row(x[m], r, row, to_row, number);
      }
    sync();
  }

 private:
  // Adding +0 gives every zero one sign.
  HEED_DEVICE float gradient(float x) const { return x * lowered<type> * factor + 0.0f; }

  template <class Visit>
  HEED_DEVICE void each(const typename Layout::Sums& x, const Visit& visit) const {
#pragma unroll
    for (int m = 0; m < Layout::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < Layout::column_tiles; ++n)
          visit(Layout::row(m, r), Layout::column(n), gradient(x[m][n][2 * r]), gradient(x[m][n][2 * r + 1]));
  }

  HEED_DEVICE void write_row(const float (&x)[Layout::column_tiles][4], int r, int row, const Row& into,
                             std::int64_t number) const {
    const bool in_pairs = !g.accumulates && into.type == type && into.step == 1 && dim % 2 == 0 &&
                          (reinterpret_cast<std::uintptr_t>(into.data) / 2 + into.first) % 2 == 0;
#pragma unroll
    for (int n = 0; n < Layout::column_tiles; ++n) {
      const int d = Layout::column(n);
      if (d >= dim) continue;
      if (unfinished[row][d / 64]) {
        leave_unfinished(g, marks, number * GradientCall::slabs(dim) + d / 64);
        continue;
      }
      const float a = gradient(x[n][2 * r]), b = gradient(x[n][2 * r + 1]);
      if (in_pairs) {
        auto* at = static_cast<std::uint16_t*>(const_cast<void*>(into.data)) + into.first + d;
        *reinterpret_cast<std::uint32_t*>(at) = pack2<type>(a, b);
      } else {
        write_gradient(g, into, d, a);
        if (d + 1 < dim) write_gradient(g, into, d + 1, b);
      }
    }
  }
};
struct WrittenRow {
  Row row;
  std::int64_t number;
  bool is_real;
};

// The tile of keys of a block.
struct OwnedKeys {
  int b, kv_head, tile, first, count;  // first: of the sequence; count: of those there are
  int key_count, queries, first_offset;
  int line;         // where the sequence's tiles of queries begin
  QueryTiles seen;  // by
  int first_head, head_step;
};

// Whom to tell, and what, that the dQ of a step is in its sum; null: nobody yet.
struct AddedSum {
  unsigned* word;
  unsigned value;
};

template <class Shape>
struct BackwardMemory {
  static constexpr int slabs = Shape::dim / 64;

  alignas(16) unsigned char k[Shape::keys * Shape::pitch];
  alignas(16) unsigned char v[Shape::keys * Shape::pitch];
  alignas(16) unsigned char q[Shape::q_stages][Shape::rows * Shape::pitch];
  alignas(16) unsigned char out_gradient[Shape::out_gradient_stages][Shape::rows * Shape::pitch];
  alignas(16) unsigned char p[Shape::rows * Shape::score_pitch];
  alignas(16) unsigned char ds[Shape::rows * Shape::score_pitch];
  alignas(16) KeyBits mask[Shape::keys];
  StepRows<Shape::rows> rows[3];  // of the step at hand, the one in flight and the one after it
  unsigned char unfinished[Shape::keys][slabs];
  OwnedKeys owned;
  bool has_sum;  // of dQ of the step's queries, from the tiles of keys below
  AddedSum added;
};

template <class Shape>
class Backward {
  using Scores = typename Shape::Scores;
  using KeySums = typename Shape::KeySums;
  using QuerySums = typename Shape::QuerySums;
  using KeyCopy = RowCopy<Shape::threads, Shape::keys, Shape::dim, Shape::pitch>;
  using RowsCopy = RowCopy<Shape::threads, Shape::rows, Shape::dim, Shape::pitch>;
  using Operand = ItemsAsColumns<Shape::pitch>;
  using Rows = StepRows<Shape::rows>;

 public:
  using Shared = BackwardMemory<Shape>;

  HEED_DEVICE Backward(const GradientCall& call, const BackwardPlan& launch, Shared& memory)
      : g(call), c(call.forward), plan(launch), shared(memory), pairs(c, launch.mask, memory.mask) {}

  HEED_DEVICE void run() {
    if (thread_index() == 0) claim();
    sync();
    if (shared.owned.count <= 0) return;
    copy_keys(c.k, shared.k, static_cast<int>(c.dim), plan.k_in_16);
    copy_keys(c.v, shared.v, static_cast<int>(c.value_dim), plan.v_in_16);
    KeySums::clear(key_sums), KeySums::clear(value_sums);
    walk();
    write(key_sums, g.k, g.rows.unfinished_k, c.dim, g.scale);
    write(value_sums, g.v, g.rows.unfinished_v, c.value_dim, 1.0f);
  }

 private:
  // Tiles of queries from the last to the first, query heads at each.
  struct Step {
    int tile, member, remaining;

    HEED_DEVICE bool is_over() const { return remaining <= 0; }
    HEED_DEVICE Step next(int group) const {
      return member + 1 == group ? Step{tile - 1, 0, remaining - 1} : Step{tile, member + 1, remaining - 1};
    }
  };

  // In the order of sums, whatever the order that blocks begin in.
  HEED_DEVICE void claim() {
    const auto number = static_cast<int>(count_arrival(plan.claims));
    if (number + 1 == plan.blocks()) *plan.claims = 0;
    const auto [head, behind] = plan.order[number];
    int tile = plan.order.tiles - 1 - behind;
    const int kv_heads = static_cast<int>(c.kv_heads);
    int b = head / kv_heads;
    if (plan.keys.each == 0) {
      const auto found = plan.keys.find(tile, [&](int entry) { return c.sequence(entry).first_key; });
      b = found.b, tile = found.tile;
    }
    const Sequence& s = c.sequence(b);
    const int first = tile * Shape::keys;
    shared.owned = {.b = b,
                    .kv_head = head % kv_heads,
                    .tile = tile,
                    .first = first,
                    .count = static_cast<int>(min(Shape::keys, s.keys - first)),
                    .key_count = static_cast<int>(s.key_count),
                    .queries = static_cast<int>(s.queries),
                    .first_offset = static_cast<int>(s.first_offset),
                    .line = plan.queries.first(b, s.first_query),
                    .seen = query_tiles_of(s, tile, Shape::rows, Shape::keys, c.front),
                    .first_head = static_cast<int>(c.head(head % kv_heads, 0)),
                    .head_step = c.tiled_heads ? kv_heads : 1};
    shared.added = {nullptr, 0};
  }
  HEED_DEVICE int head(const Step& step) const {
    return shared.owned.first_head + step.member * shared.owned.head_step;
  }
  HEED_DEVICE PairTiles tiles_of(const Step& step) const {
    return {c, shared.owned.b, head(step), step.tile * Shape::rows, shared.owned.first};
  }

  HEED_DEVICE void copy_keys(const Tensor& t, unsigned char* to, int dim, bool in_16) const {
    const OwnedKeys& keys = shared.owned;
    const Row first = row_of(t, keys.b, keys.kv_head, c.sequence(keys.b).first_key + keys.first);
    copy_tile<KeyCopy>(shared_address(to), {t, first, dim, in_16}, keys.first + Shape::keys <= keys.key_count,
                       [&](int r) { return keys.first + r < keys.key_count; });
  }
  HEED_DEVICE SharedAddress q_of(int n) const { return shared_address(shared.q[n % Shape::q_stages]); }
  HEED_DEVICE SharedAddress out_gradient_of(int n) const {
    return shared_address(shared.out_gradient[n % Shape::out_gradient_stages]);
  }
  HEED_DEVICE static void copy_rows(SharedAddress to, const RowsToCopy& from, const Rows& rows) {
    copy_tile<RowsCopy>(to, from, rows.has_all(), [&](int r) { return rows.has(r); });
  }
  // Of step n what has this many stages.
  template <int stages>
  HEED_DEVICE void prefetch(int n, const Step& step) {
    if (step.is_over()) return;
    const PairTiles tiles = tiles_of(step);
    const Rows& rows = shared.rows[n % 3];
    if constexpr (Shape::q_stages == stages)
      copy_rows(q_of(n), {c.q, tiles.first_of(c.q), static_cast<int>(c.dim), plan.q_in_16}, rows);
    if constexpr (Shape::out_gradient_stages == stages)
      copy_rows(out_gradient_of(n),
                {g.out_gradient, tiles.first_of(g.out_gradient), static_cast<int>(c.value_dim),
                 plan.out_gradient_in_16},
                rows);
    if constexpr (Shape::stage == PairStage::every_option && stages == 1)
      pairs.prefetch(tiles, shared_address(shared.p), plan.bias_in_16);
  }
  HEED_DEVICE typename Rows::One find_row(const Step& step) const {
    return step.is_over() ? typename Rows::One{} : Rows::find(g, tiles_of(step));
  }

  HEED_DEVICE void walk() {
    const int group = static_cast<int>(c.group());
    const QueryTiles seen = shared.owned.seen;
    Step step{seen.last, 0, (seen.last - seen.first + 1) * group}, next = step.next(group);
    shared.rows[0].put(find_row(step)), shared.rows[1].put(find_row(next));
    sync();
    prefetch<2>(0, step), prefetch<1>(0, step);
    commit_copies();
#pragma unroll 1
    for (int n = 0; !step.is_over(); ++n, step = next, next = next.next(group)) {
      wait_for_copies<0>();
      const bool is_seen = sync_and_look();
      prefetch<2>(n + 1, next);
      const auto row = find_row(next.next(group));
      if (is_seen) find_pairs(n, step);
      // fault: cuda-gradient-of-stale-rows
      shared.rows[(n + 2) % 3].put(row);
      sync();
      if (plan.adds) take_turn(step);
      if (is_seen) add_keys(n);
      sync();
      prefetch<1>(n + 1, next);
      commit_copies();
      if (plan.adds) add_queries(step, is_seen);
    }
    wait_for_copies<0>();
    sync();
    if (thread_index() == 0) tell();
  }
  HEED_DEVICE bool sync_and_look() const {
    if constexpr (Shape::stage == PairStage::every_option) return pairs.sync_and_look();
    sync();
    return true;
  }

  // P and dS of a step, to shared memory.
  HEED_DEVICE void find_pairs(int n, const Step& step) {
    using Found = PairGradients<Shape>;
    typename Scores::Sums p, ds;
    const PairOperands from{q_of(n), shared_address(shared.k), out_gradient_of(n), shared_address(shared.v),
                            shared_address(shared.p)};
    pairs.template find<Found::By::product>(p, ds, from, tiles_of(step), shared.rows[n % 3]);
    put(from.p, p), put(shared_address(shared.ds), ds);
  }
  HEED_DEVICE static void put(SharedAddress to, const typename Scores::Sums& x) {
#pragma unroll
    for (int m = 0; m < Scores::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const SharedAddress at = to + Scores::row(m, r) * Shape::score_pitch + Scores::column(0) * 2;
#pragma unroll
        for (int n = 0; n < Scores::column_tiles; ++n)
          store_shared4(at + n * 16, pack2<Shape::type>(x[m][n][2 * r], x[m][n][2 * r + 1]));
      }
  }

  HEED_DEVICE void add_keys(int n) {
    using Transposed = ItemsAsColumns<Shape::score_pitch>;
    add_products<Shape::type, Shape::rows / 16>(
        value_sums, Transposed::on_rows(shared_address(shared.p), KeySums::first_row()),
        Operand::on_columns(out_gradient_of(n), KeySums::first_column()));
    add_products<Shape::type, Shape::rows / 16>(
        key_sums, Transposed::on_rows(shared_address(shared.ds), KeySums::first_row()),
        Operand::on_columns(q_of(n), KeySums::first_column()));
  }

  // The word of a step's tile of queries, and how many tiles of keys come before this one: those of a
  // window's front, then those from the first that the tile's first query sees on.
  struct Turn {
    std::int64_t tile;
    unsigned before;
  };
  HEED_DEVICE Turn turn_of(const Step& step) const {
    const OwnedKeys& keys = shared.owned;
    const int fronts = (static_cast<int>(min(c.front, keys.key_count)) + Shape::keys - 1) / Shape::keys,
              first = max_of(step.tile * Shape::rows + keys.first_offset, 0) / Shape::keys;
    const int before = keys.tile < fronts ? keys.tile : keys.tile - max_of(first - fronts, 0);
    return {plan.tile(keys.line + step.tile, head(step)), static_cast<unsigned>(before)};
  }
  // Before the products of dK and dV, which hide it: one thread tells that the dQ of a step ago is in its
  // sum, since all threads have added, and one of another warp waits until those below have added to this
  // step's.
  HEED_DEVICE void take_turn(const Step& step) {
    if (thread_index() == 0) tell();
    if (thread_index() == Shape::threads - 32) {
      const Turn turn = turn_of(step);
      unsigned found;
      do found = load_acquire(plan.adds + turn.tile);
      while (found / 2 != turn.before);
      shared.has_sum = found % 2 != 0;
    }
    sync_warp();  // products want whole warps
  }
  HEED_DEVICE void tell() {
    if (shared.added.word) store_release(shared.added.word, shared.added.value);
  }
  HEED_DEVICE void add_queries(const Step& step, bool is_seen) {
    const Turn turn = turn_of(step);
    const bool has_sum = shared.has_sum;
    if (thread_index() == 0)
      shared.added = {plan.adds + turn.tile, 2 * turn.before + 2 + static_cast<unsigned>(has_sum || is_seen)};
    if (!is_seen) return;
    typename QuerySums::Sums x;
    QuerySums::clear(x);
    add_products<Shape::type, Shape::keys / 16>(
        x, ItemsAsRows<Shape::score_pitch>::on_rows(shared_address(shared.ds), QuerySums::first_row()),
        Operand::on_columns(shared_address(shared.k), QuerySums::first_column()));
    float* const to = plan.sums + turn.tile * (Shape::rows * Shape::dim) + thread_index();
    const auto each = [&](const auto& put) {
#pragma unroll
      for (int n = 0; n < QuerySums::numbers; ++n)
        put(to + n * Shape::threads,
            x[n / 4 / QuerySums::column_tiles][n / 4 % QuerySums::column_tiles][n % 4]);
    };
    if (has_sum)
      each([](float* at, float y) { add_in_memory(at, y); });
    else
      each([](float* at, float y) { *at = y; });
  }

  HEED_DEVICE void write(const typename KeySums::Sums& x, const Tensor& to, unsigned char* marks,
                         std::int64_t dim, float factor) {
    if (!to.data) return;
    const OwnedKeys& keys = shared.owned;
    using Writer = GradientWriter<Shape::type, KeySums, Shape::keys, Shared::slabs>;
    Writer{g, marks, dim, factor, shared.unfinished}.write(x, [&](int row) -> WrittenRow {
      const std::int64_t of = c.sequence(keys.b).first_key + keys.first + row;
      return {row_of(to, keys.b, keys.kv_head, of), g.key(keys.b, keys.kv_head, of), row < keys.count};
    });
  }

  const GradientCall& g;
  const Call& c;
  const BackwardPlan& plan;
  Shared& shared;
  const PairGradients<Shape> pairs;
  typename KeySums::Sums key_sums, value_sums;
};

// dQ from its sums: a block for each tile of queries of each head.
template <class Shape>
class BackwardQueries {
  using QuerySums = typename Shape::QuerySums;

 public:
  static constexpr int slabs = Shape::dim / 64;
  using Unfinished = unsigned char[Shape::rows][slabs];

  HEED_DEVICE static void run(const GradientCall& g, const BackwardPlan& plan, Unfinished& unfinished) {
    const Call& c = g.forward;
    const int line = static_cast<int>(block_index()) / plan.heads,
              h = static_cast<int>(block_index()) % plan.heads;
    const auto found = plan.queries.find(line, [&](int b) { return c.sequence(b).first_query; });
    const Sequence& s = c.sequence(found.b);
    const int first = found.tile * Shape::rows;
    if (first >= s.queries) return;
    const std::int64_t tile = plan.tile(line, h);
    const bool has_sum = plan.adds[tile] % 2 != 0;  // else zeros: nobody has added
    const float* const from = plan.sums + tile * (Shape::rows * Shape::dim) + thread_index();
    typename QuerySums::Sums x;
#pragma unroll
    for (int m = 0; m < QuerySums::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < QuerySums::column_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[m][n][e] = has_sum ? from[((m * QuerySums::column_tiles + n) * 4 + e) * Shape::threads] : 0.0f;
    using Writer = GradientWriter<Shape::type, QuerySums, Shape::rows, slabs>;
    Writer{g, g.rows.unfinished_q, c.dim, g.scale, unfinished}.write(x, [&](int row) -> WrittenRow {
      const Query q{found.b, h, first + row, s.first_query + first + row};
      return {row_of(g.q, q), g.row(q.b, q.h, q.row), first + row < s.queries};
    });
  }
};

}  // namespace heed::cuda::general
