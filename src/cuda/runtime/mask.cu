// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "cuda/runtime/launch_early.cuh"
#include "cuda/runtime/mask.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {
namespace {

// Whether masks are one of bytes that can be read 16 at a time.
HEED_DEVICE bool is_one_of_bytes(const Call& c) {
  if (c.mask_count != 1 || c.document_count > 0) return false;
  const BoolTensor& mask = c.masks[0];
  const TensorStrides& s = mask.where.stride;
  return !mask.is_tree && s.dim == 1 &&
         (s.batch | s.heads | s.length | reinterpret_cast<std::int64_t>(mask.where.data)) % 16 == 0;
}
// A bit for each of 32 bytes that is not 0.
HEED_DEVICE std::uint32_t bits_of_bytes(const uint4* from) {
  std::uint32_t bits = 0;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint4 x = from[n];
    const std::uint32_t fours[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const std::uint32_t high = (((fours[m] & 0x7f7f7f7fu) + 0x7f7f7f7fu) | fours[m]) & 0x80808080u;
      bits |= ((high >> 7) * 0x204081u >> 21 & 15) << (16 * n + 4 * m);  // side by side
    }
  }
  return bits;
}
// A bit for each of 32 keys that masks let the query see.
HEED_DEVICE std::uint32_t seen_of_32(const Call& c, const Query& q, int first, bool in_bytes) {
  if (in_bytes && first + 32 <= c.keys) {
    const BoolTensor& mask = c.masks[0];
    const auto* const from = static_cast<const std::uint8_t*>(mask.where.data) + row_of(mask.where, q).first;
    const std::uint32_t bits = bits_of_bytes(reinterpret_cast<const uint4*>(from + first));
    return mask.visible_when ? bits : ~bits;
  }
  std::uint32_t bits = 0;
  for (int n = 0; n < 32 && first + n < c.keys; ++n)
    bits |= static_cast<std::uint32_t>(masks_allow(c, q, first + n)) << n;
  return bits;
}

// Each block some tiles of keys of 64 rows, its threads a word of a row each.
constexpr int pack_threads = 256;
__global__ void __launch_bounds__(pack_threads)
    pack_mask(const __grid_constant__ Call c, const __grid_constant__ PackedMask mask) {
  launch_dependents(), wait_for_prior_launches();
  const int block = static_cast<int>(blockIdx.x), tile_words = mask.tile_keys / 32;
  const int b = static_cast<int>(blockIdx.z) / mask.heads, h = static_cast<int>(blockIdx.z) % mask.heads;
  auto* const words = const_cast<std::uint32_t*>(mask.words);
  const bool in_bytes = is_one_of_bytes(c);
  for (int tile = static_cast<int>(blockIdx.y); tile < mask.tiles; tile += static_cast<int>(gridDim.y)) {
    bool sees_any = false, sees_all = true;
    for (int n = thread_index(); n < PackedMask::block_rows * tile_words; n += pack_threads) {
      const int i = block * PackedMask::block_rows + n / tile_words, w = tile * tile_words + n % tile_words;
      if (i >= mask.rows) break;
      const std::uint32_t word = seen_of_32(c, {b, h, i, i}, w * 32, in_bytes);
      const int keys = min_of(32, max_of(static_cast<int>(c.keys) - w * 32, 0));
      sees_any = sees_any || word != 0;
      sees_all = sees_all && (keys == 0 || ~word << (32 - keys) == 0);
      words[(mask.matrix(b, h) * mask.rows + i) * mask.row_words + w] = word;
    }
    const bool any_key = __syncthreads_or(sees_any), all_keys = __syncthreads_and(sees_all);
    if (thread_index() == 0)
      const_cast<TileClass*>(mask.classes)[(mask.matrix(b, h) * mask.blocks() + block) * mask.tiles + tile] =
          all_keys  ? TileClass::full
          : any_key ? TileClass::mixed
                    : TileClass::empty;
  }
}

}  // namespace

PackedMask packed(const Call& c, PackedMask mask, std::byte* memory, Stream stream) {
  if (mask.row_words == 0) return mask;
  mask.words = reinterpret_cast<const std::uint32_t*>(memory);
  mask.classes = reinterpret_cast<const TileClass*>(memory + mask.word_bytes());
  const int splits = mask.tiles < 32 ? mask.tiles : 32;
  launch_early(pack_mask,
               {dim3(static_cast<unsigned>(mask.blocks()), static_cast<unsigned>(splits),
                     static_cast<unsigned>(mask.matrices())),
                pack_threads},
               stream, c, mask);
  return mask;
}

}  // namespace heed::cuda
