// SPDX-License-Identifier: Apache-2.0
// Where keys and values come from: tiles of them on their way into shared memory, and how products read them there. A source
// says how its keys lie (a key's dimensions side by side, or a dimension's keys), how large a slot of the ring is, prefetches
// a tile into a slot, and says where operands are once the tile is there. Keys that no row of the
// block sees are not read, or are hidden later; their values become 0.
#pragma once
#include <cstdint>

#include "cuda/algorithm/element.cuh"
#include "general/rows.cuh"
#include "general/shape.hpp"
#include "general/tile.cuh"

namespace heed::cuda::general {

// Keys and values of one tile, as products read them.
struct Operands {
  SharedAddress keys, values;
  SharedAddress key_scales, value_scales;  // of an int8 cache, a float for each key
};

// An address for copies of no bytes, which is not read.
HEED_DEVICE const unsigned char* aligned(const void* p) {
  return reinterpret_cast<const unsigned char*>(reinterpret_cast<std::uintptr_t>(p) / 16 * 16);
}

// 16 bytes of a row's elements from `d` on, one by one: where rows do not lie in 16-byte pieces.
inline __device__ __noinline__ void copy_elements(SharedAddress to, const Row& row, int d, int dim) {
  const auto* from = static_cast<const std::uint16_t*>(row.data) + row.first;
  std::uint32_t x[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int e = d + 2 * n;
    const std::uint32_t low = e < dim ? from[e * row.step] : 0, high = e + 1 < dim ? from[(e + 1) * row.step] : 0;
    x[n] = low | high << 16;
  }
  store16(to, x);
}

// Rows of a strided array, as far as `width` numbers: `columns` pieces of 16 bytes each, `pitch` bytes apart.
template <int threads, int rows, int width, int pitch>
struct RowCopy {
  static constexpr int pieces = width / 8;

  // row(r) is where row r lies; is_there(r) whether it is read.
  template <class RowAt, class IsThere>
  HEED_DEVICE static void run(SharedAddress to, int dim, bool in_16, const RowAt& row, const IsThere& is_there) {
#pragma unroll 4
    for (int n = thread_index(); n < rows * pieces; n += threads) {
      const int r = n / pieces, piece = n % pieces, d = piece * 8;
      const SharedAddress at = to + r * pitch + piece * 16;
      const int bytes = is_there(r) ? max(0, min(16, (dim - d) * 2)) : 0;
      const Row from = row(bytes > 0 ? r : -1);
      if (in_16)
        prefetch16(at, static_cast<const std::uint16_t*>(from.data) + from.first + (bytes > 0 ? d : 0), bytes);
      else if (bytes > 0)
        copy_elements(at, from, d, dim);
      else
        store16(at, {0, 0, 0, 0});
    }
  }
};

// K and V as tensors of any strides.
template <class Shape>
class Arrays {
 public:
  static constexpr bool keys_are_transposed = false, is_quantized = false;
  static constexpr int key_bytes = Shape::tile_keys * Shape::query_pitch, slot_bytes = key_bytes + Shape::value_bytes;
  static constexpr int extra_bytes = 0;

  HEED_DEVICE Arrays(const Call& call, const Plan& launch, const BlockFacts<Shape>& of, unsigned char*)
      : c(call), plan(launch), block(of), k(first_key(c.k)), v(first_key(c.v)) {}

  HEED_DEVICE void look_up(int) {}

  HEED_DEVICE void prefetch(int tile, SharedAddress slot) {
    const int first = tile * Shape::tile_keys;
    copy<Shape::dim, Shape::query_pitch>(slot, k, c.k, static_cast<int>(c.dim), plan.k_in_16, first);
    copy<Shape::value_dim, Shape::value_pitch>(slot + key_bytes, v, c.v, static_cast<int>(c.value_dim), plan.v_in_16, first);
  }

  HEED_DEVICE Operands settle(SharedAddress slot) const { return {slot, slot + key_bytes, 0, 0}; }

 private:
  HEED_DEVICE const std::uint16_t* first_key(const Tensor& t) const {
    const Row row = row_of(t, block.tile.b, block.tile.kv_head, block.tile.first_key);
    return static_cast<const std::uint16_t*>(row.data) + row.first;
  }

  template <int width, int pitch>
  HEED_DEVICE void copy(SharedAddress to, const std::uint16_t* from, const Tensor& t, int dim, bool in_16, int first) {
    constexpr int pieces = width / 8, step = Shape::threads / pieces;
    if constexpr (Shape::threads % pieces == 0 && Shape::tile_keys % step == 0) {
      if (in_16 && dim == width && first >= block.keys.begin && first + Shape::tile_keys <= block.keys.end) {
        const int r = thread_index() / pieces, piece = thread_index() % pieces;
        const std::uint16_t* at = from + (first + r) * t.length + piece * 8;
        to += r * pitch + piece * 16;
#pragma unroll
        for (int n = 0; n < Shape::tile_keys / step; ++n) prefetch16(to + n * step * pitch, at + n * step * t.length);
        return;
      }
    }
    RowCopy<Shape::threads, Shape::tile_keys, width, pitch>::run(
        to, dim, in_16, [&](int r) -> Row { return {from, r < 0 ? 0 : (first + r) * t.length, t.dim, t.type, 0}; },
        [&](int r) { return first + r >= block.keys.begin && first + r < block.keys.end; });
  }

