// SPDX-License-Identifier: Apache-2.0
// The instructions of AVX-512, AVX512-BF16 and AMX that heed's kernels use, lane by lane in plain C++: so
// that those kernels run, slowly, on a machine that has none of them. Products of matrices round once for
// each multiply-add, which hardware need not.
//
// An element of one vector or another is n ? a[at] : b[at] here, never (n ? a : b)[at]: with UBSan g++ 12
// computes that `at` for one of the two vectors only, and what is read of the other is wrong. clang 14 does
// not.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

typedef float __m128 __attribute__((vector_size(16)));
typedef long long __m128i __attribute__((vector_size(16)));
typedef long long __m256i __attribute__((vector_size(32)));
typedef float __m512 __attribute__((vector_size(64)));
typedef long long __m512i __attribute__((vector_size(64)));
typedef short __m256bh __attribute__((vector_size(32)));
typedef short __m512bh __attribute__((vector_size(64)));
typedef std::uint16_t __mmask16;
typedef std::uint32_t __mmask32;
typedef std::uint64_t __mmask64;

namespace heed::emulated {

typedef std::uint8_t U8x64 __attribute__((vector_size(64)));
typedef std::uint16_t U16x16 __attribute__((vector_size(32)));
typedef std::uint16_t U16x32 __attribute__((vector_size(64)));
typedef std::uint32_t U32x16 __attribute__((vector_size(64)));
typedef std::int32_t I32x16 __attribute__((vector_size(64)));
typedef std::int8_t I8x16 __attribute__((vector_size(16)));

template <class To, class From>
inline To as(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
template <class V>
inline V loaded(const void* p) {
  V x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
template <class V, class F>
inline V each(int lanes, const F& f) {
  V x{};
  for (int n = 0; n < lanes; ++n) x[n] = f(n);
  return x;
}

// To the nearest, ties to even; subnormal numbers are 0, as the hardware has them.
inline std::uint16_t to_bf16(float x) {
  const auto bits = as<std::uint32_t>(x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  if ((bits & 0x7f800000u) == 0) return static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// Subnormal numbers are 0 to products of matrices.
inline float from_bf16(std::uint16_t x) {
  return (x & 0x7f80) == 0 ? as<float>(std::uint32_t{x} << 16 & 0x80000000u)
                           : as<float>(std::uint32_t{x} << 16);
}

struct Tile {
  std::uint8_t row[16][64];
  int rows, bytes;
};
inline thread_local Tile tiles[8];

inline void configure_tiles(const void* config) {
  const auto* c = static_cast<const std::uint8_t*>(config);
  for (int t = 0; t < 8; ++t) tiles[t] = {{}, c[48 + t], c[16 + 2 * t]};
}
inline void release_tiles() { std::memset(tiles, 0, sizeof tiles); }

// Instructions on tiles without a shape, or of shapes that do not fit each other, are none to the hardware.
inline void require(bool fits) {
  if (!fits) std::abort();
}
inline bool has_shape(const Tile& t) { return t.rows > 0 && t.bytes > 0; }

inline void load_tile(int t, const void* from, std::int64_t stride) {
  require(has_shape(tiles[t]));
  std::memset(tiles[t].row, 0, sizeof tiles[t].row);
  for (int r = 0; r < tiles[t].rows; ++r)
    std::memcpy(tiles[t].row[r], static_cast<const std::uint8_t*>(from) + r * stride,
                static_cast<std::size_t>(tiles[t].bytes));
}
inline void store_tile(int t, void* to, std::int64_t stride) {
  require(has_shape(tiles[t]));
  for (int r = 0; r < tiles[t].rows; ++r)
    std::memcpy(static_cast<std::uint8_t*>(to) + r * stride, tiles[t].row[r],
                static_cast<std::size_t>(tiles[t].bytes));
}
inline void multiply_tiles(int sums, int a, int b) {
  require(sums != a && sums != b && a != b && has_shape(tiles[sums]) && has_shape(tiles[a]));
  require(tiles[a].rows == tiles[sums].rows && tiles[b].bytes == tiles[sums].bytes);
  require(tiles[a].bytes == 4 * tiles[b].rows);
  for (int m = 0; m < tiles[sums].rows; ++m) {
    float row[16];
    std::uint16_t x[32];
    std::memcpy(row, tiles[sums].row[m], 64), std::memcpy(x, tiles[a].row[m], 64);
    for (int k = 0; k < tiles[a].bytes / 4; ++k) {
      std::uint16_t y[32];
      std::memcpy(y, tiles[b].row[k], 64);
      const float x0 = from_bf16(x[2 * k]), x1 = from_bf16(x[2 * k + 1]);
      for (int n = 0; n < tiles[sums].bytes / 4; ++n)
        row[n] = std::fma(x1, from_bf16(y[2 * n + 1]), std::fma(x0, from_bf16(y[2 * n]), row[n]));
    }
    std::memcpy(tiles[sums].row[m], row, 64);
  }
}

}  // namespace heed::emulated

#define HEED_EMULATED static inline __attribute__((always_inline))

#define _MM_HINT_T0 3
#define _mm_prefetch(p, hint) static_cast<void>(p)
#define _CMP_LT_OQ 17
HEED_EMULATED __m128 _mm_loadu_ps(const float* p) { return heed::emulated::loaded<__m128>(p); }
HEED_EMULATED void _mm_storeu_ps(float* p, __m128 x) { std::memcpy(p, &x, 16); }
#define _MM_TRANSPOSE4_PS(r0, r1, r2, r3)                                              \
  do {                                                                                 \
    const __m128 t0 = {r0[0], r1[0], r2[0], r3[0]}, t1 = {r0[1], r1[1], r2[1], r3[1]}, \
                 t2 = {r0[2], r1[2], r2[2], r3[2]}, t3 = {r0[3], r1[3], r2[3], r3[3]}; \
    r0 = t0, r1 = t1, r2 = t2, r3 = t3;                                                \
  } while (0)
HEED_EMULATED __m128i _mm_loadu_si128(const __m128i* p) { return heed::emulated::loaded<__m128i>(p); }
HEED_EMULATED __m256i _mm256_loadu_si256(const __m256i* p) { return heed::emulated::loaded<__m256i>(p); }
HEED_EMULATED void _mm256_storeu_si256(__m256i* p, __m256i x) { std::memcpy(p, &x, 32); }

HEED_EMULATED __m512i _mm512_castsi256_si512(__m256i x) {
  __m512i wide{};
  std::memcpy(&wide, &x, 32);
  return wide;
}
HEED_EMULATED __m512i _mm512_inserti64x4(__m512i x, __m256i half, int at) {
  std::memcpy(reinterpret_cast<char*>(&x) + 32 * at, &half, 32);
  return x;
}

HEED_EMULATED __m512 _mm512_loadu_ps(const void* p) { return heed::emulated::loaded<__m512>(p); }
HEED_EMULATED void _mm512_storeu_ps(void* p, __m512 x) { std::memcpy(p, &x, 64); }
HEED_EMULATED __m512i _mm512_loadu_si512(const void* p) { return heed::emulated::loaded<__m512i>(p); }
HEED_EMULATED __m512i _mm512_load_si512(const void* p) { return heed::emulated::loaded<__m512i>(p); }
HEED_EMULATED void _mm512_storeu_si512(void* p, __m512i x) { std::memcpy(p, &x, 64); }
HEED_EMULATED __m512i _mm512_castps_si512(__m512 x) { return heed::emulated::as<__m512i>(x); }
HEED_EMULATED __m512 _mm512_castsi512_ps(__m512i x) { return heed::emulated::as<__m512>(x); }
HEED_EMULATED __m512 _mm512_set1_ps(float x) {
  return heed::emulated::each<__m512>(16, [&](int) { return x; });
}
HEED_EMULATED __m512i _mm512_setzero_si512() { return __m512i{}; }
HEED_EMULATED __m512i _mm512_set1_epi32(int x) {
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::I32x16>(16, [&](int) { return x; }));
}
HEED_EMULATED __m512i _mm512_set1_epi16(short x) {
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::U16x32>(32, [&](int) { return static_cast<std::uint16_t>(x); }));
}
HEED_EMULATED __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
HEED_EMULATED __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
HEED_EMULATED __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
HEED_EMULATED __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
HEED_EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return heed::emulated::each<__m512>(16, [&](int n) { return __builtin_fmaf(a[n], b[n], c[n]); });
}
HEED_EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b) {  // the second where one is no number
  return heed::emulated::each<__m512>(16, [&](int n) { return a[n] > b[n] ? a[n] : b[n]; });
}
HEED_EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
HEED_EMULATED __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
HEED_EMULATED __m512i _mm512_and_epi32(__m512i a, __m512i b) { return a & b; }
HEED_EMULATED __m512i _mm512_or_epi32(__m512i a, __m512i b) { return a | b; }
HEED_EMULATED __m512 _mm512_abs_ps(__m512 x) {
  return _mm512_castsi512_ps(_mm512_castps_si512(x) & _mm512_set1_epi32(0x7fffffff));
}
HEED_EMULATED __m512i _mm512_slli_epi32(__m512i x, unsigned by) {
  return heed::emulated::as<__m512i>(heed::emulated::as<heed::emulated::U32x16>(x) << by);
}
HEED_EMULATED __m512i _mm512_srli_epi32(__m512i x, unsigned by) {
  return heed::emulated::as<__m512i>(heed::emulated::as<heed::emulated::U32x16>(x) >> by);
}
HEED_EMULATED __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return heed::emulated::as<__m512i>(heed::emulated::as<heed::emulated::U32x16>(a) +
                                     heed::emulated::as<heed::emulated::U32x16>(b));
}
HEED_EMULATED __mmask16 heed_less(__m512 a, __m512 b) {
  unsigned mask = 0;
  for (int n = 0; n < 16; ++n) mask |= static_cast<unsigned>(a[n] < b[n]) << n;
  return static_cast<__mmask16>(mask);
}
#define _mm512_cmp_ps_mask(a, b, how) heed_less(a, b)
HEED_EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  return heed::emulated::each<__m512>(16, [&](int n) { return mask >> n & 1 ? b[n] : a[n]; });
}
HEED_EMULATED void _mm512_mask_storeu_ps(void* p, __mmask16 mask, __m512 x) {
  _mm512_storeu_ps(p, _mm512_mask_blend_ps(mask, _mm512_loadu_ps(p), x));
}
HEED_EMULATED __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
  const auto both = heed::emulated::as<heed::emulated::U32x16>(a & b);
  unsigned mask = 0;
  for (int n = 0; n < 16; ++n) mask |= static_cast<unsigned>(both[n] != 0) << n;
  return static_cast<__mmask16>(mask);
}
HEED_EMULATED __mmask16 _mm512_testn_epi32_mask(__m512i a, __m512i b) {
  return static_cast<__mmask16>(~_mm512_test_epi32_mask(a, b));
}
HEED_EMULATED __m512i _mm512_set1_epi8(char x) {
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::U8x64>(64, [&](int) { return static_cast<std::uint8_t>(x); }));
}
HEED_EMULATED __mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b) {
  const auto both = heed::emulated::as<heed::emulated::U8x64>(a & b);
  __mmask64 mask = 0;
  for (int n = 0; n < 64; ++n) mask |= static_cast<__mmask64>(both[n] != 0) << n;
  return mask;
}
HEED_EMULATED __mmask64 _mm512_testn_epi8_mask(__m512i a, __m512i b) { return ~_mm512_test_epi8_mask(a, b); }
HEED_EMULATED __m512i _mm512_mask_add_epi8(__m512i otherwise, __mmask64 mask, __m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U8x64>(otherwise),
             sum =
                 heed::emulated::as<heed::emulated::U8x64>(a) + heed::emulated::as<heed::emulated::U8x64>(b);
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::U8x64>(64, [&](int n) { return mask >> n & 1 ? sum[n] : x[n]; }));
}
HEED_EMULATED __m512i _mm512_max_epu32(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U32x16>(a),
             y = heed::emulated::as<heed::emulated::U32x16>(b);
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::U32x16>(16, [&](int n) { return x[n] > y[n] ? x[n] : y[n]; }));
}
HEED_EMULATED __mmask16 _mm512_cmpgt_epu32_mask(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U32x16>(a),
             y = heed::emulated::as<heed::emulated::U32x16>(b);
  unsigned mask = 0;
  for (int n = 0; n < 16; ++n) mask |= static_cast<unsigned>(x[n] > y[n]) << n;
  return static_cast<__mmask16>(mask);
}
HEED_EMULATED __m512i _mm512_cvtepu16_epi32(__m256i x) {
  const auto from = heed::emulated::as<heed::emulated::U16x16>(x);
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::U32x16>(16, [&](int n) { return std::uint32_t{from[n]}; }));
}
HEED_EMULATED __m512i _mm512_cvtepi8_epi32(__m128i x) {
  const auto from = heed::emulated::as<heed::emulated::I8x16>(x);
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::I32x16>(16, [&](int n) { return std::int32_t{from[n]}; }));
}
HEED_EMULATED __m512 _mm512_cvtepi32_ps(__m512i x) {
  const auto from = heed::emulated::as<heed::emulated::I32x16>(x);
  return heed::emulated::each<__m512>(16, [&](int n) { return static_cast<float>(from[n]); });
}
HEED_EMULATED __m512 _mm512_cvtph_ps(__m256i x) {
  const auto from = heed::emulated::as<heed::emulated::U16x16>(x);
  return heed::emulated::each<__m512>(
      16, [&](int n) { return static_cast<float>(heed::emulated::as<__fp16>(std::uint16_t{from[n]})); });
}
HEED_EMULATED __m256bh _mm512_cvtneps_pbh(__m512 x) {
  return heed::emulated::as<__m256bh>(
      heed::emulated::each<heed::emulated::U16x16>(16, [&](int n) { return heed::emulated::to_bf16(x[n]); }));
}
HEED_EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  return heed::emulated::as<__m512bh>(heed::emulated::each<heed::emulated::U16x32>(
      32, [&](int n) { return heed::emulated::to_bf16(n < 16 ? low[n] : high[n - 16]); }));
}
HEED_EMULATED __m512i _mm512_permutexvar_epi16(__m512i index, __m512i x) {
  const auto at = heed::emulated::as<heed::emulated::U16x32>(index),
             from = heed::emulated::as<heed::emulated::U16x32>(x);
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::U16x32>(32, [&](int n) { return from[at[n] % 32]; }));
}
HEED_EMULATED __m512i _mm512_max_epu16(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U16x32>(a),
             y = heed::emulated::as<heed::emulated::U16x32>(b);
  return heed::emulated::as<__m512i>(
      heed::emulated::each<heed::emulated::U16x32>(32, [&](int n) { return x[n] > y[n] ? x[n] : y[n]; }));
}
HEED_EMULATED __mmask32 _mm512_cmpeq_epi16_mask(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U16x32>(a),
             y = heed::emulated::as<heed::emulated::U16x32>(b);
  __mmask32 mask = 0;
  for (int n = 0; n < 32; ++n) mask |= static_cast<__mmask32>(x[n] == y[n]) << n;
  return mask;
}
HEED_EMULATED __mmask32 _mm512_cmpgt_epu16_mask(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U16x32>(a),
             y = heed::emulated::as<heed::emulated::U16x32>(b);
  __mmask32 mask = 0;
  for (int n = 0; n < 32; ++n) mask |= static_cast<__mmask32>(x[n] > y[n]) << n;
  return mask;
}
HEED_EMULATED __m512i _mm512_maskz_mov_epi16(__mmask32 mask, __m512i a) {
  const auto x = heed::emulated::as<heed::emulated::U16x32>(a);
  return heed::emulated::as<__m512i>(heed::emulated::each<heed::emulated::U16x32>(
      32, [&](int n) { return static_cast<std::uint16_t>(mask >> n & 1 ? x[n] : 0); }));
}
HEED_EMULATED void _mm512_mask_storeu_epi16(void* p, __mmask32 mask, __m512i x) {
  const auto halves = heed::emulated::as<heed::emulated::U16x32>(x);
  for (int n = 0; n < 32; ++n)
    if (mask >> n & 1) {
      const std::uint16_t half = halves[n];
      __builtin_memcpy(static_cast<unsigned char*>(p) + 2 * n, &half, 2);
    }
}
HEED_EMULATED __m512i _mm512_maskz_loadu_epi16(__mmask32 mask, const void* p) {
  return heed::emulated::as<__m512i>(heed::emulated::each<heed::emulated::U16x32>(32, [&](int n) {
    std::uint16_t x = 0;
    if (mask >> n & 1) __builtin_memcpy(&x, static_cast<const unsigned char*>(p) + 2 * n, 2);
    return x;
  }));
}
HEED_EMULATED __m512i _mm512_unpacklo_epi16(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U16x32>(a),
             y = heed::emulated::as<heed::emulated::U16x32>(b);
  return heed::emulated::as<__m512i>(heed::emulated::each<heed::emulated::U16x32>(32, [&](int n) {
    const int at = n / 8 * 8 + n % 8 / 2;
    return n % 2 ? y[at] : x[at];
  }));
}
HEED_EMULATED __m512i _mm512_unpackhi_epi16(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U16x32>(a),
             y = heed::emulated::as<heed::emulated::U16x32>(b);
  return heed::emulated::as<__m512i>(heed::emulated::each<heed::emulated::U16x32>(32, [&](int n) {
    const int at = n / 8 * 8 + 4 + n % 8 / 2;
    return n % 2 ? y[at] : x[at];
  }));
}
HEED_EMULATED __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U32x16>(a),
             y = heed::emulated::as<heed::emulated::U32x16>(b);
  return heed::emulated::as<__m512i>(heed::emulated::each<heed::emulated::U32x16>(16, [&](int n) {
    const int at = n / 4 * 4 + n % 4 / 2;
    return n % 2 ? y[at] : x[at];
  }));
}
HEED_EMULATED __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) {
  const auto x = heed::emulated::as<heed::emulated::U32x16>(a),
             y = heed::emulated::as<heed::emulated::U32x16>(b);
  return heed::emulated::as<__m512i>(heed::emulated::each<heed::emulated::U32x16>(16, [&](int n) {
    const int at = n / 4 * 4 + 2 + n % 4 / 2;
    return n % 2 ? y[at] : x[at];
  }));
}
HEED_EMULATED __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
  return heed::emulated::each<__m512i>(8, [&](int n) { return n % 2 ? b[n / 2 * 2] : a[n / 2 * 2]; });
}
HEED_EMULATED __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
  return heed::emulated::each<__m512i>(8, [&](int n) { return n % 2 ? b[n / 2 * 2 + 1] : a[n / 2 * 2 + 1]; });
}
HEED_EMULATED __m512i _mm512_permutex2var_epi64(__m512i a, __m512i index, __m512i b) {
  return heed::emulated::each<__m512i>(8, [&](int n) {
    const long long at = index[n] & 7;
    return index[n] & 8 ? b[at] : a[at];
  });
}
HEED_EMULATED __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int how) {
  return heed::emulated::each<__m512i>(8, [&](int n) {
    const int at = 2 * (how >> (n / 2 * 2) & 3) + n % 2;
    return n < 4 ? a[at] : b[at];
  });
}

#define _tile_loadconfig(config) heed::emulated::configure_tiles(config)
#define _tile_release() heed::emulated::release_tiles()
#define _tile_zero(t) std::memset(heed::emulated::tiles[t].row, 0, 1024)
#define _tile_loadd(t, from, stride) heed::emulated::load_tile(t, from, stride)
#define _tile_stored(t, to, stride) heed::emulated::store_tile(t, to, stride)
#define _tile_dpbf16ps(sums, a, b) heed::emulated::multiply_tiles(sums, a, b)

#undef __builtin_cpu_supports
#define __builtin_cpu_supports(name) true
