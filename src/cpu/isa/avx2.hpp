// SPDX-License-Identifier: Apache-2.0
// Eight lanes of AVX2, with FMA and F16C.
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/vector.hpp"
#include "cpu/isa/x86.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct Avx2 {
  using F = __m256;
  static constexpr int lanes = 8;
  static constexpr int panel_vectors = 3;  // 24 x 4 uses 12 accumulators of 16 registers
  static constexpr int tile_columns = 4;

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F fill(float x) { return _mm256_set1_ps(x); }
  static F addend(const float* filled) { return fill(*filled); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F abs(F a) { return _mm256_andnot_ps(fill(-0.0f), a); }
  static F less(F a, F b, F then, F otherwise) {
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static F copy_sign(F magnitude, F sign) {
    return _mm256_or_ps(abs(magnitude), _mm256_and_ps(fill(-0.0f), sign));
  }
  static F power_of_two(F z) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(z), 23)); }
  static F load_bf16(const std::uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static F load_i8(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F load_f16(const std::uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  using Four = const float*;  // stay in memory, where a broadcast costs no shuffle
  static Four load_four(const float* p) { return p; }
  template <int lane>
  static F fma_lane(F x, Four four, F a) {
    return fma(x, fill(four[lane]), a);
  }
  static void transpose(const float* const from[4], float* to, std::int64_t width) {
    transpose_corner(from, to, width);
  }
  static void prefetch(const void* p) { prefetch_line(p); }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