  const Call& c;
  const Plan& plan;
  const BlockFacts<Shape>& block;
  const std::uint16_t *const k, *const v;  // of the sequence's first key
};

// The part of a cache's page that has 16 tokens of a KV head, found a tile before it is read: the table is far away.
template <class Shape>
class PageTable {
 public:
  static constexpr int parts = Shape::tile_keys / 16;
  using Found = const unsigned char* [2][parts];

  HEED_DEVICE PageTable(const Call& call, const BlockFacts<Shape>& of, Found& shared) : c(call), block(of), found(shared) {}

  // Where the parts of a tile are; others see it after they have met.
  HEED_DEVICE void look_up(int tile, int turn) {
    const int n = thread_index();
    if (n >= parts) return;
    const int j = tile * Shape::tile_keys + n * 16, page = static_cast<int>(c.layout.page_size);
    found[turn][n] = j < block.keys.end ? c.cached[block.tile.b].table[j / page] + block.tile.kv_head * c.layout.head_bytes() : nullptr;
  }
  HEED_DEVICE const unsigned char* part(int turn, int n) const { return found[turn][n]; }
  // Tokens of its page before this part.
  HEED_DEVICE int before(int tile, int n) const {
    return (tile * Shape::tile_keys + n * 16) % static_cast<int>(c.layout.page_size);
  }

  const Call& c;
  const BlockFacts<Shape>& block;

 private:
  Found& found;
};

// A cache's pages: 16 keys lie (dims, 16) and their values (dims / 16, 16, 16). Keys stay transposed; a value's dimensions
// become one row, as an array's are.
template <class Shape>
class Pages {
  using Table = PageTable<Shape>;

 public:
  static constexpr bool keys_are_transposed = true, is_quantized = false;
  static constexpr int key_pitch = Shape::pitch(Shape::tile_keys);
  static constexpr int key_bytes = Shape::dim * key_pitch, slot_bytes = key_bytes + Shape::value_bytes;
  static constexpr int extra_bytes = sizeof(typename Table::Found);

  HEED_DEVICE Pages(const Call& call, const Plan&, const BlockFacts<Shape>& of, unsigned char* extra)
      : table(call, of, *reinterpret_cast<typename Table::Found*>(extra)), dim(static_cast<int>(call.dim)),
        value_blocks(static_cast<int>(call.layout.value_width()) / 16) {}

  // Before the block meets, of the tile that is prefetched after it.
  HEED_DEVICE void look_up(int tile) { table.look_up(tile, turn); }

  HEED_DEVICE void prefetch(int tile, SharedAddress slot) {
    const cache::PageLayout& layout = table.c.layout;
#pragma unroll 1
    for (int part = 0; part < Table::parts; ++part) {
      const unsigned char* page = table.part(turn, part);
      const int before = table.before(tile, part), first = tile * Shape::tile_keys + part * 16;
      const unsigned char *keys = page + std::int64_t{before} * dim * 2,
                          *values = page + layout.values_at() + std::int64_t{before} * value_blocks * 32;
      // Eight neighbouring lanes write a column of eight rows, which lie in different banks.
#pragma unroll 4
      for (int n = thread_index(); n < Shape::dim * 2; n += Shape::threads) {
        const int d = n / 16 * 8 + n % 8, half = n / 8 % 2;
        const bool is_there = page && d < dim;
        prefetch16(slot + d * key_pitch + (part * 2 + half) * 16, is_there ? keys + d * 32 + half * 16 : nowhere(), is_there ? 16 : 0);
      }
#pragma unroll 4
      for (int n = thread_index(); n < Shape::value_steps * 32; n += Shape::threads) {
        const int block = n / 32, half = n / 8 % 2, token = n / 16 % 2 * 8 + n % 8;
        const bool is_there = page && block < value_blocks && is_seen(first + token);
        prefetch16(slot + key_bytes + (part * 16 + token) * Shape::value_pitch + block * 32 + half * 16,
                   is_there ? values + block * 512 + token * 32 + half * 16 : nowhere(), is_there ? 16 : 0);
      }
    }
    turn ^= 1;
  }

  HEED_DEVICE Operands settle(SharedAddress slot) const { return {slot, slot + key_bytes, 0, 0}; }

 private:
  HEED_DEVICE bool is_seen(int j) const { return j >= table.block.keys.begin && j < table.block.keys.end; }
  HEED_DEVICE const unsigned char* nowhere() const { return aligned(table.c.q.data); }

  Table table;
  const int dim, value_blocks;
  int turn = 0;
};

// Pages of int8: bytes are prefetched as they lie and become 16-bit numbers, exactly, when their turn comes. Scales stay
// apart: a key's is a factor of its score, a value's of its weight.
template <class Shape>
class Int8Pages {
  using Table = PageTable<Shape>;

