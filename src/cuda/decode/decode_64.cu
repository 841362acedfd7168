// SPDX-License-Identifier: Apache-2.0
#include "cuda/decode/kernel.cuh"

namespace heed::cuda {

void launch_decode_64(const Call& c, const DecodePlan& plan, Stream stream) {
  launch_decode_dim<64>(c, plan, stream);
}

}  // namespace heed::cuda
