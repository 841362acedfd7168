// SPDX-License-Identifier: Apache-2.0
// What Hopper's backward pass is compiled for, and what a launch passes to it.
#pragma once
#include <cuda.h>  // types of a tensor map

#include <cstdint>

#include "cuda/backward/mask.hpp"
#include "cuda/backward/order.hpp"
#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

// What a kernel is compiled for beside ranges of keys and sinks: nothing; a softcap; boolean masks and
// documents, with ALiBi, a bias or dropout or without.
enum class BackwardKind : std::uint8_t { plain, capped, masked, sloped, biased, dropping };

constexpr bool has_masks(BackwardKind kind) {
  return kind != BackwardKind::plain && kind != BackwardKind::capped;
}

constexpr BackwardKind backward_kind(const Call& c) {
  if (c.drop_below > 0) return BackwardKind::dropping;
  if (c.bias.data) return BackwardKind::biased;
  if (c.alibi.of_heads) return BackwardKind::sloped;
  if (c.mask_count > 0 || c.document_count > 0) return BackwardKind::masked;
  return c.cap != 0 ? BackwardKind::capped : BackwardKind::plain;
}

// Widths of heads: others are zeros beyond their own, which the copy engine fills in. Wide ones have kernels
// of their own (wide.cuh, wide_keys.cuh).
struct BackwardDims {
  int dim, value_dim;
  constexpr bool operator==(const BackwardDims&) const = default;
  constexpr bool are_wide() const { return dim > 128; }
};
constexpr BackwardDims backward_dims(const Call& c) {
  if (c.dim <= 64 && c.value_dim <= 64) return {64, 64};
  if (c.dim <= 128 && c.value_dim <= 128) return {128, 128};
  return c.dim <= 192 && c.value_dim <= 128 ? BackwardDims{192, 128} : BackwardDims{256, 256};
}

// Queries of a step. The sums of dK and dV leave registers for no more than 64 of 128 dimensions, nor options
// of 64.
constexpr int backward_rows(int dim, BackwardKind kind) {
  return dim == 64 && kind == BackwardKind::plain ? 128 : 64;
}
// Whether sums that are not finite are written where they are marked: the completion then needs to find only
// those. In kernels of 64 dimensions for options ptxas lets products wait for the other branch (C7511).
constexpr bool writes_marked(int dim, BackwardKind kind) {
  return dim != 64 || kind == BackwardKind::plain || kind == BackwardKind::masked;
}

constexpr int backward_rows(const Call& c) { return backward_rows(backward_dims(c).dim, backward_kind(c)); }

// One block: a warpgroup that copies and adds, and two that multiply, 64 keys each.
template <int head_dim, Type element, BackwardKind kind, bool tiles_are_short = true>
struct BackwardShape {
  static constexpr Type type = element;
  static constexpr bool capped = kind == BackwardKind::capped, sloped = kind == BackwardKind::sloped,
                        biased = kind == BackwardKind::biased, dropping = kind == BackwardKind::dropping;
  static constexpr bool masked = has_masks(kind);
  static constexpr bool writes_marked = cuda::writes_marked(head_dim, kind);
  static constexpr int dim = head_dim, value_dim = dim, pieces = dim / 64;  // of 64: rows of 128 bytes
  static constexpr int groups = 2, keys = backward_keys;
  static_assert(keys == 64 * groups);
  static constexpr int rows = backward_rows(dim, kind), halves = rows / 64;
  static_assert(!masked || (keys == MaskTiles::keys && rows == MaskTiles::queries));
  // Where a step's dQ may wait for its turn until the next but one is found, two stages serve as well as
  // three: 32 heads of 4 x 1024 x 128 reached 282 TFLOP/s under a causal mask instead of 275, 64 heads of
  // 4096 over 8 465 instead of 456 (H200, November 2026).
  static constexpr int sum_buffers = dim == 128 && !masked ? 2 : 1;
  static constexpr int stages = rows == 128 || masked || sum_buffers == 2 ? 2 : 3;
  static constexpr bool keys_come_last =
      dim == 128 || (kind == BackwardKind::plain && type == Type::bf16);  // dK after dQ
  // Whether the copy engine may write dK and dV: 32 heads of 4 x 1024 x 128 took 377 us instead of 404, under
  // a causal mask 269 instead of 297, and 64 of 64 dimensions 414 instead of 441 and 282 instead of 310. But
  // steps of 128 dimensions are 2 % longer, and where products are in another order ptxas lets them wait
  // (C7511). (H200, November 2026.)
  static constexpr bool copies =
      kind == BackwardKind::plain && (dim == 128 ? tiles_are_short : type == Type::bf16);
  // Whether operands and sums have policies of the call's. Of 64 dimensions ptxas lets products of some
  // options wait with them, of others without (C7511): as each has none.
  static constexpr bool may_stream =
      dim == 128 || kind == BackwardKind::plain || (type == Type::f16 ? biased || dropping : capped);
  static constexpr int threads = 128 * (groups + 1);
  // 64 K registers for all: a launch that asks for more would wait for ever.
  static constexpr int producer_registers = 24, consumer_registers = 240;
  static_assert((producer_registers + groups * consumer_registers) * 128 <= 65536);