 public:
  static constexpr bool keys_are_transposed = true, is_quantized = true;
  static constexpr int key_pitch = Shape::pitch(Shape::tile_keys), wide_key_bytes = Shape::dim * key_pitch;
  static constexpr int narrow_keys = Shape::tile_keys * Shape::dim, narrow_values = Shape::tile_keys * Shape::value_dim;
  static constexpr int scales_at = narrow_keys + narrow_values, slot_bytes = scales_at + Shape::tile_keys * 8;
  static constexpr int found_bytes = (sizeof(typename Table::Found) + 15) / 16 * 16;
  static constexpr int extra_bytes = found_bytes + wide_key_bytes + Shape::value_bytes;

  HEED_DEVICE Int8Pages(const Call& call, const Plan&, const BlockFacts<Shape>& of, unsigned char* extra)
      : table(call, of, *reinterpret_cast<typename Table::Found*>(extra)), dim(static_cast<int>(call.dim)),
        value_blocks(static_cast<int>(call.layout.value_width()) / 16), wide(shared_address(extra) + found_bytes) {}

  HEED_DEVICE void look_up(int tile) { table.look_up(tile, turn); }

  HEED_DEVICE void prefetch(int tile, SharedAddress slot) {
    const cache::PageLayout& layout = table.c.layout;
#pragma unroll 1
    for (int part = 0; part < Table::parts; ++part) {
      const unsigned char* page = table.part(turn, part);
      const int before = table.before(tile, part), first = tile * Shape::tile_keys + part * 16;
      const unsigned char *keys = page + std::int64_t{before} * dim,
                          *values = page + layout.values_at() + std::int64_t{before} * value_blocks * 16;
#pragma unroll 4
      for (int n = thread_index(); n < Shape::dim; n += Shape::threads) {
        const bool is_there = page && n < dim;
        prefetch16(slot + (part * Shape::dim + n) * 16, is_there ? keys + n * 16 : nowhere(), is_there ? 16 : 0);
      }
#pragma unroll 4
      for (int n = thread_index(); n < Shape::value_dim; n += Shape::threads) {
        const int token = first + n % 16;
        const bool is_there = page && n / 16 < value_blocks && is_seen(token);
        prefetch16(slot + narrow_keys + (part * Shape::value_dim + n) * 16, is_there ? values + n * 16 : nowhere(), is_there ? 16 : 0);
      }
      if (thread_index() < 8) {  // 16 scales of keys and 16 of values
        const int n = thread_index();
        const unsigned char* from = page + (n < 4 ? layout.key_scales_at() : layout.value_scales_at()) + before * 4 + n % 4 * 16;
        prefetch16(slot + scales_at + (n < 4 ? 0 : Shape::tile_keys * 4) + part * 64 + n % 4 * 16, page ? from : nowhere(), page ? 16 : 0);
      }
    }
    turn ^= 1;
  }

  // For all threads: those before have read what was there, and those after find the tile.
  HEED_DEVICE Operands settle(SharedAddress slot) const {
#pragma unroll 4
    for (int n = thread_index(); n < Shape::tile_keys / 16 * Shape::dim; n += Shape::threads) {
      const int part = n / Shape::dim, d = n % Shape::dim;
      widen(wide + d * key_pitch + part * 32, slot + n * 16);
    }
#pragma unroll 4
    for (int n = thread_index(); n < Shape::tile_keys / 16 * Shape::value_dim; n += Shape::threads) {
      const int part = n / Shape::value_dim, block = n % Shape::value_dim / 16, token = n % 16;
      widen(wide + wide_key_bytes + (part * 16 + token) * Shape::value_pitch + block * 32, slot + narrow_keys + n * 16);
    }
    sync();
    return {wide, wide + wide_key_bytes, slot + scales_at, slot + scales_at + Shape::tile_keys * 4};
  }

 private:
  HEED_DEVICE bool is_seen(int j) const { return j >= table.block.keys.begin && j < table.block.keys.end; }
  HEED_DEVICE const unsigned char* nowhere() const { return aligned(table.c.q.data); }
  HEED_DEVICE static void widen(SharedAddress to, SharedAddress from) {
    std::uint32_t bytes[4], low[4], high[4];
    load16(bytes, from);
    std::uint32_t two[2];
    widen_bytes<Shape::type>(two, bytes[0]), low[0] = two[0], low[1] = two[1];
    widen_bytes<Shape::type>(two, bytes[1]), low[2] = two[0], low[3] = two[1];
    widen_bytes<Shape::type>(two, bytes[2]), high[0] = two[0], high[1] = two[1];
    widen_bytes<Shape::type>(two, bytes[3]), high[2] = two[0], high[3] = two[1];
    store16(to, low), store16(to + 16, high);
  }

  Table table;
  const int dim, value_blocks;
  const SharedAddress wide;
  int turn = 0;
};

}  // namespace heed::cuda::general
