// SPDX-License-Identifier: Apache-2.0
// What options do to prefill's scores: ALiBi, a bias and masks before the softmax, dropout after it. Each in
// kernels of its own; a tile of scores is in the registers of a warpgroup (tile/hopper.cuh says how).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/launch.hpp"
#include "cuda/prefill/rows.cuh"
#include "cuda/tile/block.cuh"
#include "cuda/tile/row.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda {

// Keys that ranges hide: those before each row's first, and those from its end on.
template <class Shape, int columns>
HEED_DEVICE void hide_before(float (&s)[Shape::keys / 2], const PrefillRows& rows, int j) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int from = rows.tile->begin_of(rows.row(r)) - j * Shape::keys - 2 * (rows.lane % 4);
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
      if (8 * n < from) s[4 * n + 2 * r] = minus_infinity;
      if (8 * n + 1 < from) s[4 * n + 2 * r + 1] = minus_infinity;
    }
  }
}
template <class Shape, int columns>
HEED_DEVICE void hide_after(float (&s)[Shape::keys / 2], const PrefillRows& rows, int j) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int to = rows.tile->end_of(rows.row(r)) - j * Shape::keys - 2 * (rows.lane % 4);
#pragma unroll
    for (int n = 0; n < columns / 8; ++n) {
      if (8 * n >= to) s[4 * n + 2 * r] = minus_infinity;
      if (8 * n + 1 >= to) s[4 * n + 2 * r + 1] = minus_infinity;
    }
  }
}

// Boolean masks and documents, of which a thread has 32 keys in a word. Those of a tile are on their way
// while its products are computed.
template <class Shape>
struct PrefillMask {
  static constexpr int keys = Shape::keys, words = keys / 32;
  std::uint32_t bits[2][words];

  HEED_DEVICE void fetch(const PackedMask& mask, const PrefillRows& rows, int j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t* const from = mask.row(rows.tile->b, rows.tile->h, rows.written_row(r)) + j * words;
#pragma unroll
      for (int w = 0; w < words; ++w) bits[r][w] = from[w];
    }
  }

  HEED_DEVICE void hide(float (&s)[keys / 2], const PrefillRows& rows) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int w = 0; w < words; ++w) {
        const std::uint32_t word = bits[r][w] >> 2 * (rows.lane % 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if (!(word >> 8 * n & 1)) s[4 * (4 * w + n) + 2 * r] = minus_infinity;
          if (!(word >> (8 * n + 1) & 1)) s[4 * (4 * w + n) + 2 * r + 1] = minus_infinity;
        }
      }
  }
};

// A softcap. tanh x is 2 / (1 + e^(-2 x)) - 1. Where rows have a maximum a score becomes that quotient: twice
// the cap is in the softmax's scale, which does not see the 1. Where they have none (PrefillShape::bounded)
// it becomes what the cap makes of it, in base 2. The quotient is right to 2^-22: of the score, to 2^-21 of
// the cap.
//
// Four scores of a row share a reciprocal, since products are cheaper: 32/8 heads of 4096 x 64 under a causal
// mask took 233 us instead of 270, of 128 dimensions 312 instead of 327 (H200, November 2026). With a
// polynomial for every fourth exponential it was 258 and 332. Hidden scores are -inf before, so that what
// they were does not show in their neighbours. From 2^30 on the quotient is 0 to within its error: a product
// of four stays finite.
template <class Shape>
struct PrefillSoftcap {
  static constexpr int keys = Shape::keys;
  float times;  // of a score: -2 x in base 2
  float cap;    // in base 2

  HEED_DEVICE explicit PrefillSoftcap(const Call& c)
      : times(-2 * log2_e * c.scale_log2e / c.softcap_log2e), cap(c.softcap_log2e) {}

  template <int columns>
  HEED_DEVICE void apply(float (&s)[keys / 2]) const {
#pragma unroll
    for (int n = 0; n < columns / 8; n += 2)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        invert(s[4 * n + 2 * r], s[4 * n + 2 * r + 1], s[4 * n + 2 * r + 4], s[4 * n + 2 * r + 5]);
  }

