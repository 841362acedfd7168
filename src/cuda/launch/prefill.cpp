// SPDX-License-Identifier: Apache-2.0
// Which calls the matrix units' kernels take, and prefill's launch.
#include <initializer_list>

#include "cuda/algorithm/prefill_plan.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/launch/ranges.hpp"
#include "cuda/launch/tensor_map.hpp"

namespace heed::cuda {

void launch_prefill_64(const Call&, const Extents&, PrefillPlan, Stream);
void launch_prefill_128(const Call&, const Extents&, PrefillPlan, Stream);
void launch_prefill_256(const Call&, const Extents&, PrefillPlan, Stream);

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

std::int64_t prefill_bytes(const Call&) { return 0; }

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
  if (c.dim == 128) return launch_prefill_128(c, extents, plan, stream);
  launch_prefill_256(c, extents, plan, stream);
}

}  // namespace heed::cuda
