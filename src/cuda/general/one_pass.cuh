// SPDX-License-Identifier: Apache-2.0
// The backward pass in bf16 and f16 with five products for each pair of tiles, on the matrix units of every
// GPU since Ampere. backward/order.hpp says what a block owns and in which order it adds.
//
//   S = Q K^T     dP = dO V^T     P = 2^(S - log-sum-exp)     dS = P * (dP - delta)
//   dV += P^T dO     dK += dS^T Q     dQ = dS K
//
// Eight warps share every product. P and dS go through shared memory, as operands of all warps; dK and dV
// stay in registers; dQ is added to its sum in memory.
#pragma once
#include <cstdint>

#include "cuda/backward/order.hpp"
#include "cuda/backward/pairs.cuh"
#include "cuda/general/pair_options.cuh"
#include "cuda/general/products.cuh"
#include "cuda/general/sources.cuh"

namespace heed::cuda::general {

// What a stage of pairs can do: ranges of keys alone, or every option but the front of a window.
enum class PairStage : std::uint8_t { ranges, every_option };

template <Type element, int width, PairStage stage_of_pairs, int rows_of_tile, int keys_of_tile,
          int row_warps_of_scores, int key_warps_of_sums, int row_warps_of_queries, int stages_of_q,
          int stages_of_out_gradient, int blocks_at_once = 1>
struct OnePassShape {
  static constexpr int q_stages = stages_of_q, out_gradient_stages = stages_of_out_gradient;
  static constexpr bool has_options = stage_of_pairs == PairStage::every_option;
  static constexpr Type type = element;
  static constexpr int dim = width;  // of keys and of values: a multiple of 64; a call's may be smaller
  static constexpr int rows = rows_of_tile, keys = keys_of_tile, warps = 8, threads = 32 * warps;
  static constexpr int blocks = blocks_at_once;                             // of a multiprocessor
  static constexpr int pitch = dim * 2 + 16, score_pitch = keys * 2 + 16;  // eight rows: different banks