 private:
  HEED_DEVICE void invert(float& a, float& b, float& c, float& d) const {
    const float x = divisor(a), y = divisor(b), z = divisor(c), w = divisor(d);
    const float xy = x * y, zw = z * w, reciprocal = fast_reciprocal(xy * zw),
                all = Shape::bounded ? reciprocal * (2 * cap) : reciprocal, of_xy = all * zw,
                of_zw = all * xy;
    if constexpr (Shape::bounded)
      a = fmaf(of_xy, y, -cap), b = fmaf(of_xy, x, -cap), c = fmaf(of_zw, w, -cap), d = fmaf(of_zw, z, -cap);
    else
      a = of_xy * y, b = of_xy * x, c = of_zw * w, d = of_zw * z;
  }
  // 1 + e^(-2 x); NaN stays NaN.
  HEED_DEVICE float divisor(float s) const { return 1.0f + fast_exp2(min_or_nan(s * times, 30.0f)); }
};

// ALiBi with slopes that are not negative: a score loses |slope * distance|, in the unit of products. What
// is beyond f32 is -inf: a row that saw nothing else is done in double precision.
template <class Shape>
struct PrefillSlopes {
  static constexpr int keys = Shape::keys;
  const Call& c;
  const PrefillRows& rows;

  HEED_DEVICE void apply(float (&s)[keys / 2], int j) const {
    const RowTile& tile = *rows.tile;
    const Sequence& sequence = c.sequence(tile.b);
    const float slope = c.alibi.of_heads[tile.b * c.alibi.step + tile.h] * log2_e / c.scale_log2e;
    const auto shift = static_cast<int>(c.alibi.queries_are_last ? sequence.keys - sequence.queries : 0);
    const int first = j * keys + 2 * (rows.lane % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float from = slope * static_cast<float>(rows.row(r) + shift - first);
#pragma unroll
      for (int n = 0; n < keys / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          s[4 * n + 2 * r + e] -= fabsf(fmaf(-slope, static_cast<float>(8 * n + e), from));
    }
  }
};

// A bias of 16 bits, whose tile lies in shared memory as operands do. Scores are of base 2 afterwards, and
// finite or NaN where a key is seen.
template <class Shape>
struct PrefillBias {
  static constexpr int keys = Shape::keys, blocks = keys / 8;  // of eight columns
  const Call& c;
  const PrefillRows& rows;
  SharedAddress tile;

  // Whether one of the warp's is so low that base 2 does not hold its sum with a score. For numbers of bf16,
  // of which the lower one of two that are negative is the larger as an integer.
  HEED_DEVICE bool is_low() const {
    if (c.bias.type != Type::bf16) return false;
    std::uint32_t lowest = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < blocks; ++n) lowest = __vmaxu2(lowest, pair(r, n));
    constexpr std::uint32_t low = 0xFB80u;  // -2^120
    return warp_any((lowest & 0xFFFFu) >= low || lowest >> 16 >= low);
  }

  HEED_DEVICE void apply(float (&s)[keys / 2], bool is_low) const {
    if (c.bias.type == Type::f16)
      add<Type::f16>(s, [](float score, float bias) { return biased(score, bias); });
    else if (!is_low)
      add<Type::bf16>(s, [](float score, float bias) { return biased(score, bias); });
    else
      add<Type::bf16>(s, [](float score, float bias) { return lowest(score, bias); });
  }

 private:
  // Columns 8 n and 8 n + 1 of this thread's row r.
  HEED_DEVICE std::uint32_t pair(int r, int n) const {
    const SharedAddress row = tile + (rows.group * 64 + rows.row_in_group + 8 * r) * 128 + rows.lane % 4 * 4;
    return load_shared4(row + n / 8 * Shape::rows * 128 + (n % 8 ^ rows.lane / 4) * 16);
  }

