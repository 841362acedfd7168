// SPDX-License-Identifier: Apache-2.0
// Where keys and values come from: tiles of them on their way into shared memory, and how products read them
// there. A source says how its keys lie (a key's dimensions side by side, or a dimension's keys), how large a
// slot of the ring is, and copies a tile into a slot: at once, or in `copies` pieces among other work, where
// all rows of a tile are valid (`aim` says so). Keys that no row of the block sees are not read, or are
// hidden later; their values become 0. Dimensions beyond the call's are 0 in every slot from the beginning.
#pragma once
#include <cstdint>

#include "cuda/general/rows.cuh"
#include "cuda/general/state.cuh"
#include "cuda/tile/row.cuh"

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
  const auto pair = [&](int e) -> std::uint32_t {
    const std::uint32_t low = e < dim ? from[e * row.step] : 0,
                        high = e + 1 < dim ? from[(e + 1) * row.step] : 0;
    return low | high << 16;
  };
  store_shared16(to, {pair(d), pair(d + 2), pair(d + 4), pair(d + 6)});
}

// How the threads of a block copy rows of `width` numbers: each has one piece of 16 bytes of every step-th
// row.
template <int threads, int rows, int width, int pitch>
struct RowCopy {
  static constexpr int pieces = width / 8, step = threads / pieces, copies = (rows + step - 1) / step;
  static constexpr bool is_even =
      threads % pieces == 0 && rows % step == 0;  // every thread has a row each time

  HEED_DEVICE static int piece() { return thread_index() % pieces; }
  HEED_DEVICE static int row(int n) { return thread_index() / pieces + n * step; }
  HEED_DEVICE static bool has(int n) { return is_even || (thread_index() < pieces * step && row(n) < rows); }
  HEED_DEVICE static SharedAddress place(int n) {
    return static_cast<SharedAddress>(row(n) * pitch + piece() * 16);
  }

  // from(r) is where row r lies, and is_valid(r) whether it is read.
  template <class RowAt, class IsThere>
  HEED_DEVICE static void run(SharedAddress to, int dim, bool in_16, const RowAt& from,
                              const IsThere& is_valid) {
    const int d = piece() * 8;
#pragma unroll 4
    for (int n = 0; n < copies; ++n) {
      if (!has(n)) continue;
      const bool is_read = d < dim && is_valid(row(n));
      const Row at = from(is_read ? row(n) : -1);
      if (in_16)
        prefetch16(to + place(n), static_cast<const std::uint16_t*>(at.data) + at.first + (is_read ? d : 0),
                   is_read);
      else if (is_read)
        copy_elements(to + place(n), at, d, dim);
      else
        clear_shared16(to + place(n));
    }
  }
};

// K and V as tensors of any strides.
template <class Shape>
class Arrays {
  using Keys = RowCopy<Shape::threads, Shape::tile_keys, Shape::dim, Shape::query_pitch>;
  using Values = RowCopy<Shape::threads, Shape::tile_keys, Shape::value_dim, Shape::value_pitch>;

 public:
  static constexpr bool keys_are_transposed = false, is_quantized = false;
  static constexpr int key_bytes = Shape::tile_keys * Shape::query_pitch,
                       slot_bytes = key_bytes + Shape::value_bytes;
  static constexpr int key_copies = Keys::copies, value_copies = Values::copies;
  static constexpr int extra_bytes = 0, copies = 2 * (key_copies > value_copies ? key_copies : value_copies);

  HEED_DEVICE Arrays(const Call& call, const Plan& launch, const BlockFacts<Shape>& of, unsigned char*)
      : c(call),
        plan(launch),
        block(of),
        has_key(Keys::piece() * 8 < static_cast<int>(c.dim)),
        has_value(Values::piece() * 8 < static_cast<int>(c.value_dim)),
        whole_end(plan.k_in_16 && plan.v_in_16 ? of.keys.end / Shape::tile_keys : 0),
        first_key(of.first_key + std::int64_t{Keys::row(0)} * plan.key_stride + Keys::piece() * 8),
        first_value(of.first_value + std::int64_t{Values::row(0)} * plan.value_stride + Values::piece() * 8) {
  }

  HEED_DEVICE void begin(int) {}
  HEED_DEVICE void look_up(int, int, int) {}

