// SPDX-License-Identifier: Apache-2.0
// How prefill cuts a call into tiles of rows, and in which order blocks take them.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"

namespace heed::cuda {

// A tile of rows: which of the heads of all sequences, and which of its tiles.
struct HeadTile {
  int head, tile;
};

// Queries [begin, end) of a sequence.
struct TileRows {
  int begin, end;
};

// Where not all tiles can have as many rows as a block has, the first one has fewer: no other sees fewer keys
// under a causal mask, and it costs a block the time of its keys however few its rows are.
constexpr TileRows rows_of_tile(int queries, int rows, int tile) {
  const int first = (queries - 1) % rows + 1;
  return {tile == 0 ? 0 : first + (tile - 1) * rows, first + tile * rows};
}

// Heads are taken in sections, and of a section the longest tiles of all its heads first: blocks that end
// with short tiles end alike. Head by head, 32 or 64 heads of 1024 to 4096 tokens took 3 to 10 % longer under
// a causal mask (H200, November 2026). The last tile of a head has all its rows, which see the most keys
// under a causal mask: it is the longest.
struct PrefillOrder {
  int heads;    // of all sequences
  int section;  // heads; the last one may have fewer
  int tiles;    // of a head

  constexpr HeadTile operator[](int number) const {
    const int first = number / (section * tiles) * section;
    const int here = heads - first < section ? heads - first : section;
    const int within = number - first * tiles;
    return {first + within % here, tiles - 1 - within / here};
  }
};

// Keys and values of a section stay in the second-level cache, whose halves may both hold them: 12 MB of 50
// are within 2 % of 25 or 40, and faster more often than not.
constexpr std::int64_t section_bytes = 12'000'000;

// Tiles are of different lengths under a causal mask, and where the first one has few rows. Where all are
// alike, a head at a time.
constexpr PrefillOrder prefill_order(const Call& c, std::int64_t rows, int tile_heads = 1) {
  const Sequence& s = c.each;
  const bool is_causal = s.end_offset < s.key_count && s.first_offset + s.queries <= 0,
             is_ragged = s.queries % rows != 0;
  const std::int64_t heads = c.batch * c.heads / tile_heads,
                     bytes = c.batch * c.kv_heads * s.key_count * (c.dim + c.value_dim) * 2,
                     sections = is_causal || is_ragged ? bytes / section_bytes + 1 : heads;
  return {static_cast<int>(heads), static_cast<int>((heads + sections - 1) / sections),
          static_cast<int>((s.queries + rows - 1) / rows)};
}

// Widths of keys and of values that a kernel is compiled for. The copy engine fills narrower ones up with
// zeros, which it does not read from anywhere.
struct PrefillDims {
  int dim, value_dim;
};
constexpr PrefillDims prefill_dims[] = {{32, 32},   {64, 64},   {96, 96},  {128, 128},
                                        {192, 128}, {192, 192}, {256, 256}};

// What a kernel is compiled for beside ranges of keys, sink and log-sum-exp: nothing; few queries over many
// keys, which are cut; a softcap; boolean masks and documents, with a softcap, ALiBi, a bias or dropout or
// without; keys and values of an int8 cache, whose scales are factors of scores and weights, or a cache whose
// pages the copy engine reads itself, for many queries or for few.
enum class PrefillKind : std::uint8_t {
  plain,
  cut,
  capped,
  masked,
  masked_capped,
  sloped,
  biased,
  dropping,
  scaled,
  paged,
  cut_scaled,
  cut_paged
};

constexpr bool is_cut(PrefillKind kind) {
  return kind == PrefillKind::cut || kind == PrefillKind::cut_scaled || kind == PrefillKind::cut_paged;
}
constexpr bool is_scaled(PrefillKind kind) {
  return kind == PrefillKind::scaled || kind == PrefillKind::cut_scaled;
}
constexpr bool is_paged(PrefillKind kind) {
  return kind == PrefillKind::paged || kind == PrefillKind::cut_paged;
}
constexpr bool has_masks(PrefillKind kind) {
  return kind == PrefillKind::masked || kind == PrefillKind::masked_capped || kind == PrefillKind::sloped ||
         kind == PrefillKind::biased || kind == PrefillKind::dropping;
}

// Up to so many queries of a sequence leave blocks idle where there is one for each tile of rows: 128 queries
// of 32 heads over 8192 keys took 87 us, and 256 do (H200, November 2026). Their keys are cut into units of
// so many, twice as many where there are two tiles of rows, or a half or a fourth of it where two or four
// heads fit one: as many tiles, which take less time.
constexpr std::int64_t max_cut_queries = 256, cut_keys = 2048;
constexpr int cut_rows = 128;  // of a tile
constexpr bool cuts_keys(const Sequence& s) {
  return s.queries <= max_cut_queries && s.keys > (s.queries > cut_rows ? 2 * cut_keys : cut_keys);
}

// Whether the copy engine reads a cache's pages themselves: k.data is the first of them then, and v has none.
constexpr bool reads_pages(const Call& c) { return c.cached && c.k.data && !c.v.data; }

constexpr PrefillKind prefill_kind(const Call& c) {
  const bool has_units = c.value_dim <= 128 || c.value_dim > 192,  // of whole tiles of keys
      cuts = has_units && (c.sequences ? c.cuts_some : cuts_keys(c.each));
  if (c.cached && c.layout.is_quantized) return cuts ? PrefillKind::cut_scaled : PrefillKind::scaled;
  if (reads_pages(c)) return cuts ? PrefillKind::cut_paged : PrefillKind::paged;
  if (c.drop_below > 0) return PrefillKind::dropping;
  if (c.bias.data) return PrefillKind::biased;
  if (c.alibi.of_heads) return PrefillKind::sloped;
  const bool is_masked = c.mask_count > 0 || c.document_count > 0;
  if (c.cap != 0) return is_masked ? PrefillKind::masked_capped : PrefillKind::capped;
  if (is_masked) return PrefillKind::masked;
  return cuts ? PrefillKind::cut : PrefillKind::plain;
}

// A softcap with 192 and 128 dimensions has too few registers (C7511); others are for calls that are rarer.
constexpr bool has_kernel(const PrefillDims& of, PrefillKind kind) {
  if (has_masks(kind) || is_scaled(kind))
    return of.dim == of.value_dim && (of.dim & (of.dim - 1)) == 0 && of.dim > 32;
  if (kind == PrefillKind::cut) return of.value_dim != 192;
  if (is_paged(kind)) return of.dim == of.value_dim && of.dim > 32 && of.dim != 192;
  return kind != PrefillKind::capped || of.dim == of.value_dim;
}

// The first that holds both; {0, 0}: there is none.
constexpr PrefillDims prefill_dims_for(const Call& c) {
  for (const PrefillDims& it : prefill_dims)
    if (c.dim <= it.dim && c.value_dim <= it.value_dim && has_kernel(it, prefill_kind(c))) return it;
  return {};
}

// Whether the copy engine may read a cache's pages themselves, 64 tokens at a time. They are gathered to rows
// elsewhere, and where the kernel for rows has fewer dimensions to spare. 512 queries over 8192 keys of 8
// heads of 128 took 115 us from rows, of which the gather was 18 (H200, November 2026).
constexpr bool may_read_pages(const Call& c) {
  const PrefillKind kind = prefill_kind(c);
  const bool is_cut = kind == PrefillKind::cut, is_plain = kind == PrefillKind::plain;
  if (!c.cached || c.layout.page_size % 64 != 0 || !(is_plain || is_cut)) return false;
  const PrefillDims dims = prefill_dims_for(c);
  return dims.dim > 0 && has_kernel(dims, is_cut ? PrefillKind::cut_paged : PrefillKind::paged);
}

// Warpgroups of 64 rows. Three for heads of 64 and less, whose exponentials then hide behind more products:
// with two, 64 heads of 2048 queries took 323 us instead of 277 (H200, November 2026). Registers do not
// suffice for three of 96, nor for masks.
constexpr int prefill_groups(std::int64_t dim, PrefillKind kind) {
  const bool is_lean =
      kind == PrefillKind::plain || kind == PrefillKind::capped || kind == PrefillKind::paged;
  return dim <= 64 && is_lean ? 3 : 2;
}
// Keys of a tile.
constexpr int prefill_keys(const PrefillDims& of) {
  return of.value_dim == 256 ? 64 : of.value_dim == 192 ? 112 : 128;
}

// Up to this softcap, in base 2, the weights of bf16 bear all scores against a score of 0: rows need no
// maximum. f16 has no such range, and beside a sink, which may be far above 0 too, rows keep theirs.
constexpr float max_bound = 80;
constexpr bool is_bounded(const Call& c) { return c.softcap_log2e <= max_bound && !c.sink.data; }
constexpr bool may_be_bounded(PrefillKind kind, Type type) {
  return type == Type::bf16 && (kind == PrefillKind::capped || kind == PrefillKind::masked_capped);
}

// One block: a producer, and `groups` warpgroups of 64 rows each that share keys and values.
template <int keys_dim, int values_dim, Type element, PrefillKind kind, bool has_bound = false>
struct PrefillShape {
  static constexpr Type type = element;
  static constexpr bool capped = kind == PrefillKind::capped || kind == PrefillKind::masked_capped;
  static constexpr bool bounded = has_bound;
  static_assert(!bounded || (capped && element == Type::bf16));
  static constexpr bool cut = is_cut(kind), scaled = is_scaled(kind);
  static constexpr bool masked = has_masks(kind), sloped = kind == PrefillKind::sloped,
                        biased = kind == PrefillKind::biased, dropping = kind == PrefillKind::dropping,
                        paged = is_paged(kind);
  // Half of a tile's exponentials run beside the product of the last weights with their values. Under a
  // causal mask 32 heads of 4096 x 128 took 509 us with dropout instead of 544, 195 with a padding mask
  // instead of 206, 282 with a softcap instead of 288; but the plain call takes 2 to 4 % longer, other widths
  // and options win nothing, and for heads of 96 registers do not suffice (H200, November 2026).
  static constexpr bool weighs_beside_values =
      keys_dim == 128 && (kind == PrefillKind::capped || kind == PrefillKind::masked || dropping);
  // Keys and values lie as in pages (sixteens.cuh).
  static constexpr bool in_sixteens = paged || scaled;
  static constexpr int dim = keys_dim, value_dim = values_dim;
  static constexpr int groups = prefill_groups(dim, kind), rows = 64 * groups;
  static constexpr int keys = prefill_keys({dim, value_dim});
  // Memory holds more of smaller heads, so that the next tile of rows has arrived when this one ends; not
  // where it holds tiles of a bias, or scales.
  static constexpr bool is_roomy = dim <= 128 && !biased && !scaled;
  static constexpr int stages = groups == 3 ? 3 : 2, query_stages = is_roomy ? 2 : 1;
  // A tile's scales are read until its weights are done, long after its keys: they have more stages, so that
  // nothing but the keys' own barrier guards them.
  static constexpr int scale_stages = 2 * stages;
  static constexpr int threads = 128 * (groups + 1);
  // 64 K registers for all: a launch that asks for more would wait for ever.
  static constexpr int producer_registers = groups == 2 ? 40 : 32,
                       consumer_registers = groups == 2 ? 232 : 160;
  static_assert((producer_registers + groups * consumer_registers) * 128 <= 65536);

