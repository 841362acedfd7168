// SPDX-License-Identifier: Apache-2.0
// How a call is cut into blocks of threads for the exact kernels, and the memory in which they leave states
// for each other.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/call.hpp"

namespace heed::cuda {

constexpr int exact_threads = 128, exact_rows = 64;
constexpr int long_rows = 128;                 // of the kernel for long plain problems
constexpr int exact_counters = 4096;           // of a workspace
constexpr int few_rows = 8, few_dims = 128;    // of the kernel for few rows, at most
constexpr int few_tiles = exact_counters / 2;  // and of KV heads: each has two counters

struct SavedEnd;  // of a row (state.cuh)

// Chunks of keys may run apart: each stores its partial state in `partials`, and the block that arrives last
// merges them in order.
struct ExactPlan {
  std::int64_t row_tiles, value_parts, splits;  // splits: 1, or the chunks of the longest sequence
  float* partials;                              // (tiles, splits, state)
  unsigned* arrivals;                           // one for each tile of rows, 0 before and after
  // Where the kernel for long problems or that for few rows goes first: its tiles of rows of one KV head,
  // else 0. Arrivals then count, of each, whether something of it is unfinished.
  std::int64_t first_tiles;
  SavedEnd* ends;  // (batch, heads, queries), or null
};

// Whether rows of a tensor can be read and written four floats at a time.
constexpr bool lies_in_fours(const Tensor& t) {
  return t.type == Type::f32 && t.stride.dim == 1 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 &&
         t.stride.batch % 4 == 0 && t.stride.heads % 4 == 0 && t.stride.length % 4 == 0;
}

// Whether masks are nothing but ranges of keys, and nothing else happens to a score.
constexpr bool only_ranges(const Call& c) {
  return !c.bias.data && !c.alibi.of_heads && c.mask_count == 0 && c.document_count == 0 &&
         c.gap_count == 0 && c.front == 0 && c.softcap_log2e == 0 && !c.layout.is_quantized;
}

// A plan without its memory, and how much it takes.
struct ExactLaunch {
  ExactPlan plan;
  int slabs;           // of 64 dimensions of the values, done together
  bool in_place;       // K and V are copied as they lie
  std::int64_t tiles;  // of rows, of all heads and parts of the values
  std::int64_t partial_floats, saved_ends;
  int few;                    // rows of the kernel that goes first, where it is that for few: 4 or 8; else 0
  bool few_of_pages;          // it reads those of a cache
  std::int64_t first_splits;  // its own

