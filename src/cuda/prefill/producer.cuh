// SPDX-License-Identifier: Apache-2.0
// Prefill's producer: finds the tiles of rows, describes them, and loads queries, keys and values by the copy
// engine; and the shared memory through which consumers get all that.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/prefill/launch.hpp"
#include "cuda/prefill/plan.hpp"
#include "cuda/prefill/sixteens.cuh"
#include "cuda/tile/hopper.cuh"

namespace heed::cuda {

// A tile of rows of one head and the tiles of keys that it visits, from the last to the first: all that
// consumers need to know of it. b < 0: no more tiles follow.
struct RowTile {
  int b, h;
  int first_query, rows;                    // of the sequence; fewer than the block's in its first tile
  std::int64_t first_row;                   // of q and out
  int first, last;                          // tiles of keys
  int plain_begin, plain_end;               // those that every row sees whole
  int key_count, first_offset, end_offset;  // as in Sequence
  int tail;           // the first row of the last tile's values that is not the sequence's own
  int again;          // 1 on its second pass, since f32 could not finish some row of it
  int is_unfinished;  // set by consumers: the tile needs a second pass
  int unit;           // of keys, whose partial states are left; -1: its rows end here

  HEED_DEVICE int begin_of(int i) const { return i + first_offset > 0 ? i + first_offset : 0; }
  HEED_DEVICE int end_of(int i) const { return i + end_offset < key_count ? i + end_offset : key_count; }
};

// The next tile of keys that a tile of rows visits, after tile j: not one where masks hide everything.
template <class Shape>
HEED_DEVICE int visit_below(const PrefillPlan& plan, const RowTile& tile, int j) {
  --j;
  if (Shape::masked)
    while (plan.mask.words && j >= tile.first && plan.mask.tile_class(tile, j) == TileClass::empty) --j;
  return j;
}

// A tile of keys that a tile of rows visits; whether it is the last one, and whether masks hide some of it.
struct PrefillVisit {
  int bits = 0;
  PrefillVisit() = default;
  HEED_DEVICE PrefillVisit(int tile, bool is_last, bool is_mixed) : bits(tile * 4 + is_last * 2 + is_mixed) {}
  HEED_DEVICE int tile() const { return bits >> 2; }
  HEED_DEVICE bool is_last() const { return bits & 2; }
  HEED_DEVICE bool is_mixed() const { return bits & 1; }
};

// Operands in stages, a pair of barriers for each, and two slots for descriptions of tiles.
template <class Shape>
struct PrefillShared {
  unsigned char* memory;  // at a multiple of 1024
  SharedAddress at;       // the same

  HEED_DEVICE explicit PrefillShared(unsigned char* any) : memory(any), at(align_1024(memory)) {}

  HEED_DEVICE SharedAddress queries(unsigned n) const {
    return at + Shape::queries_at + n % Shape::query_stages * Shape::query_bytes;
  }
  HEED_DEVICE SharedAddress keys(unsigned n) const {
    return at + Shape::keys_at + n % Shape::stages * Shape::key_bytes;
  }
  HEED_DEVICE SharedAddress values(unsigned n) const {
    return at + Shape::values_at + n % Shape::stages * Shape::value_bytes;
  }
  HEED_DEVICE SharedAddress bias(unsigned n) const {
    return at + Shape::bias_at + n % Shape::stages * Shape::bias_bytes;
  }
  // Scales of a tile's keys; those of its values follow them.
  HEED_DEVICE SharedAddress scales(unsigned n) const {
    return at + Shape::scales_at + n % Shape::scale_stages * 2 * Shape::scale_bytes;
  }
  HEED_DEVICE SharedAddress out() const { return at + Shape::out_at; }
  HEED_DEVICE RowTile* slot(unsigned n) const {
    return reinterpret_cast<RowTile*>(memory + 256 + n % 2 * 128);
  }
  static_assert(sizeof(RowTile) <= 128);
  HEED_DEVICE PrefillVisit* visit(unsigned n) const {
    return reinterpret_cast<PrefillVisit*>(memory + 192) + n % Shape::stages;
  }

