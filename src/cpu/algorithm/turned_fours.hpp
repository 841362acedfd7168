// SPDX-License-Identifier: Apache-2.0
// Four rows of sixteen floats, and sixteen keys of four: scores of a few rows as products make them and as
// the softmax wants them.
#pragma once
#include <immintrin.h>

namespace heed::cpu::HEED_THIS_TARGET {

// x(4, 4 lanes of 128 bits) becomes its transpose.
[[gnu::always_inline]] inline void transpose_lanes(__m512i (&x)[4]) {
  const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[0], x[1], 0xee);
  const __m512i c = _mm512_shuffle_i32x4(x[2], x[3], 0x44), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_i32x4(a, c, 0x88), x[1] = _mm512_shuffle_i32x4(a, c, 0xdd);
  x[2] = _mm512_shuffle_i32x4(b, d, 0x88), x[3] = _mm512_shuffle_i32x4(b, d, 0xdd);
}

// In each lane of 128 bits, x(4, 4 dwords) becomes its transpose.
[[gnu::always_inline]] inline void transpose_in_lanes(__m512i (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi64(a, c), x[1] = _mm512_unpackhi_epi64(a, c);
  x[2] = _mm512_unpacklo_epi64(b, d), x[3] = _mm512_unpackhi_epi64(b, d);
}

// (4 rows, 16 keys) to (16 keys, 4 rows), four keys to a vector; and back.
[[gnu::always_inline]] inline void rows_to_keys(__m512i (&x)[4]) {
  transpose_in_lanes(x);
  transpose_lanes(x);
}
[[gnu::always_inline]] inline void keys_to_rows(__m512i (&x)[4]) {
  transpose_lanes(x);
  transpose_in_lanes(x);
}

}  // namespace heed::cpu::HEED_THIS_TARGET