  std::int64_t blocks() const { return tiles * plan.splits; }
  // The kernel that goes first.
  ExactPlan first() const {
    ExactPlan its = plan;
    its.splits = first_splits;
    return its;
  }
  std::int64_t first_blocks(const Call& c) const {
    return plan.first_tiles * c.kv_heads * c.batch * first_splits;
  }
};

// Whether a kernel for plain problems goes first, and which.
inline void plan_first(const Call& c, std::int64_t blocks_at_once, ExactLaunch& launch) {
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  const std::int64_t rows = c.queries * c.group(), heads = c.kv_heads * c.batch,
                     chunks = parts(c.keys, chunk_keys), tiles = parts(rows, long_rows);
  if (rows <= few_rows && heads <= few_tiles && c.dim <= few_dims && c.value_dim <= few_dims &&
      (chunks <= 1 || blocks_at_once > 0)) {
    launch.few = rows <= 4 ? 4 : 8;
    launch.plan.first_tiles = 1, launch.plan.splits = 1, launch.first_splits = chunks > 1 ? chunks : 1;
    launch.partial_floats = chunks > 1 ? heads * chunks * launch.few * (2 + few_dims) : 0;
  } else if (!c.cached && launch.plan.splits == 1 && rows > exact_rows && c.dim <= 64 && c.value_dim <= 64 &&
             2 * heads * tiles >= blocks_at_once) {
    launch.plan.first_tiles = tiles, launch.first_splits = 1;
  }
}

// Whether a kernel for plain problems may go first: the device must have the memory for it.
enum class First : std::uint8_t { where_it_pays, never };

// `blocks_at_once` is what the device can run: chunks run apart where tiles alone would leave it idle. No bit
// of a result depends on that.
inline ExactLaunch plan_exact(const Call& c, std::int64_t blocks_at_once,
                              First first = First::where_it_pays) {
  const auto parts = [](std::int64_t n, std::int64_t of) { return (n + of - 1) / of; };
  ExactLaunch launch{};
  launch.slabs = c.value_dim <= 64 ? 1 : 2;
  launch.in_place =
      !c.cached && lies_in_fours(c.k) && lies_in_fours(c.v) && c.dim % 4 == 0 && c.value_dim % 4 == 0;
  launch.plan.row_tiles = parts(c.queries * c.group(), exact_rows);
  launch.plan.value_parts = parts(c.value_dim, 64 * launch.slabs);
  launch.tiles = launch.plan.row_tiles * launch.plan.value_parts * c.kv_heads * c.batch;
  const std::int64_t chunks = parts(c.keys, chunk_keys);
  launch.plan.splits = chunks > 1 && launch.tiles < blocks_at_once ? chunks : 1;
  if (launch.plan.splits > 1) launch.partial_floats = launch.blocks() * exact_rows * (2 + 64 * launch.slabs);
  launch.few_of_pages =
      c.cached && c.k.type == Type::f32 && c.dim % 4 == 0 && c.value_dim % 4 == 0;  // pages lie on 64 bytes
  const bool is_plain = only_ranges(c) && !c.drop_below && !c.weights.data;
  if (first != First::never && (launch.in_place || launch.few_of_pages) && is_plain)
    plan_first(c, blocks_at_once, launch);
  if (c.weights.data) launch.saved_ends = c.batch * c.heads * c.queries;
  return launch;
}

// A part of a backward pass: some heads, and some tiles of their rows. dS of all its pairs lies in device
// memory between the kernel that makes it, with dK and dV, and the one that makes dQ of it.
struct ExactPart {
  static constexpr std::int64_t items = 96;  // of a tile of rows, and of keys
  static constexpr std::int64_t tile_floats = items * items, sum_floats = items * GradientCall::slab_dims;
  std::int64_t first_head, heads;  // KV heads of all batch entries
  std::int64_t first_row_tile, row_tiles;
  std::int64_t key_tiles, slabs;
  bool is_first, is_last;  // of the parts of these heads
  float* pairs;            // dS: (heads, tiles of rows, tiles of keys, rows, keys)
  float* sums;             // dV and dK so far: (heads, slabs, tiles of keys, 2, keys, dims)

  constexpr float* pair_tile(std::int64_t head, std::int64_t row_tile, std::int64_t key_tile) const {
    return pairs + ((head * row_tiles + row_tile - first_row_tile) * key_tiles + key_tile) * tile_floats;
  }
  constexpr float* key_sums(std::int64_t head, std::int64_t slab, std::int64_t key_tile) const {
    return sums + ((head * slabs + slab) * key_tiles + key_tile) * 2 * sum_floats;
  }
};

// The parts of a pass, each of some heads and some of their rows, as `max_bytes` hold dS of. Blocks of
// threads take about as long as each other, and the device runs `blocks_at_once`: parts are such that few
// places are empty in the end. No bit of a result depends on that.
class ExactParts {
 public:
  static constexpr std::int64_t most_bytes = std::int64_t{1} << 30, slots = 2;

