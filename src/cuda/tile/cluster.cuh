// SPDX-License-Identifier: Apache-2.0
// Two blocks of a cluster that load for each other.
#pragma once
#include <cstdint>

#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// Arrives at a barrier of the other block (map_to_rank()).
HEED_DEVICE void barrier_arrive_remote(SharedAddress mapped) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(mapped) : "memory");
}

// load_box() to the same place in both blocks, whose bytes count at the same barrier of each.
HEED_DEVICE void load_box_to_both(SharedAddress to, const CUtensorMap* map, const BoxAt& at,
                                  SharedAddress barrier, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %8, %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.dim), "r"(at.row), "r"(at.head), "r"(at.entry), "l"(policy),
      "h"(static_cast<std::uint16_t>(3))
      : "memory");
}

}  // namespace heed::cuda