  // Operands lie in pieces of 64 dimensions: rows of 128 bytes. Not where they lie as in pages.
  static constexpr int pieces = (dim + 63) / 64, value_pieces = (value_dim + 63) / 64;
  static constexpr int query_bytes = rows * pieces * 128, out_bytes = rows * value_pieces * 128;
  static constexpr int key_bytes = keys * (in_sixteens ? 2 * dim : pieces * 128),
                       value_bytes = keys * (in_sixteens ? 2 * value_dim : value_pieces * 128);
  static constexpr int bias_bytes = biased ? rows * keys * 2 : 0;
  static constexpr int scale_bytes = scaled ? keys * 4 : 0;  // of keys, and of values
  // Offsets from a multiple of 1024. Outputs reuse the memory of the queries where there is no other.
  static constexpr bool out_has_memory = is_roomy;
  static constexpr int queries_at = 1024, keys_at = queries_at + query_stages * query_bytes,
                       values_at = keys_at + stages * key_bytes, bias_at = values_at + stages * value_bytes,
                       scales_at = bias_at + stages * bias_bytes,
                       end_at = scales_at + scale_stages * 2 * scale_bytes,
                       out_at = out_has_memory ? end_at : queries_at;
  static constexpr int shared_bytes =
      1024 + end_at + (out_has_memory ? out_bytes : 0);  // 1024: to align by hand
  static_assert(shared_bytes <= 232448);
};

}  // namespace heed::cuda
