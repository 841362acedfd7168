// SPDX-License-Identifier: Apache-2.0
// Which calls Hopper's backward pass takes, and its launch. The kernels themselves are compiled in files of
// their own, which the build writes.
#include <algorithm>
#include <initializer_list>

#include "cuda/backward/backward.hpp"
#include "cuda/backward/hopper/plan.hpp"
#include "cuda/backward/mask.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {
namespace {

std::int64_t rounded(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

TileLine query_tiles(const GradientCall& g) {
  return TileLine::over(g.query_rows, backward_rows(g.forward), g.shares_query_rows, g.forward.batch);
}

// Of all tiles of queries of all heads.
struct BackwardBytes {
  std::int64_t rows, sums, adds;

  explicit BackwardBytes(const GradientCall& g) {
    const std::int64_t tiles = query_tiles(g).count * g.forward.heads,
                       of_rows = tiles * backward_rows(g.forward);
    const BackwardDims dims = backward_dims(g.forward);
    rows = rounded(of_rows * 2 * 4);
    sums = dims.are_wide() ? 0 : rounded(of_rows * dims.dim * 4);
    adds = dims.are_wide() ? 0 : rounded(tiles * 4);
  }
  std::int64_t all() const { return rows + sums + adds; }
};

// Of a tile of keys, on average. That the copy engine writes dK and dV takes 3.4 us off a tile, and puts 0.05
// us on every step of 128 dimensions: with 16 steps a call took 7 % less, with 63 2 % less, with 72 and more
// 1 or 2 % more (H200, November 2026).
constexpr std::int64_t short_tile_steps = 64;

// Where sequences differ, as if every query saw every key.
TileSteps steps_of(const GradientCall& g, int tiles) {
  const Call& c = g.forward;
  const std::int64_t rows = backward_rows(c), group = c.group();
  TileSteps steps;
  for (std::int64_t n = 0; n < tiles; ++n) {
    const QueryTiles seen = c.sequences ? QueryTiles{0, static_cast<int>((c.queries - 1) / rows)}
                                        : query_tiles_of(c.each, static_cast<int>(n), static_cast<int>(rows));
    const std::int64_t of_tile = (seen.last - seen.first + 1) * group;
    steps.all += of_tile, steps.max = steps.max > of_tile ? steps.max : of_tile;
  }
  return steps;
}

PrefillOrder order_of(const GradientCall& g, const TileLine& keys) {
  const std::int64_t heads = (keys.each > 0 ? g.forward.batch : 1) * g.forward.kv_heads;
  const int tiles = keys.each > 0 ? keys.each : keys.count;
  return claim_order(steps_of(g, tiles), static_cast<int>(heads), tiles, device_facts().multiprocessors);
}

// Where tiles differ in length, blocks end alike if the longest of many heads come first: 32 heads of 4096 x
// 256 over 8 took 2.4 ms head by head under a causal mask (H200, November 2026). Blocks of keys all begin
// with the last queries, and so share them in the second-level cache, if there are some of each head at once:
// eight heads at a time, or as many as have a tile for each multiprocessor, since a longest tile that begins
// last would end alone. Blocks of queries begin apart, and have the keys of a section there. Where tiles are
// alike, a head at a time.
WideOrder wide_order(const GradientCall& g, const TileLine& keys) {
  const Call& c = g.forward;
  const TileLine queries = TileLine::over(g.query_rows, 2 * 64, g.shares_query_rows, c.batch);
  const Sequence& s = c.each;
  const bool are_alike = !c.sequences && s.end_offset >= s.key_count && s.first_offset + s.queries <= 1;
  const std::int64_t entries = keys.each > 0 ? c.batch : 1, heads = entries * c.heads,
                     bytes = g.all_keys() * (c.dim + c.value_dim) * 2,
                     sections = are_alike ? heads : std::min(bytes / section_bytes + 1, heads);
  const auto order = [&](std::int64_t all, std::int64_t section, const TileLine& line) -> PrefillOrder {
    return {static_cast<int>(all), static_cast<int>(section), line.each > 0 ? line.each : line.count};
  };
  const std::int64_t kv_heads = entries * c.kv_heads, tiles = keys.each > 0 ? keys.each : keys.count,
                     of_section =
                         std::max<std::int64_t>(8, (device_facts().multiprocessors + tiles - 1) / tiles);
  return {.queries = queries,
          .of_keys = order(kv_heads, are_alike ? 1 : std::min(kv_heads, of_section), keys),
          .of_queries = order(heads, (heads + sections - 1) / sections, queries)};
}

// Options beside ranges of keys. One at a time changes scores or weights: kernels for more would need more
// registers than there are.
const char* options_refuse(const Call& c) {
  const int changes =
      (c.cap != 0) + (c.bias.data != nullptr) + (c.alibi.of_heads != nullptr) + (c.drop_below > 0);
  if (changes > 1) return "it takes one of softcap, bias, ALiBi and dropout";
  if (c.cap != 0 && (c.mask_count > 0 || c.document_count > 0)) return "it takes no softcap beside masks";
  if (c.cap != 0 && c.scale_over_softcap < 0x1p-126f) return "its scale over its softcap is below 2^-126";
  if (backward_dims(c).are_wide() && has_masks(backward_kind(c)))
    return "with heads beyond 128 it takes no masks, bias, ALiBi or dropout";
  if (backward_dims(c) == BackwardDims{192, 128} && c.cap != 0)
    return "with heads of 136 to 192 over values of up to 128 it takes no softcap";
  if (c.bias.data && !is_mappable(c.bias)) return "it takes a bias of bf16 or f16 whose rows lie on 16 bytes";
  constexpr std::int64_t max_mask_bytes = 256'000'000;
  if (mask_tiles(c).bytes() > max_mask_bytes) return "its masks are beyond 256 MB in bits";
  if (!c.alibi.of_heads) return nullptr;
  const std::int64_t distances = c.keys + c.queries;
  if (distances > std::int64_t{1} << 24) return "options.alibi: there are more than 2^24 keys and queries";
  for (std::int64_t n = 0; n < (c.alibi.step == 0 ? 1 : c.batch) * c.heads; ++n) {
    const float slope = c.alibi.of_heads[n];
    if (!(slope >= 0)) return "it takes slopes of ALiBi that are not negative";
    if (!(slope * static_cast<float>(distances) < 0x1p100f * c.scale_log2e))
      return "options.alibi takes more of a score than f32 holds in the unit of products";
  }
  return nullptr;
}

// Whether what blocks read and add between two uses of a tile of queries is more than the second-level cache
// holds. Where tiles of keys end at the same query, all blocks are at the same queries; where a window ends
// before, a tile of queries is wanted again when the block of the next 128 keys has come as far, 128 queries
// of each head of the group later. With 32 heads of 4096 over 8 in a window of 1024 that are 69 MB: steps
// took 2.97 us instead of 2.15, in which 132 blocks move 96 KB each (Q and dO, and sums of dQ there and
// back): what memory has. With Q and dO evicted first and sums last the call took 379 us instead of 420; with
// Q and dO evicted first 396; but a causal call, whose blocks share them, 711 instead of 651 (H200, November
// 2026); of 16384 1556 instead of 1964, and 64 heads of 64 over 8 417 instead of 474. Where not even the sums
// stay (64 heads of 128 over 8) 930 instead of 905.
bool exceed_cache(const GradientCall& g, int tiles) {
  const Call& c = g.forward;
  if (c.sequences) return false;
  const std::int64_t rows = backward_rows(c), last_tile = (c.each.queries - 1) / rows;
  std::int64_t ending_before = 0;
  for (int n = 0; n < tiles; ++n)
    ending_before += query_tiles_of(c.each, n, static_cast<int>(rows)).last < last_tile;
  constexpr std::int64_t bytes_of_number = 2 + 2 + 4, held_bytes = 40'000'000, most = 100'000'000;
  const std::int64_t between =
      device_facts().multiprocessors * backward_keys * c.group() * backward_dims(c).dim * bytes_of_number;
  return 2 * ending_before > tiles && between > held_bytes && between < most;
}

// As sums of dQ are done: of the heads of a section those of the last queries first, or under a causal mask
// those of the first.
PrefillOrder writing_order(const Call& c, const BackwardPlan& plan) {
  const std::int64_t heads = (plan.queries.each > 0 ? c.batch : 1) * c.heads,
                     section = plan.order.section * c.group();
  return {static_cast<int>(heads), static_cast<int>(section),
          plan.queries.each > 0 ? plan.queries.each : plan.queries.count};
}

BackwardPlan plan_of(const GradientCall& g, const Workspace& workspace) {
  const Call& c = g.forward;
  const BackwardBytes of(g);
  BackwardPlan plan{};
  plan.queries = query_tiles(g);
  plan.keys = TileLine::over(g.key_rows, backward_keys, g.shares_key_rows, c.batch);
  plan.order = order_of(g, plan.keys);
  plan.tiles = plan.order.heads * plan.order.tiles;
  plan.of_queries = writing_order(c, plan);
  plan.from_the_first = c.each.end_offset < c.each.key_count;
  plan.wide = wide_order(g, plan.keys);
  plan.group = static_cast<int>(c.group()), plan.heads = static_cast<int>(c.heads);
  plan.bias_gradient = bias_gradient(g);
  const int in_head = plan.order.tiles;
  plan.streams_queries = exceed_cache(g, in_head);
  plan.tiles_are_short = in_head > 0 && steps_of(g, in_head).all / in_head <= short_tile_steps;
  plan.next_tile = workspace.counters();
  plan.rows = reinterpret_cast<float*>(workspace.rest());
  plan.sums = reinterpret_cast<float*>(workspace.rest() + of.rows);
  if (of.adds > 0) plan.adds = reinterpret_cast<unsigned*>(workspace.rest() + of.rows + of.sums);
  return plan;
}

}  // namespace

const char* hopper_backward_refuses(const GradientCall& g) {
  const Call& c = g.forward;
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (g.out_gradient.type != c.q.type || c.out.type != c.q.type)
    return "it takes out and its gradient in the type of q";
  if (const char* reason = options_refuse(c)) return reason;
  if (c.here >= 0) return "it takes no part of a larger call";
  const auto is_width = [](std::int64_t dim) { return dim >= 8 && dim <= 256 && dim % 8 == 0; };
  if (!is_width(c.dim) || !is_width(c.value_dim)) return "it takes heads of 8 to 256 in steps of 8";
  if (!(c.scale_log2e > 0)) return "it takes a positive scale";
  // Sums of f16 are 2^7 as large: that and the scale are one factor, which must be a normal number.
  if (c.q.type == Type::f16 && g.scale < 0x1p-119f) return "it takes f16 with a scale of at least 2^-119";
  if (c.batch == 0 || c.heads == 0 || c.queries == 0 || c.keys == 0) return "there is nothing to multiply";
  constexpr std::int64_t many = std::int64_t{1} << 30;  // rows of packed sequences are numbered in 31 bits
  if (g.query_rows >= many || g.key_rows >= many) return "there are 2^30 rows or more";
  constexpr std::int64_t max_rows = std::int64_t{1} << 36;  // tiles are counted in 31 bits
  if (g.all_rows() > max_rows || g.all_keys() > max_rows || c.batch * c.heads > 1 << 24 || c.heads > 65535)
    return "there are too many tiles";
  for (const Tensor* t : {&c.q, &c.k, &c.v, &c.out, &g.out_gradient})
    if (!is_mappable(*t)) return "the copy engine wants rows without gaps, and everything on 16 bytes";
  for (const Tensor* t : {&g.q, &g.k, &g.v})
    if (t->data && !is_writable(*t)) return "it writes rows without gaps that begin on 16 bytes";
  return nullptr;
}

bool hopper_writes_marked(const GradientCall& g) {
  return writes_marked(backward_dims(g.forward).dim, backward_kind(g.forward));
}

std::int64_t hopper_backward_bytes(const GradientCall& g) {
  return BackwardBytes(g).all() + mask_tiles(g.forward).bytes();
}

namespace {

using enum BackwardKind;

// What a launch of one kernel takes beside its shape.
struct BackwardLaunch {
  const GradientCall& g;
  const BackwardPlan& plan;
  Stream stream;