  HEED_DEVICE void prefetch(int tile, int, SharedAddress slot) {
    prefetch_keys(tile, slot), prefetch_values(tile, slot + key_bytes);
  }
  HEED_DEVICE void prefetch_keys(int tile, SharedAddress at) {
    copy_rows<Keys>(at, block.first_key, c.k, static_cast<int>(c.dim), plan.k_in_16, tile * Shape::tile_keys);
  }
  HEED_DEVICE void prefetch_values(int tile, SharedAddress at) {
    copy_rows<Values>(at, block.first_value, c.v, static_cast<int>(c.value_dim), plan.v_in_16,
                      tile * Shape::tile_keys);
  }

  HEED_DEVICE bool aim(int tile, int, SharedAddress slot) {
    aim_keys(tile, slot);
    const SharedAddress before = to;
    aim_values(tile, slot + key_bytes);
    if (Shape::dim == Shape::value_dim) value_to = before + key_bytes;
    return tile < whole_end;
  }
  HEED_DEVICE void aim_keys(int tile, SharedAddress at) {
    to = at + Keys::place(0);
    key_at = first_key + std::int64_t{tile} * (Shape::tile_keys * plan.key_stride);
  }
  HEED_DEVICE void aim_values(int tile, SharedAddress at) {
    value_to = at + Values::place(0);
    value_at = first_value + std::int64_t{tile} * (Shape::tile_keys * plan.value_stride);
  }
  // Whether copies of a tile need not look at its rows one by one; of all but the first it is so before
  // whole_tiles().
  HEED_DEVICE int whole_tiles() const { return whole_end; }
  HEED_DEVICE bool is_whole(int tile) const {
    return tile < whole_end && tile * Shape::tile_keys >= block.keys.begin;
  }
  // The n-th, keys and values alternating. Every address is made anew: one that changed in place would wait
  // for the copy before.
  HEED_DEVICE void copy(int n, bool is_wanted) {
    n % 2 == 0 ? copy_keys(n / 2, is_wanted) : copy_values(n / 2, is_wanted);
  }
  HEED_DEVICE void copy_keys(int n, bool is_wanted) {
    if (n < Keys::copies)
      prefetch16_if(is_wanted && has_key && Keys::has(n), to + n * Keys::step * Shape::query_pitch,
                    key_at + n * (Keys::step * plan.key_stride));
  }
  HEED_DEVICE void copy_values(int n, bool is_wanted) {
    if (n < Values::copies)
      prefetch16_if(is_wanted && has_value && Values::has(n),
                    value_to + n * Values::step * Shape::value_pitch,
                    value_at + n * (Values::step * plan.value_stride));
  }

  // All of a tile that is whole, of a head whose dimensions are the shape's.
  HEED_DEVICE static void copy_first_keys(const Plan& plan, const std::uint16_t* from, SharedAddress at) {
    copy_whole<Keys>(from, plan.key_stride, at);
  }
  HEED_DEVICE static void copy_first_values(const Plan& plan, const std::uint16_t* from, SharedAddress at) {
    copy_whole<Values>(from, plan.value_stride, at);
  }

  HEED_DEVICE Operands settle(SharedAddress slot) const { return {slot, slot + key_bytes, 0, 0}; }

 private:
  template <class Rows>
  HEED_DEVICE static void copy_whole(const std::uint16_t* from, int stride, SharedAddress at) {
    from += std::int64_t{Rows::row(0)} * stride + Rows::piece() * 8;
#pragma unroll
    for (int n = 0; n < Rows::copies; ++n)
      prefetch16_if(Rows::has(n), at + Rows::place(n), from + n * (Rows::step * stride));
  }
  template <class Rows>
  HEED_DEVICE void copy_rows(SharedAddress slot, const std::uint16_t* from, const Tensor& t, int dim,
                             bool in_16, int first) {
    Rows::run(
        slot, dim, in_16,
        [&](int r) -> Row {
          return {from, r < 0 ? 0 : (first + r) * t.stride.length, t.stride.dim, t.type, 0};
        },
        [&](int r) { return first + r >= block.keys.begin && first + r < block.keys.end; });
  }

  const Call& c;
  const Plan& plan;
  const BlockFacts<Shape>& block;
  const bool has_key, has_value;  // whether this thread's piece of a row has numbers
  const int whole_end;            // of the tiles whose rows are all valid; the first tile is copied at once
  SharedAddress to = 0, value_to = 0;
  const std::uint16_t *const first_key, *const first_value;    // that this thread copies of tile 0
  const std::uint16_t *key_at = nullptr, *value_at = nullptr;  // that it copies next
};

// Where a cache has 16 tokens of a KV head, found a tile before it is read: the table is far away.
template <class Shape>
class PageTable {
 public:
  static constexpr int parts = Shape::tile_keys / 16;
  struct Part {
    const unsigned char *keys, *values, *key_scales, *value_scales;  // null: it is beyond the keys
  };
  using Found = Part[2][parts];

