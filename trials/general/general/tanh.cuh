// SPDX-License-Identifier: Apache-2.0
// tanh to within a few units of the last place, a quotient of two polynomials: one instruction of the special
// unit, which exponentials keep busy.
#pragma once
#include "cuda/tile/block.cuh"

namespace heed::cuda::general {

HEED_DEVICE float fast_tanh(float x) {
  constexpr float most = 7.99881172180175781f;  // from here on it is 1
  const float y = fminf(fmaxf(x, -most), most), z = y * y;
  float p = fmaf(z, -2.76076847742355e-16f, 2.00018790482477e-13f);
  p = fmaf(p, z, -8.60467152213735e-11f);
  p = fmaf(p, z, 5.12229709037114e-08f);
  p = fmaf(p, z, 1.48572235717979e-05f);
  p = fmaf(p, z, 6.37261928875436e-04f);
  p = fmaf(p, z, 4.89352455891786e-03f);
  float q = fmaf(z, 1.19825839466702e-06f, 1.18534705686654e-04f);
  q = fmaf(q, z, 2.26843463243900e-03f);
  q = fmaf(q, z, 4.89352518554385e-03f);
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(q));
  return x != x ? x : y * p * reciprocal;
}

}  // namespace heed::cuda::general
