// SPDX-License-Identifier: Apache-2.0
// Two warps that have the same rows: each has the scores of half of a tile's keys and the sums of half of the
// values' dimensions. They agree on the maxima and pass each other weights, as registers hold them.
#pragma once
#include <cstdint>

#include "cuda/general/rows.cuh"
#include "cuda/general/state.cuh"

namespace heed::cuda::general {

// True in every thread of a named barrier where it is true in one; all of them wait.
HEED_DEVICE bool named_any(int barrier, int threads, bool one) {
  std::uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "bar.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(any)
      : "r"(barrier), "r"(threads), "r"(static_cast<std::uint32_t>(one))
      : "memory");
  return any != 0;
}

// In shared memory, of each warp.
template <class Shape>
struct PassedOn {
  uint4 weights[Shape::row_tiles * Shape::key_steps][32];
  float of_rows[Shape::row_tiles * 2][32];
};

template <class Shape>
class RowTeam {
  static constexpr int threads = 64;

 public:
  HEED_DEVICE RowTeam(const Place<Shape>& place, PassedOn<Shape>* of_warps)
      : barrier(1 + place.warp_row),
        own(shared_address(of_warps + 2 * place.warp_row + place.share) + lane_index() * 16),
        other(shared_address(of_warps + 2 * place.warp_row + 1 - place.share) + lane_index() * 16),
        own_rows(shared_address(of_warps[2 * place.warp_row + place.share].of_rows) + lane_index() * 4),
        other_rows(shared_address(of_warps[2 * place.warp_row + 1 - place.share].of_rows) + lane_index() * 4),
        share(place.share) {}

  HEED_DEVICE bool any(bool one) const { return named_any(barrier, threads, one); }

  HEED_DEVICE void join_max(float (&of_rows)[Shape::row_tiles][2]) const {
    join(of_rows, [](float a, float b) { return fmaxf(a, b); });
  }
  // The first half's come first, as where a warp has both (State::later_sum).
  HEED_DEVICE void join_sums(float (&of_rows)[Shape::row_tiles][2]) const {
    join(of_rows, [&](float a, float b) { return share == 0 ? a + b : b + a; });
  }

  // The other warp has read what was given before: any() has been between.
  HEED_DEVICE void give(const Weights<Shape>& p) const {
#pragma unroll
    for (int n = 0; n < Shape::row_tiles * Shape::key_steps; ++n) {
      const std::uint32_t(&x)[4] = p[n / Shape::key_steps][n % Shape::key_steps];
      store_shared16(own + n * 512, {x[0], x[1], x[2], x[3]});
    }
  }
  HEED_DEVICE void take(Weights<Shape>& p) const {
    named_sync(barrier, threads);
#pragma unroll
    for (int n = 0; n < Shape::row_tiles * Shape::key_steps; ++n) {
      std::uint32_t(&x)[4] = p[n / Shape::key_steps][n % Shape::key_steps];
      const uint4 y = load_shared16(other + n * 512);
      x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
    }
  }

 private:
  template <class Join>
  HEED_DEVICE void join(float (&of_rows)[Shape::row_tiles][2], const Join& both) const {
#pragma unroll
    for (int n = 0; n < Shape::row_tiles * 2; ++n)
      store_shared4(own_rows + n * 128, __float_as_uint(of_rows[n / 2][n % 2]));
    named_sync(barrier, threads);
#pragma unroll
    for (int n = 0; n < Shape::row_tiles * 2; ++n)
      of_rows[n / 2][n % 2] = both(of_rows[n / 2][n % 2], load_shared_float(other_rows + n * 128));
  }

  const int barrier;
  const SharedAddress own, other, own_rows, other_rows;
  const int share;
};

// A warp that has its rows to itself passes nothing on.
template <class Shape>
constexpr int passed_on_bytes = Shape::sharing > 1 ? Shape::warps* static_cast<int>(sizeof(PassedOn<Shape>))
                                                   : 0;

}  // namespace heed::cuda::general