  HEED_DEVICE PageTable(const Call& call, const BlockFacts<Shape>& of, Found& shared)
      : c(call), block(of), found(shared), pages(c.cached[of.tile.b].table) {}

  // The first tile; then, before the block meets, the tile that is copied after that as number `number`, and
  // the one that follows it, whose page is on its way until the next time.
  HEED_DEVICE void begin(int tile) { fetch(tile); }
  HEED_DEVICE void look_up(int tile, int following, int number) {
    const int n = thread_index();
    if (n >= parts) return;
    Part part{};
    if (page) {
      const int j = tile * Shape::tile_keys + n * 16, page_size = static_cast<int>(c.layout.page_size);
      const std::int64_t before = j - j / page_size * page_size;  // a page may have more than 2 GB
      const PageOffsets& at = block.in_page;
      part.keys = page + at.keys + before * at.key_bytes;
      part.values = page + at.values + before * at.value_bytes;
      part.key_scales = page + at.key_scales + before * 4;
      part.value_scales = page + at.value_scales + before * 4;
    }
    found[number % 2][n] = part;
    fetch(following);
  }
  HEED_DEVICE const Part& part(int number, int n) const { return found[number % 2][n]; }
  HEED_DEVICE bool is_seen(int j) const { return j >= block.keys.begin && j < block.keys.end; }
  HEED_DEVICE bool is_whole(int tile) const {
    return tile * Shape::tile_keys >= block.keys.begin && (tile + 1) * Shape::tile_keys <= block.keys.end;
  }
  // For copies of nothing.
  HEED_DEVICE const unsigned char* nowhere() const { return aligned(c.q.data); }

  const Call& c;

 private:
  HEED_DEVICE void fetch(int tile) {
    const int j = tile * Shape::tile_keys + thread_index() * 16;
    page = thread_index() < parts && j < block.keys.end ? pages[j / static_cast<int>(c.layout.page_size)]
                                                        : nullptr;
  }

  const BlockFacts<Shape>& block;
  Found& found;
  const unsigned char* const* const pages;
  const unsigned char* page = nullptr;
};

// A cache's pages: 16 keys lie (dims, 16) and their values (dims / 16, 16, 16). Keys stay transposed; a
// value's dimensions become one row, as an array's are. A warp copies the keys or the values of 16 tokens:
// eight neighbouring lanes write a column of eight rows, which lie in different banks, and the next 512 bytes
// of the page go to one constant further.
template <class Shape>
class Pages {
  using Table = PageTable<Shape>;
  static constexpr int runs = 2 * Table::parts / Shape::warps,
                       steps = (Shape::dim > Shape::value_dim ? Shape::dim : Shape::value_dim) / 16;
  static_assert(2 * Table::parts % Shape::warps == 0 && (runs == 1 || runs % 2 == 0));

 public:
  static constexpr bool keys_are_transposed = true, is_quantized = false;
  static constexpr int key_pitch = Shape::pitch(Shape::tile_keys);
  static constexpr int key_bytes = Shape::dim * key_pitch, slot_bytes = key_bytes + Shape::value_bytes;
  static constexpr int extra_bytes = sizeof(typename Table::Found), copies = runs * steps;

  HEED_DEVICE Pages(const Call& call, const Plan&, const BlockFacts<Shape>& of, unsigned char* extra)
      : table(call, of, *reinterpret_cast<typename Table::Found*>(extra)), warp(warp_index()) {}

  // Before the block meets, of the tile that is copied after it.
  HEED_DEVICE void begin(int tile) { table.begin(tile); }
  HEED_DEVICE void look_up(int tile, int following, int number) { table.look_up(tile, following, number); }

