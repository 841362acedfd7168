// SPDX-License-Identifier: Apache-2.0
// A vector of doubles, as wide as the target's vectors of floats, and the two things that all of f64 is made
// of: the product of two matrices, and e^x. Every element of a result is a chain of fused multiply-adds of
// its own, so the width of vectors changes no bit.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu/f64/call.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// A type of its own, because g++ forgets the attribute where it depends on a parameter of the class that uses
// it.
template <class T, int lanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(lanes * sizeof(T))));
};

template <Vector S>
struct Doubles {
  static constexpr int lanes = S::lanes > 1 ? S::lanes / 2 : 1;
  static constexpr bool repairs = false;
  // A tile of a product: with 32 registers 24 sums, four vectors and a spread number; with 16 twelve sums.
  static constexpr int tile_vectors = lanes == 4 ? 2 : 4, tile_columns = lanes == 1 ? 2 : 6;

  using F = typename VectorOf<double, lanes>::Type;  // operators are the compiler's
  using Bits = typename VectorOf<std::int64_t, lanes>::Type;

  static F load(const double* p) {
    F x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(double* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
  static F fill(double x) { return x - F{}; }
  static F fma(F a, F b, F c) {
#if defined(__AVX512F__)
    if constexpr (lanes == 8) return _mm512_fmadd_pd(a, b, c);
#endif
#if defined(__FMA__)
    if constexpr (lanes == 4) return _mm256_fmadd_pd(a, b, c);
#endif
#if defined(__aarch64__)
    if constexpr (lanes == 2) return vfmaq_f64(c, a, b);
#endif
    F sum{};
    for (int n = 0; n < lanes; ++n) sum[n] = __builtin_fma(a[n], b[n], c[n]);
    return sum;
  }
  static F add_product(F a, F b, F sum) { return fma(a, b, sum); }
};

// For repair (cpu/f64/repair.hpp): each product is rounded before it is added, as plain loops have it.
template <Vector S>
struct RoundedProducts : Doubles<S> {
  using F = typename Doubles<S>::F;
  static constexpr bool repairs = true;
  static F add_product(F a, F b, F sum) { return a * b + sum; }
};

enum class Sums : std::uint8_t { begin, go_on };  // at 0, or at what is in c

template <class D, int vectors, int columns>
inline void f64_tile(const F64Product& p, std::int64_t n, std::int64_t w, Sums sums) {
  typename D::F sum[columns][vectors];
  double* const c = p.c + n * p.c_width + w;
#pragma GCC unroll 6
  for (int i = 0; i < columns; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v)
      sum[i][v] = sums == Sums::begin ? typename D::F{} : D::load(c + i * p.c_width + v * D::lanes);
  const double* a = p.a + w;
  const double* b = p.b.data + n * p.b.column;
  for (std::int64_t m = 0; m < p.terms; ++m, a += p.width, b += p.b.term) {
    typename D::F x[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) x[v] = D::load(a + v * D::lanes);
#pragma GCC unroll 6
    for (int i = 0; i < columns; ++i) {
      const auto y = D::fill(b[i * p.b.column]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[i][v] = D::add_product(x[v], y, sum[i][v]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < columns; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) D::store(c + i * p.c_width + v * D::lanes, sum[i][v]);
}

template <class D, int vectors>
inline void f64_stripe(const F64Product& p, std::int64_t w, Sums sums) {
  std::int64_t n = 0;
  for (; n + D::tile_columns <= p.columns; n += D::tile_columns)
    f64_tile<D, vectors, D::tile_columns>(p, n, w, sums);
  for (; n < p.columns; ++n) f64_tile<D, vectors, 1>(p, n, w, sums);
}

// The width is of whole vectors.
template <class D>
inline void multiply(const F64Product& p, Sums sums) {
  std::int64_t w = 0;
  for (; w + D::tile_vectors * D::lanes <= p.width; w += D::tile_vectors * D::lanes)
    f64_stripe<D, D::tile_vectors>(p, w, sums);
  for (; w < p.width; w += D::lanes) f64_stripe<D, 1>(p, w, sums);
}

// e^x: exactly 1 at 0, 0 below the exponent of the smallest normal number (so also at -inf), NaN at NaN. x is
// n * ln 2 and a rest r of at most half of that; e^r by Taylor's sum, whose next term is 4e-18. Nothing is
// promised above 709.
template <class D>
inline typename D::F exponential(typename D::F x) {
  using F = typename D::F;
  constexpr double lowest = -708.0, highest = 709.0, per_ln2 = 0x1.71547652b82fep+0;
  constexpr double ln2_high = 0x1.62e42fefa39efp-1, ln2_low = 0x1.abc9e3b39803fp-56;
  constexpr double magic = 0x1.8p52;  // added, it leaves the nearest whole number in the low bits
  constexpr double terms[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       1.0 / 2,      1.0,         1.0};
  const F clamped = x < lowest ? D::fill(lowest) : (x > highest ? D::fill(highest) : x);
  const F z = D::fma(clamped, D::fill(per_ln2), D::fill(magic)), n = z - magic;
  const F r = D::fma(n, D::fill(-ln2_low), D::fma(n, D::fill(-ln2_high), clamped));
  F sum = D::fill(terms[0]);
#pragma GCC unroll 14
  for (int i = 1; i < 14; ++i) sum = D::fma(sum, r, D::fill(terms[i]));
  const auto power = (reinterpret_cast<typename D::Bits>(z) + 1023) << 52;
  return x < lowest ? F{} : sum * reinterpret_cast<F>(power);
}

}  // namespace heed::cpu::HEED_THIS_TARGET