  static constexpr int key_bytes = keys * dim * 2, query_bytes = rows * dim * 2, row_bytes = 2 * rows * 4;
  static constexpr int score_bytes = keys * rows * 2, sum_bytes = rows * dim * 4;
  static constexpr int mask_bytes = masked ? MaskTiles::tile_bytes : 0, bias_bytes = biased ? score_bytes : 0;
  // Offsets from a multiple of 1024. The first 512 bytes are barriers and descriptions of tiles.
  static constexpr int rows_at = 512, masks_at = rows_at + stages * row_bytes,
                       keys_at = (masks_at + stages * mask_bytes + 1023) / 1024 * 1024,
                       values_at = keys_at + key_bytes, queries_at = values_at + key_bytes,
                       gradients_at = queries_at + stages * query_bytes,
                       scores_at = gradients_at + stages * query_bytes, sums_at = scores_at + 2 * score_bytes,
                       bias_at = sums_at + sum_buffers * sum_bytes;
  static constexpr int shared_bytes = 1024 + bias_at + bias_bytes;  // 1024: to align by hand
  static_assert(shared_bytes <= 232448);
  // Where dV and dK lie for the copy engine (shared.cuh).
  static_assert(!copies || (query_bytes >= pieces * 64 * 128 && 2 * score_bytes >= key_bytes));
};

// Tiles of 128 keys, or queries, of wide heads in the order of their blocks: those of some heads at a time,
// the longest first. Heads are those of all entries, or of all packed rows.
struct WideOrder {
  TileLine queries;  // of 128
  PrefillOrder of_keys, of_queries;
};

// Whether rows of a gradient can be written 16 bytes at a time.
inline bool is_writable(const Tensor& t) {
  const std::int64_t line = t.type == Type::f32 ? 4 : 8;
  return t.stride.dim == 1 && t.stride.length % line == 0 && t.stride.heads % line == 0 &&
         t.stride.batch % line == 0 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

// Who makes the gradient by a bias: the kernel of all products, whose dS it is in bf16, where every batch
// entry and head has a matrix to itself; one of tiles (bias.cuh), where some share it, or it is of another
// type (dS of f16 is lifted, and would be rounded twice); the exact kernel any other.
enum class BiasGradient : std::uint8_t { none, of_products, of_tiles, exact };

inline BiasGradient bias_gradient(const GradientCall& g) {
  const Call& c = g.forward;
  const SharedGradient& bias = g.bias;
  if (!bias.tensor.data) return BiasGradient::none;
  const bool is_matrix = !g.shares_query_rows && !g.shares_key_rows && bias.length == c.queries &&
                         bias.dim == c.keys && c.keys % 8 == 0 && is_writable(bias.tensor);
  if (!is_matrix || bias.batch * bias.heads > 65535) return BiasGradient::exact;
  const bool is_own = bias.batch == c.batch && bias.heads == c.heads,
             is_of_scores = bias.tensor.type == Type::bf16 && c.q.type == Type::bf16 && !g.accumulates &&
                            is_mappable(bias.tensor);
  return is_own && is_of_scores ? BiasGradient::of_products : BiasGradient::of_tiles;
}

// Whether the copy engine can write dK and dV as consumers have them.
inline bool are_copied(const GradientCall& g) {
  const auto can = [&](const Tensor& t) { return t.data && t.type == g.forward.q.type && is_mappable(t); };
  return !g.accumulates && can(g.k) && can(g.v);
}

// What a launch passes to the kernels beside the call.
struct BackwardPlan {
  CUtensorMap q, k, v, out_gradient, bias, to_bias;  // (dim, rows, heads, entries), boxes of 64 dims
  MaskTiles mask;
  TileLine queries, keys;
  PrefillOrder order;  // of tiles of keys: its heads are the KV heads of all entries, or of all packed rows
  int tiles;           // that are claimed
  PrefillOrder of_queries;  // tiles of queries of all heads in the order in which dQ is written: of a head
  bool from_the_first;      // from the first on or from the last
  int group;                // query heads of a KV head
  WideOrder wide;           // of wide heads
  unsigned* next_tile;      // 0 before and after, and the count of blocks that are done
  // For every tile of queries of every head: what its rows have to themselves, the sum of dQ so far, and how
  // many tiles of keys have added to it.
  float* rows;  // (2, rows): minus the log-sum-exp in base 2, delta
  float* sums;  // as the registers of the consumers lie
  unsigned* adds;

  BiasGradient bias_gradient;
  int heads;

  bool streams_queries;   // Q and dO are to leave the second-level cache first, sums of dQ last
  bool tiles_are_short;   // tiles of keys have so few steps that what is between them counts
  bool copies_gradients;  // the copy engine writes dK and dV, through these
  CUtensorMap to_k, to_v;
  std::uint64_t query_policy, sum_policy;  // of that cache

  // A tile of the line of queries, of one head, counted through all heads.
  constexpr std::int64_t tile(int in_line, int head) const { return std::int64_t{in_line} * heads + head; }
};

// Plans have no maps yet.
template <int dim, int value_dim, Type, BackwardKind>
void launch_wide_backward(const GradientCall&, BackwardPlan, Stream);
template <int dim, Type, BackwardKind>
void launch_backward_kind(const GradientCall&, const BackwardPlan&, Stream);

}  // namespace heed::cuda
