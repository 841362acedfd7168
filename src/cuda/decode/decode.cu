// SPDX-License-Identifier: Apache-2.0
// Which calls decode takes, and its launch. Heads of 64 are compiled in a file of their own: together they
// would take twice as long, and ptxas would no longer know the width of a row that is done in double
// precision.
#include "cuda/decode/kernel.cuh"
#include "cuda/decode/plan.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {
namespace {

DecodePlan plan(const Call& c, Cut cut) {
  return plan_decode(c, planned_blocks(cut, device_facts().multiprocessors));
}

}  // namespace

const char* decode_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (c.queries * c.group() > max_decode_rows) return "more than 32 rows share a KV head";
  if (c.dim != 64 && c.dim != 128) return "it takes heads of 64 or 128";
  if (c.batch * c.kv_heads * 4 > Workspace::counter_bytes && plan(c, Cut::by_the_plan).splits > 1)
    return "there are too many heads";
  if (c.q.stride.dim != 1 || c.q.stride.length % 2 != 0 || c.q.stride.heads % 2 != 0 ||
      c.q.stride.batch % 2 != 0 || reinterpret_cast<std::uintptr_t>(c.q.data) % 4 != 0)
    return "rows of q must have no gaps and begin on 4 bytes";
  if (!c.cached && c.keys > 0 && !(is_mappable(c.k) && is_mappable(c.v)))
    return "rows of k and v must have no gaps and begin on 16 bytes";
  return nullptr;
}

std::int64_t decode_bytes(const Call& c) {
  // At most one state for every block of keys.
  return c.batch * c.kv_heads * ((c.keys + block_keys - 1) / block_keys) *
         decode_state_floats(has_many_rows(c) ? max_decode_rows : few_decode_rows, c.dim) * 4;
}

void launch_decode(const Call& c, const Extents& extents, const Workspace& workspace, Stream stream,
                   Cut cut) {
  if (c.batch * c.kv_heads == 0 || c.queries == 0) return;
  DecodePlan made = plan(c, cut);
  if (!c.cached && c.keys > 0 && has_many_rows(c)) {
    const MapExtents of{c.dim, extents.key_rows, c.kv_heads, c.batch};
    made.k = tensor_map_of_rows(c.k, of, many_tile_keys);
    made.v = tensor_map_of_rows(c.v, of, many_tile_keys);
  }
  made.states = reinterpret_cast<float*>(workspace.rest());
  made.arrivals = workspace.counters();
  c.dim == 64 ? launch_decode_64(c, made, stream) : launch_decode_dim<128>(c, made, stream);
}

}  // namespace heed::cuda
