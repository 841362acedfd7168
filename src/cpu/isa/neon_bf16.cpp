// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET neon_bf16
#include <sys/auxv.h>

#include "cpu/isa/neon.hpp"
#include "cpu/isa/table.hpp"
#include "cpu/projection/projection_bfmmla.hpp"
#include "cpu/tile/operands_bfmmla.hpp"

namespace heed::cpu::neon_bf16 {

template <>
inline void weigh<NeonBf16<3>, 3>(float* s, std::int64_t width, std::int64_t keys,
                                  const Weighing<NeonBf16<3>>& by) {
  neon_weigh_panel<NeonBf16<3>>(s, width, keys, by);
}
template <>
inline void weigh<NeonBf16<1>, 1>(float* s, std::int64_t width, std::int64_t keys,
                                  const Weighing<NeonBf16<1>>& by) {
  neon_weigh_vector<NeonBf16<1>>(s, width, keys, by);
}
template <>
inline void weigh_chains<NeonBf16<1>, 1>(float* s, std::int64_t width, std::int64_t chains,
                                         const Weighing<NeonBf16<1>>& by) {
  neon_weigh_chains<NeonBf16<1>>(s, width, chains, by);
}

using Wide = PackedBf16<NeonBf16<3>>;
using Narrow = DecodeByPrefill<PackedBf16<NeonBf16<1>>>;

}  // namespace heed::cpu::neon_bf16

namespace heed::cpu {
namespace {

// Linux's ABI; named here because older headers lack it.
constexpr unsigned long hwcap2_bf16 = 1ul << 14;

bool has_bf16() {
  static const bool has = (getauxval(AT_HWCAP2) & hwcap2_bf16) != 0;
  return has;
}

}  // namespace

extern const Target neon_bf16_target;
constinit const Target neon_bf16_target =
    neon_bf16::make_bf16_target<neon_bf16::Wide, neon_bf16::Narrow, neon_bf16::BfmmlaProjection>(
        "neon_bf16", "Arm's BF16 extension", has_bf16);

}  // namespace heed::cpu