  explicit ExactParts(const GradientCall& g, std::int64_t blocks_at_once, std::int64_t max_bytes = most_bytes)
      : heads(g.forward.batch * g.forward.kv_heads),
        row_tiles(tiles(g.forward.queries * g.forward.group())),
        key_tiles(tiles(g.forward.keys)),
        slabs(g.slabs(g.v.data && g.forward.value_dim > g.forward.dim ? g.forward.value_dim : g.forward.dim)),
        has_pairs(g.q.data),
        at_once(blocks_at_once),
        part_heads(heads),
        part_rows(row_tiles) {
    const std::int64_t max_tiles = max_bytes / (4 * slots * ExactPart::tile_floats);
    if (!has_pairs || heads * row_tiles * key_tiles <= slots * max_tiles) return;
    std::int64_t least = std::int64_t{1} << 62;
    const auto consider = [&](std::int64_t of_heads, std::int64_t rows) {
      const std::int64_t found = rows < 1 ? least : units(of_heads, rows);
      if (found < least) least = found, part_heads = of_heads, part_rows = rows;
    };
    const auto consider_heads = [&](std::int64_t of_heads) {
      if (of_heads < 1 || of_heads > heads || (of_heads > 1 && of_heads * key_tiles > max_tiles)) return;
      const std::int64_t most = max_tiles / (of_heads * key_tiles), blocks = of_heads * slabs;
      consider(of_heads, even_share(row_tiles, most));
      if (most < row_tiles) consider(of_heads, most * blocks / at_once * at_once / blocks);
    };
    consider_heads(1), consider_heads(heads);
    for (std::int64_t waves = 1; waves <= 8; ++waves) consider_heads(waves * at_once / (slabs * key_tiles));
  }

  std::int64_t bytes() const { return 4 * used_slots() * pair_floats() + sum_bytes(); }
  std::int64_t sum_bytes() const { return 4 * sum_floats(); }

  // The dQ of a part comes after the dS of the next one, whose last blocks leave places empty that it takes:
  // each has memory of its own.
  enum class Beside : std::uint8_t { nothing, the_next_part };
  template <class Keys, class Rows>
  void run_each(float* memory, const Keys& run_keys, const Rows& run_rows) const {
    const auto least = [](std::int64_t x, std::int64_t y) { return x < y ? x : y; };
    ExactPart before{};
    std::int64_t number = 0;
    for (std::int64_t head = 0; head < heads; head += part_heads)
      for (std::int64_t row = 0; row < row_tiles; row += part_rows, ++number) {
        const ExactPart part{head,
                             least(part_heads, heads - head),
                             row,
                             least(part_rows, row_tiles - row),
                             key_tiles,
                             slabs,
                             row == 0,
                             row + part_rows >= row_tiles,
                             has_pairs ? memory + number % slots * pair_floats() : nullptr,
                             memory + used_slots() * pair_floats()};
        run_keys(part);
        if (has_pairs && number > 0) run_rows(before, Beside::the_next_part);
        before = part;
      }
    if (has_pairs && number > 0) run_rows(before, Beside::nothing);
  }

 private:
  // Times of a tile's product until the last block of each part ends: four of every pair of tiles in the
  // first kernel, one in the second.
  std::int64_t units(std::int64_t of_heads, std::int64_t rows) const {
    const auto waves = [&](std::int64_t blocks) { return (blocks + at_once - 1) / at_once; };
    const auto of_part = [&](std::int64_t h, std::int64_t r) {
      return h * r == 0 ? 0 : waves(h * slabs * key_tiles) * r * 4 + waves(h * slabs * r) * key_tiles + 4;
    };
    const auto of_rows = [&](std::int64_t h) {
      return row_tiles / rows * of_part(h, rows) + of_part(h, row_tiles % rows);
    };
    return heads / of_heads * of_rows(of_heads) + of_rows(heads % of_heads);
  }

  // n in as few parts as may have up to `max` each.
  static constexpr std::int64_t even_share(std::int64_t n, std::int64_t max) {
    const std::int64_t parts = max < 1 ? n : (n + max - 1) / max;
    return parts < 1 ? 1 : (n + parts - 1) / parts;
  }
  // At least one: somebody must write zeros.
  static constexpr std::int64_t tiles(std::int64_t n) {
    return n > 0 ? (n + ExactPart::items - 1) / ExactPart::items : 1;
  }
  std::int64_t used_slots() const { return part_heads == heads && part_rows == row_tiles ? 1 : slots; }
  std::int64_t pair_floats() const {
    return has_pairs ? part_heads * part_rows * key_tiles * ExactPart::tile_floats : 0;
  }
  std::int64_t sum_floats() const {
    return part_rows == row_tiles ? 0 : part_heads * slabs * key_tiles * 2 * ExactPart::sum_floats;
  }

  std::int64_t heads, row_tiles, key_tiles, slabs;
  bool has_pairs;
  std::int64_t at_once, part_heads, part_rows;
};

}  // namespace heed::cuda
