// SPDX-License-Identifier: Apache-2.0
#include "cuda/prefill/kernel.cuh"

namespace heed::cuda {

void launch_prefill_64(const Call& c, const Extents& extents, const PrefillPlan& plan, Stream stream) {
  launch_prefill_dim<64>(c, extents, plan, stream);
}

}  // namespace heed::cuda
