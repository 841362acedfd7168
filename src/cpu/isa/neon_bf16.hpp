// SPDX-License-Identifier: Apache-2.0
// NEON with the bf16 extension: eight halves in a register, and the rearrangements that BFMMLA asks for. To
// it a register is two rows of four: four neighbours of the summed index of one row, then of the next.
#pragma once
#include <arm_neon.h>

#include <cstdint>

#include "cpu/isa/neon.hpp"
#include "cpu/isa/vector.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Panels of 12 rows (three vectors) where there are many, of 4 (one) where 12 would be mostly empty.
template <int vectors>
struct NeonBf16 : Neon {
  static constexpr int panel_vectors = vectors;
  static constexpr int tile_columns = 8;

  using Halves = uint16x8_t;
  static Halves load_halves(const std::uint16_t* p) { return vld1q_u16(p); }
  static void store_halves(std::uint16_t* p, Halves x) { vst1q_u16(p, x); }
  static Halves no_halves() { return vdupq_n_u16(0); }
  static Halves magnitude(Halves x) { return vandq_u16(x, vdupq_n_u16(0x7fff)); }
  static Halves larger_magnitude(Halves most, Halves x) { return vmaxq_u16(most, magnitude(x)); }
  static std::uint16_t largest(Halves magnitudes) { return vmaxvq_u16(magnitudes); }
  // Of magnitudes: is any of them that of a NaN or an infinity?
  static bool holds_poison(Halves most) { return largest(most) >= 0x7f80; }
  static Halves finite_or_zero(Halves x) {
    return vbicq_u16(x, vcgeq_u16(magnitude(x), vdupq_n_u16(0x7f80)));
  }

  // To bf16, to nearest even, NaN to NaN: an instruction a vector, on one pipe of four (Neoverse-V1), where
  // integer additions would be five on any.
  static Halves rounded(F low, F high) {
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(low), high));
  }

  // Two rows of eight as two registers of two rows of four.
  static void store_pair(Halves even, Halves odd, std::uint16_t* first, std::uint16_t* next) {
    const uint64x2_t x = vreinterpretq_u64_u16(even), y = vreinterpretq_u64_u16(odd);
    store_halves(first, vreinterpretq_u16_u64(vzip1q_u64(x, y)));
    store_halves(next, vreinterpretq_u16_u64(vzip2q_u64(x, y)));
  }

  // Four rows of eight as eight rows of four.
  static void store_transposed(const Halves (&row)[4], std::uint16_t* to) {
    const uint16x8x2_t even = vzipq_u16(row[0], row[2]), odd = vzipq_u16(row[1], row[3]);
    for (int half = 0; half < 2; ++half) {
      const uint16x8x2_t four = vzipq_u16(even.val[half], odd.val[half]);
      store_halves(to + 16 * half, four.val[0]);
      store_halves(to + 16 * half + 8, four.val[1]);
    }
  }

  // Four rows of four floats as four columns of four halves.
  static void store_rounded(const float* from, std::int64_t width, std::uint16_t* to) {
    const Halves low = rounded(load(from), load(from + width)),
                 high = rounded(load(from + 2 * width), load(from + 3 * width));
    const uint16x8x2_t pairs = vzipq_u16(low, high);  // rows 0 and 2, then rows 1 and 3
    const uint16x8x2_t fours = vzipq_u16(pairs.val[0], pairs.val[1]);
    store_halves(to, fours.val[0]);
    store_halves(to + 8, fours.val[1]);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
