// SPDX-License-Identifier: Apache-2.0
// Which calls decode takes, and its launch. The kernels themselves are compiled in files of their own, which
// the build writes: together they would take longer, and ptxas would no longer know the width of a row that
// is done in double precision.
#include <algorithm>

#include "cuda/decode/plan.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {
namespace {

// Whether tiles are wider than the call's heads. Those of 256 are taken for it: there is no other kernel.
bool is_padded(const Call& c) {
  return c.dim != c.value_dim || c.dim != decode_dim(c) || c.dim > max_dim_of_many_rows;
}

// One sequence of 32768 keys of 80 in pages took 33.9 us where blocks that could share a multiprocessor had
// one each, and 27.6 with twice as many (H200, November 2026).
DecodePlan plan(const Call& c, Cut cut) {
  const bool in_twos =
      !has_many_rows(c) && shares_multiprocessor(decode_dim(c), is_padded(c), decode_source(c));
  return plan_decode(c, planned_blocks(cut, device_facts().multiprocessors * (in_twos ? 2 : 1)));
}

template <Type type>
auto* launch_of(const Call& c) {
  const int dim = decode_dim(c);
  if (dim == 64) return is_padded(c) ? launch_decode_dim<64, true, type> : launch_decode_dim<64, false, type>;
  if (dim == 128)
    return is_padded(c) ? launch_decode_dim<128, true, type> : launch_decode_dim<128, false, type>;
  return launch_decode_dim<256, true, type>;
}

}  // namespace

const char* decode_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (c.bias.data) return "it takes no bias";
  if (c.alibi.of_heads) return "it takes no slopes of ALiBi";
  if (c.drop_below > 0) return "it takes no dropout";
  if (c.queries > 32) return "there are more than 32 queries";
  if (decode_row_tiles(c) > max_row_tiles(c)) return "too many rows share a KV head";
  const auto is_width = [](std::int64_t dim) { return dim >= 8 && dim <= 256 && dim % 8 == 0; };
  if (!is_width(c.dim) || !is_width(c.value_dim)) return "it takes heads of 8 to 256 in steps of 8";
  constexpr std::int64_t in_31_bits = std::int64_t{1} << 31;
  const std::int64_t tiles = c.batch * c.kv_heads * decode_row_tiles(c);
  if (tiles >= in_31_bits || (tiles * 4 > Workspace::counter_bytes && plan(c, Cut::by_the_plan).splits > 1))
    return "there are too many heads";
  const cache::PageLayout& layout = c.layout;
  if (c.cached && std::max(layout.values_at(), layout.key_scales_at() - layout.values_at()) >= in_31_bits)
    return "it takes pages with less than 2 GB of a head's keys, and of its values";
  if (c.q.stride.dim != 1 || c.q.stride.length % 2 != 0 || c.q.stride.heads % 2 != 0 ||
      c.q.stride.batch % 2 != 0 || reinterpret_cast<std::uintptr_t>(c.q.data) % 4 != 0)
    return "rows of q must have no gaps and begin on 4 bytes";
  if (!c.cached && c.keys > 0 && !(is_mappable(c.k) && is_mappable(c.v)))
    return "rows of k and v must have no gaps and begin on 16 bytes";
  return masks_refuse(c, packed_mask(c, decode_mask_keys));
}

namespace {

// At most one state for every block of keys.
std::int64_t state_bytes(const Call& c) {
  return c.batch * c.kv_heads * decode_row_tiles(c) * ((c.keys + block_keys - 1) / block_keys) *
         decode_state_floats(decode_tile_rows(c), decode_dim(c)) * 4;
}

}  // namespace

// States of 8 rows of 64 have a multiple of 16 bytes: the mask that follows them lies as its words want it.
std::int64_t decode_bytes(const Call& c, const Extents& extents) {
  return state_bytes(c) + extents.mask.bytes();
}

void launch_decode(const Call& c, const Extents& extents, const Workspace& workspace, Stream stream,
                   Cut cut) {
  if (c.batch * c.kv_heads == 0 || c.queries == 0) return;
  DecodePlan made = plan(c, cut);
  if (!c.cached && c.keys > 0 && has_many_rows(c)) {
    const auto map = is_padded(c) ? tensor_map : tensor_map_of_rows;
    made.k = map(c.k, {c.dim, extents.key_rows, c.kv_heads, c.batch}, many_tile_keys);
    made.v = map(c.v, {c.value_dim, extents.key_rows, c.kv_heads, c.batch}, many_tile_keys);
  }
  made.states = reinterpret_cast<float*>(workspace.rest());
  made.arrivals = workspace.counters();
  made.mask = packed(c, extents.mask, workspace.rest() + state_bytes(c), stream);
  c.q.type == Type::bf16 ? launch_of<Type::bf16>(c)(c, made, stream)
                         : launch_of<Type::f16>(c)(c, made, stream);
}

}  // namespace heed::cuda
