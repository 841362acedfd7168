// SPDX-License-Identifier: Apache-2.0
#define HEED_THIS_TARGET neon_bf16
#include "cpu/isa/neon_bf16.hpp"

#include "cpu/isa/neon.hpp"
#include "cpu/isa/table.hpp"
#include "cpu/projection/projection.hpp"
#include "cpu/tile/operands_bfmmla.hpp"
#include "system/system.hpp"

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

// Projections: weights are the rows of BFMMLA and rows of x its columns, both in fours of inputs, so that
// outputs lie side by side.
struct BfmmlaProjection {
  using S = NeonBf16<3>;
  static constexpr int outputs = Tile<S>::rows, tile_rows = Tile<S>::columns, depth_step = 8, together = 4,
                       input_step = tile_rows;

  explicit BfmmlaProjection(std::int64_t) {}

  static void pack(const std::uint16_t* rows, std::int64_t depth, std::uint16_t* tile) {
    for (int r = 0; r < tile_rows; r += 2) {
      const std::uint16_t *even = rows + r * depth, *odd = even + depth;
      std::uint16_t* to = tile + r * together;
      for (std::int64_t d = 0; d < depth; d += 8, to += 8 * tile_rows)
        S::store_pair(S::load_halves(even + d), S::load_halves(odd + d), to, to + together * tile_rows);
    }
  }

  template <Start start>
  static void multiply(const Bf16Panel& t, float* sums) {
    bf16_product<S, start>({t.w, t.x, tile_rows * t.row_step, (t.rows + tile_rows - 1) / tile_rows, t.depth},
                           sums);
  }
};

}  // namespace heed::cpu::neon_bf16

namespace heed::cpu {
namespace {

bool has_bf16() {
  static const bool has = system::has_arm_bf16();
  return has;
}

}  // namespace

extern const Target neon_bf16_target;
constinit const Target neon_bf16_target =
    neon_bf16::make_bf16_target<neon_bf16::Wide, neon_bf16::Narrow, neon_bf16::BfmmlaProjection>(
        "neon_bf16", "Arm's BF16 extension", has_bf16);

}  // namespace heed::cpu
