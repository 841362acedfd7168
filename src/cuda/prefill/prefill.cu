// SPDX-License-Identifier: Apache-2.0
// Which calls the kernels of the matrix units take, and prefill's launch. The kernels themselves are compiled
// in files of their own, which the build writes: each takes long.
#include <cuda_runtime.h>

#include <cmath>
#include <initializer_list>
#include <iterator>

#include "cuda/prefill/launch.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/tensor_map.hpp"
#include "cuda/tile/visible.cuh"

namespace heed::cuda {

const char* matrix_units_refuse(const Call& c) {
  if (c.q.type != Type::bf16 && c.q.type != Type::f16) return "it takes bf16 and f16";
  if (c.k.type != c.q.type || c.v.type != c.q.type) return "it takes q, k and v of one type";
  if (c.front > 0 || c.gap_count > 0) return "it takes no front of a window";
  if (c.weights.data) return "weights were asked for";
  if (c.scores.data) return "scores were asked for";
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap_log2e)) return "options.softcap times log2(e) is beyond the range of f32";
  if (c.keys >= std::int64_t{1} << 30 || c.queries >= std::int64_t{1} << 30)
    return "there are 2^30 rows or more";
  return nullptr;
}

namespace {

// Options beside ranges of keys.
const char* options_refuse(const Call& c) {
  if (!takes_options) return "masks of booleans, documents, bias, ALiBi and dropout are the general kernel's";
  if (c.cached) return "it takes no masks, bias, ALiBi or dropout over a cache";
  for (std::int64_t b = 0; c.sequences && b < c.batch; ++b)
    if (c.sequences[b].first_query != 0)
      return "it takes no masks, bias, ALiBi or dropout of packed sequences";
  const TensorStrides& s = c.bias.stride;
  if (c.bias.data &&
      (s.dim != 1 || s.length % 2 != 0 || s.heads % 2 != 0 || s.batch % 2 != 0 ||
       reinterpret_cast<std::uintptr_t>(c.bias.data) % (c.bias.type == Type::f32 ? 8 : 4) != 0))
    return "rows of a bias must have no gaps and begin on two elements";
  constexpr std::int64_t max_mask_bytes = 256'000'000;
  if (packed_mask(c, 128).bytes() > max_mask_bytes) return "its masks are beyond 256 MB in bits";
  return nullptr;
}
bool has_options(const Call& c) {
  return c.bias.data || c.alibi.of_heads || c.mask_count > 0 || c.document_count > 0 || c.drop_below > 0;
}

// Each block some tiles of keys of 64 rows, its warps a row at a time.
constexpr int pack_threads = 256;
__global__ void __launch_bounds__(pack_threads)
    pack_mask(const __grid_constant__ Call c, const __grid_constant__ PackedMask mask) {
  const int lane = thread_index() % 32, block = static_cast<int>(blockIdx.x);
  const int b = static_cast<int>(blockIdx.z) / mask.heads, h = static_cast<int>(blockIdx.z) % mask.heads;
  auto* const words = const_cast<std::uint32_t*>(mask.words);
  for (int tile = static_cast<int>(blockIdx.y); tile < mask.tiles; tile += static_cast<int>(gridDim.y)) {
    bool sees_any = false, sees_all = true;
    for (int r = thread_index() / 32; r < PackedMask::block_rows; r += pack_threads / 32) {
      const int i = block * PackedMask::block_rows + r;
      if (i >= mask.rows) break;
      for (int first = tile * mask.tile_keys; first < (tile + 1) * mask.tile_keys; first += 32) {
        const int j = first + lane;
        const bool is_seen = j < c.keys && masks_allow(c, {b, h, i, i}, j);
        const std::uint32_t word = __ballot_sync(0xffffffffu, is_seen);
        sees_any = sees_any || word != 0;
        sees_all = sees_all && (is_seen || j >= c.keys);
        if (lane == 0) words[(mask.matrix(b, h) * mask.rows + i) * mask.row_words + first / 32] = word;
      }
    }
    const bool any_key = __syncthreads_or(sees_any), all_keys = __syncthreads_and(sees_all);
    if (thread_index() == 0)
      const_cast<TileClass*>(mask.classes)[(mask.matrix(b, h) * mask.blocks() + block) * mask.tiles + tile] =
          all_keys  ? TileClass::full
          : any_key ? TileClass::mixed
                    : TileClass::empty;
  }
}

// Puts the mask into this memory.
PackedMask packed(const Call& c, PackedMask mask, std::byte* memory, Stream stream) {
  if (mask.row_words == 0) return mask;
  mask.words = reinterpret_cast<const std::uint32_t*>(memory);
  mask.classes = reinterpret_cast<const TileClass*>(memory + mask.word_bytes());
  const int splits = mask.tiles < 16 ? mask.tiles : 16;
  pack_mask<<<dim3(static_cast<unsigned>(mask.blocks()), static_cast<unsigned>(splits),
                   static_cast<unsigned>(mask.matrices())),
              pack_threads, 0, stream>>>(c, mask);
  check(cudaGetLastError(), "cuda.prefill: masks");
  return mask;
}

}  // namespace

