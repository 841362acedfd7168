// SPDX-License-Identifier: Apache-2.0
// The backward pass in bf16 and f16 for every mask and option, on the matrix units of every GPU since Ampere.
// backward/order.hpp says what a block owns, and in which order it adds.
//
//   P, dS of a step (pair_gradients.cuh)     dV += P^T dO     dK += dS^T Q     dQ = dS K
//
// The warps of a block share every product. P and dS go through shared memory, as operands of all warps; half
// of the warps keep dV in registers, the others dK; dQ is added to its sum in memory.
#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/backward/order.hpp"
#include "cuda/general/gradient_writer.cuh"
#include "cuda/general/pair_gradients.cuh"
#include "cuda/general/products.cuh"
#include "cuda/general/sources.cuh"

namespace heed::cuda::general {

// Tiles of rows x keys for some warps, and how many of them share the rows of scores, of the keys' sums (of
// half of the warps) and of the queries' sums. An operand of one stage is copied while dQ is made, of two
// stages a step before.
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
  static constexpr int pitch = dim * 2, score_pitch = keys * 2;
  // Where no operand of the next step waits for this one's end, a step has two barriers, else three.
  static constexpr bool copies_ahead = Tile::q_stages == 2 && Tile::out_gradient_stages == 2;
  static_assert(!copies_ahead || stage == PairStage::ranges, "a bias has one stage");

  using Scores = SumLayout<rows, keys, Tile::score_row_warps, warps / Tile::score_row_warps>;
  // A warp that has 64 x 64 sums of dK or dV reads 16 KB of operands a step; with 32 x 64 of both, 24 KB.
  using KeySums = SumLayout<keys, dim, Tile::key_row_warps, warps / 2 / Tile::key_row_warps>;
  using QuerySums = SumLayout<rows, dim, Tile::query_row_warps, warps / Tile::query_row_warps>;
};

// The larger ones take up to 163 KB of shared memory, which 8.0 has, the smaller ones up to 99; but for wide
// heads 208 KB, which Hopper has, and 144.
template <int dim, PairStage>
struct GradientTiles {
  using Larger = TileShape<64, 128, 8, 2, 2, 2, 2, 1, 1>;
  using Smaller = TileShape<64, 64, 8, 2, 2, 2, 1, 1, 1>;
};
template <>
struct GradientTiles<128, PairStage::ranges> {
  using Larger = TileShape<64, 128, 8, 2, 2, 2, 2, 2, 1>;
  using Smaller = TileShape<64, 64, 8, 2, 2, 2, 1, 1, 1>;
};
template <>
struct GradientTiles<64, PairStage::ranges> {
  using Larger = TileShape<128, 128, 8, 4, 2, 4, 2, 2, 1>;
  using Smaller = TileShape<64, 64, 8, 2, 2, 4, 2, 1, 1>;
};
template <>
struct GradientTiles<64, PairStage::every_option> {
  using Larger = TileShape<64, 128, 8, 2, 2, 4, 2, 1, 1>;
  using Smaller = TileShape<64, 64, 8, 2, 2, 4, 2, 1, 1>;
};
template <>
struct GradientTiles<256, PairStage::ranges> {
  using Larger = TileShape<64, 64, 8, 4, 1, 2, 2, 2, 1>;  // 208 KB: of Hopper alone, with the bits of Smaller
  using Smaller = TileShape<64, 64, 8, 4, 1, 2, 1, 1, 1>;
};
template <>
struct GradientTiles<256, PairStage::every_option> {
  using Larger = TileShape<64, 64, 8, 4, 1, 2, 1, 1, 1>;
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

// The tile of keys of a block.
struct OwnedKeys {
  int b, kv_head, tile, first, count;  // first: of the sequence; count: of those there are
  PairTiles pairs;  // with the first queries: what a step needs of the sequence, without a trip to memory
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

