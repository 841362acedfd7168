// SPDX-License-Identifier: Apache-2.0
// What options do to the scores of Hopper's backward pass: ALiBi, a bias and masks before the weights,
// dropout after them. Each in kernels of its own. Scores are keys by queries: a thread has two keys, eight
// apart, and two of every eight queries of a step.
#pragma once
#include <cstdint>

#include "cuda/backward/hopper/shared.cuh"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda {

// The two keys of a thread, eight apart, in the tile at hand.
struct BackwardKeys {
  const int group = warpgroup_index() - 1;
  int lane = thread_index() % 32;
  KeyTile* tile = nullptr;  // in shared memory, until it is released

  // Of the tile.
  HEED_DEVICE int key(int r) const { return thread_index() / 32 % 4 * 16 + lane / 4 + group * 64 + 8 * r; }

  // Where 8 x 8 matrices of this warp's 16 keys begin, in a tile of 64 queries by keys in the swizzle of
  // operands: two of keys, of two times 8 queries. A lane has a row of one of the four.
  HEED_DEVICE SharedAddress in_queries(SharedAddress tile) const {
    const int row = lane / 16 * 8 + lane % 8, piece = thread_index() / 32 % 4 * 2 + lane / 8 % 2;
    return tile + group * 64 * 128 + row * 128 + (piece ^ row % 8) * 16;
  }

  // Once for the warpgroup.
  HEED_DEVICE static void release(SharedAddress barrier) {
    if (thread_index() % 128 == 0) barrier_arrive(barrier);
  }
  // Every thread, for what it has read or written itself: the word of one for its warp racecheck takes for
  // none. In two instructions, as prefill does it: one of all lanes moves registers of the loop, and ptxas
  // lets products wait (C7511).
  HEED_DEVICE void release_own(SharedAddress barrier) const {
    sync_warp();
    if (lane == 0) barrier_arrive(barrier);
    if (lane != 0) barrier_arrive(barrier);
  }
  HEED_DEVICE void sync_both() const { named_sync(1, 256); }
};

// All for 64 queries of one head, of which the first is query i.
template <class Shape>
struct BackwardOptions {
  static constexpr int rows = 64;
  using Scores = float[rows / 2];

  const Call& c;
  const BackwardKeys& keys;
  int head, i;

