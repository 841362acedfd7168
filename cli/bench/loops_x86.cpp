// SPDX-License-Identifier: Apache-2.0
// See loops.hpp: x86-64, chosen at run time. 24 accumulators of 32 registers with AVX-512, 12 of 16 without.
#ifdef __x86_64__
#include <cpuid.h>

#include "bench/loops.hpp"
#include "kernel_choice.hpp"

#define LOW_VECTORS                                                                                          \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
      "xmm13", "xmm14", "xmm15"
#define ALL_VECTORS                                                                                      \
  LOW_VECTORS, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", \
      "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"
#define TWELVE(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11)
#define TWENTY_FOUR(OP) \
  TWELVE(OP) OP(12) OP(13) OP(14) OP(15) OP(16) OP(17) OP(18) OP(19) OP(20) OP(21) OP(22) OP(23)
#define UNTIL_ZERO "dec %0\njnz 1b\nvzeroupper\n"

#define DEFINE_WIDE_LOOP(name, OP)                                                                      \
  __attribute__((target("avx512f"))) void name(std::int64_t rounds) {                                   \
    asm volatile(TWENTY_FOUR(ZERO_512) ZERO_512(30) ZERO_512(31) "1:\n" TWENTY_FOUR(OP) TWENTY_FOUR(OP) \
                     UNTIL_ZERO                                                                         \
                 : "+r"(rounds)                                                                         \
                 :                                                                                      \
                 : ALL_VECTORS, "cc");                                                                  \
  }
#define DEFINE_LOOP(name, OP)                                                                       \
  __attribute__((target("avx2,fma"))) void name(std::int64_t rounds) {                              \
    asm volatile(TWELVE(ZERO_256) ZERO_256(14) ZERO_256(15) "1:\n" TWELVE(OP) TWELVE(OP) TWELVE(OP) \
                     TWELVE(OP) UNTIL_ZERO                                                          \
                 : "+r"(rounds)                                                                     \
                 :                                                                                  \
                 : LOW_VECTORS, "cc");                                                              \
  }
// Registers start at zero: a leftover subnormal would make every addition take the slow way.
#define ZERO_512(n) "vpxorq %%zmm" #n ", %%zmm" #n ", %%zmm" #n "\n"
#define ZERO_256(n) "vxorps %%ymm" #n ", %%ymm" #n ", %%ymm" #n "\n"
#define ZERO_128(n) "xorps %%xmm" #n ", %%xmm" #n "\n"
#define FMA_512(n) "vfmadd231ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define BF16_512(n) "vdpbf16ps %%zmm30, %%zmm31, %%zmm" #n "\n"
#define VNNI_512(n) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #n "\n"
#define FMA_256(n) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #n "\n"
#define VNNI_256(n) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" #n "\n"
#define MULADD_128(n) "mulps %%xmm14, %%xmm" #n "\naddps %%xmm15, %%xmm" #n "\n"

// Two by two blocks of accumulators, each of 16 x 16.
#define DEFINE_TILE_LOOP(name, OP)                                              \
  void name(std::int64_t rounds) {                                              \
    asm volatile(                                                               \
        "ldtilecfg %1\n"                                                        \
        "tilezero %%tmm0\ntilezero %%tmm1\ntilezero %%tmm2\ntilezero %%tmm3\n"  \
        "tilezero %%tmm4\ntilezero %%tmm5\ntilezero %%tmm6\ntilezero %%tmm7\n"  \
        "1:\n" OP " %%tmm6, %%tmm4, %%tmm0\n" OP " %%tmm7, %%tmm4, %%tmm1\n" OP \
        " %%tmm6, %%tmm5, %%tmm2\n" OP                                          \
        " %%tmm7, %%tmm5, %%tmm3\n"                                             \
        "dec %0\njnz 1b\ntilerelease\n"                                         \
        : "+r"(rounds)                                                          \
        : "m"(tiles)                                                            \
        : "cc");                                                                \
  }

