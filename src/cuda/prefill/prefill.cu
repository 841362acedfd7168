// SPDX-License-Identifier: Apache-2.0
// Which calls the kernels of the matrix units take, and prefill's launch. Heads of 64 and 256 are compiled in
// files of their own, because each takes long.
#include <cmath>
#include <initializer_list>

#include "cuda/prefill/kernel.cuh"
#include "cuda/prefill/plan.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {

const char* matrix_units_refuse(const Call& c) {
  if (c.q.type != Type::bf16 && c.q.type != Type::f16) return "it takes bf16 and f16";
  if (c.k.type != c.q.type || c.v.type != c.q.type) return "it takes q, k and v of one type";
  if (c.dim != c.value_dim) return "it takes keys and values of one width";
  if (c.bias.data) return "it takes no bias";
  if (c.alibi.of_heads) return "it takes no slopes of ALiBi";
  if (c.mask_count > 0 || c.document_count > 0) return "it takes no masks but ranges of keys";
  if (c.front > 0 || c.gap_count > 0) return "it takes no front of a window";
  if (c.drop_below > 0) return "it takes no dropout";
  if (c.weights.data) return "weights were asked for";
  if (c.scores.data) return "scores were asked for";
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap_log2e)) return "options.softcap times log2(e) is beyond the range of f32";
  if (c.keys >= std::int64_t{1} << 30 || c.queries >= std::int64_t{1} << 30)
    return "there are 2^30 rows or more";
  return nullptr;
}

const char* prefill_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (c.cached) return "it does not read a cache";
  if (c.dim != 64 && c.dim != 128 && c.dim != 256) return "it takes heads of 64, 128 or 256";
  if (c.out.type != c.q.type) return "it writes the type of q";
  if (!(c.scale_log2e > 0)) return "it takes a positive scale";
  if (c.keys == 0) return "there are no keys";
  for (const Tensor* t : {&c.q, &c.k, &c.v, &c.out})
    if (!is_mappable(*t)) return "the copy engine wants rows without gaps, and everything on 16 bytes";
  return nullptr;
}

std::int64_t prefill_rows(const Call& c) { return 64 * prefill_groups(c.dim); }

void launch_prefill(const Call& c, const Extents& extents, const PrefillTiles& tiles,
                    const Workspace& workspace, Stream stream) {
  if (tiles.count * c.heads == 0) return;
  PrefillPlan plan{};
  plan.next_tile = workspace.counters();
  plan.tile_starts = tiles.starts;
  plan.tiles = static_cast<int>(tiles.count * c.heads);
  if (!tiles.starts) plan.order = prefill_order(c, prefill_rows(c));
  plan.key_rows = static_cast<int>(extents.key_rows);
  if (c.dim == 64) return launch_prefill_64(c, extents, plan, stream);
  if (c.dim == 128) return launch_prefill_dim<128>(c, extents, plan, stream);
  launch_prefill_256(c, extents, plan, stream);
}

}  // namespace heed::cuda
