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

// A lane's operands, widened once for all lanes that read them.
template <Type type>
struct ProductOperands {
  double a[4][2], b[2][2];

  ProductOperands(const std::uint32_t (&of_rows)[4], std::uint32_t b0, std::uint32_t b1) {
    for (int n = 0; n < 4; ++n) widen(a[n], of_rows[n]);
    widen(b[0], b0), widen(b[1], b1);
  }

 private:
  static void widen(double (&to)[2], std::uint32_t both) {
    for (int n = 0; n < 2; ++n) {
      const auto bits = static_cast<std::uint16_t>(both >> 16 * n);
      to[n] = static_cast<double>(type == Type::bf16 ? from_bf16(bits) : from_f16(bits));
    }
  }
};
template <Type type>
void add_product(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const ProductOperands<type> mine(a, b0, b1);
  const emulated::Shown operands(&mine);
  const auto of = [&](int lane) { return static_cast<const ProductOperands<type>*>(operands.of(lane)); };
  double products[4] = {};
  for (int n = 0; n < 4; ++n) {  // of the lanes that have a row, and of those that have a column
    const auto *row = of(lane_index() / 4 * 4 + n), *column = of(lane_index() % 4 * 8 + n),
               *next = of(lane_index() % 4 * 8 + 4 + n);
    for (int k = 0; k < 2; ++k)
      for (int e = 0; e < 2; ++e)
        for (int half = 0; half < 2; ++half) {
          products[2 * half] += row->a[half + 2 * k][e] * column->b[k][e];
          products[2 * half + 1] += row->a[half + 2 * k][e] * next->b[k][e];
        }
  }
  for (int n = 0; n < 4; ++n) sums[n] = static_cast<float>(static_cast<double>(sums[n]) + products[n]);
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