namespace heed::tool {
namespace {

constexpr double instructions_per_turn = 48, tile_instructions_per_turn = 4;

// LDTILECFG's 64 bytes: palette 1, then for each of the eight tiles 64 bytes a row and 16 rows.
struct TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig tiles;

DEFINE_WIDE_LOOP(run_fma_512, FMA_512)
DEFINE_WIDE_LOOP(run_bf16_512, BF16_512)
DEFINE_WIDE_LOOP(run_vnni_512, VNNI_512)
DEFINE_LOOP(run_fma_256, FMA_256)
DEFINE_LOOP(run_vnni_256, VNNI_256)
DEFINE_TILE_LOOP(run_amx_bf16, "tdpbf16ps")
DEFINE_TILE_LOOP(run_amx_int8, "tdpbssd")

void run_muladd_128(std::int64_t rounds) {
  asm volatile(TWELVE(ZERO_128) ZERO_128(14) ZERO_128(15) "1:\n" TWELVE(MULADD_128) TWELVE(MULADD_128)
                   TWELVE(MULADD_128) TWELVE(MULADD_128) "dec %0\njnz 1b\n"
               : "+r"(rounds)
               :
               : LOW_VECTORS, "cc");
}

struct Leaf7 {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  explicit Leaf7(unsigned subleaf) { __get_cpuid_count(7, subleaf, &eax, &ebx, &ecx, &edx); }
};

void read_128(const std::byte* from, std::size_t bytes) {
  std::size_t rounds = bytes / read_step;
  asm volatile(
      "1:\n"
      "movups (%0), %%xmm0\nmovups 16(%0), %%xmm1\nmovups 32(%0), %%xmm2\nmovups 48(%0), %%xmm3\n"
      "movups 64(%0), %%xmm4\nmovups 80(%0), %%xmm5\nmovups 96(%0), %%xmm6\nmovups 112(%0), %%xmm7\n"
      "movups 128(%0), %%xmm0\nmovups 144(%0), %%xmm1\nmovups 160(%0), %%xmm2\nmovups 176(%0), %%xmm3\n"
      "movups 192(%0), %%xmm4\nmovups 208(%0), %%xmm5\nmovups 224(%0), %%xmm6\nmovups 240(%0), %%xmm7\n"
      "add $256, %0\ndec %1\njnz 1b\n"
      : "+r"(from), "+r"(rounds)
      :
      : LOW_VECTORS, "cc", "memory");
}

__attribute__((target("avx2"))) void read_256(const std::byte* from, std::size_t bytes) {
  std::size_t rounds = bytes / read_step;
  asm volatile(
      "1:\n"
      "vmovups (%0), %%ymm0\nvmovups 32(%0), %%ymm1\nvmovups 64(%0), %%ymm2\nvmovups 96(%0), %%ymm3\n"
      "vmovups 128(%0), %%ymm4\nvmovups 160(%0), %%ymm5\nvmovups 192(%0), %%ymm6\nvmovups 224(%0), %%ymm7\n"
      "add $256, %0\ndec %1\njnz 1b\nvzeroupper\n"
      : "+r"(from), "+r"(rounds)
      :
      : LOW_VECTORS, "cc", "memory");
}

__attribute__((target("avx512f"))) void read_512(const std::byte* from, std::size_t bytes) {
  std::size_t rounds = bytes / read_step;
  asm volatile(
      "1:\n"
      "vmovups (%0), %%zmm0\nvmovups 64(%0), %%zmm1\nvmovups 128(%0), %%zmm2\nvmovups 192(%0), %%zmm3\n"
      "add $256, %0\ndec %1\njnz 1b\nvzeroupper\n"
      : "+r"(from), "+r"(rounds)
      :
      : ALL_VECTORS, "cc", "memory");
}

}  // namespace

ArithmeticLoop fp32_loop() {
  if (__builtin_cpu_supports("avx512f")) return {"VFMADD zmm", instructions_per_turn * 2 * 16, run_fma_512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {"VFMADD ymm", instructions_per_turn * 2 * 8, run_fma_256};
  return {"MULPS + ADDPS", instructions_per_turn * 2 * 4, run_muladd_128};
}

std::optional<ArithmeticLoop> bf16_loop() {
  constexpr double products = 16 * 16 * 32;
  if (computes_with("amx"))
    return ArithmeticLoop{"TDPBF16PS", tile_instructions_per_turn * 2 * products, run_amx_bf16};
  if (__builtin_cpu_supports("avx512f") && (Leaf7(1).eax >> 5 & 1u))
    return ArithmeticLoop{"VDPBF16PS zmm", instructions_per_turn * 2 * 32, run_bf16_512};
  return {};
}

std::optional<ArithmeticLoop> int8_loop() {
  constexpr double products = 16 * 16 * 64;
  if ((Leaf7(0).edx >> 25 & 1u) && computes_with("amx"))
    return ArithmeticLoop{"TDPBSSD", tile_instructions_per_turn * 2 * products, run_amx_int8};
  if (__builtin_cpu_supports("avx512f") && (Leaf7(0).ecx >> 11 & 1u))
    return ArithmeticLoop{"VPDPBUSD zmm", instructions_per_turn * 2 * 64, run_vnni_512};
  if (__builtin_cpu_supports("avx2") && (Leaf7(1).eax >> 4 & 1u))
    return ArithmeticLoop{"VPDPBUSD ymm", instructions_per_turn * 2 * 32, run_vnni_256};
  return {};
}

ReadLoop read_loop() {
  if (__builtin_cpu_supports("avx512f")) return read_512;
  return __builtin_cpu_supports("avx2") ? read_256 : read_128;
}

}  // namespace heed::tool
#endif
