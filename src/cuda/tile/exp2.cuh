// SPDX-License-Identifier: Apache-2.0
// 2^x and tanh x by the operations of src/cpu/tile/arithmetic.hpp in the same order, so that a GPU computes
// the same bits (O2). Compiled with -fmad=false: an operator is one rounding.
#pragma once
#include "cuda/tile/block.cuh"

namespace heed::cuda {

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.693147180559945309417f;
constexpr float minus_infinity = -__builtin_inff();
constexpr float max_finite = 3.40282347e+38f;

HEED_DEVICE bool is_finite(float x) { return x * 0.0f == 0.0f; }

// 2^(scale * x) for x <= 0: exactly 1 at 0, exactly 0 where scale * x is -126.5 or less, NaN at NaN.
struct Exponential {
  float scale = 1, min = -127;  // scale * min is -127, to the nearest whole number

  HEED_DEVICE float operator()(float x) const {
    constexpr float magic = 12582912.0f + 127.0f;  // leaves the biased exponent in the low bits of a sum
    x = max_or_nan(min, x);
    const float z = fmaf(x, scale, magic);
    x = fmaf(x, scale, magic - z);
    float p = fmaf(x, 1.326472731e-03f, 9.671512991e-03f);
    p = fmaf(p, x, 5.550733581e-02f);
    p = fmaf(p, x, 2.402224243e-01f);
    p = fmaf(p, x, 6.931470037e-01f);
    p = fmaf(p, x, 1.0f);
    return p * __int_as_float(__float_as_int(z) << 23);
  }
};

HEED_DEVICE float exp2(float x) { return Exponential{}(x); }

// The maximum to subtract: 0 where nothing was seen yet, so that -inf - max stays -inf.
HEED_DEVICE float finite_max(float x) { return x == minus_infinity ? 0.0f : x; }

constexpr float min_far_from_zero = 0.625f;

HEED_DEVICE float tanh_near_zero(float x) {
  const float z = x * x;
  float p = fmaf(-5.704933777e-03f, z, 2.063904144e-02f);
  p = fmaf(p, z, -5.373970047e-02f);
  p = fmaf(p, z, 1.333144158e-01f);
  p = fmaf(p, z, -3.333328068e-01f);
  return fmaf(p * z, x, x);
}

// tanh x and its slope 1 - tanh^2 x.
struct Tanh {
  float value, slope;
};
HEED_DEVICE Tanh tanh_with_slope(float x) {
  const float size = fabsf(x), near = tanh_near_zero(x);
  const float e = Exponential{2 * log2_e, -127.0f / (2 * log2_e)}(-size);
  const float rest = (e + e) / (1.0f + e);
  if (size < min_far_from_zero) return {near, fmaf(-near, near, 1.0f)};
  return {copysignf(1.0f - rest, x), rest * (2.0f - rest)};
}

HEED_DEVICE float tanh(float x) { return tanh_with_slope(x).value; }

// For the scores of matrix units, which are no more exact: in their unrolled loops tanh() takes too many
// registers, and ptxas lets wgmma wait (C7511).
HEED_DEVICE float tanh_of_few_registers(float x) {
  const float size = fabsf(x), near = tanh_near_zero(x);
  const float e = exp2(size * (-2 * log2_e));
  return size < min_far_from_zero ? near : copysignf((1.0f - e) / (1.0f + e), x);
}

}  // namespace heed::cuda
