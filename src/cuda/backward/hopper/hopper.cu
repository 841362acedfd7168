// SPDX-License-Identifier: Apache-2.0
// Which calls Hopper's backward pass takes, and its launch. The kernels themselves are compiled in files of
// their own, which the build writes.
#include <initializer_list>

#include "cuda/backward/backward.hpp"
#include "cuda/backward/hopper/plan.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {
namespace {

// Whether rows of a gradient can be written 16 bytes at a time.
bool is_writable(const Tensor& t) {
  const std::int64_t line = t.type == Type::f32 ? 4 : 8;
  return t.stride.dim == 1 && t.stride.length % line == 0 && t.stride.heads % line == 0 &&
         t.stride.batch % line == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

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
    rows = rounded(of_rows * 2 * 4), sums = rounded(of_rows * backward_dim(g.forward) * 4);
    adds = rounded(tiles * 4);
  }
};

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

BackwardPlan plan_of(const GradientCall& g, const Workspace& workspace) {
  const Call& c = g.forward;
  const BackwardBytes of(g);
  BackwardPlan plan{};
  plan.queries = query_tiles(g);
  plan.keys = TileLine::over(g.key_rows, backward_keys, g.shares_key_rows, c.batch);
  plan.order = order_of(g, plan.keys);
  plan.tiles = plan.order.heads * plan.order.tiles;
  plan.group = static_cast<int>(c.group()), plan.heads = static_cast<int>(c.heads);
  plan.next_tile = workspace.counters();
  plan.rows = reinterpret_cast<float*>(workspace.rest());
  plan.sums = reinterpret_cast<float*>(workspace.rest() + of.rows);
  plan.adds = reinterpret_cast<unsigned*>(workspace.rest() + of.rows + of.sums);
  return plan;
}

}  // namespace

const char* hopper_backward_refuses(const GradientCall& g) {
  const Call& c = g.forward;
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (g.out_gradient.type != c.q.type || c.out.type != c.q.type)
    return "it takes out and its gradient in the type of q";
  if (c.bias.data) return "it takes no bias";
  if (c.alibi.of_heads) return "it takes no slopes of ALiBi";
  if (c.mask_count > 0 || c.document_count > 0) return "it takes no masks but ranges of keys";
  if (c.drop_below > 0) return "it takes no dropout";
  if (c.here >= 0) return "it takes no part of a larger call";
  const auto is_width = [](std::int64_t dim) { return dim >= 8 && dim <= 128 && dim % 8 == 0; };
  if (!is_width(c.dim) || !is_width(c.value_dim)) return "it takes heads of 8 to 128 in steps of 8";
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

std::int64_t hopper_backward_bytes(const GradientCall& g) {
  const BackwardBytes of(g);
  return of.rows + of.sums + of.adds;
}

void launch_hopper_backward(const GradientCall& g, const Workspace& workspace, Stream stream) {
  const BackwardPlan plan = plan_of(g, workspace);
  const bool is_bf16 = g.forward.q.type == Type::bf16;
  if (backward_dim(g.forward) == 64)
    is_bf16 ? launch_backward_dim<64, Type::bf16>(g, plan, stream)
            : launch_backward_dim<64, Type::f16>(g, plan, stream);
  else
    is_bf16 ? launch_backward_dim<128, Type::bf16>(g, plan, stream)
            : launch_backward_dim<128, Type::f16>(g, plan, stream);
}

}  // namespace heed::cuda
