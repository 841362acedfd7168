// SPDX-License-Identifier: Apache-2.0
// The arithmetic under everything: products of tiles, 2^x and tanh x, each a fixed sequence of single
// operations, so that every instruction set computes the same bits (O2).
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "softmax/state.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// The micro-kernel: a panel of rows (queries, or rows of x) times a tile of columns (keys, value dimensions,
// or outputs of a projection). Rows lie on the lanes and the summed index runs one step at a time, so each
// result is one FMA chain whatever the vector width.

template <Vector S>
struct Tile {
  static constexpr int rows = S::lanes * S::panel_vectors;
  static constexpr int columns = S::tile_columns;
};

// What a product does with c: takes its place, goes on from it, or starts from 0 and is added to it.
enum class Start : std::uint8_t { zero, sum, apart };

// c(columns, rows) = [c +] sum over k of a(k, rows) * b(k, columns), one chain from 0; depth is even.
// `vectors` may be fewer than a panel has, from a and c on. An instruction set whose compiler spills these
// accumulators specialises it. The last loop is to be unrolled before g++ looks for arrays that registers can
// hold, or it writes all sums to the stack in front of the products and behind them: AVX-512, before it had
// assembly, then had 95 % of the peak over 64 terms instead of 99 (Xeon, November 2026).
template <Vector S, Start start, int vectors = S::panel_vectors>
  requires(start != Start::sum)
inline void tile_product(const float* a, const float* b, std::int64_t depth, float* c) {
  constexpr int columns = S::tile_columns;
  typename S::F sum[columns][vectors];
  for (auto& column : sum)
    for (auto& s : column) s = S::fill(0.0f);
  for (std::int64_t k = 0; k < depth; ++k, a += Tile<S>::rows, b += columns) {  // fault: tail-of-the-tile
    typename S::F x[vectors];
    for (int v = 0; v < vectors; ++v) x[v] = S::load(a + v * S::lanes);
    for (int n = 0; n < columns; ++n) {
      const auto y = S::fill(b[n]);
      for (int v = 0; v < vectors; ++v) sum[n][v] = S::fma(x[v], y, sum[n][v]);
    }
  }
#pragma GCC unroll 16
  for (int n = 0; n < columns; ++n)
    for (int v = 0; v < vectors; ++v) {
      float* const to = c + n * Tile<S>::rows + v * S::lanes;
      S::store(to, start == Start::apart ? S::add(S::load(to), sum[n][v]) : sum[n][v]);
    }
}

// The same in chains of `chain_terms`.
template <Vector S, Start start = Start::zero, int vectors = S::panel_vectors>
inline void chained_product(const float* a, const float* b, std::int64_t depth, float* c) {
  if (depth <= chain_terms) return tile_product<S, start, vectors>(a, b, depth, c);
  tile_product<S, start, vectors>(a, b, chain_terms, c);
  while (depth -= chain_terms, depth > 0) {
    a += chain_terms * Tile<S>::rows, b += chain_terms * Tile<S>::columns;
    tile_product<S, Start::apart, vectors>(a, b, depth < chain_terms ? depth : chain_terms, c);
  }
}

// Calls run<count>(), for counts from 1 to `limit`.
template <int limit, class Run>
inline void with_vectors(int count, const Run& run) {
  if constexpr (limit > 1)
    if (count < limit) return with_vectors<limit - 1>(count, run);
  run.template operator()<limit>();
}

// c(columns, rows) += sum over k of a(k, rows) * b(k, columns), one chain from 0 that is as long as each
// vector's reach. An instruction set may specialise it.
template <Vector S>
inline void stepped_product(const float* a, const float* b, const std::int64_t (&depth)[S::panel_vectors],
                            float* c) {
  constexpr int vectors = S::panel_vectors, columns = S::tile_columns;
  typename S::F sum[columns][vectors];
  for (auto& column : sum)
    for (auto& s : column) s = S::fill(0.0f);
  for (std::int64_t k = 0; k < depth[vectors - 1]; ++k, a += Tile<S>::rows, b += columns)
    for (int n = 0; n < columns; ++n)
      for (int v = 0; v < vectors; ++v)
        if (k < depth[v]) sum[n][v] = S::fma(S::load(a + v * S::lanes), S::fill(b[n]), sum[n][v]);
  for (int n = 0; n < columns; ++n)
    for (int v = 0; v < vectors; ++v) {
      float* const to = c + n * Tile<S>::rows + v * S::lanes;
      S::store(to, S::add(S::load(to), sum[n][v]));
    }
}

// Some rows of a panel, an even number, with a line of dimensions on the lanes, (rows, line), and what
// multiplies them: (columns, rows of a panel).
struct LinePanel {
  const float *lines, *pairs;
  std::int64_t rows;
};

// sums(columns, line) += sum over these rows of all panels, one chain from 0; lines of sums lie `stride`
// apart.
template <Vector S, int vectors, int columns>
inline void line_product(const LinePanel* panel, std::int64_t panels, float* sums, std::int64_t stride) {
  typename S::F sum[columns][vectors];
  for (auto& column : sum)
    for (auto& s : column) s = S::fill(0.0f);
  for (const LinePanel* const end = panel + panels; panel < end; ++panel) {
    const float *a = panel->lines, *b = panel->pairs;
    for (std::int64_t r = 0; r < panel->rows; ++r, a += vectors * S::lanes, ++b) {
      typename S::F x[vectors];
      for (int v = 0; v < vectors; ++v) x[v] = S::load(a + v * S::lanes);
      for (int k = 0; k < columns; ++k) {
        const auto y = S::fill(b[k * Tile<S>::rows]);
        for (int v = 0; v < vectors; ++v) sum[k][v] = S::fma(x[v], y, sum[k][v]);
      }
    }
  }
#pragma GCC unroll 16  // as above
  for (int k = 0; k < columns; ++k)
    for (int v = 0; v < vectors; ++v) {
      float* const to = sums + k * stride + v * S::lanes;
      S::store(to, S::add(S::load(to), sum[k][v]));
    }
}

