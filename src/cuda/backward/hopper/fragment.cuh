// SPDX-License-Identifier: Apache-2.0
// Sums of a warpgroup (tile/hopper.cuh says how they lie) on their way to a gradient.
#pragma once
#include <cstdint>

#include "cuda/backward/rows.cuh"
#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// Eight neighbouring numbers of a gradient, on 16 bytes. Rounded once; adding +0 gives every zero one sign.
HEED_DEVICE void write_eight(const Row& row, int d, const float (&x)[8], bool accumulates) {
  if (row.type == Type::f32) {
    auto* const to = static_cast<float*>(const_cast<void*>(row.data)) + row.first + d;
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
      auto& four = *reinterpret_cast<float4*>(to + n);
      const float4 old = accumulates ? four : float4{0, 0, 0, 0};
      four = {x[n] + old.x, x[n + 1] + old.y, x[n + 2] + old.z, x[n + 3] + old.w};
    }
    return;
  }
  auto* const to =
      reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(const_cast<void*>(row.data)) + row.first + d);
  const uint4 old = accumulates ? *to : uint4{0, 0, 0, 0};
  const std::uint32_t was[4] = {old.x, old.y, old.z, old.w};
  std::uint32_t now[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const auto low = static_cast<std::uint16_t>(was[n]), high = static_cast<std::uint16_t>(was[n] >> 16);
    now[n] = row.type == Type::bf16
                 ? pack2<Type::bf16>(x[2 * n] + from_bf16(low), x[2 * n + 1] + from_bf16(high))
                 : pack2<Type::f16>(x[2 * n] + from_f16(low), x[2 * n + 1] + from_f16(high));
  }
  *to = {now[0], now[1], now[2], now[3]};
}

// A gradient: its tensor, the marks of what is left unfinished, and what sums are multiplied with.
struct GradientTarget {
  const Tensor& tensor;
  std::uint32_t* marks;
  std::int64_t dim;
  float factor;
};
// A row of it, and its number among all.
struct TargetRow {
  Row row;
  std::int64_t number;
  bool is_real;
};

// A thread's sums of 64 columns and two rows, of which r is one: four lanes have a row together, two of every
// eight columns each.
using SlabSums = float[32];

// Whether all sums of a row are finite after this factor, for each of the four lanes that have it: one that
// is not makes a sum of zeros no number.
HEED_DEVICE bool all_finite(const SlabSums& x, int r, float factor) {
  float poison = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) poison = fmaf(x[4 * n + 2 * r + e] * factor, 0.0f, poison);
  poison += shuffle_xor(poison, 1);
  poison += shuffle_xor(poison, 2);
  return poison == 0;
}

// Each lane gets eight neighbours of every 32 columns.
HEED_DEVICE void take_eight(float (&eight)[8], const SlabSums& x, int r, int first, float factor) {
  const int lane = thread_index() % 4;
#pragma unroll
  for (int bits = 0; bits < 4; ++bits) {  // from the lane that differs by these, which gets its own
    const int other = lane ^ bits;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const auto of = [&](int n) { return x[4 * (first + n) + 2 * r + e]; };
      const float given = other == 0 ? of(0) : other == 1 ? of(1) : other == 2 ? of(2) : of(3);
      const float taken = shuffle_xor(given, bits) * factor + 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n)
        if (other == n) eight[2 * n + e] = taken;
    }
  }
}

// Leaves columns [64 slab, + 64) of a row to Completion.
HEED_DEVICE void mark_slab(const GradientCall& g, const GradientTarget& to, const TargetRow& of, int slab) {
  if (of.is_real && slab * 64 < to.dim && thread_index() % 4 == 0)
    leave_unfinished(g, to.marks, of.number * g.slabs(to.dim) + slab);
}

// Columns [64 slab, + 64) of a row, by all lanes of a warp at once. With what is no number they are marked
// (S13); then they are written, too, if the kernel writes what it marks and the caller does not add.
template <bool writes_marked = true>
HEED_DEVICE void write_slab(const GradientCall& g, const GradientTarget& to, const TargetRow& of, int slab,
                            const SlabSums& x, int r) {
  const bool is_finite = all_finite(x, r, to.factor),
             is_written = of.is_real && (is_finite || (writes_marked && !g.accumulates));
#pragma unroll
  for (int first = 0; first < 8; first += 4) {
    float eight[8];
    take_eight(eight, x, r, first, to.factor);
    const int d = slab * 64 + (first + thread_index() % 4) * 8;
    if (is_written && d < to.dim) write_eight(of.row, d, eight, g.accumulates);
  }
  if (!is_finite) mark_slab(g, to, of, slab);
}

}  // namespace heed::cuda