  HEED_DEVICE void prefetch(int tile, int number, SharedAddress slot) {
    aim(tile, number, slot);
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      const bool of_keys = has_keys(run);
      const int token = tile * Shape::tile_keys + part(run) * 16 + lane_token();
      const bool is_seen = from[run] && (of_keys || table.is_seen(token));
#pragma unroll 4
      for (int n = 0; n < steps; ++n)
        if (n < width(run))
          prefetch16(to[run] + n * step(run), from[run] ? from[run] + n * 512 : table.nowhere(),
                     is_seen && has(run, n));
    }
  }
  HEED_DEVICE bool aim(int tile, int number, SharedAddress slot) {
#pragma unroll
    for (int run = 0; run < runs; ++run) {
      const auto& found = table.part(number, part(run));
      const int lane = lane_index();
      // Of keys a lane has half a row of 16 dimensions' 32 bytes; of values half of a token's.
      const int row = has_keys(run) ? lane / 16 * 8 + lane % 8 : lane_token(), half = lane / 8 % 2;
      from[run] = has_keys(run) ? found.keys : found.values;
      if (from[run]) from[run] += row * 32 + half * 16;
      to[run] = slot +
                (has_keys(run) ? row * key_pitch + part(run) * 32
                               : key_bytes + (part(run) * 16 + row) * Shape::value_pitch) +
                half * 16;
    }
    return table.is_whole(tile);
  }
  HEED_DEVICE void copy(int n, bool is_wanted) {
    const int run = n % runs, m = n / runs;
    prefetch16_if(is_wanted && m < width(run) && has(run, m), to[run] + m * step(run), from[run] + m * 512);
  }

  HEED_DEVICE Operands settle(SharedAddress slot) const { return {slot, slot + key_bytes, 0, 0}; }

 private:
  // Run r of a warp: with one run, half of the warps have keys; else every other run of a warp.
  HEED_DEVICE bool has_keys(int run) const { return runs == 1 ? warp < Table::parts : run % 2 == 0; }
  HEED_DEVICE int part(int run) const {
    return runs == 1 ? warp % Table::parts : run / 2 * Shape::warps + warp;
  }
  HEED_DEVICE static int lane_token() { return lane_index() / 16 * 8 + lane_index() % 8; }
  HEED_DEVICE int width(int run) const { return (has_keys(run) ? Shape::dim : Shape::value_dim) / 16; }
  HEED_DEVICE int step(int run) const { return has_keys(run) ? 16 * key_pitch : 32; }
  // Whether the call has dimensions there.
  HEED_DEVICE bool has(int run, int n) const {
    return has_keys(run) ? n * 16 + lane_index() / 16 * 8 + lane_index() % 8 < static_cast<int>(table.c.dim)
                         : n * 16 < static_cast<int>(table.c.value_dim);
  }

  Table table;
  const int warp;
  const unsigned char* from[runs];
  SharedAddress to[runs];
};

// Pages of int8: bytes are copied as they lie and become 16-bit numbers, exactly, when they are used.
// Scales stay apart: a key's is a factor of its score, a value's of its weight.
template <class Shape>
class Int8Pages {
  using Table = PageTable<Shape>;
  static constexpr int parts = Table::parts, key_pieces = parts * Shape::dim,
                       value_pieces = parts * Shape::value_dim, scale_pieces = parts * 8;
  static constexpr int of_each(int pieces) { return (pieces + Shape::threads - 1) / Shape::threads; }

 public:
  static constexpr bool keys_are_transposed = true, is_quantized = true;
  static constexpr int key_pitch = Shape::pitch(Shape::tile_keys), wide_key_bytes = Shape::dim * key_pitch;
  static constexpr int values_at = key_pieces * 16, scales_at = values_at + value_pieces * 16,
                       slot_bytes = scales_at + Shape::tile_keys * 8;
  static constexpr int found_bytes = (sizeof(typename Table::Found) + 15) / 16 * 16;
  static constexpr int extra_bytes = found_bytes + wide_key_bytes + Shape::value_bytes;
  static constexpr int copies = of_each(key_pieces) + of_each(value_pieces) + 1;
  static_assert(scale_pieces <= Shape::threads);

  HEED_DEVICE Int8Pages(const Call& call, const Plan&, const BlockFacts<Shape>& of, unsigned char* extra)
      : table(call, of, *reinterpret_cast<typename Table::Found*>(extra)),
        wide(shared_address(extra) + found_bytes) {}

  HEED_DEVICE void begin(int tile) { table.begin(tile); }
  HEED_DEVICE void look_up(int tile, int following, int number) { table.look_up(tile, following, number); }

  HEED_DEVICE void prefetch(int tile, int number, SharedAddress slot) {
    to = slot, number_ = number;
#pragma unroll 4
    for (int n = 0; n < copies; ++n) copy<true>(n, true, tile * Shape::tile_keys);
  }
  HEED_DEVICE bool aim(int tile, int number, SharedAddress slot) {
    to = slot, number_ = number;
    return table.is_whole(tile);
  }
  HEED_DEVICE void copy(int n, bool is_wanted) { copy<false>(n, is_wanted, 0); }