  // A bit for each query in two words of the key.
  HEED_DEVICE void hide(Scores& s, SharedAddress mask) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float2 both = load_shared8(mask + keys.key(r) * static_cast<int>(sizeof(KeyBits)));
      hide(s, r, {__float_as_uint(both.x), __float_as_uint(both.y)});
    }
  }
  HEED_DEVICE void hide(Scores& s, int r, const KeyBits& bits) const {
#pragma unroll
    for (int n = 0; n < rows / 8; ++n) {
      // fault: hopper-gradient-of-a-transposed-mask
      const std::uint32_t word = bits.word[n / 4] >> 2 * (keys.lane % 4);
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (!(word >> (8 * (n % 4) + e) & 1)) s[4 * n + 2 * r + e] = minus_infinity;
    }
  }

  // ALiBi with slopes that are not negative: a score loses |slope * distance|, in the unit of products.
  HEED_DEVICE void add_slopes(Scores& s) const {
    const KeyTile& tile = *keys.tile;
    const Sequence& sequence = c.sequence(tile.b);
    const float slope =
        c.alibi.of_heads[tile.b * c.alibi.step + head] * (log2_e * fast_reciprocal(c.scale_log2e));
    const auto shift = static_cast<int>(c.alibi.queries_are_last ? sequence.keys - sequence.queries : 0);
    // fault: hopper-gradient-of-shifted-slopes
    const int first = i + shift + 2 * (keys.lane % 4) - tile.first_key();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float from = slope * static_cast<float>(first - keys.key(r));
#pragma unroll
      for (int n = 0; n < rows / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          s[4 * n + 2 * r + e] -= fabsf(fmaf(slope, static_cast<float>(8 * n + e), from));
    }
  }

  // A bias of 16 bits, queries by keys, in the swizzle of operands: 64 keys to a warpgroup. Scores are of
  // base 2 afterwards.
  HEED_DEVICE void add_bias(Scores& s, SharedAddress bias) const {
    if (c.bias.type == Type::bf16)
      add_bias_of<Type::bf16>(s, bias);
    else
      add_bias_of<Type::f16>(s, bias);
  }

  // Which weights remain after dropout, by the draws of drops() in tile/row.cuh: a bit for each score, in
  // their order. Four neighbouring keys share a draw, which are four lanes': each of them draws for a fourth
  // of the queries, in two parts, so that they hide behind more products. Bit 16 part + 4 key + 2 r + e is of
  // queries 8 (4 part + member) + e.
  HEED_DEVICE std::uint32_t drawn(int part) const {
    std::uint32_t own = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int query = 8 * (4 * part + member()) + e;
      if constexpr (by_carry) {
        own |= drawn_by_carry(query) << (16 * part + e);
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) own |= compared(words(r, query)) << (16 * part + 2 * r + e);
      }
      asm volatile("" : "+r"(own));  // two draws at a time: else products wait (C7511)
    }
    return own;
  }
  HEED_DEVICE std::uint32_t remaining(std::uint32_t own) const {
    std::uint32_t remain = 0;
#pragma unroll
    for (int bits = 0; bits < 4; ++bits) {
      const std::uint32_t of_lane = bits == 0 ? own : shuffle_xor(own, 4 * bits);
      // fault: hopper-gradient-of-another-draw
      remain |= (of_lane >> 4 * member() & 0x000F000Fu) << 4 * (member() ^ bits);
    }
    return remain;
  }

 private:
  // Which of the four keys that share a draw.
  HEED_DEVICE int member() const { return keys.lane / 4 % 4; }

  template <Type type>
  HEED_DEVICE void add_bias_of(Scores& s, SharedAddress bias) const {
    const SharedAddress from = keys.in_queries(bias);
#pragma unroll
    for (int n = 0; n < rows / 8; n += 2) {  // [2 m + r]: queries 8 (n + m) of key r
      std::uint32_t pairs[4];
      load_matrices_transposed(pairs, from + n * 8 * 128);
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto bits = static_cast<std::uint16_t>(pairs[k] >> 16 * e);
          // fault: hopper-gradient-of-another-bias
          float& score = s[4 * n + 2 * k + e];
          score = fmaf(type == Type::bf16 ? from_bf16(bits) : from_f16(bits), log2_e, score * c.scale_log2e);
        }
    }
  }

  // For four keys and one query, of this lane's two.
  HEED_DEVICE softmax::Words words(int r, int query) const {
    const KeyTile& tile = *keys.tile;
    return softmax::dropout_words(c.seed, tile.b * static_cast<int>(c.heads) + head,
                                  i + query + 2 * (keys.lane % 4), (tile.first_key() + keys.key(r)) / 4);
  }
  // Bits 4 apart for the numbers that let their weights remain.
  HEED_DEVICE std::uint32_t compared(const softmax::Words& drawn) const {
    const auto below = static_cast<std::uint32_t>(c.drop_below);  // the probability is less than 1
    std::uint32_t remain = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) remain |= static_cast<std::uint32_t>(!(drawn.word[n] < below)) << 4 * n;
    return remain;
  }
  // Of both keys, two bits apart: bits move up, and the lowest is the carry of a number and what lies above
  // the threshold. Comparisons took 1001 us of 32 heads of 4096 x 128 over 8 under a causal mask where this
  // takes 951 (H200, November 2026). With f16 of 64 dimensions ptxas lets products wait for it (C7511).
  static constexpr bool by_carry = Shape::dim == 128 || Shape::type == Type::bf16;
  HEED_DEVICE std::uint32_t drawn_by_carry(int query) const {
    const std::uint32_t above = 0u - static_cast<std::uint32_t>(c.drop_below);  // drop_below is not 0
    const softmax::Words drawn[2] = {words(0, query), words(1, query)};
    std::uint32_t bits = 0;
#pragma unroll
    for (int key = 3; key >= 0; --key)
#pragma unroll
      for (int r = 1; r >= 0; --r) {
        std::uint32_t sum;
        asm("add.cc.u32 %0, %2, %3;\n\tmadc.lo.u32 %1, %1, 4, 0;"
            : "=r"(sum), "+r"(bits)
            : "r"(drawn[r].word[key]), "r"(above));
      }
    return bits;
  }
};

}  // namespace heed::cuda