  // Full: the data has arrived. Empty: consumers are done with it.
  HEED_DEVICE SharedAddress slot_full(unsigned n) const { return at + n % 2 * 8; }
  HEED_DEVICE SharedAddress slot_empty(unsigned n) const { return at + 16 + n % 2 * 8; }
  HEED_DEVICE SharedAddress queries_full(unsigned n) const { return at + 32 + n % Shape::query_stages * 8; }
  HEED_DEVICE SharedAddress queries_empty(unsigned n) const { return at + 48 + n % Shape::query_stages * 8; }
  HEED_DEVICE SharedAddress keys_full(unsigned n) const { return at + 64 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress keys_empty(unsigned n) const { return at + 96 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress values_full(unsigned n) const { return at + 128 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress values_empty(unsigned n) const { return at + 160 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress bias_full(unsigned n) const { return at + 208 + n % Shape::stages * 8; }
  HEED_DEVICE SharedAddress bias_empty(unsigned n) const { return at + 232 + n % Shape::stages * 8; }
  // Of the n-th use of a stage, of queries, or of a slot.
  HEED_DEVICE static unsigned phase(unsigned n) { return n / Shape::stages & 1; }
  HEED_DEVICE static unsigned query_phase(unsigned n) { return n / Shape::query_stages & 1; }
  HEED_DEVICE static unsigned slot_phase(unsigned n) { return n / 2 & 1; }

  HEED_DEVICE void init() const {
    for (unsigned n = 0; n < 2; ++n) {
      barrier_init(slot_full(n), 1), barrier_init(slot_empty(n), 128 * Shape::groups);
      slot(n)->is_unfinished = 0;
    }
    for (unsigned n = 0; n < Shape::query_stages; ++n)
      barrier_init(queries_full(n), 1), barrier_init(queries_empty(n), Shape::groups);
    for (unsigned n = 0; n < Shape::stages; ++n) {
      barrier_init(keys_full(n), 1), barrier_init(keys_empty(n), Shape::groups);
      barrier_init(values_full(n), 1), barrier_init(values_empty(n), Shape::groups);
      if (Shape::biased) barrier_init(bias_full(n), 1), barrier_init(bias_empty(n), 4 * Shape::groups);
    }
    publish_barriers();
  }
};

// Which tiles of rows this block does, and their descriptions for consumers. For one thread.
template <class Shape>
struct PrefillSchedule {
  const Call& c;
  const PrefillPlan& plan;
  const PrefillShared<Shape> shared;

  HEED_DEVICE void describe(const RowTile& tile, unsigned n) const {
    *shared.slot(n) = tile;
    barrier_arrive(shared.slot_full(n));
  }

  // Waits until slot n is empty. Where consumers marked its tile as unfinished, that tile comes next, before
  // the one at hand.
  HEED_DEVICE bool take_unfinished(unsigned n, RowTile& tile) const {
    barrier_wait(shared.slot_empty(n), shared.slot_phase(n) ^ 1);
    RowTile& used = *shared.slot(n);
    if (!used.is_unfinished) return false;
    used.is_unfinished = 0;
    tile = used;
    tile.again = 1;
    return true;
  }

  // The number of another tile. Claimed as late as the answer can still arrive in time: claimed early, a long
  // tile waits while another block could begin it.
  HEED_DEVICE int claim() const { return static_cast<int>(gridDim.x + atomicAdd(plan.next_tile, 1u)); }
  // When there is none: the last block leaves the counters as it found them.
  HEED_DEVICE void end_claims() const {
    if (count_arrival(plan.next_tile + 1) + 1 == gridDim.x) plan.next_tile[0] = plan.next_tile[1] = 0;
  }

  // Of sequences that differ, the last rows first, which see the most keys under a causal mask.
  HEED_DEVICE RowTile find(int number) const {
    const int heads = static_cast<int>(c.heads);
    if (!plan.tile_starts) {
      if constexpr (Shape::cut) return find_unit(number);
      const auto [head, tile] = plan.order[number];
      return facts(head / heads, head % heads, tile, 0);
    }
    int low = 0, high = static_cast<int>(c.batch);  // tile_starts[low] * heads <= number
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (plan.tile_starts[middle] * heads <= number ? low : high) = middle;
    }
    const int before = plan.tile_starts[low], each = plan.tile_starts[low + 1] - before;
    number -= before * heads;
    const Sequence& s = c.sequence(low);
    const int units = Shape::cut && cuts_keys(s) ? plan.partials.units_of(plan.group, s) : 1;
    return facts(low, number / each, (each - 1 - number % each) / units, number % each % units);
  }

 private:
  // Where all sequences are alike and cut: a head has one or two tiles of rows, or shares one.
  HEED_DEVICE RowTile find_unit(int number) const {
    const int heads = static_cast<int>(c.heads), units = plan.partials.units, of = number / units,
              tiles = plan.order.tiles, shared_head = of / tiles, first = shared_head * plan.tile_heads,
              b = first / heads, nth = first - b * heads, kv_head = nth / plan.group,
              member = nth - kv_head * plan.group;
    return facts(b, c.tiled_heads ? member * plan.kv_heads + kv_head : nth, of - shared_head * tiles,
                 number - of * units);
  }

  // Tile m of a head's rows; its keys of a unit, where they are cut.
  HEED_DEVICE RowTile facts(int b, int h, int m, int unit) const {
    const Sequence& s = c.sequence(b);
    RowTile tile{b, h};
    const auto [first_query, end_query] = rows_of_tile(static_cast<int>(s.queries), Shape::rows, m);
    tile.first_query = first_query, tile.rows = end_query - first_query;
    tile.first_row = s.first_query + tile.first_query;
    tile.key_count = static_cast<int>(s.key_count);
    tile.first_offset = static_cast<int>(s.first_offset), tile.end_offset = static_cast<int>(s.end_offset);
    const int i0 = first_query, i1 = end_query - 1;
    const bool sees_any = tile.begin_of(i0) < tile.end_of(i1);
    tile.first = sees_any ? tile.begin_of(i0) / Shape::keys : 0;
    tile.last = sees_any ? (tile.end_of(i1) - 1) / Shape::keys : 0;
    if constexpr (Shape::cut) cut(tile, s, unit);
    if constexpr (Shape::masked)
      if (plan.mask.words && plan.mask.tile_class(tile, tile.last) == TileClass::empty)
        tile.last = max_of(visit_below<Shape>(plan, tile, tile.last), tile.first);
    tile.plain_begin = (tile.begin_of(i1) + Shape::keys - 1) / Shape::keys;
    tile.plain_end = tile.end_of(i0) > 0 ? tile.end_of(i0) / Shape::keys : 0;
    // Where the tensor ends, the engine fills in zeros. A page has what was there before.
    const int own = tile.key_count - tile.last * Shape::keys;
    const bool ends_here = !Shape::paged && s.first_key + s.key_count >= plan.key_rows;
    tile.tail = !ends_here && own < Shape::keys ? max_of(own, 0) : Shape::keys;
    return tile;
  }

  // Where no row sees a key of the unit, its first tile is visited, and all of it hidden.
  HEED_DEVICE void cut(RowTile& tile, const Sequence& s, int unit) const {
    static_assert(cut_rows == Shape::rows && cut_keys / 4 % Shape::keys == 0);
    const int unit_tiles =
        plan.tile_starts ? plan.partials.keys_of_unit(plan.group, s) / Shape::keys : plan.unit_tiles;
    tile.unit = cuts_keys(s) ? unit : -1;
    if (tile.unit < 0) return;
    const int first = unit * unit_tiles;
    tile.first = max_of(tile.first, first), tile.last = min_of(tile.last, first + unit_tiles - 1);
    if (tile.first > tile.last) tile.first = tile.last = first;
  }
};

// Boxes of a tensor to shared memory, and the barrier that counts their bytes.
struct BoxCopy {
  SharedAddress to, full;
  const CUtensorMap* map;
  const Tensor* from;
  std::uint64_t policy;
};
// Rows from this one on, in pieces of 64 dimensions that lie `apart` rows apart. An axis of stride 0 has one
// entry.
template <int apart, int pieces>
HEED_DEVICE void load_boxes(const BoxCopy& copy, int head, int b, int row) {
#pragma unroll
  for (int piece = 0; piece < pieces; ++piece)
    load_box(copy.to + piece * apart * 128, copy.map,
             {piece * 64, row, copy.from->stride.heads == 0 ? 0 : head, copy.from->stride.batch == 0 ? 0 : b},
             copy.full, copy.policy);
}
// `count` rows.
template <int count, int pieces>
HEED_DEVICE void load_pieces(const BoxCopy& copy, int head, int b, int row) {
  barrier_arrive_expecting(copy.full, count * pieces * 128);
  load_boxes<count, pieces>(copy, head, b, row);
}

// The queries of a tile of rows, when their memory is free.
template <class Shape>
HEED_DEVICE void load_queries(const Call& c, const PrefillPlan& plan, const PrefillShared<Shape>& shared,
                              const RowTile& tile, unsigned n) {
  BoxCopy copy{shared.queries(n), shared.queries_full(n), &plan.q, &c.q, evict_first};
  const int row = static_cast<int>(tile.first_row);
  if constexpr (!Shape::cut) return load_pieces<Shape::rows, Shape::pieces>(copy, tile.h, tile.b, row);
  barrier_arrive_expecting(copy.full, Shape::query_bytes);
  const int bytes = Shape::rows / plan.tile_heads * 128,  // of a head's rows, in a piece
      step = c.tiled_heads ? static_cast<int>(c.kv_heads) : 1;
  for (int m = 0; m < plan.tile_heads; ++m, copy.to += bytes)
    load_boxes<Shape::rows, Shape::pieces>(copy, tile.h + m * step, tile.b, row);
}

// One thread of a warpgroup that has few registers.
template <class Shape>
class PrefillProducer {
 public:
  HEED_DEVICE PrefillProducer(const Call& call, const PrefillPlan& launch, PrefillShared<Shape> memory)
      : c(call), plan(launch), shared(memory), schedule{call, launch, memory} {}

  HEED_DEVICE void run() {
    if constexpr (Shape::in_sixteens)
      wait_for_prior_launches();  // lists, and what they make of an int8 cache
    unsigned n = 0;
    for (int number = static_cast<int>(block_index()); number < plan.tiles; ++n) {
      if (Shape::cut && plan.tile_starts) wait_for_prior_launches();
      RowTile tile = schedule.find(number);
      if constexpr (Shape::cut) wait_for_prior_launches();  // before consumers read or write anything
      schedule.take_unfinished(n, tile);
      const int next = send(tile, n);
      if (!tile.again) number = next;
    }
    schedule.end_claims();
    for (RowTile tile; schedule.take_unfinished(n, tile) || schedule.take_unfinished(n + 1, tile); ++n)
      send(tile, n);
    schedule.describe({-1}, n);
  }

 private:
  HEED_DEVICE int send(const RowTile& tile, unsigned n) {
    schedule.describe(tile, n);
    return load(tile, n);
  }

  // Keys are one tile ahead of values. Returns the number of the next tile of rows; a second pass claims
  // none.
  HEED_DEVICE int load(const RowTile& tile, unsigned n) {
    const int kv_head = kv_head_of(tile), first_key = static_cast<int>(c.sequence(tile.b).first_key);
    barrier_wait(shared.queries_empty(n), shared.query_phase(n) ^ 1);
    load_queries(c, plan, shared, tile, n);
    const int last_loaded = load_all_but_last_values(tile, first_key, kv_head);
    const int number = tile.again ? 0 : schedule.claim();
    if constexpr (Shape::in_sixteens)
      load_values(at_hand, loaded++);
    else
      load_values(last_loaded, first_key, kv_head, tile.b, loaded++);
    return number;
  }

  HEED_DEVICE int kv_head_of(const RowTile& tile) const {
    if constexpr (Shape::cut) return plan.kv_head(c, tile.h);
    return static_cast<int>(c.kv_head(tile.h));
  }

  // Keys of all tiles, and values of all but one, which is returned. Without options tiles follow each other:
  // in a loop like the other one ptxas makes code of the whole kernel whose products wait (C7511).
  HEED_DEVICE int load_all_but_last_values(const RowTile& tile, int first_key, int kv_head) {
    if constexpr (Shape::in_sixteens) {
      const SixteensFinder<Shape> find(c, plan, tile.b, kv_head);
      at_hand = find(tile.last);
      load_keys(at_hand, first_key + tile.last * Shape::keys, kv_head, tile.b, loaded);
      for (int j = tile.last - 1; j >= tile.first; --j, ++loaded) {
        const SixteensTile<Shape> before = at_hand;
        at_hand = find(j);
        load_keys(at_hand, first_key + j * Shape::keys, kv_head, tile.b, loaded + 1);
        load_values(before, loaded);
      }
      return tile.first;
    }
    if constexpr (!Shape::masked) {
      load_keys(tile.last, first_key, kv_head, tile.b, loaded);
      for (int j = tile.last - 1; j >= tile.first; --j, ++loaded) {
        load_keys(j, first_key, kv_head, tile.b, loaded + 1);
        load_values(j + 1, first_key, kv_head, tile.b, loaded);
      }
      return tile.first;
    }
    int j = tile.last, next = visit_below<Shape>(plan, tile, j);
    describe_visit(tile, j, next, loaded);
    load_keys(j, first_key, kv_head, tile.b, loaded);
    if (Shape::biased) load_bias(tile, j, loaded);
    for (; next >= tile.first; ++loaded) {
      const int before = j;
      j = next, next = visit_below<Shape>(plan, tile, j);
      describe_visit(tile, j, next, loaded + 1);
      load_keys(j, first_key, kv_head, tile.b, loaded + 1);
      if (Shape::biased) load_bias(tile, j, loaded + 1);
      load_values(before, first_key, kv_head, tile.b, loaded);
    }
    return j;
  }

  // Of these tiles, which lie as in pages.
  HEED_DEVICE void load_keys(const SixteensTile<Shape>& tile, int first_key, int kv_head, int b,
                             unsigned n) const {
    barrier_wait(shared.keys_empty(n), shared.phase(n) ^ 1);
    if constexpr (Shape::scaled) load_scales(first_key, kv_head, b, n);
    barrier_arrive_expecting(shared.keys_full(n), Shape::key_bytes);
#pragma unroll
    for (int m = 0; m < tile.count; ++m)
      load_box(shared.keys(n) + m * tile.key_bytes, &plan.k,
               {0, 0, tile.box[m].sixteen, tile.box[m].key_line}, shared.keys_full(n), evict_last);
  }
  HEED_DEVICE void load_values(const SixteensTile<Shape>& tile, unsigned n) const {
    barrier_wait(shared.values_empty(n), shared.phase(n) ^ 1);
    barrier_arrive_expecting(shared.values_full(n), Shape::value_bytes);
#pragma unroll
    for (int m = 0; m < tile.count; ++m)
      load_box(shared.values(n) + m * tile.value_bytes, &plan.v,
               {0, 0, tile.box[m].sixteen, tile.box[m].value_line}, shared.values_full(n), evict_last);
  }

  // With options consumers read here which tile comes in stage n. When the stage is free, the last one was
  // read.
  HEED_DEVICE void describe_visit(const RowTile& tile, int j, int next, unsigned n) const {
    if constexpr (Shape::masked) {
      barrier_wait(shared.keys_empty(n), shared.phase(n) ^ 1);
      const bool is_mixed = plan.mask.words && plan.mask.tile_class(tile, j) != TileClass::full;
      *shared.visit(n) = PrefillVisit(j, next < tile.first, is_mixed);
    }
  }
  HEED_DEVICE void load_keys(int j, int first_key, int kv_head, int b, unsigned n) const {
    barrier_wait(shared.keys_empty(n), shared.phase(n) ^ 1);
    load_pieces<Shape::keys, Shape::pieces>({shared.keys(n), shared.keys_full(n), &plan.k, &c.k, evict_last},
                                            kv_head, b, first_key + j * Shape::keys);
  }
  // Before the keys, whose barrier counts the bytes of both.
  HEED_DEVICE void load_scales(int row, int kv_head, int b, unsigned n) const {
    const std::int64_t at =
        (c.k.stride.batch == 0 ? kv_head : b * c.kv_heads + kv_head) * plan.scale_rows + row;
    barrier_expect(shared.keys_full(n), 2 * Shape::scale_bytes);
    load_bytes(shared.scales(n), plan.key_scales + at, Shape::scale_bytes, shared.keys_full(n));
    load_bytes(shared.scales(n) + Shape::scale_bytes, plan.value_scales + at, Shape::scale_bytes,
               shared.keys_full(n));
  }
  HEED_DEVICE void load_bias(const RowTile& tile, int j, unsigned n) const {
    barrier_wait(shared.bias_empty(n), shared.phase(n) ^ 1);
    barrier_arrive_expecting(shared.bias_full(n), Shape::bias_bytes);
#pragma unroll
    for (int piece = 0; piece < Shape::keys / 64; ++piece)
      load_box(shared.bias(n) + piece * Shape::rows * 128, &plan.bias,
               {j * Shape::keys + piece * 64, static_cast<int>(tile.first_row),
                c.bias.stride.heads == 0 ? 0 : tile.h, c.bias.stride.batch == 0 ? 0 : tile.b},
               shared.bias_full(n), c.bias.stride.heads == 0 ? evict_last : evict_first);
  }
  HEED_DEVICE void load_values(int j, int first_key, int kv_head, int b, unsigned n) const {
    barrier_wait(shared.values_empty(n), shared.phase(n) ^ 1);
    load_pieces<Shape::keys, Shape::value_pieces>(
        {shared.values(n), shared.values_full(n), &plan.v, &c.v, evict_last}, kv_head, b,
        first_key + j * Shape::keys);
  }

  const Call& c;
  const PrefillPlan& plan;
  const PrefillShared<Shape> shared;
  const PrefillSchedule<Shape> schedule;
  unsigned loaded = 0;          // tiles of values
  SixteensTile<Shape> at_hand;  // whose values are not loaded yet
};

}  // namespace heed::cuda
