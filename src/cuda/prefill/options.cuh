// SPDX-License-Identifier: Apache-2.0
// What options do to prefill's scores: softcap, ALiBi, bias and masks before the softmax, dropout after it.
// In their own kernels; a tile of scores is in the registers of a warpgroup (tile/wgmma.cuh says how).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/launch.hpp"
#include "cuda/prefill/rows.cuh"
#include "cuda/tile/visible.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda {

// Whether scores leave PrefillOptions in base 2, and finite or NaN where a key is seen. Otherwise the softmax
// multiplies products, as it does without options.
HEED_DEVICE bool scales_scores(const Call& c) { return c.cap != 0 || c.alibi.of_heads || c.bias.data; }

template <class Shape>
struct PrefillOptions {
  static constexpr int keys = Shape::keys, blocks = keys / 8;  // of eight columns
  using Scores = float[keys / 2];

  const Call& c;
  const PrefillPlan& plan;
  const PrefillRows& rows;
  int j;  // tile of keys

  bool looks_at_mask;  // masks hide some of its keys

  // Products become scores, -inf where a key is hidden. One that is not finite becomes NaN: an infinity would
  // pass for a key that is not seen.
  HEED_DEVICE void apply(Scores& s) const {
    if (scales_scores(c)) {
#pragma unroll
      for (int i = 0; i < keys / 2; ++i) s[i] = infinity_to_nan(s[i] * c.scale_log2e);
    }
    if (c.cap != 0) cap(s);
    if (c.alibi.of_heads) add_alibi(s);
    if (c.bias.data) c.bias.type == Type::f32 ? add_bias<float2>(s) : add_bias<std::uint32_t>(s);
    if (looks_at_mask) hide(s);
  }