  alignas(512) unsigned char k[Shape::keys * Shape::pitch];
  alignas(512) unsigned char v[Shape::keys * Shape::pitch];
  alignas(512) unsigned char q[Shape::q_stages][Shape::rows * Shape::pitch];
  alignas(512) unsigned char out_gradient[Shape::out_gradient_stages][Shape::rows * Shape::pitch];
  alignas(512) unsigned char p[Shape::rows * Shape::score_pitch];
  alignas(512) unsigned char ds[Shape::rows * Shape::score_pitch];
  typename PairGradients<Shape>::Mask mask alignas(16);
  StepRows<Shape::rows, Shape::stage> rows[2];      // of the step at hand and of the next
  unsigned char unfinished[2][Shape::keys][slabs];  // of dV, dK
  OwnedKeys owned;
  Signal turn;        // of a step's dQ to be added
  bool has_sum;       // then: whether there is a sum that it is added to
  AddedSum added[2];  // of a step and of the one before
};

template <class Shape>
class Backward {
  using Scores = typename Shape::Scores;
  using KeySums = typename Shape::KeySums;
  using QuerySums = typename Shape::QuerySums;
  using KeyCopy = RowCopy<Shape::threads, Shape::keys, Shape::dim, Shape::pitch>;
  // Half of the warps copy rows, one for each scheduler, if they are enough for eight rows at a time: the
  // others begin with products.
  static constexpr int copying = Shape::threads / 2 >= Shape::dim ? Shape::threads / 2 : Shape::threads;
  using RowsCopy = RowCopy<copying, Shape::rows, Shape::dim, Shape::pitch>;
  using Operand = ItemsAsColumns<Shape::pitch>;
  using Rows = StepRows<Shape::rows, Shape::stage>;

 public:
  using Shared = BackwardMemory<Shape>;

  HEED_DEVICE Backward(const GradientCall& call, const BackwardPlan& launch, Shared& memory)
      : g(call), c(call.forward), plan(launch), shared(memory), pairs(c, launch.mask, memory.mask) {}

  HEED_DEVICE void run() {
    launch_dependents();
    if (thread_index() == 0) claim();
    sync();
    // Rows are being prepared: what is done until they are needed needs nothing of them.
    if (shared.owned.count <= 0) return wait_for_prior_launches();
    copy_keys(c.k, shared.k, static_cast<int>(c.dim), plan.k_in_16);
    copy_keys(c.v, shared.v, static_cast<int>(c.value_dim), plan.v_in_16);
    KeySums::clear(sums);
    wait_for_prior_launches();
    walk();
    write();
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
                    .pairs = PairTiles(c, b, 0, 0, first),
                    .line = plan.queries.first(b, s.first_query),
                    .seen = query_tiles_of(s, tile, Shape::rows, Shape::keys, c.front),
                    .first_head = static_cast<int>(c.head(head % kv_heads, 0)),
                    .head_step = c.tiled_heads ? kv_heads : 1};
    shared.added[0] = shared.added[1] = {nullptr, 0};
    init_signal(&shared.turn);
  }
  HEED_DEVICE int head(const Step& step) const {
    return shared.owned.first_head + step.member * shared.owned.head_step;
  }
  HEED_DEVICE PairTiles tiles_of(const Step& step) const {
    return shared.owned.pairs.with(head(step), step.tile * Shape::rows);
  }

