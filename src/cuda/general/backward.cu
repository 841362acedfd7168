// SPDX-License-Identifier: Apache-2.0
// Which backward passes the general kernels take, which of their shapes a call goes to on the current device,
// and the launches: dQ, dK and dV, the bias.
#include <algorithm>

#include "cuda/backward/backward.hpp"
#include "cuda/general/backward_kernels.cuh"

namespace heed::cuda {
namespace general {

// Files of their own, so that they compile side by side.
using Launch = void(const GradientCall&, const MaskTiles&, const Workspace&, Stream);
extern template Launch launch_backward<Type::bf16, 64>;
extern template Launch launch_backward<Type::bf16, 128>;
extern template Launch launch_backward<Type::bf16, 256>;
extern template Launch launch_backward<Type::f16, 64>;
extern template Launch launch_backward<Type::f16, 128>;
extern template Launch launch_backward<Type::f16, 256>;

}  // namespace general

const char* general_backward_refuses(const GradientCall& g) {
  using namespace general;
  const Call& c = g.forward;
  if (!has_one_type(g)) return "it takes q, k, v and the gradient of out all in bf16, or all in f16";
  if (std::max(c.dim, c.value_dim) > 256) return "it takes heads of up to 256 dimensions";
  std::size_t bytes = 0;  // 0: no tile has room
  for_width(g, [&]<Type type, int dim> {
    run_largest<type, dim>(g, [&]<class Shape> { bytes = sizeof(BackwardMemory<Shape>); });
  });
  if (bytes == 0) return "on this device it takes heads of up to 128 dimensions";
  if (c.cap != 0 && c.cap < 0x1p-126f) return "it takes a softcap of at least 2^-126";
  constexpr std::int64_t many = std::int64_t{1} << 30;  // rows and tiles are numbered in 31 bits
  if (g.query_rows >= many || g.key_rows >= many) return "there are 2^30 rows or more";
  if ((g.all_rows() + c.batch * c.heads * 64) / 64 >= many ||
      (g.all_keys() + c.batch * c.kv_heads * 64) / 64 >= many)
    return "there are too many tiles";
  return general_refuses(c);
}

std::int64_t general_backward_bytes(const GradientCall& g) {
  using namespace general;
  const MaskTiles mask = mask_tiles(g.forward);
  std::int64_t bytes = is_packed(mask) ? mask.bytes() : 0;
  for_width(g, [&]<Type type, int dim> {
    run_largest<type, dim>(
        g, [&]<class Shape> { bytes += BackwardPlan::of<Shape>(g, 1).template bytes<Shape>(); });
  });
  return bytes;
}

void launch_general_backward(const GradientCall& g, const MaskTiles& mask, const Workspace& memory,
                             Stream stream) {
  using namespace general;
  for_width(g, [&]<Type type, int dim> { launch_backward<type, dim>(g, mask, memory, stream); });
  if (!has_bias_kernel(g)) launch_exact_bias_gradient(g, stream);
}

}  // namespace heed::cuda
