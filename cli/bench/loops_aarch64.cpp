// SPDX-License-Identifier: Apache-2.0
// See loops.hpp: AArch64. 24 accumulators, as a 12 x 8 micro-kernel has: BFMMLA falls to three quarters of
// its rate with 16.
#ifdef __aarch64__
#include "bench/loops.hpp"
#include "kernel_choice.hpp"
#include "system.hpp"

// clang-format off: a line of assembly is a line here.
#define ALL_VECTORS                                                                                     \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", \
      "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", \
      "v30", "v31"
#define ONCE_EACH(OP)                                                                                     \
  OP(0)                                                                                                   \
  OP(1)                                                                                                   \
  OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11) OP(12) OP(13) OP(14) OP(15) OP(16) OP(17) \
      OP(18) OP(19) OP(20) OP(21) OP(22) OP(23)

// The multiplicands come from loads: Neoverse V1 halves the rate of FMLA whose operands are all results of
// vector arithmetic.
#define DEFINE_LOOP(name, OP)                                                                        \
  void name(std::int64_t rounds) {                                                                   \
    asm volatile("ldp q24, q25, [%1]\n1:\n" ONCE_EACH(OP) ONCE_EACH(OP) "subs %0, %0, #1\nb.ne 1b\n" \
                 : "+r"(rounds)                                                                      \
                 : "r"(zeros)                                                                        \
                 : ALL_VECTORS, "cc", "memory");                                                     \
  }

// Bits 0-4 of the opcode are the accumulator; written as numbers because the baseline assembler does not
// know the extensions.
#define FMLA(n) "fmla v" #n ".4s, v24.4s, v25.s[1]\n"
#define BFMMLA(n) ".inst 0x6e59ef00 + " #n "\n"
#define SMMLA(n) ".inst 0x4e99a700 + " #n "\n"
#define SDOT(n) ".inst 0x4e999700 + " #n "\n"

namespace heed::tool {
namespace {

alignas(64) constexpr float zeros[16] = {};
constexpr double instructions_per_turn = 48;

DEFINE_LOOP(run_fmla, FMLA)
DEFINE_LOOP(run_bfmmla, BFMMLA)
DEFINE_LOOP(run_smmla, SMMLA)
DEFINE_LOOP(run_sdot, SDOT)

void read_pairs(const std::byte* from, std::size_t bytes) {
  std::size_t rounds = bytes / read_step;
  asm volatile(
      "1:\n"
      "ldp q0, q1, [%0]\nldp q2, q3, [%0, #32]\nldp q4, q5, [%0, #64]\nldp q6, q7, [%0, #96]\n"
      "ldp q16, q17, [%0, #128]\nldp q18, q19, [%0, #160]\nldp q20, q21, [%0, #192]\nldp q22, q23, [%0, "
      "#224]\n"
      "add %0, %0, #256\nsubs %1, %1, #1\nb.ne 1b\n"
      : "+r"(from), "+r"(rounds)
      :
      : ALL_VECTORS, "cc", "memory");
}

}  // namespace

ArithmeticLoop fp32_loop() { return {"FMLA", instructions_per_turn * 2 * 4, run_fmla}; }

std::optional<ArithmeticLoop> bf16_loop() {
  if (!computes_with("neon_bf16")) return {};
  return ArithmeticLoop{"BFMMLA", instructions_per_turn * 2 * 16, run_bfmmla};
}

std::optional<ArithmeticLoop> int8_loop() {
  if (arm_extensions().i8mm)
    return ArithmeticLoop{"SMMLA", instructions_per_turn * 2 * 32, run_smmla};
  if (arm_extensions().dotprod)
    return ArithmeticLoop{"SDOT", instructions_per_turn * 2 * 16, run_sdot};
  return {};
}

ReadLoop read_loop() { return read_pairs; }

}  // namespace heed::tool
#endif