  void run() const { g.forward.q.type == Type::bf16 ? run<Type::bf16>() : run<Type::f16>(); }

 private:
  template <Type type>
  void run() const {
    const BackwardDims dims = backward_dims(g.forward);
    const bool is_capped = backward_kind(g.forward) == capped;
    if (dims.dim == 64) return run<64, type>();
    if (dims.dim == 128) return run<128, type>();
    if (dims.dim == 192) return launch_wide_backward<192, 128, type, plain>(g, plan, stream);
    is_capped ? launch_wide_backward<256, 256, type, capped>(g, plan, stream)
              : launch_wide_backward<256, 256, type, plain>(g, plan, stream);
  }
  template <int dim, Type type>
  void run() const {
    switch (backward_kind(g.forward)) {
      case plain:
        return launch_backward_kind<dim, type, plain>(g, plan, stream);
      case capped:
        return launch_backward_kind<dim, type, capped>(g, plan, stream);
      case masked:
        return launch_backward_kind<dim, type, masked>(g, plan, stream);
      case sloped:
        return launch_backward_kind<dim, type, sloped>(g, plan, stream);
      case biased:
        return launch_backward_kind<dim, type, biased>(g, plan, stream);
      case dropping:
        return launch_backward_kind<dim, type, dropping>(g, plan, stream);
    }
  }
};

}  // namespace

void launch_hopper_backward(const GradientCall& g, const MaskTiles& mask, const Workspace& workspace,
                            Stream stream) {
  BackwardPlan plan = plan_of(g, workspace);
  plan.mask = packed(g.forward, mask, workspace.rest() + BackwardBytes(g).all(), stream);
  BackwardLaunch{g, plan, stream}.run();
  if (plan.bias_gradient == BiasGradient::exact) launch_exact_bias_gradient(g, stream);
}

}  // namespace heed::cuda