  HEED_DEVICE void copy_keys(const Tensor& t, unsigned char* to, int dim, bool in_16) const {
    const OwnedKeys& keys = shared.owned;
    const Row first = row_of(t, keys.b, keys.kv_head, c.sequence(keys.b).first_key + keys.first);
    copy_tile<KeyCopy>(shared_address(to), {t, first, dim, in_16},
                       keys.first + Shape::keys <= keys.pairs.key_count,
                       [&](int r) { return keys.first + r < keys.pairs.key_count; });
  }
  HEED_DEVICE SharedAddress q_of(int n) const { return shared_address(shared.q[n % Shape::q_stages]); }
  HEED_DEVICE SharedAddress out_gradient_of(int n) const {
    return shared_address(shared.out_gradient[n % Shape::out_gradient_stages]);
  }
  HEED_DEVICE static void copy_rows(SharedAddress to, const RowsToCopy& from, const Rows& rows) {
    if (thread_index() < copying)
      copy_tile<RowsCopy>(to, from, rows.has_all(), [&](int r) { return rows.has(r); });
  }
  // Of step n what has this many stages.
  template <int stages>
  HEED_DEVICE void prefetch(int n, const Step& step) {
    if (step.is_over()) return;
    const PairTiles tiles = tiles_of(step);
    const Rows& rows = shared.rows[n % 2];
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
    int n = 0;
#pragma unroll 1
    for (; !step.is_over(); ++n, step = next, next = next.next(group)) {
      wait_for_copies<0>();
      const bool is_seen = sync_and_look();
      prefetch<2>(n + 1, next);
      const auto row = find_row(next.next(group));
      if (is_seen) find_pairs(n, step);
      sync();
      // fault: cuda-gradient-of-stale-rows
      shared.rows[n % 2].put(row);
      if (plan.adds) take_turn(n, step, is_seen);
      if constexpr (Shape::copies_ahead) {
        add_both(n, step);
      } else {
        if (is_seen) add_keys(n);
        sync();
        prefetch<1>(n + 1, next);
        if (plan.adds && is_seen) add_queries(n, step);
      }
      commit_copies();
    }
    wait_for_copies<0>();
    sync();
    if (thread_index() == teller) tell(n);
  }
  // A scheduler has one warp of each half. One begins with dV, whose operands take half of the time of its
  // products, the other with dQ, whose operands take all of it: 2 % faster (H200, November 2026).
  HEED_DEVICE void add_both(int n, const Step& step) {
#pragma unroll 1
    for (int part = 0; part < 2; ++part)
      if ((part == 0) == has_values())
        add_keys(n);
      else if (plan.adds)
        add_queries(n, step);
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
    pairs.template find<Found::By::product>(p, ds, from, tiles_of(step), shared.rows[n % 2]);
    put(from.p, p), put(shared_address(shared.ds), ds);
  }
  HEED_DEVICE static void put(SharedAddress to, const typename Scores::Sums& x) {
#pragma unroll
    for (int m = 0; m < Scores::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int n = 0; n < Scores::column_tiles; ++n)
          store_shared4(to + Scores::template place_of_pair<Shape::score_pitch>(m, r, n),
                        pack2<Shape::type>(x[m][n][2 * r], x[m][n][2 * r + 1]));
  }

  // Whether this warp's sums are of dV: else of dK.
  HEED_DEVICE static bool has_values() { return thread_index() < KeySums::threads; }

  HEED_DEVICE void add_keys(int n) {
    using Transposed = ItemsAsColumns<Shape::score_pitch>;
    const SharedAddress a = shared_address(has_values() ? shared.p : shared.ds),
                        b = has_values() ? out_gradient_of(n) : q_of(n);
    add_products<Shape::type, Shape::rows / 16>(sums, Transposed::on_rows(a, KeySums::first_row()),
                                                Operand::on_columns(b, KeySums::first_column()));
  }

  // How many tiles of keys come before this one at a step's tile of queries: those of a window's front, then
  // those from the first that the tile's first query sees on.
  HEED_DEVICE unsigned tiles_before(const Step& step) const {
    const OwnedKeys& keys = shared.owned;
    const int fronts = (static_cast<int>(min(c.front, keys.pairs.key_count)) + Shape::keys - 1) / Shape::keys,
              first = max_of(step.tile * Shape::rows + keys.pairs.first_offset, 0) / Shape::keys;
    return static_cast<unsigned>(keys.tile < fronts ? keys.tile : keys.tile - max_of(first - fronts, 0));
  }
  HEED_DEVICE std::int64_t queries_of(const Step& step) const {
    return plan.tile(shared.owned.line + step.tile, head(step));
  }
  // One thread tells that the dQ of the step before is in its sum, and one of another warp waits until the
  // tiles of keys below have added to this step's: 1,000 clocks each, beside products. Nobody else waits
  // before there is dQ to add.
  static constexpr int teller = 0, looker = 96;
  HEED_DEVICE void take_turn(int n, const Step& step, bool adds) {
    if (thread_index() == teller) tell(n);
    if (thread_index() == looker) wait_for_turn(n, step, adds);
    sync_warp();  // products want whole warps
  }
  HEED_DEVICE void wait_for_turn(int n, const Step& step, bool adds) {
    unsigned* const word = plan.adds + queries_of(step);
    const unsigned before = tiles_before(step);
    unsigned found;
    do found = load_acquire(word);
    while (found / 2 != before);
    shared.has_sum = found % 2 != 0;
    shared.added[n % 2] = {word, 2 * before + 2 + (adds ? 1 : found % 2)};
    give_signal(&shared.turn);
  }
  // Of step n - 1.
  HEED_DEVICE void tell(int n) {
    const AddedSum& added = shared.added[(n + 1) % 2];
    if (added.word) store_release(added.word, added.value);
  }