// Exponentials.

constexpr auto log2_e = static_cast<float>(softmax::log2_e), ln_2 = static_cast<float>(softmax::ln_2);
constexpr float minus_infinity = -__builtin_inff();

// Adding it leaves round(x) + 127 in the low bits of the sum: the biased exponent of 2^round(x).
constexpr float exponent_magic = 12582912.0f + 127.0f;

// A constant four times over, as S::addend() loads it.
struct alignas(16) Filled {
  float four[4];
  explicit constexpr Filled(float x) : four{x, x, x, x} {}
};

// Lowest power first.
constexpr Filled exp2_terms[] = {Filled(1.0f),
                                 Filled(6.931470037e-01f),
                                 Filled(2.402224243e-01f),
                                 Filled(5.550733581e-02f),
                                 Filled(9.671512991e-03f),
                                 Filled(1.326472731e-03f)};

// The x nearest to 0 for which scale * x becomes -127, however the caller rounds.
inline float min_exponent(float scale) {
  float x = -127.0f / scale;
  const float rounded = __builtin_fmaf(x, scale, exponent_magic) - exponent_magic;
  const auto bits = __builtin_bit_cast(std::int32_t, x);
  if (rounded > -127.0f) x = __builtin_bit_cast(float, bits + 1);
  if (rounded < -127.0f) x = __builtin_bit_cast(float, bits - 1);
  return x;
}

// 2^(scale * x) for x <= 0 and a positive scale: exactly 1 at 0, exactly 0 where scale * x is -126.5 or less
// (so also at -inf), NaN at NaN. The scale costs nothing: the multiply-adds that part scale * x into a whole
// number and a rest stand where an addition and a subtraction would.
template <Vector S>
struct Exponential;
template <Vector S, int n>
[[gnu::always_inline]] inline void exp2(typename S::F (&x)[n], const Exponential<S>& power);

template <Vector S>
struct Exponential {
  typename S::F scale, lowest;

  explicit Exponential(float times) : scale(S::fill(times)), lowest(S::fill(min_exponent(times))) {}
  typename S::F operator()(typename S::F x) const {
    typename S::F one[1] = {x};
    exp2<S, 1>(one, *this);
    return one[0];
  }
};

// `n` vectors advance in lock-step, because one alone would wait for the result of every operation. The
// polynomial is our minimax of degree 5 on [-1/2, 1/2]; tests/simd measures the error over every float. -127
// is the exponent of no number, and its bits are those of 0: the clamped tail is 0 without a comparison.
// Inline everywhere: where g++ calls it, one token takes 5 % longer.
template <Vector S, int n>
[[gnu::always_inline]] inline void exp2(typename S::F (&x)[n], const Exponential<S>& power) {
  typename S::F z[n], p[n];
  for (int i = 0; i < n; ++i) x[i] = S::max(power.lowest, x[i]);  // fault: exp2-clamp-removed
  for (int i = 0; i < n; ++i) z[i] = S::fma(x[i], power.scale, S::fill(exponent_magic));
  for (int i = 0; i < n; ++i) p[i] = S::sub(S::fill(exponent_magic), z[i]);
  for (int i = 0; i < n; ++i) x[i] = S::fma(x[i], power.scale, p[i]);
  for (int i = 0; i < n; ++i)
    p[i] = S::fma(x[i], S::fill(exp2_terms[5].four[0]), S::addend(exp2_terms[4].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[3].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[2].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[1].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[0].four));
  for (int i = 0; i < n; ++i) x[i] = S::mul(p[i], S::power_of_two(z[i]));
}

// tanh x and its slope 1 - tanh^2 x: our odd minimax polynomial below 0.625; above, 1 - r with r = 2e / (1 +
// e) and e = exp(-2|x|). The nearer to 1, the less r's error counts, while each sum in (1 - e) / (1 + e)
// would have one of its own; and of the slope r (2 - r) nothing cancels.
template <Vector S>
struct Tanh {
  typename S::F value, slope;
};

template <Vector S>
inline Tanh<S> tanh_with_slope(typename S::F x) {
  const auto size = S::abs(x), z = S::mul(x, x), zero = S::fill(0.0f), one = S::fill(1.0f);
  auto p = S::fma(S::fill(-5.704933777e-03f), z, S::fill(2.063904144e-02f));
  p = S::fma(p, z, S::fill(-5.373970047e-02f));
  p = S::fma(p, z, S::fill(1.333144158e-01f));
  p = S::fma(p, z, S::fill(-3.333328068e-01f));
  const auto near = S::fma(S::mul(p, z), x, x);
  const auto e = Exponential<S>(2 * log2_e)(S::sub(zero, size));
  const auto rest = S::div(S::add(e, e), S::add(one, e));
  const auto limit = S::fill(0.625f);
  return {
      S::less(size, limit, near, S::copy_sign(S::sub(one, rest), x)),
      S::less(size, limit, S::fma(S::sub(zero, near), near, one), S::mul(rest, S::sub(S::fill(2.0f), rest)))};
}

template <Vector S>
inline typename S::F tanh(typename S::F x) {
  return tanh_with_slope<S>(x).value;
}

}  // namespace heed::cpu::HEED_THIS_TARGET
