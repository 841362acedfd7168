// SPDX-License-Identifier: Apache-2.0
// Four lanes of WebAssembly's SIMD128. It has no fused multiply-add, so one is made of doubles: slower than
// an instruction, the same to the bit (O2), and still faster than four scalar ones.
#pragma once
#include <wasm_simd128.h>

#include <cstdint>

#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

struct Wasm {
  using F = v128_t;
  static constexpr int lanes = 4;
  static constexpr int panel_vectors = 2;
  static constexpr int tile_columns = 4;

  static F load(const float* p) { return wasm_v128_load(p); }
  static void store(float* p, F x) { wasm_v128_store(p, x); }
  static F fill(float x) { return wasm_f32x4_splat(x); }
  static F addend(const float* filled) { return fill(*filled); }
  static F add(F a, F b) { return wasm_f32x4_add(a, b); }
  static F sub(F a, F b) { return wasm_f32x4_sub(a, b); }
  static F mul(F a, F b) { return wasm_f32x4_mul(a, b); }
  static F div(F a, F b) { return wasm_f32x4_div(a, b); }
  static F max(F a, F b) { return wasm_f32x4_pmax(b, a); }  // b < a ? a : b
  static F abs(F a) { return wasm_f32x4_abs(a); }
  static F less(F a, F b, F then, F otherwise) {
    return wasm_v128_bitselect(then, otherwise, wasm_f32x4_lt(a, b));
  }
  static F copy_sign(F magnitude, F sign) { return wasm_v128_bitselect(sign, magnitude, fill(-0.0f)); }
  static F power_of_two(F z) { return wasm_i32x4_shl(z, 23); }

  // In double the product is exact and the sum is rounded once; rounding that to float is a second time, and
  // wrong only where the first ended halfway between two floats: in a 1 and at least 28 zeros.
  static F fma(F a, F b, F c) {
    v128_t low = sum_of_product(a, b, c), high = sum_of_product(upper(a), upper(b), upper(c));
    const v128_t last = wasm_i64x2_const_splat(0xfffffff), zero = wasm_i64x2_const_splat(0);
    const v128_t suspect = wasm_v128_or(wasm_i64x2_eq(wasm_v128_and(low, last), zero),
                                        wasm_i64x2_eq(wasm_v128_and(high, last), zero));
    if (wasm_v128_any_true(suspect)) {
      low = rounded_to_odd(low, a, b, c);
      high = rounded_to_odd(high, upper(a), upper(b), upper(c));
    }
    return wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(low), wasm_f32x4_demote_f64x2_zero(high), 0, 1, 4,
                              5);
  }

  using Four = const float*;
  static Four load_four(const float* p) { return p; }
  template <int lane>
  static F fma_lane(F x, Four four, F a) {
    return fma(x, fill(four[lane]), a);
  }
  static void prefetch(const void*) {}
  static void transpose(const float* const from[4], float* to, std::int64_t width) {
    const F r0 = load(from[0]), r1 = load(from[1]), r2 = load(from[2]), r3 = load(from[3]);
    const F a = wasm_i32x4_shuffle(r0, r1, 0, 4, 1, 5), b = wasm_i32x4_shuffle(r0, r1, 2, 6, 3, 7);
    const F c = wasm_i32x4_shuffle(r2, r3, 0, 4, 1, 5), d = wasm_i32x4_shuffle(r2, r3, 2, 6, 3, 7);
    store(to, wasm_i64x2_shuffle(a, c, 0, 2));
    store(to + width, wasm_i64x2_shuffle(a, c, 1, 3));
    store(to + 2 * width, wasm_i64x2_shuffle(b, d, 0, 2));
    store(to + 3 * width, wasm_i64x2_shuffle(b, d, 1, 3));
  }
  static F load_bf16(const std::uint16_t* p) { return wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16); }
  static F load_i8(const std::int8_t* p) {
    return wasm_f32x4_convert_i32x4(
        wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p))));
  }
  static F load_f16(const std::uint16_t* p) {
    const v128_t half = wasm_u32x4_load16x4(p);
    const v128_t magnitude = wasm_v128_and(half, wasm_i32x4_const_splat(0x7fff));
    const v128_t moved = wasm_i32x4_shl(magnitude, 13);
    const v128_t is_not_finite = wasm_i32x4_ge(magnitude, wasm_i32x4_const_splat(0x7c00));
    const v128_t not_finite = wasm_v128_or(moved, wasm_i32x4_const_splat(0x7f800000));
    const v128_t finite = mul(moved, fill(0x1p112f));
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(half, wasm_i32x4_const_splat(0x8000)), 16);
    return wasm_v128_or(sign, wasm_v128_bitselect(not_finite, finite, is_not_finite));
  }

 private:
  static v128_t upper(v128_t x) { return wasm_i64x2_shuffle(x, x, 1, 0); }
  static v128_t wide(v128_t x) { return wasm_f64x2_promote_low_f32x4(x); }
  // Of the two lower lanes, in double.
  static v128_t sum_of_product(v128_t a, v128_t b, v128_t c) {
    return wasm_f64x2_add(wasm_f64x2_mul(wide(a), wide(b)), wide(c));
  }
  // Of the two doubles around an inexact sum the odd one, which is no float and not halfway between two, so
  // that rounding it gives what rounding the sum itself would give.
  static v128_t rounded_to_odd(v128_t sum, v128_t a, v128_t b, v128_t c) {
    const v128_t product = wasm_f64x2_mul(wide(a), wide(b)), added = wide(c);
    const v128_t part = wasm_f64x2_sub(sum, product);
    const v128_t error =
        wasm_f64x2_add(wasm_f64x2_sub(product, wasm_f64x2_sub(sum, part)), wasm_f64x2_sub(added, part));
    const v128_t zero = wasm_f64x2_const_splat(0), one = wasm_i64x2_const_splat(1);
    const v128_t is_inexact = wasm_v128_or(wasm_f64x2_lt(error, zero), wasm_f64x2_gt(error, zero));
    const v128_t is_even = wasm_i64x2_eq(wasm_v128_and(sum, one), wasm_i64x2_const_splat(0));
    const v128_t step =
        wasm_v128_or(wasm_i64x2_shr(wasm_v128_xor(error, sum), 63), one);  // away from 0, or back
    return wasm_i64x2_add(sum, wasm_v128_and(step, wasm_v128_and(is_inexact, is_even)));
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