  // For all threads: what was in its place has been read before, and the tile can be read after.
  HEED_DEVICE Operands settle(SharedAddress slot) const {
#pragma unroll
    for (int n = 0; n < of_each(key_pieces); ++n) {
      const int x = n * Shape::threads + thread_index(), part = x / Shape::dim, d = x % Shape::dim;
      if (has(x, key_pieces)) widen(wide + d * key_pitch + part * 32, slot + x * 16);
    }
#pragma unroll
    for (int n = 0; n < of_each(value_pieces); ++n) {
      const int x = n * Shape::threads + thread_index(), part = x / Shape::value_dim,
                block = x % Shape::value_dim / 16, token = x % 16;
      if (has(x, value_pieces))
        widen(wide + wide_key_bytes + (part * 16 + token) * Shape::value_pitch + block * 32,
              slot + values_at + x * 16);
    }
    sync();
    return {wide, wide + wide_key_bytes, slot + scales_at, slot + scales_at + Shape::tile_keys * 4};
  }

 private:
  HEED_DEVICE static bool has(int x, int pieces) { return pieces % Shape::threads == 0 || x < pieces; }

  template <bool is_edge>
  HEED_DEVICE void copy(int n, bool is_wanted, int first) {
    if (n < of_each(key_pieces)) {
      const int x = n * Shape::threads + thread_index(), part = x / Shape::dim, d = x % Shape::dim;
      if (!has(x, key_pieces)) return;
      const unsigned char* from = table.part(number_, part).keys;
      const bool is_valid = d < table.c.dim && (!is_edge || from);
      if (is_wanted) prefetch16(to + x * 16, is_valid ? from + d * 16 : table.nowhere(), is_valid);
    } else if (n < copies - 1) {
      const int x = (n - of_each(key_pieces)) * Shape::threads + thread_index(), part = x / Shape::value_dim,
                y = x % Shape::value_dim;
      if (!has(x, value_pieces)) return;
      const unsigned char* from = table.part(number_, part).values;
      const bool is_valid = y / 16 * 16 < table.c.value_dim &&
                            (!is_edge || (from && table.is_seen(first + part * 16 + y % 16)));
      if (is_wanted)
        prefetch16(to + values_at + x * 16, is_valid ? from + y * 16 : table.nowhere(), is_valid);
    } else if (const int x = thread_index();
               x < scale_pieces) {  // 16 scales of keys and 16 of values, in fours
      const auto& part = table.part(number_, x / 8);
      const unsigned char* from = x % 8 < 4 ? part.key_scales : part.value_scales;
      const bool is_valid = !is_edge || from;
      if (is_wanted)
        prefetch16(to + scales_at + (x % 8 < 4 ? 0 : Shape::tile_keys * 4) + x / 8 * 64 + x % 4 * 16,
                   is_valid ? from + x % 4 * 16 : table.nowhere(), is_valid);
    }
  }

  HEED_DEVICE static void widen(SharedAddress to, SharedAddress from) {
    const uint4 bytes = load_shared16(from);
    std::uint32_t a[2], b[2];
    widen_bytes<Shape::type>(a, bytes.x), widen_bytes<Shape::type>(b, bytes.y);
    store_shared16(to, {a[0], a[1], b[0], b[1]});
    widen_bytes<Shape::type>(a, bytes.z), widen_bytes<Shape::type>(b, bytes.w);
    store_shared16(to + 16, {a[0], a[1], b[0], b[1]});
  }

  Table table;
  SharedAddress to = 0;
  int number_ = 0;
  const SharedAddress wide;
};

// change(score or weight, scale of the key) for the scores of a warp.
template <class Shape, class Change>
HEED_DEVICE void each_key(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place,
                          const Change& change) {
#pragma unroll
  for (int n = 0; n < Shape::key_tiles; ++n)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float scale = load_shared_float(
          scales + (place.key_warp * Shape::warp_keys + 8 * n + lane_index() % 4 * 2 + e) * 4);
#pragma unroll
      for (int m = 0; m < Shape::row_tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) s[m][n][2 * r + e] = change(s[m][n][2 * r + e], scale);
    }
}
template <class Shape>
HEED_DEVICE void scale_keys(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place) {
  each_key<Shape>(s, scales, place, [](float x, float scale) { return x * scale; });
}
// A weight of 0 stays 0, whatever the scale of a key that nobody sees is.
template <class Shape>
HEED_DEVICE void scale_values(Scores<Shape>& s, SharedAddress scales, const Place<Shape>& place) {
  each_key<Shape>(s, scales, place, [](float x, float scale) { return x == 0 ? 0.0f : x * scale; });
}

}  // namespace heed::cuda::general
