// SPDX-License-Identifier: Apache-2.0
// How decode cuts a call: along the keys, in stretches of whole units that run apart.
#pragma once
#include <cuda.h>  // types of a tensor map

#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

constexpr int many_tile_keys = 64;  // of a tile where rows are many

// Where keys and values lie: in the caller's rows, or in a cache's pages of the queries' type or of int8.
enum class DecodeSource : std::uint8_t { rows, pages, int8_pages };
constexpr DecodeSource decode_source(const Call& c) {
  if (!c.cached) return DecodeSource::rows;
  return c.layout.is_quantized ? DecodeSource::int8_pages : DecodeSource::pages;
}

constexpr std::int64_t few_decode_rows = 8, many_decode_rows = 32;  // of a block

// Keys whose states, one of each team, are merged. With 256, 64 sequences of 4096 int8 keys of 128 took 220
// us instead of 199 (H200, November 2026).
constexpr std::int64_t decode_unit_keys(std::int64_t rows, int dim, DecodeSource source) {
  if (rows == many_decode_rows) return chunk_keys;
  return dim == 64 || source == DecodeSource::int8_pages ? 2 * block_keys : block_keys;
}

// Whether two blocks of few rows share a multiprocessor, with one tile a warp. That is faster where: of 64
// sequences of 4096 keys, int8 ones of 64 took 92.5 us instead of 113.9, others of 64 124.0 instead of 126.8,
// and those of 80 in pages 158.7 instead of 166.7. Of 128 rows took 260 us instead of 240, of 80 187 instead
// of 164, and int8 pages 190 instead of 179 (H200, November 2026).
constexpr bool shares_multiprocessor(int dim, bool is_padded, DecodeSource source) {
  if (dim == 64) return !is_padded;
  return dim == 128 && is_padded && source == DecodeSource::pages;
}

// Rows of one KV head, 8 or 32.
//
// A team shares the tiles of keys that it loads: one warp where rows are few, else a warpgroup, whose matrix
// instructions take 64 keys in the time that those of a warp take for 16. The teams' states are merged after
// every unit of keys. States of many rows have as many bytes as the keys themselves, so that their units are
// long; those of few dimensions, and of bytes, are longer than others, since their keys take less time.
//
// Heads that are narrower than `dim` are padded: their tiles are filled up with zeros, which are not read
// from anywhere.
template <int head_dim, bool is_padded, Type element, bool has_many_rows, DecodeSource source>
struct DecodeShape {
  static constexpr Type type = element;
  static constexpr bool padded = is_padded, many = has_many_rows, paged = source != DecodeSource::rows,
                        quantized = source == DecodeSource::int8_pages;
  static constexpr int dim = head_dim, rows = static_cast<int>(many ? many_decode_rows : few_decode_rows);
  // One block of threads fills a multiprocessor: with more warps each has less to do while nothing else can
  // run. Heads of 256 leave memory for the tiles of four, unless they are of bytes.
  static constexpr int warps = dim == 256 && !quantized ? 4 : 8, threads = 32 * warps;
  static constexpr int team_warps = many ? 4 : 1, teams = warps / team_warps;
  // A warp's tile has 16 keys, or 32 where these have few bytes: with 16, 64 sequences of 4096 int8 keys of
  // 128 took 199 us instead of 192 (H200, November 2026).
  static constexpr int tile_keys = many                                     ? many_tile_keys
                                   : dim == 64 || (quantized && dim == 128) ? 32
                                                                            : 16,
                       tile_bytes = tile_keys * dim * (quantized ? 1 : 2);
  // Of a team: a tile of keys, one of values, and the scales of each. Tiles begin on 128 bytes, as what is
  // copied into them does: else a line of memory would be asked for in two parts.
  static constexpr int half_bytes = tile_bytes + (quantized ? 128 : 0), stage_bytes = 2 * half_bytes;
  static constexpr bool is_small = !many && shares_multiprocessor(dim, padded, source);
  static constexpr int blocks = is_small ? 2 : 1;
  // With three of the caller's, 64 sequences of 4096 keys under 32 rows took 37.6 us instead of 36.7, with
  // three of a cache's 52.5 instead of 53.4 (H200, November 2026); what the blocks of a pair exchange needs
  // the memory.
  static constexpr int stages = is_small ? 1 : many ? 2 : !quantized ? 3 : dim == 64 ? 5 : 2;
  static constexpr int unit_keys = static_cast<int>(decode_unit_keys(rows, dim, source));
  // Sixteens of dimensions that padded heads leave out at a time, where none of them is the caller's.
  static constexpr int skipped = quantized && dim < 256 ? 2 : 4;
  // Of a state: rows that a warp has once the teams' are merged, and neighbouring dimensions of each lane.
  static constexpr int own_rows = rows / warps, own_dims = dim / 32;
  static constexpr int end_rows = many ? rows / 2 : rows;  // that end in one of two blocks of a pair
};