const char* prefill_refuses(const Call& c) {
  if (const char* reason = matrix_units_refuse(c)) return reason;
  if (has_options(c))
    if (const char* reason = options_refuse(c)) return reason;
  const auto is_width = [](std::int64_t dim) { return dim >= 8 && dim <= 256 && dim % 8 == 0; };
  if (!is_width(c.dim) || !is_width(c.value_dim)) return "it takes heads of 8 to 256 in steps of 8";
  if (c.cached && c.cap != 0) return "it takes no softcap over a cache";  // registers do not suffice (C7511)
  if (c.out.type != c.q.type) return "it writes the type of q";
  if (!(c.scale_log2e > 0)) return "it takes a positive scale";
  if (c.keys == 0) return "there are no keys";
  for (const Tensor* t : {&c.q, &c.k, &c.v, &c.out})
    if (!is_mappable(*t) && !(c.cached && (t == &c.k || t == &c.v)))
      return "the copy engine wants rows without gaps, and everything on 16 bytes";
  return nullptr;
}

std::int64_t prefill_rows(const Call& c) {
  return 64 * prefill_groups(prefill_dims_for(c).dim, prefill_kind(c));
}

PackedMask prefill_mask(const Call& c) { return packed_mask(c, prefill_keys(prefill_dims_for(c))); }
std::int64_t prefill_bytes(const Call& c) { return prefill_mask(c).bytes(); }

namespace {

// The kernels of the n-th of prefill_dims, or of one after it.
template <std::size_t n = 0>
void launch_for(const PrefillDims& dims, const Call& c, const Extents& extents, const PrefillPlan& plan,
                Stream stream) {
  constexpr PrefillDims it = prefill_dims[n];
  if (dims.dim == it.dim && dims.value_dim == it.value_dim)
    c.q.type == Type::bf16 ? launch_prefill_dims<it.dim, it.value_dim, Type::bf16>(c, extents, plan, stream)
                           : launch_prefill_dims<it.dim, it.value_dim, Type::f16>(c, extents, plan, stream);
  else if constexpr (n + 1 < std::size(prefill_dims))
    launch_for<n + 1>(dims, c, extents, plan, stream);
}

}  // namespace

void launch_prefill(const Call& c, const Extents& extents, const PrefillTiles& tiles,
                    const Workspace& workspace, Stream stream) {
  if (tiles.count * c.heads == 0) return;
  PrefillPlan plan{};
  plan.next_tile = workspace.counters();
  plan.tile_starts = tiles.starts;
  plan.tiles = static_cast<int>(tiles.count * c.heads);
  if (!tiles.starts) plan.order = prefill_order(c, prefill_rows(c));
  plan.key_rows = static_cast<int>(extents.key_rows);
  plan.mask = packed(c, tiles.mask, workspace.rest(), stream);
  launch_for(prefill_dims_for(c), c, extents, plan, stream);
}

}  // namespace heed::cuda
