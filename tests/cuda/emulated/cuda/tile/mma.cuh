// SPDX-License-Identifier: Apache-2.0
// The verbs of src/cuda/tile/mma.cuh for warps that a CPU emulates: matrices out of shared memory, and
// products of 16 rows times 8 columns, 16 deep, whose sums are rounded once.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

struct uint4 {
  std::uint32_t x, y, z, w;
};

// Addresses count from here: what a launch calls its shared memory.
using SharedAddress = std::uint32_t;
inline unsigned char* shared_memory = nullptr;
inline SharedAddress shared_address(const void* p) {
  return static_cast<SharedAddress>(static_cast<const unsigned char*>(p) - shared_memory);
}
inline void store_shared16(SharedAddress to, const uint4& x) { std::memcpy(shared_memory + to, &x, 16); }
inline void clear_shared16(SharedAddress to) { std::memset(shared_memory + to, 0, 16); }
inline uint4 load_shared16(SharedAddress from) {
  uint4 x;
  std::memcpy(&x, shared_memory + from, 16);
  return x;
}

inline float __uint_as_float(std::uint32_t bits) { return __int_as_float(static_cast<int>(bits)); }
inline int block_in_column() { return 0; }
inline int lane_index() { return thread_index() % 32; }

// The 16-bit number in a row of matrix `n` of four, whose rows eight lanes each have the addresses of.
inline std::uint32_t number_of(const emulated::Shown& rows, int n, int row, int column) {
  const SharedAddress at = *static_cast<const SharedAddress*>(rows.of(8 * n + row));
  std::uint16_t x;
  std::memcpy(&x, shared_memory + at + 2 * column, 2);
  return x;
}
inline void load_matrices(std::uint32_t (&to)[4], SharedAddress row) {
  const emulated::Shown rows(&row);
  const int r = lane_index() / 4, c = lane_index() % 4 * 2;
  for (int n = 0; n < 4; ++n) to[n] = number_of(rows, n, r, c) | number_of(rows, n, r, c + 1) << 16;
}
inline void load_matrices_transposed(std::uint32_t (&to)[4], SharedAddress row) {
  const emulated::Shown rows(&row);
  const int c = lane_index() / 4, r = lane_index() % 4 * 2;
  for (int n = 0; n < 4; ++n) to[n] = number_of(rows, n, r, c) | number_of(rows, n, r + 1, c) << 16;
}

template <Type type>
float widened(std::uint32_t both, int which) {
  const auto bits = static_cast<std::uint16_t>(both >> 16 * which);
  return type == Type::bf16 ? from_bf16(bits) : from_f16(bits);
}

struct ProductOperands {
  std::uint32_t a[4], b[2];
};
template <Type type>
void add_product(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const ProductOperands mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const emulated::Shown operands(&mine);
  for (int n = 0; n < 4; ++n) {
    const int row = lane_index() / 4, half = n / 2, column = lane_index() % 4 * 2 + n % 2;
    double sum = static_cast<double>(sums[n]);
    for (int k = 0; k < 16; ++k) {
      const auto& of_row = *static_cast<const ProductOperands*>(operands.of(row * 4 + k % 8 / 2));
      const auto& of_column = *static_cast<const ProductOperands*>(operands.of(column * 4 + k % 8 / 2));
      sum += static_cast<double>(widened<type>(of_row.a[half + k / 8 * 2], k % 2)) *
             static_cast<double>(widened<type>(of_column.b[k / 8], k % 2));
    }
    sums[n] = static_cast<float>(sum);
  }
}

template <Type type>
std::uint32_t pack2(float low, float high) {
  const auto bits = [](float x) -> std::uint32_t { return type == Type::bf16 ? to_bf16(x) : to_f16(x); };
  return bits(low) | bits(high) << 16;
}

template <Type type>
constexpr float lift = type == Type::f16 ? 7.0f : 0.0f;
template <Type type>
constexpr float lowered = type == Type::f16 ? 0x1p-7f : 1.0f;

inline float fast_exp2(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }
inline float fast_reciprocal(float x) { return 1.0f / x; }

}  // namespace heed::cuda