  template <Type type, class Sum>
  HEED_DEVICE void add(float (&s)[keys / 2], const Sum& sum) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int n = 0; n < blocks; ++n) {
        const std::uint32_t both = pair(r, n);
        float low, high;
        if constexpr (type == Type::bf16) {
          low = __uint_as_float(both << 16), high = __uint_as_float(both & 0xFFFF0000u);
        } else {
          low = from_f16(static_cast<std::uint16_t>(both));
          high = from_f16(static_cast<std::uint16_t>(both >> 16));
        }
        float &a = s[4 * n + 2 * r], &z = s[4 * n + 2 * r + 1];
        a = sum(a * c.scale_log2e, low), z = sum(z * c.scale_log2e, high);
      }
  }
  // NaN where the product is beyond f32.
  HEED_DEVICE static float biased(float score, float bias) {
    return fmaf(score, 0.0f, fmaf(bias, log2_e, score));
  }
  // As with_bias in tile/row.cuh.
  HEED_DEVICE static float lowest(float score, float bias) {
    const float fits = fabsf(score) > 0x1p73f ? __builtin_nanf("") : score;
    return bias < -max_finite ? minus_infinity : max_or_nan(-max_finite, fmaf(bias, log2_e, fits));
  }
};

// Scales of an int8 cache: a key's is a factor of its scores, a value's of its weights. All are finite, those
// behind the last key too.
template <class Shape>
struct PrefillScales {
  static constexpr int keys = Shape::keys;
  SharedAddress own;  // of this thread's first two keys

  HEED_DEVICE PrefillScales(SharedAddress tile, int lane) : own(tile + lane % 4 * 8) {
    asm volatile("" : "+r"(own));  // else each address is put together by an instruction
  }

  HEED_DEVICE void scale_scores(float (&s)[keys / 2]) const { scale<0, keys>(s, 0); }
  // Those of keys [first, end).
  template <int first, int end>
  HEED_DEVICE void scale_weights(float (&s)[keys / 2]) const {
    scale<first, end>(s, Shape::scale_bytes);
  }

 private:
  template <int first, int end>
  HEED_DEVICE void scale(float (&s)[keys / 2], int from) const {
#pragma unroll
    for (int n = first / 8; n < end / 8; ++n) {
      const float2 by = load_shared_floats(own + from + n * 32);
      s[4 * n] *= by.x, s[4 * n + 1] *= by.y, s[4 * n + 2] *= by.x, s[4 * n + 3] *= by.y;
    }
  }
};

// Dropout: weights that drop become 0, by the draws of drops() in tile/row.cuh. The sum has had them.
template <class Shape>
struct PrefillDropout {
  static constexpr int keys = Shape::keys, blocks = keys / 8;
  const Call& c;
  const PrefillRows& rows;

  HEED_DEVICE void apply(float (&s)[keys / 2], int j) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t remain = remaining(r, j);
#pragma unroll
      for (int n = 0; n < blocks; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (!(remain >> (2 * n + e) & 1)) s[4 * n + 2 * r + e] = 0;
    }
  }

 private:
  // Which weights of row r remain: two bits for each eight columns. Four neighbouring keys share a draw,
  // which are two lanes': of each sixteen columns one of them draws for the first eight, the other for the
  // rest.
  HEED_DEVICE std::uint32_t remaining(int r, int j) const {
    const int odd = rows.lane % 2;
    std::uint32_t own = 0;
#pragma unroll
    for (int n = 0; n < blocks; n += 2) own |= draw(r, j * keys + 8 * (n + odd)) << 2 * n;
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1);
    const std::uint32_t even_blocks = (odd ? other : own) >> 2 * odd,
                        odd_blocks = (odd ? own : other) >> 2 * odd;
    return (even_blocks & 0x33333333u) | (odd_blocks & 0x33333333u) << 2;
  }

  // Four keys of this lane's half of the eight columns from `first` on: a bit for each that remains.
  HEED_DEVICE std::uint32_t draw(int r, int first) const {
    const int head = rows.tile->b * static_cast<int>(c.heads) + rows.tile->h;
    const softmax::Words drawn =
        softmax::dropout_words(c.seed, head, rows.row(r), first / 4 + rows.lane % 4 / 2);
    const auto below = static_cast<std::uint32_t>(c.drop_below);  // the probability is less than 1
    std::uint32_t remain = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) remain |= static_cast<std::uint32_t>(!(drawn.word[e] < below)) << e;
    return remain;
  }
};

}  // namespace heed::cuda
