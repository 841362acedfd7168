// SPDX-License-Identifier: Apache-2.0
// Products of Hopper's backward passes. They run on after these functions return: wait_for_products() comes
// before their sums are read, and before a loop begins anew, or ptxas lets each one wait for the one before
// (C7514).
#pragma once
#include <cstdint>

#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// 64 columns of a warpgroup's weights, or of gradients of scores, in 16 bits: the first operand of a product.
using BackwardWeights = std::uint32_t[16];

// An operand at this address. Not held in registers from one step to the next: there are none for it.
HEED_DEVICE Operand operand_anew(SharedAddress at, int next = 16) {
  Operand x = operand(at, next);
  asm volatile("" : "+r"(x));
  return x;
}

// A constant of the launch, in a register: ptxas lets products wait where constants are read between them
// (C7511).
HEED_DEVICE float in_register(float x) {
  asm volatile("" : "+f"(x));
  return x;
}

// Rows in shared memory, in pieces of 64 dimensions that lie so many bytes apart.
struct RowsAt {
  SharedAddress at;
  int piece_bytes;
};

// s = a b^T: 64 rows of a times as many rows of b as s has columns.
template <Type type, int dim, int sums>
HEED_DEVICE void multiply_rows(float (&s)[sums], const RowsAt& of_a, const RowsAt& of_b) {
  const Operand a = operand_anew(of_a.at), b = operand_anew(of_b.at);
  pin(s);
  fence_products();
#pragma unroll
  for (int k = 0; k < dim / 16; ++k)
    multiply<type, 0>(s, advanced(a, k / 4 * of_a.piece_bytes + k % 4 * 32),
                      advanced(b, k / 4 * of_b.piece_bytes + k % 4 * 32), k != 0);
  commit_products();
  pin(s);
}

// sums += w b, over 64 rows of b.
template <Type type, int count>
HEED_DEVICE void add_rows(float (&sums)[count], BackwardWeights& w, const RowsAt& of_b) {
  const Operand b = operand_anew(of_b.at, of_b.piece_bytes);
  pin(w), pin(sums);
  fence_products();
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply<type, 1>(sums, w + 4 * k, advanced(b, k * 2048));
  commit_products();
  pin(sums), pin(w);
}

}  // namespace heed::cuda
