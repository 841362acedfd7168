// SPDX-License-Identifier: Apache-2.0
// Which calls decode takes, and its launch.
#include "cuda/algorithm/decode_plan.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/launch/ranges.hpp"
#include "cuda/launch/tensor_map.hpp"

namespace heed::cuda {

void launch_decode_64(const Call&, const DecodePlan&, Stream);
void launch_decode_128(const Call&, const DecodePlan&, Stream);

namespace {

DecodePlan plan(const Call& c, int splits_keys) {
  const std::int64_t at_once = device_facts().multiprocessors;
  return plan_decode(c, splits_keys < 0 ? at_once : splits_keys * std::int64_t{1} << 40);
}

}  // namespace

const char* decode_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (c.queries * c.group() > max_decode_rows) return "more than 32 rows share a KV head";
  if (c.dim != 64 && c.dim != 128) return "it takes heads of 64 or 128";
  if (c.batch * c.kv_heads * 4 > Workspace::counter_bytes && plan(c, -1).splits > 1)
    return "there are too many heads";
  if (c.q.dim != 1 || c.q.length % 2 != 0 || c.q.heads % 2 != 0 || c.q.batch % 2 != 0 ||
      reinterpret_cast<std::uintptr_t>(c.q.data) % 4 != 0)
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
                   int splits_keys) {
  if (c.batch * c.kv_heads == 0 || c.queries == 0) return;
  DecodePlan made = plan(c, splits_keys);
  if (!c.cached && c.keys > 0 && has_many_rows(c)) {
    const MapExtents of{c.dim, extents.key_rows, c.kv_heads, c.batch};
    made.k = tensor_map_of_rows(c.k, of, many_tile_keys);
    made.v = tensor_map_of_rows(c.v, of, many_tile_keys);
  }
  made.states = reinterpret_cast<float*>(workspace.rest());
  made.arrivals = workspace.counters();
  c.dim == 64 ? launch_decode_64(c, made, stream) : launch_decode_128(c, made, stream);
}

}  // namespace heed::cuda
