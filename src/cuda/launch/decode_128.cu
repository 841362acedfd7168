// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/decode_launch.cuh"

namespace heed::cuda {

void launch_decode_128(const Call& c, const DecodePlan& plan, Stream stream) {
  launch_decode_dim<128>(c, plan, stream);
}

}  // namespace heed::cuda
