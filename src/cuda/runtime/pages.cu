// SPDX-License-Identifier: Apache-2.0
// Tokens into the pages of a cache and out of them, by the operations of src/cache/store.cpp: a page has the
// same bytes wherever its tokens came from.
#include <cuda_runtime.h>

#include "cuda/runtime/kernels.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {
namespace {

constexpr int threads = 256, warps = 8;

// Largest magnitude / 127, unless 127 of it would be infinite: then the float before.
__device__ float scale_for(float largest) {
  const float scale = largest / 127.0f;
  return scale * 127.0f > max_finite ? __uint_as_float(__float_as_uint(scale) - 1) : scale;
}

// To nearest even.
__device__ std::int8_t quantized(float x, float divisor) {
  constexpr float shift = 0x1.8p23f;  // from here on floats are whole numbers
  const float whole = x / divisor + shift - shift;
  return static_cast<std::int8_t>(fminf(fmaxf(whole, -127.0f), 127.0f));
}

// A token of one head: where its row begins in the caller's tensor, and its place in the page.
struct Token {
  const PageTokens& of;
  Row row;
  unsigned char* part;
  std::int64_t slot;

  __device__ std::int64_t dims() const { return of.are_values ? of.layout.value_dim : of.layout.dim; }
  // Values are written up to the width their padding gives them.
  __device__ std::int64_t width() const { return of.are_values ? of.layout.value_width() : of.layout.dim; }
  __device__ std::int64_t element(std::int64_t d) const {
    return of.are_values ? of.layout.value_element(slot, d) : of.layout.key_element(slot, d);
  }
  __device__ unsigned char* elements() const { return part + (of.are_values ? of.layout.values_at() : 0); }
  __device__ float& scale() const {
    const std::int64_t at = of.are_values ? of.layout.value_scales_at() : of.layout.key_scales_at();
    return reinterpret_cast<float*>(part + at)[slot];
  }
};

// One warp for each token of each head of each run.
template <class Body>
__device__ void for_own_tokens(const PageTokens& t, const Body& body) {
  const std::int64_t n = block_index() / t.layout.kv_heads, h = block_index() % t.layout.kv_heads;
  const cache::TokenRun run = t.runs[n];
  auto* part = const_cast<unsigned char*>(run.page) + h * t.layout.head_bytes();
  for (std::int64_t i = block_in_column() * warps + thread_index() / 32; i < run.count;
       i += std::int64_t{gridDim.y} * warps)
    body(Token{t, row_of(t.tensor, run.b, h, run.t + i), part, run.first + i});
}

// The elements of one type are copied, whatever their bits.
__device__ void copy_element(const Row& row, std::int64_t d, unsigned char* to, std::int64_t element) {
  const std::int64_t from = row.first + d * row.step;
  if (row.type == Type::f32)
    reinterpret_cast<float*>(to)[element] = static_cast<const float*>(row.data)[from];
  else
    reinterpret_cast<std::uint16_t*>(to)[element] = static_cast<const std::uint16_t*>(row.data)[from];
}

__device__ void store_number(Type type, unsigned char* to, std::int64_t element, float x) {
  if (type == Type::f32)
    reinterpret_cast<float*>(to)[element] = x;
  else
    reinterpret_cast<std::uint16_t*>(to)[element] = type == Type::bf16 ? to_bf16(x) : to_f16(x);
}

__device__ void store_quantized(const Token& token) {
  const int lane = thread_index() % 32;
  unsigned largest = 0;  // magnitudes are ordered as their bits are
  for (std::int64_t d = lane; d < token.dims(); d += 32) {
    const unsigned bits = __float_as_uint(read(token.row, d)) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  const float scale = scale_for(__uint_as_float(__reduce_max_sync(0xffffffffu, largest)));
  if (lane == 0) token.scale() = scale;
  const float divisor = scale != 0 ? scale : 1.0f;
  auto* to = reinterpret_cast<std::int8_t*>(token.elements());
  for (std::int64_t d = lane; d < token.width(); d += 32)
    to[token.element(d)] = d < token.dims() ? quantized(read(token.row, d), divisor) : std::int8_t{0};
}

__global__ void __launch_bounds__(threads) store(const __grid_constant__ PageTokens t) {
  for_own_tokens(t, [&](const Token& token) {
    if (t.type == Type::int8) return store_quantized(token);
    for (std::int64_t d = thread_index() % 32; d < token.width(); d += 32) {
      if (d >= token.dims())
        store_number(t.type, token.elements(), token.element(d), 0.0f);
      else if (token.row.type == t.type)
        copy_element(token.row, d, token.elements(), token.element(d));
      else
        store_number(t.type, token.elements(), token.element(d), read(token.row, d));
    }
  });
}

__global__ void __launch_bounds__(threads) fetch(const __grid_constant__ PageTokens t) {
  for_own_tokens(t, [&](const Token& token) {
    const float scale = t.type == Type::int8 ? token.scale() : 1.0f;
    for (std::int64_t d = thread_index() % 32; d < token.dims(); d += 32) {
      const Row stored{token.elements(), token.element(d), 0, t.type, 0};
      const float x = read(stored, 0);
      write(token.row, d, t.type == Type::int8 ? x * scale : x);
    }
  });
}

__global__ void __launch_bounds__(threads)
    find_not_finite(const __grid_constant__ FiniteCheck c, unsigned long long* first) {
  const std::int64_t n = block_index() * warps + thread_index() / 32;
  if (n >= c.heads * c.tokens) return;
  const Row row = row_of(c.tensor, c.b, n / c.tokens, n % c.tokens);
  bool found = false;
  for (std::int64_t d = thread_index() % 32; d < c.dim; d += 32) found = found || !is_finite(read(row, d));
  if (found) atomicMin(first, static_cast<unsigned long long>(n));
}

dim3 blocks_for(const PageTokens& t) {
  constexpr std::int64_t max = 1024;  // a block may have several tokens
  const std::int64_t groups = (t.max_tokens + warps - 1) / warps;
  return {static_cast<unsigned>(t.run_count * t.layout.kv_heads),
          static_cast<unsigned>(groups < max ? groups : max)};
}

}  // namespace

void launch_store(const PageTokens& t, Stream stream) {
  if (t.run_count == 0) return;
  store<<<blocks_for(t), threads, 0, stream>>>(t);
  check(cudaGetLastError(), "tokens to pages");
}

void launch_fetch(const PageTokens& t, Stream stream) {
  if (t.run_count == 0) return;
  fetch<<<blocks_for(t), threads, 0, stream>>>(t);
  check(cudaGetLastError(), "tokens from pages");
}

void launch_find_not_finite(const FiniteCheck& c, unsigned long long* first, Stream stream) {
  const std::int64_t blocks = (c.heads * c.tokens + warps - 1) / warps;
  if (blocks == 0) return;
  find_not_finite<<<static_cast<unsigned>(blocks), threads, 0, stream>>>(c, first);
  check(cudaGetLastError(), "finite numbers");
}

}  // namespace heed::cuda
