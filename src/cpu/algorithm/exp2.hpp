// SPDX-License-Identifier: Apache-2.0
// 2^x and tanh x as fixed sequences of single operations, so that every instruction set computes the same
// bits (O2).
#pragma once
#include "cpu/simd/vector.hpp"
#include "softmax/state.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr auto log2_e = static_cast<float>(softmax::log2_e), ln_2 = static_cast<float>(softmax::ln_2);
constexpr float minus_infinity = -__builtin_inff();

// Adding it leaves round(x) + 127 in the low bits of the sum: the biased exponent of 2^round(x).
constexpr float exponent_magic = 12582912.0f + 127.0f;

// A constant four times over, as S::addend() loads it.
struct alignas(16) Filled {
  float four[4];
  explicit constexpr Filled(float x) : four{x, x, x, x} {}
};

// Lowest power first, and what the clamped tail is moved down by.
constexpr Filled exp2_terms[] = {Filled(1.0f),
                                 Filled(6.931470037e-01f),
                                 Filled(2.402224243e-01f),
                                 Filled(5.550733581e-02f),
                                 Filled(9.671512991e-03f),
                                 Filled(1.326472731e-03f)};
constexpr Filled exp2_tail(-0x1p-126f);

// 2^x for x <= 0: exactly 1 at 0, exactly 0 at and below -126 (so also at -inf), NaN at NaN. The polynomial
// is our minimax of degree 5 on [-1/2, 1/2]; tests/simd measures the error over every float. The last
// subtraction, which changes nothing above 2^-101, makes the clamped tail zero without a comparison. `n`
// vectors advance in lock-step, because one alone would wait for the result of every operation.
template <Vector S, int n>
inline void exp2(typename S::F (&x)[n]) {
  typename S::F z[n], p[n];
  for (int i = 0; i < n; ++i) x[i] = S::max(S::fill(-126.0f), x[i]);
  for (int i = 0; i < n; ++i) z[i] = S::add(x[i], S::fill(exponent_magic));
  for (int i = 0; i < n; ++i) p[i] = S::sub(z[i], S::fill(exponent_magic));
  for (int i = 0; i < n; ++i) x[i] = S::sub(x[i], p[i]);
  for (int i = 0; i < n; ++i)
    p[i] = S::fma(x[i], S::fill(exp2_terms[5].four[0]), S::addend(exp2_terms[4].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[3].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[2].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[1].four));
  for (int i = 0; i < n; ++i) p[i] = S::fma(p[i], x[i], S::addend(exp2_terms[0].four));
  for (int i = 0; i < n; ++i) x[i] = S::fma(p[i], S::power_of_two(z[i]), S::addend(exp2_tail.four));
}

template <Vector S>
inline typename S::F exp2(typename S::F x) {
  typename S::F one[1] = {x};
  exp2<S, 1>(one);
  return one[0];
}

// tanh x: our odd minimax polynomial below 0.625, (1 - e) / (1 + e) with e = exp(-2|x|) above.
template <Vector S>
inline typename S::F tanh(typename S::F x) {
  const auto size = S::abs(x), z = S::mul(x, x);
  auto p = S::fma(S::fill(-5.704933777e-03f), z, S::fill(2.063904144e-02f));
  p = S::fma(p, z, S::fill(-5.373970047e-02f));
  p = S::fma(p, z, S::fill(1.333144158e-01f));
  p = S::fma(p, z, S::fill(-3.333328068e-01f));
  const auto near = S::fma(S::mul(p, z), x, x);
  const auto e = exp2<S>(S::mul(size, S::fill(-2 * log2_e)));
  const auto far = S::div(S::sub(S::fill(1.0f), e), S::add(S::fill(1.0f), e));
  return S::less(size, S::fill(0.625f), near, S::copy_sign(far, x));
}

}  // namespace heed::cpu::HEED_THIS_TARGET
