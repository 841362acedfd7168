// SPDX-License-Identifier: Apache-2.0
// Elements of the caller's tensors and of a cache's pages, one by one, as f32.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

// Where a row begins and how to walk it: sixteen elements a step apart, the next sixteen a block further, as
// cached values lie. Everywhere else a block is sixteen steps.
struct Row {
  const void* data;
  std::int64_t first, step;
  Type type;
  std::int64_t block;
};

HEED_DEVICE Row row_of(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i) {
  return {t.data, b * t.stride.batch + h * t.stride.heads + i * t.stride.length, t.stride.dim, t.type,
          16 * t.stride.dim};
}

HEED_DEVICE const unsigned char* head_in_page(const Call& c, std::int64_t b, std::int64_t kv_head,
                                              std::int64_t j) {
  return c.cached[b].table[j / c.layout.page_size] + kv_head * c.layout.head_bytes();
}

// Of a page's elements: prefill has an int8 cache's keys as rows of another type.
HEED_DEVICE Type page_type(const Call& c) { return c.layout.is_quantized ? Type::int8 : c.k.type; }

// Key j of a sequence, and its value, wherever they lie.
HEED_DEVICE Row key_row(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  constexpr std::int64_t tile = cache::PageLayout::tile;
  if (!c.cached) return row_of(c.k, b, kv_head, c.sequence(b).first_key + j);
  return {head_in_page(c, b, kv_head, j), c.layout.key_element(j % c.layout.page_size, 0), tile, page_type(c),
          16 * tile};
}
HEED_DEVICE Row value_row(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  constexpr std::int64_t tile = cache::PageLayout::tile;
  if (!c.cached) return row_of(c.v, b, kv_head, c.sequence(b).first_key + j);
  return {head_in_page(c, b, kv_head, j) + c.layout.values_at(),
          c.layout.value_element(j % c.layout.page_size, 0), 1, page_type(c), tile * tile};
}

// What the integers of a quantised key, or value, are multiplied with.
HEED_DEVICE float key_scale(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  const void* scales = head_in_page(c, b, kv_head, j) + c.layout.key_scales_at();
  return static_cast<const float*>(scales)[j % c.layout.page_size];
}
HEED_DEVICE float value_scale(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  const void* scales = head_in_page(c, b, kv_head, j) + c.layout.value_scales_at();
  return static_cast<const float*>(scales)[j % c.layout.page_size];
}

HEED_DEVICE float read(const Row& row, std::int64_t d) {
  const std::int64_t e = row.first + d / 16 * row.block + d % 16 * row.step;
  if (row.type == Type::f32) return static_cast<const float*>(row.data)[e];
  if (row.type == Type::int8) return static_cast<float>(static_cast<const std::int8_t*>(row.data)[e]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row.data)[e];
  return row.type == Type::bf16 ? from_bf16(bits) : from_f16(bits);
}

// Rounds once, to nearest even.
HEED_DEVICE void write(const Row& row, std::int64_t d, float x) {
  const std::int64_t e = row.first + d * row.step;
  void* data = const_cast<void*>(row.data);
  if (row.type == Type::f32)
    static_cast<float*>(data)[e] = x;
  else
    static_cast<std::uint16_t*>(data)[e] = row.type == Type::bf16 ? to_bf16(x) : to_f16(x);
}

// As many of four neighbouring elements as there are.
inline __device__ __noinline__ void write_four(const Row& row, std::int64_t d, std::int64_t end, float4 x) {
  const float four[4] = {x.x, x.y, x.z, x.w};
  for (int n = 0; n < 4 && d + n < end; ++n) write(row, d + n, four[n]);
}

}  // namespace heed::cuda