  HEED_DEVICE void add_queries(int n, const Step& step) {
    typename QuerySums::Sums x;
    QuerySums::clear(x);
    add_products<Shape::type, Shape::keys / 16>(
        x, ItemsAsRows<Shape::score_pitch>::on_rows(shared_address(shared.ds), QuerySums::first_row()),
        Operand::on_columns(shared_address(shared.k), QuerySums::first_column()));
    float* const to = plan.sums + queries_of(step) * (Shape::rows * Shape::dim) + 4 * thread_index();
    wait_for_signal(&shared.turn, n);
    sync_warp();
    const bool has_sum = shared.has_sum;
#pragma unroll
    for (int m = 0; m < QuerySums::row_tiles; ++m)
#pragma unroll
      for (int k = 0; k < QuerySums::column_tiles; ++k) {
        float* const at = to + (m * QuerySums::column_tiles + k) * 4 * Shape::threads;
        if (has_sum)
          add4_in_memory(at, x[m][k]);
        else
          store4(at, x[m][k]);
      }
  }

  HEED_DEVICE void write() {
    const OwnedKeys& keys = shared.owned;
    const bool is_v = has_values();
    const Tensor& to = is_v ? g.v : g.k;
    using Writer = GradientWriter<Shape::type, KeySums, Shape::keys, Shared::slabs>;
    const Writer writer{g, is_v ? g.rows.unfinished_v : g.rows.unfinished_k, is_v ? c.value_dim : c.dim,
                        is_v ? 1.0f : g.scale, shared.unfinished[is_v ? 0 : 1]};
    const std::int64_t first = c.sequence(keys.b).first_key + keys.first;
    writer.write(sums,
                 WrittenRows{row_of(to, keys.b, keys.kv_head, first), g.key(keys.b, keys.kv_head, first),
                             to.stride.length, to.data ? keys.count : 0});
  }

  const GradientCall& g;
  const Call& c;
  const BackwardPlan& plan;
  Shared& shared;
  const PairGradients<Shape> pairs;
  typename KeySums::Sums sums;
};

// dQ from its sums: a block for each tile of queries of each head.
template <class Shape>
class BackwardQueries {
  using QuerySums = typename Shape::QuerySums;

 public:
  static constexpr int slabs = Shape::dim / 64;
  using Unfinished = unsigned char[Shape::rows][slabs];

  HEED_DEVICE static void run(const GradientCall& g, const BackwardPlan& plan, Unfinished& unfinished) {
    launch_dependents();
    const Call& c = g.forward;
    const int line = static_cast<int>(block_index()) / plan.heads,
              h = static_cast<int>(block_index()) % plan.heads;
    const auto found = plan.queries.find(line, [&](int b) { return c.sequence(b).first_query; });
    const Sequence& s = c.sequence(found.b);
    const int first = found.tile * Shape::rows;
    wait_for_prior_launches();
    if (first >= s.queries) return;
    const std::int64_t tile = plan.tile(line, h);
    const bool has_sum = plan.adds[tile] % 2 != 0;  // else zeros: nobody has added
    const float* const from = plan.sums + tile * (Shape::rows * Shape::dim) + 4 * thread_index();
    typename QuerySums::Sums x;
    QuerySums::clear(x);
#pragma unroll
    for (int m = 0; m < QuerySums::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < QuerySums::column_tiles; ++n)
        if (has_sum) load4(x[m][n], from + (m * QuerySums::column_tiles + n) * 4 * Shape::threads);
    using Writer = GradientWriter<Shape::type, QuerySums, Shape::rows, slabs>;
    const Query q{found.b, h, first, s.first_query + first};
    Writer{g, g.rows.unfinished_q, c.dim, g.scale, unfinished}.write(
        x, WrittenRows{row_of(g.q, q), g.row(q.b, q.h, q.row), g.q.stride.length,
                       static_cast<int>(min(Shape::rows, s.queries - first))});
  }
};

}  // namespace heed::cuda::general
