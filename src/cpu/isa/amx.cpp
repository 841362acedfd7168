// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET amx
#include "cpu/decode/amx.hpp"

#include "cpu/isa/table.hpp"
#include "cpu/isa/x86.hpp"
#include "cpu/projection/projection.hpp"
#include "cpu/tile/operands_amx.hpp"
#include "system/system.hpp"

namespace heed::cpu::amx {

// Projections: rows of x are the first operand as they lie, weights the second, in pairs of inputs.
struct AmxProjection {
  static constexpr int outputs = 32, tile_rows = 32, depth_step = 32, together = 2, input_step = 1;

  explicit AmxProjection(std::int64_t rows) : tiles(rows < 16 ? static_cast<int>(rows) : 16) {}

  static void pack(const std::uint16_t*, std::int64_t, std::uint16_t*) {}

  template <Start start>
  static void multiply(const Bf16Panel& t, float* sums) {
    for (std::int64_t r = 0; r < t.rows; r += tile_rows, sums += tile_rows * outputs) {
      const AmxBlock block{t.x + r * t.row_step, t.row_step * 2, t.w, t.depth};
      if (t.rows - r <= tile_rows / 2)
        half_block_product<start>(block, sums);
      else
        block_product<start>(block, sums);
    }
  }

  AmxTiles tiles;
};

}  // namespace heed::cpu::amx

namespace heed::cpu {
namespace {

// Linux lends the tile registers to a process that asks.
bool is_granted_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") || !has_fma_and_f16c() ||
      !__get_cpuid_count(7, 0, &a, &b, &c, &d))
    return false;
  const bool tiles = d >> 24 & 1, bf16 = d >> 22 & 1;
  if (!tiles || !bf16 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a >> 5 & 1))
    return false;  // AVX512_BF16
  return system::borrow_tile_registers();
}

// Asked once and remembered: every call of the library wants to know, and in a virtual machine CPUID is slow.
bool has_amx() {
  static const bool has = is_granted_amx();
  return has;
}

}  // namespace

extern const Target amx_target;
constinit const Target amx_target =
    amx::make_bf16_target<amx::Bf16Amx, amx::Decode<amx::DecodeAmx>, amx::AmxProjection>(
        "amx", "AMX-BF16 and AVX512-BF16", has_amx);

}  // namespace heed::cpu