// The width of the tiles that a call gets: 64, 128 or 256.
constexpr int decode_dim(const Call& c) {
  const std::int64_t dim = c.dim > c.value_dim ? c.dim : c.value_dim;
  return dim <= 64 ? 64 : dim <= 128 ? 128 : 256;
}

// Whether a block has 32 rows. Of wider heads memory holds no tiles of 64 keys for two warpgroups, and 32
// rows beside them; bytes would have to be widened there for wgmma.
constexpr std::int64_t max_dim_of_many_rows = 128;
constexpr bool has_many_rows(const Call& c) {
  return c.queries * c.group() > few_decode_rows && decode_dim(c) <= max_dim_of_many_rows &&
         decode_source(c) != DecodeSource::int8_pages;
}

// Where a KV head has more rows than a block, its keys are read for each tile of them.
constexpr std::int64_t decode_tile_rows(const Call& c) {
  return has_many_rows(c) ? many_decode_rows : few_decode_rows;
}
constexpr std::int64_t decode_row_tiles(const Call& c) {
  return (c.queries * c.group() + decode_tile_rows(c) - 1) / decode_tile_rows(c);
}

// More are left to other kernels. Prefill does 32 queries of 32 heads over 8192 rows of keys in 35 us, as
// fast as decode would; pages it has to gather first, which takes 26 us by itself, where decode takes 48 in
// all (H200, November 2026).
constexpr std::int64_t max_row_tiles(const Call& c) { return has_many_rows(c) && c.cached ? 4 : 2; }

// Where blocks follow each other on every multiprocessor, and a tile has all its bytes, what is asked for
// further ahead comes no sooner: with two tiles under way, 64 sequences of 4096 keys of 128 took 243 us
// instead of 239, of 256 474 instead of 469. Narrower heads want two: of 80 they took 163 us instead of 171
// (H200, November 2026).
constexpr bool eases(const Call& c, std::int64_t tiles, std::int64_t blocks_at_once) {
  const int dim = decode_dim(c);
  return dim >= 128 && c.dim == dim && c.value_dim == dim && tiles > 2 * blocks_at_once;
}

struct DecodePlan {
  CUtensorMap k, v;    // of whole rows, where the caller has them; boxes of a tile
  int group;           // query heads that read a KV head
  int tile_rows;       // of a block
  int row_tiles;       // of the longest sequence, for each KV head
  int units_each;      // units of keys that one block of threads does
  int splits;          // stretches that the longest sequence has
  int states_each;     // of the longest sequence, for each tile of rows
  bool stores_units;   // a stretch is shorter than a chunk and stores the state of each unit, else of each
                       // chunk
  bool is_eased;       // teams have one tile under way, not two
  bool is_paired;      // the two stretches of a head are a cluster's blocks, and store nothing
  float* states;       // (batch * kv_heads * row_tiles, states, floats of one)
  unsigned* arrivals;  // (batch * kv_heads * row_tiles), 0 before and after
  PackedMask mask;     // of boolean masks and documents
};

template <int dim, bool padded, Type>
void launch_decode_dim(const Call&, const DecodePlan&, Stream);

// What a unit of keys, or a chunk, stores for each row: max, sum and the values under their weights.
constexpr std::int64_t decode_state_floats(std::int64_t rows, std::int64_t dim) { return rows * (2 + dim); }

// The states that are merged, and their order, are the same however a sequence is cut: units make a chunk,
// and chunks the row.
inline DecodePlan plan_decode(const Call& c, std::int64_t blocks_at_once) {
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t unit = decode_unit_keys(decode_tile_rows(c), decode_dim(c), decode_source(c)),
                     in_chunk = chunk_keys / unit;
  const std::int64_t tiles = c.batch * c.kv_heads * decode_row_tiles(c), units = parts(c.keys, unit);
  const std::int64_t wanted = tiles == 0 ? 1 : blocks_at_once / tiles;
  constexpr std::int64_t max_splits = 65535;  // that a launch has room for
  std::int64_t each = wanted <= 1 ? units : parts(units, wanted < max_splits ? wanted : max_splits);
  if (each > 2) each = parts(each, in_chunk) * in_chunk;
  if (each == 0) each = 1;
  DecodePlan plan{};
  plan.group = static_cast<int>(c.group());
  plan.tile_rows = static_cast<int>(decode_tile_rows(c));
  plan.row_tiles = static_cast<int>(decode_row_tiles(c));
  plan.units_each = static_cast<int>(each);
  plan.splits = static_cast<int>(units == 0 ? 1 : parts(units, each));
  plan.stores_units = each < in_chunk;
  plan.is_paired = has_many_rows(c) && plan.splits == 2 && each <= 2;
  plan.is_eased = plan.splits == 1 && eases(c, tiles, blocks_at_once);
  if (plan.splits > 1)
    plan.states_each = static_cast<int>(plan.stores_units ? units : parts(c.keys, chunk_keys));
  return plan;
}

}  // namespace heed::cuda