  // Weights that drop become 0. The sum has had them.
  HEED_DEVICE void drop(Scores& s) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t remain = remaining(r);
#pragma unroll
      for (int n = 0; n < blocks; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (!(remain >> (2 * n + e) & 1)) s[4 * n + 2 * r + e] = 0;
    }
  }

 private:
  // Which weights of row r remain under dropout: two bits for each eight columns.
  HEED_DEVICE std::uint32_t remaining(int r) const {
    // Four neighbouring keys share a draw, which are two lanes': of each sixteen columns one of them draws
    // for the first eight, the other for the rest.
    const int lane = rows.lane % 4, odd = lane % 2;
    std::uint32_t own = 0;
#pragma unroll
    for (int n = 0; n < blocks; n += 2) own |= draw(r, n + odd) << 2 * n;
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, own, 1);
    const std::uint32_t even_blocks = (odd ? other : own) >> 2 * odd,
                        odd_blocks = (odd ? own : other) >> 2 * odd;
    return (even_blocks & 0x33333333u) | (odd_blocks & 0x33333333u) << 2;
  }

  HEED_DEVICE int column(int n) const { return j * keys + 8 * n + 2 * (rows.lane % 4); }
  // Rows beyond the tile's last are as that one: what they find is not written.
  HEED_DEVICE int query(int r) const {
    return min_of(rows.row(r), rows.tile->first_query + rows.tile->rows - 1);
  }

  HEED_DEVICE void cap(Scores& s) const {
    const float reciprocal = 1.0f / c.softcap_log2e,
                inverse = reciprocal > max_finite ? max_finite : reciprocal;
#pragma unroll
    for (int i = 0; i < keys / 2; ++i) s[i] = c.softcap_log2e * tanh_of_few_registers(s[i] * inverse);
  }

  // A sum beside which a score no longer counts is the lowest number, or NaN where a bias might bring it back
  // (biased_score in tile/visible.cuh).
  HEED_DEVICE void add_alibi(Scores& s) const {
    const Sequence& sequence = c.sequence(rows.tile->b);
    const float slope = c.alibi.of_heads[rows.tile->b * c.alibi.step + rows.tile->h] * -log2_e,
                lowest = c.bias.data ? __builtin_nanf("") : -max_finite;
    const auto shift = static_cast<int>(c.alibi.queries_are_last ? sequence.keys - sequence.queries : 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto from = static_cast<float>(rows.row(r) + shift - column(0));
#pragma unroll
      for (int n = 0; n < blocks; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * n + 2 * r + e];
          x = fmaf(slope, fabsf(from - static_cast<float>(8 * n + e)), fits(x));
          x = x < -max_finite ? lowest : x;
        }
    }
  }
  HEED_DEVICE static float fits(float x) { return fabsf(x) > 0x1p73f ? __builtin_nanf("") : x; }

  // Pairs of neighbouring numbers: of f32, or of 16 bits in one register. Some of a row are under way at
  // once.
  template <class Pair>
  HEED_DEVICE void add_bias(Scores& s) const {
    constexpr int together = Shape::dim == 256 ? 4 : sizeof(Pair) == 8 ? 8 : 16;
    static_assert(blocks % together == 0 || blocks < together);
    constexpr int count = blocks < together ? blocks : together;
    const int end = rows.tile->key_count;
    const bool is_whole = (j + 1) * keys <= end;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Row of = row_of(c.bias, rows.query(query(r)));
      const auto* const from = static_cast<const unsigned char*>(of.data) + of.first * (sizeof(Pair) / 2);
#pragma unroll
      for (int first = 0; first < blocks; first += count) {
        Pair pairs[count];
#pragma unroll
        for (int n = 0; n < count; ++n) {
          const unsigned char* const at = from + std::int64_t{column(first + n)} * (sizeof(Pair) / 2);
          pairs[n] =
              is_whole ? *reinterpret_cast<const Pair*>(at) : some_of(at, end - column(first + n), Pair{});
        }
#pragma unroll
        for (int n = 0; n < count; ++n) {
          const float2 x = widened(pairs[n]);
          float &a = s[4 * (first + n) + 2 * r], &z = s[4 * (first + n) + 2 * r + 1];
          a = biased(a, x.x), z = biased(z, x.y);
        }
      }
    }
  }
  // As many of a pair as there are keys: what lies behind the last one is hidden.
  HEED_DEVICE static float2 some_of(const unsigned char* from, int count, float2) {
    const auto* const x = reinterpret_cast<const float*>(from);
    return {count > 0 ? x[0] : 0.0f, count > 1 ? x[1] : 0.0f};
  }
  HEED_DEVICE static std::uint32_t some_of(const unsigned char* from, int count, std::uint32_t) {
    const auto* const x = reinterpret_cast<const std::uint16_t*>(from);
    return (count > 0 ? x[0] : 0u) | (count > 1 ? x[1] : 0u) << 16;
  }
  HEED_DEVICE float2 widened(float2 x) const { return x; }
  HEED_DEVICE float2 widened(std::uint32_t two) const {
    const auto low = static_cast<std::uint16_t>(two), high = static_cast<std::uint16_t>(two >> 16);
    if (c.bias.type == Type::bf16) return {from_bf16(low), from_bf16(high)};
    return {from_f16(low), from_f16(high)};
  }
  HEED_DEVICE static float biased(float s, float bias) {
    return bias < -max_finite ? minus_infinity : max_or_nan(-max_finite, fmaf(bias, log2_e, fits(s)));
  }

  HEED_DEVICE void hide(Scores& s) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t* const words =
          plan.mask.row(rows.tile->b, rows.tile->h, query(r)) + j * (keys / 32);
#pragma unroll
      for (int w = 0; w < keys / 32; ++w) {
        const std::uint32_t word = words[w] >> 2 * (rows.lane % 4);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if (!(word >> 8 * n & 1)) s[4 * (4 * w + n) + 2 * r] = minus_infinity;
          if (!(word >> (8 * n + 1) & 1)) s[4 * (4 * w + n) + 2 * r + 1] = minus_infinity;
        }
      }
    }
  }

  // Four keys of this lane's half of eight columns, as drops() in tile/visible.cuh: a bit for each that
  // remains.
  HEED_DEVICE std::uint32_t draw(int r, int n) const {
    const auto [x] = softmax::dropout_words(c.seed, rows.tile->b * static_cast<int>(c.heads) + rows.tile->h,
                                            rows.row(r), (j * keys + 8 * n) / 4 + rows.lane % 4 / 2);
    std::uint32_t remain = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) remain |= static_cast<std::uint32_t>(!(x[e] < c.drop_below)) << e;
    return remain;
  }
};

}  // namespace heed::cuda
