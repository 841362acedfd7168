// SPDX-License-Identifier: Apache-2.0
// Which calls prefill takes, and how it cuts them.
#include "cuda/prefill/plan.hpp"

#include <algorithm>
#include <cstdint>

#include "cuda/general/partials.hpp"
#include "cuda/prefill/launch.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/mask.hpp"
#include "cuda/runtime/tensor_map.hpp"

namespace heed::cuda {
namespace {

constexpr std::int64_t max_grid_depth = 65535;  // gridDim.z: sequences that are gathered

// Options beside ranges of keys. One at a time changes scores or weights: kernels for more would need more
// registers than there are.
const char* options_refuse(const Call& c) {
  const int changes =
      (c.cap != 0) + (c.bias.data != nullptr) + (c.alibi.of_heads != nullptr) + (c.drop_below > 0);
  const bool is_masked = has_masks(prefill_kind(c));
  if (changes > 1) return "it takes one of softcap, bias, ALiBi and dropout";
  if (c.softcap_log2e > 512) return "options.softcap is more than its scores are right to";
  if (c.cached && c.layout.is_quantized && (changes > 0 || c.mask_count > 0 || c.document_count > 0))
    return "it takes no options over an int8 cache";
  if (!is_masked) return nullptr;
  for (std::int64_t b = 0; c.sequences && b < c.batch; ++b)
    if (c.sequences[b].first_query != 0) return "it takes no bias, ALiBi or dropout of packed sequences";
  for (std::int64_t n = 0; c.alibi.of_heads && n < (c.alibi.step == 0 ? 1 : c.batch) * c.heads; ++n)
    if (!(c.alibi.of_heads[n] >= 0)) return "it takes slopes of ALiBi that are not negative";
  if (c.alibi.of_heads && c.keys + c.queries > std::int64_t{1} << 24)
    return "options.alibi: there are more than 2^24 keys and queries";
  if (c.bias.data && !is_mappable(c.bias)) return "it takes a bias of bf16 or f16 whose rows lie on 16 bytes";
  return masks_refuse(c, packed_mask(c, prefill_tile_keys(c)));
}

}  // namespace

const char* prefill_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (const char* reason = options_refuse(c)) return reason;
  const auto is_width = [](std::int64_t dim) { return dim >= 8 && dim <= 256 && dim % 8 == 0; };
  if (!is_width(c.dim) || !is_width(c.value_dim)) return "it takes heads of 8 to 256 in steps of 8";
  if (c.out.type != c.q.type) return "it writes the type of q";
  if (!(c.scale_log2e > 0)) return "it takes a positive scale";
  if (c.keys == 0) return "there are no keys";
  constexpr std::int64_t min_rows = 64, min_unit = cut_keys / 4;  // of a tile
  if (c.batch * c.heads * (c.queries / min_rows + c.keys / min_unit + 2) >= std::int64_t{1} << 31)
    return "there are too many tiles of rows";
  if (c.cached && c.batch > max_grid_depth) return "it takes up to 65535 sequences of a cache";
  if (c.cached && !reads_pages(c) && c.kv_heads > max_grid_depth)
    return "it takes up to 65535 KV heads of a cache whose pages it copies";
  for (const Tensor* t : {&c.q, &c.k, &c.v, &c.out})
    if (!is_mappable(*t)) return "the copy engine wants rows without gaps, and everything on 16 bytes";
  return nullptr;
}

std::int64_t prefill_rows(const Call& c) {
  return 64 * prefill_groups(prefill_dims_for(c).dim, prefill_kind(c));
}

std::int64_t prefill_units(const Call& c, const Sequence& s) {
  if (!is_cut(prefill_kind(c)) || !cuts_keys(s)) return 1;
  const std::int64_t unit = prefill_unit_keys(cut_keys, static_cast<int>(c.group()), s.queries, cut_rows);
  return (s.keys + unit - 1) / unit;
}

int prefill_tile_keys(const Call& c) { return prefill_keys(prefill_dims_for(c)); }

namespace {

// Without its memory.
Partials partials_of(const Call& c, const PrefillTiles& tiles) {
  Partials partials;
  if (!is_cut(prefill_kind(c))) return partials;
  const auto group = static_cast<int>(c.group());
  partials.starts = tiles.partial_starts;
  partials.rows = group * static_cast<int>(std::min(c.queries, max_cut_queries));
  partials.unit_keys = static_cast<int>(cut_keys);
  partials.tile_rows = cut_rows;
  partials.units = std::max(1, partials.units_of(group, c.each));  // where sequences differ, each has its own
  partials.cut_rows = group * static_cast<int>(max_cut_queries);
  partials.is_in_pairs = true;
  return partials;
}

}  // namespace

PrefillPlan prefill_plan(const Call& c, const Extents& extents, const PrefillTiles& tiles) {
  PrefillPlan plan{};
  plan.tile_starts = tiles.starts;
  // Where sequences differ, no tile has more than one head: no bit depends on it.
  plan.tile_heads = tiles.starts || prefill_units(c, c.each) == 1
                        ? 1
                        : heads_of_tile(static_cast<int>(c.group()), c.each.queries, cut_rows);
  plan.tiles = static_cast<int>(tiles.count * c.heads) / plan.tile_heads;
  if (!tiles.starts) plan.order = prefill_order(c, prefill_rows(c), plan.tile_heads);
  plan.key_rows = static_cast<int>(extents.key_rows);
  plan.partials = partials_of(c, tiles);
  plan.group = static_cast<int>(c.group()), plan.kv_heads = static_cast<int>(c.kv_heads);
  plan.unit_tiles = plan.partials.keys_of_unit(plan.group, c.each) / prefill_tile_keys(c);
  return plan;
}

}  // namespace heed::cuda