  using Scores = SumLayout<rows, keys, row_warps_of_scores, warps / row_warps_of_scores>;
  using KeySums = SumLayout<keys, dim, key_warps_of_sums, warps / key_warps_of_sums>;
  using QuerySums = SumLayout<rows, dim, row_warps_of_queries, warps / row_warps_of_queries>;
};

template <Type type, int dim, PairStage stage>
struct OnePassShapes;
template <Type type, PairStage stage>
struct OnePassShapes<type, 64, stage> {
  using Shape = OnePassShape<type, 64, stage, 64, 128, 2, 4, 4, 2, 1>;
};
template <Type type, PairStage stage>
struct OnePassShapes<type, 128, stage> {
  using Shape = OnePassShape<type, 128, stage, 64, 128, 2, 4, 2, 2, 1>;
};
template <Type type, PairStage stage>
struct OnePassShapes<type, 256, stage> {
  using Shape = OnePassShape<type, 256, stage, 64, 64, 4, 2, 2, 1, 1>;
};

constexpr PairStage stage_of(const Call& c) {
  return has_only_ranges(c) && c.drop_below == 0 ? PairStage::ranges : PairStage::every_option;
}

// Keys of a window's front are seen from everywhere, not by neighbouring queries; bits of masks take memory.
constexpr bool has_one_pass(const GradientCall& g, const MaskTiles& mask) {
  constexpr std::int64_t max_mask_bytes = 256'000'000;
  constexpr std::int64_t many = std::int64_t{1} << 30;  // rows of packed sequences are numbered in 31 bits
  return g.forward.front == 0 && g.forward.gap_count == 0 && mask.bytes() <= max_mask_bytes &&
         g.query_rows < many && g.key_rows < many;
}

// What a launch tells the kernel besides the call.
struct OnePassPlan {
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
  static OnePassPlan of(const GradientCall& g, int at_once) {
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
                                          : query_tiles_of(c.each, n, Shape::rows, Shape::keys);
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
  const Tensor& to;
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
          visit(Layout::row(m, r), Layout::column(n), gradient(x[m][n][2 * r]),
                gradient(x[m][n][2 * r + 1]));
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

// What the rows of a step have to themselves.
template <int rows>
struct StepRows {
  float lse[rows], delta[rows];
};

// The tile of keys of a block.
struct OwnedKeys {
  int b, kv_head, tile, first, count;  // first: of the sequence; count: keys there are
  int key_count, queries, first_offset, end_offset;
  int line;  // where the sequence's tiles of queries begin
  QueryTiles seen;
  int first_head, head_step;
};

template <class Shape>
struct OnePassMemory {
  static constexpr int slabs = Shape::dim / 64;
  static constexpr int max_rows = Shape::keys > Shape::rows ? Shape::keys : Shape::rows;

  alignas(16) unsigned char k[Shape::keys * Shape::pitch];
  alignas(16) unsigned char v[Shape::keys * Shape::pitch];
  alignas(16) unsigned char q[Shape::q_stages][Shape::rows * Shape::pitch];
  alignas(16) unsigned char out_gradient[Shape::out_gradient_stages][Shape::rows * Shape::pitch];
  alignas(16) unsigned char p[Shape::rows * Shape::score_pitch];  // and before it a bias of 16 bits
  alignas(16) unsigned char ds[Shape::rows * Shape::score_pitch];
  StepRows<Shape::rows> rows[3];  // of the step at hand, the one in flight and the one after it
  unsigned char unfinished[max_rows][slabs];
  OwnedKeys owned;
  OptionMemory<Shape> options;
};

template <class Shape>
class OnePass {
  using Scores = typename Shape::Scores;
  using KeySums = typename Shape::KeySums;
  using QuerySums = typename Shape::QuerySums;
  using KeyCopy = RowCopy<Shape::threads, Shape::keys, Shape::dim, Shape::pitch>;
  using RowsCopy = RowCopy<Shape::threads, Shape::rows, Shape::dim, Shape::pitch>;
  using AsRows = ItemsAsRows<Shape::pitch>;
  using AsColumns = ItemsAsColumns<Shape::pitch>;
  using ScoresAsRows = ItemsAsRows<Shape::score_pitch>;
  using ScoresAsColumns = ItemsAsColumns<Shape::score_pitch>;

 public:
  using Shared = OnePassMemory<Shape>;

  HEED_DEVICE OnePass(const GradientCall& call, const OnePassPlan& launch, Shared& memory)
      : g(call), c(call.forward), plan(launch), shared(memory), options(c, launch.mask, memory.options) {}

  HEED_DEVICE void run(std::int64_t blocks) {
    if (thread_index() == 0) claim(blocks);
    sync();
    const OwnedKeys& keys = shared.owned;
    if (keys.count <= 0) return;
    copy_keys(c.k, shared.k, static_cast<int>(c.dim), plan.k_in_16);
    copy_keys(c.v, shared.v, static_cast<int>(c.value_dim), plan.v_in_16);
    KeySums::clear(key_sums), KeySums::clear(value_sums);
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

  // The order of claims is that of sums, whatever the order that blocks begin in.
  HEED_DEVICE void claim(std::int64_t blocks) {
    const unsigned number = count_arrival(plan.claims);
    if (number + 1 == blocks) *plan.claims = 0;
    const auto [head, behind] = plan.order[static_cast<int>(number)];
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
                    .end_offset = static_cast<int>(s.end_offset),
                    .line = plan.queries.first(b, s.first_query),
                    .seen = query_tiles_of(s, tile, Shape::rows, Shape::keys),
                    .first_head = static_cast<int>(c.head(head % kv_heads, 0)),
                    .head_step = c.tiled_heads ? kv_heads : 1};
  }
  HEED_DEVICE int head(const Step& at) const {
    return shared.owned.first_head + at.member * shared.owned.head_step;
  }

  HEED_DEVICE void copy_keys(const Tensor& t, unsigned char* to, int dim, bool in_16) const {
    const OwnedKeys& keys = shared.owned;
    const std::int64_t first_row = c.sequence(keys.b).first_key + keys.first;
    const Row first = row_of(t, keys.b, keys.kv_head, first_row);
    KeyCopy::run(
        shared_address(to), dim, in_16,
        [&](int r) -> Row { return {t.data, first.first + max_of(r, 0) * t.stride.length, t.stride.dim, t.type, 0}; },
        [&](int r) { return keys.first + r < keys.key_count; });
  }
  HEED_DEVICE void copy_rows(const Tensor& t, unsigned char* to, int dim, bool in_16, const Step& at,
                             const StepRows<Shape::rows>& rows) const {
    const OwnedKeys& keys = shared.owned;
    const std::int64_t first_row = c.sequence(keys.b).first_query + std::int64_t{at.tile} * Shape::rows;
    const Row first = row_of(t, keys.b, head(at), first_row);
    RowsCopy::run(
        shared_address(to), dim, in_16,
        [&](int r) -> Row { return {t.data, first.first + max_of(r, 0) * t.stride.length, t.stride.dim, t.type, 0}; },
        [&](int r) { return rows.lse[r] != -minus_infinity; });
  }
  // Operands of a step that have as many stages: one may be overwritten when the products of the step before
  // are done, of two the other one before they begin.
  template <int stages>
  HEED_DEVICE void prefetch(int n, const Step& step) {
    if (step.is_over()) return;
    const StepRows<Shape::rows>& rows = shared.rows[n % 3];
    if constexpr (Shape::q_stages == stages)
      copy_rows(c.q, shared.q[n % stages], static_cast<int>(c.dim), plan.q_in_16, step, rows);
    if constexpr (Shape::out_gradient_stages == stages)
      copy_rows(g.out_gradient, shared.out_gradient[n % stages], static_cast<int>(c.value_dim),
                plan.out_gradient_in_16, step, rows);
    if constexpr (Shape::has_options && stages == 1) options.prefetch(pairs_of(step), shared_address(shared.p), plan.bias_in_16);
  }

  // Of this thread's row of a step: log-sum-exp and delta; those beyond the last give nothing (G6).
  struct RowPair {
    float lse = -minus_infinity, delta = 0, rest = 0;
  };
  HEED_DEVICE RowPair find_row(const Step& at) const {
    const int n = thread_index(), i = at.tile * Shape::rows + n;
    if (at.is_over() || n >= Shape::rows || i >= shared.owned.queries) return {};
    const std::int64_t row = g.row(shared.owned.b, head(at), c.sequence(shared.owned.b).first_query + i);
    return {g.rows.log_sum_exp[row], g.rows.delta[row], Shape::has_options ? g.rows.rest[row] : 0.0f};
  }
  HEED_DEVICE void put_row(int at, const RowPair& of) const {
    const int n = thread_index();
    if (n >= Shape::rows) return;
    shared.rows[at].lse[n] = of.lse, shared.rows[at].delta[n] = of.delta;
    if constexpr (Shape::has_options) shared.options.rest[at][n] = of.rest;
  }
  HEED_DEVICE StepOfPairs pairs_of(const Step& at) const {
    const OwnedKeys& keys = shared.owned;
    const int first = at.tile * Shape::rows;
    return {keys.b, head(at), first, static_cast<int>(c.sequence(keys.b).first_query) + first, keys.tile,
            keys.first};
  }

  HEED_DEVICE void walk() {
    const int group = static_cast<int>(c.group());
    const QueryTiles seen = shared.owned.seen;
    Step step{seen.last, 0, (seen.last - seen.first + 1) * group}, next = step.next(group);
    put_row(0, find_row(step)), put_row(1, find_row(next));
    sync();
    prefetch<2>(0, step), prefetch<1>(0, step);
    commit_copies();
    Added added;
#pragma unroll 1
    for (int n = 0; !step.is_over(); ++n, step = next, next = next.next(group)) {
      wait_for_copies<0>();
      const bool is_seen = sync_and_look();
      prefetch<2>(n + 1, next);
      const RowPair coming = find_row(next.next(group));
      if (is_seen) add_scores(step, n);
      put_row((n + 2) % 3, coming);
      fence();  // of what was added to dQ a step ago
      sync();
      added.tell();
      if (is_seen) add_keys(n);
      if constexpr (Shape::has_options || Shape::q_stages == 1 || Shape::out_gradient_stages == 1) {
        sync();
        prefetch<1>(n + 1, next);
      }
      commit_copies();
      if (plan.adds) added = is_seen ? add_queries(step) : pass_queries(step);
    }
    wait_for_copies<0>();
    fence();
    sync();
    added.tell();
  }
  // Whether masks let any query of the step see any key.
  HEED_DEVICE bool sync_and_look() const {
    if constexpr (Shape::has_options)
      if (!plan.mask.is_empty()) return any(options.sees_some());
    sync();
    return true;
  }

  HEED_DEVICE SharedAddress q_of(int n) const { return shared_address(shared.q[n % Shape::q_stages]); }
  HEED_DEVICE SharedAddress out_gradient_of(int n) const {
    return shared_address(shared.out_gradient[n % Shape::out_gradient_stages]);
  }

  HEED_DEVICE void add_keys(int n) {
    add_products<Shape::type, Shape::rows / 16>(
        value_sums, ScoresAsColumns::on_rows(shared_address(shared.p), KeySums::first_row()),
        AsColumns::on_columns(out_gradient_of(n), KeySums::first_column()));
    add_products<Shape::type, Shape::rows / 16>(
        key_sums, ScoresAsColumns::on_rows(shared_address(shared.ds), KeySums::first_row()),
        AsColumns::on_columns(q_of(n), KeySums::first_column()));
  }

  HEED_DEVICE void add_scores(const Step& step, int n) {
    typename Scores::Sums s, dp;
    Scores::clear(s), Scores::clear(dp);
    add_products<Shape::type, Shape::dim / 16>(
        s, AsRows::on_rows(q_of(n), Scores::first_row()),
        AsRows::on_columns(shared_address(shared.k), Scores::first_column()));
    add_products<Shape::type, Shape::dim / 16>(
        dp, AsRows::on_rows(out_gradient_of(n), Scores::first_row()),
        AsRows::on_columns(shared_address(shared.v), Scores::first_column()));
    const StepRows<Shape::rows>& rows = shared.rows[n % 3];
    if constexpr (Shape::has_options)
      differentiate_options(s, dp, step, n);
    else
      is_whole(step) ? differentiate<false>(s, dp, step, rows) : differentiate<true>(s, dp, step, rows);
  }

  HEED_DEVICE bool is_whole(const Step& step) const {
    const OwnedKeys& keys = shared.owned;
    const int first = step.tile * Shape::rows, last = first + Shape::rows - 1;
    return last + keys.first_offset <= keys.first &&
           min_of(first + keys.end_offset, keys.key_count) >= keys.first + Shape::keys;
  }

  HEED_DEVICE static float lifted(float exponent) {
    return Shape::type == Type::f16 ? exponent + lift<Shape::type> : exponent;
  }

  // S and dP become P and dS, in shared memory.
  template <bool hides>
  HEED_DEVICE void differentiate(typename Scores::Sums& s, typename Scores::Sums& dp, const Step& step,
                                 const StepRows<Shape::rows>& rows) {
    const OwnedKeys& keys = shared.owned;
    const float scale = c.scaling.query;
    const SharedAddress to = shared_address(shared.p) + Scores::column(0) * 2,
                        ds_to = shared_address(shared.ds) + Scores::column(0) * 2;
#pragma unroll
    for (int m = 0; m < Scores::row_tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = Scores::row(m, r), i = step.tile * Shape::rows + row;
        const float base = lifted(-rows.lse[row]), delta = rows.delta[row];
        const int begin = i + keys.first_offset - keys.first - Scores::column(0),
                  end = min_of(i + keys.end_offset, keys.key_count) - keys.first - Scores::column(0);
#pragma unroll
        for (int n = 0; n < Scores::column_tiles; ++n) {
          float p[2], ds[2];
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const bool is_seen = !hides || (8 * n + e >= begin && 8 * n + e < end);
            p[e] = is_seen ? fast_exp2(fmaf(s[m][n][2 * r + e], scale, base)) : 0.0f;
            ds[e] = is_seen ? p[e] * (dp[m][n][2 * r + e] - delta) : 0.0f;
          }
          const SharedAddress offset = row * Shape::score_pitch + n * 16;
          store_shared4(to + offset, pack2<Shape::type>(p[0], p[1]));
          store_shared4(ds_to + offset, pack2<Shape::type>(ds[0], ds[1]));
        }
      }
  }

  // The same with every option, one after the other.
  HEED_DEVICE void differentiate_options(typename Scores::Sums& s, typename Scores::Sums& dp, const Step& step,
                                         int number) {
    const StepRows<Shape::rows>& rows = shared.rows[number % 3];
    const StepOfPairs pairs = pairs_of(step);
    const std::uint32_t seen = options.masked(seen_by_ranges(step, rows)), drop = options.dropped(pairs);
    using Options = PairOptions<Shape>;
    Options::each_row([&](int m, int r) {
      const float delta = rows.delta[Scores::row(m, r)];
      Options::each_of_row(m, r, [&](int n, int e) {
        float& x = dp[m][n][e];
        if (c.drop_below > 0) x = drop & Options::bit(m, n, e) ? 0.0f : x * c.keep_scale;
        x = x - delta;
      });
    });
    options.scale(s, dp, rows.lse, shared.options.rest[number % 3]);
    options.bias(s, pairs, shared_address(shared.p));
    const bool has_cap = c.softcap.cap != 0;
    const SharedAddress to = shared_address(shared.p) + Scores::column(0) * 2,
                        ds_to = shared_address(shared.ds) + Scores::column(0) * 2;
    Options::each_row([&](int m, int r) {
      const int row = Scores::row(m, r);
      const float base = lifted(has_cap ? 0.0f : -rows.lse[row]);
#pragma unroll
      for (int n = 0; n < Scores::column_tiles; ++n) {
        float p[2], ds[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const std::uint32_t bit = Options::bit(m, n, 2 * r + e);
          const float x = s[m][n][2 * r + e];
          const bool is_seen = (seen & bit) != 0 && x != minus_infinity;
          p[e] = is_seen ? fast_exp2(x + base) : 0.0f;
          ds[e] = is_seen ? p[e] * dp[m][n][2 * r + e] : 0.0f;
          if (c.drop_below > 0) p[e] = drop & bit ? 0.0f : p[e] * c.keep_scale;
        }
        const SharedAddress offset = row * Shape::score_pitch + n * 16;
        store_shared4(to + offset, pack2<Shape::type>(p[0], p[1]));
        store_shared4(ds_to + offset, pack2<Shape::type>(ds[0], ds[1]));
      }
    });
  }
  // A row that gives nothing to anybody sees nothing.
  HEED_DEVICE std::uint32_t seen_by_ranges(const Step& step, const StepRows<Shape::rows>& rows) const {
    const OwnedKeys& keys = shared.owned;
    using Options = PairOptions<Shape>;
    std::uint32_t seen = 0;
    Options::each_row([&](int m, int r) {
      const int row = Scores::row(m, r), i = step.tile * Shape::rows + row, first = keys.first + Scores::column(0);
      const int begin = i + keys.first_offset - first,
                end = rows.lse[row] == -minus_infinity ? begin : min_of(i + keys.end_offset, keys.key_count) - first;
      Options::each_of_row(m, r, [&](int n, int e) {
        if (8 * n + e % 2 >= begin && 8 * n + e % 2 < end) seen |= Options::bit(m, n, e);
      });
    });
    return seen;
  }

  // Whom to tell that a step's dQ is in its sum, once all threads have added: the word of its tile.
  struct Added {
    unsigned* word = nullptr;
    unsigned value = 0;

    HEED_DEVICE void tell() const {
      if (word && thread_index() == 0) store_release(word, value);
    }
  };
  // The word of a step's tile of queries, and how many tiles of keys come before this one.
  struct Turn {
    std::int64_t tile;
    unsigned* word;
    unsigned before;

    HEED_DEVICE unsigned wait() const {
      for (;;)
        if (const unsigned found = load_acquire(word); found / 2 == before) return found;
    }
  };
  HEED_DEVICE Turn turn_of(const Step& step) const {
    const OwnedKeys& keys = shared.owned;
    const std::int64_t tile = plan.tile(keys.line + step.tile, head(step));
    const int below = keys.tile - max_of(step.tile * Shape::rows + keys.first_offset, 0) / Shape::keys;
    return {tile, plan.adds + tile, static_cast<unsigned>(below)};
  }
  HEED_DEVICE Added pass_queries(const Step& step) const {
    const Turn turn = turn_of(step);
    if (thread_index() != 0) return {};
    return {turn.word, turn.wait() + 2};
  }
  // dQ of a step is added when the tiles of keys below have added theirs.
  HEED_DEVICE Added add_queries(const Step& step) {
    typename QuerySums::Sums x;
    QuerySums::clear(x);
    add_products<Shape::type, Shape::keys / 16>(
        x, ScoresAsRows::on_rows(shared_address(shared.ds), QuerySums::first_row()),
        AsColumns::on_columns(shared_address(shared.k), QuerySums::first_column()));
    const Turn turn = turn_of(step);
    const bool has_sum = warp_any(lane_index() == 0 && turn.wait() % 2 != 0);
    float* const to = plan.sums + turn.tile * (Shape::rows * Shape::dim) + thread_index();
#pragma unroll
    for (int m = 0; m < QuerySums::row_tiles; ++m)
#pragma unroll
      for (int n = 0; n < QuerySums::column_tiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float* const at = to + ((m * QuerySums::column_tiles + n) * 4 + e) * Shape::threads;
          if (has_sum)
            add_in_memory(at, x[m][n][e]);
          else
            *at = x[m][n][e];
        }
    return {turn.word, 2 * turn.before + 3};
  }

  HEED_DEVICE void write() {
    const OwnedKeys& keys = shared.owned;
    const auto write_keys = [&](const typename KeySums::Sums& x, const Tensor& to, unsigned char* marks,
                                std::int64_t dim, float factor) {
      if (!to.data) return;
      using Writer = GradientWriter<Shape::type, KeySums, Shared::max_rows, Shared::slabs>;
      Writer{g, to, marks, dim, factor, shared.unfinished}
          .write(x, [&](int row) -> WrittenRow {
            const std::int64_t of = c.sequence(keys.b).first_key + keys.first + row;
            return {row_of(to, keys.b, keys.kv_head, of), g.key(keys.b, keys.kv_head, of), row < keys.count};
          });
    };
    write_keys(key_sums, g.k, g.rows.unfinished_k, c.dim, g.scale);
    write_keys(value_sums, g.v, g.rows.unfinished_v, c.value_dim, 1.0f);
  }

  const GradientCall& g;
  const Call& c;
  const OnePassPlan& plan;
  Shared& shared;
  PairOptions<Shape> options;
  typename KeySums::Sums key_sums, value_sums;
};

// dQ from its sums: a block for each tile of queries of each head.
template <class Shape>
class OnePassQueries {
  using QuerySums = typename Shape::QuerySums;

 public:
  static constexpr int slabs = Shape::dim / 64;
  using Unfinished = unsigned char[Shape::rows][slabs];

  HEED_DEVICE static void run(const GradientCall& g, const OnePassPlan& plan, Unfinished& unfinished) {
    const Call& c = g.forward;
    const int line = static_cast<int>(block_index()) / plan.heads, h = static_cast<int>(block_index()) % plan.heads;
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
          x[m][n][e] =
              has_sum ? from[((m * QuerySums::column_tiles + n) * 4 + e) * Shape::threads] : 0.0f;
    using Writer = GradientWriter<Shape::type, QuerySums, Shape::rows, slabs>;
    Writer{g, g.q, g.rows.unfinished_q, c.dim, g.scale, unfinished}
        .write(x, [&](int row) -> WrittenRow {
          const Query q{found.b, h, first + row, s.first_query + first + row};
          return {row_of(g.q, q), g.row(q.b, q.h, q.row), first + row < s.queries};
        });
  }
};

}  // namespace heed::cuda::general
