// SPDX-License-Identifier: Apache-2.0
// What a block of decode works with: a KV head of a sequence, some rows of it and the keys they see; its
// teams of warps, and a team's ring of tiles of keys and values; and the partial states {max, sum, out} that
// teams and blocks find and merge.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/decode/plan.hpp"
#include "cuda/tile/hopper.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

struct DecodeWork {
  const Call& c;
  const int kv_heads, group;
  int lane, warp, b, kv_head;
  Sequence sequence;
  int queries;
  int first_row, count;  // of this block; count: those that are real
  struct Keys {
    int begin = 0, end = 0;
  };
  Keys seen_by_some, seen_by_all;

  HEED_DEVICE DecodeWork(const Call& call, const DecodePlan& plan)
      : c(call), kv_heads(static_cast<int>(c.kv_heads)), group(plan.group) {
    lane = thread_index() % 32, warp = thread_index() / 32;
    const int n = static_cast<int>(block_index()), head = n / plan.row_tiles;
    b = head / kv_heads, kv_head = head - b * kv_heads;
    first_row = (n - head * plan.row_tiles) * plan.tile_rows;
    // Not c.sequence(b), which would find the call's own by its address: far slower than as an argument.
    sequence = c.each;
    if (c.sequences) sequence = c.sequences[b];
    queries = static_cast<int>(sequence.queries);
    count = max_of(0, min_of(plan.tile_rows, queries * group - first_row));
    if (count == 0) return;
    const KeyRange first = visible_keys(sequence, query_of(0)),
                   last = visible_keys(sequence, query_of(count - 1));
    seen_by_some = {static_cast<int>(first.begin), static_cast<int>(last.end)};
    seen_by_all = {static_cast<int>(last.begin), static_cast<int>(first.end)};
    if (plan.mask.words && plan.mask.heads == 1) leave_masked_ends(plan.mask);
  }

  // Rows are the queries in order, each for all heads that read the KV head.
  HEED_DEVICE int query_of(int r) const { return queries == 1 ? 0 : (first_row + r) / group; }
  HEED_DEVICE Query query(int r) const {
    const int n = query_of(r), member = first_row + r - n * group;
    const int h = c.tiled_heads ? member * kv_heads + kv_head : kv_head * group + member;
    return {b, h, n, sequence.first_query + n};
  }

  HEED_DEVICE bool all_see(int begin, int end) const {
    return !(begin < seen_by_all.begin || end > seen_by_all.end);
  }

 private:
  // Keys before the first tile that masks show to some query, and behind the last one, are as if no row saw
  // them: padding is not loaded. The lanes ask for 32 tiles at a time.
  HEED_DEVICE void leave_masked_ends(const PackedMask& mask) {
    const TileClass* const tiles = mask.classes + (mask.batch == 1 ? 0 : b) * mask.blocks() * mask.tiles;
    const auto shown = [&](int first) {
      const int n = first + lane;
      const bool is_shown = n >= 0 && n < mask.tiles && tiles[n] != TileClass::empty;
      return __ballot_sync(0xffffffffu, is_shown);
    };
    int first = seen_by_some.begin / mask.tile_keys, last = (seen_by_some.end - 1) / mask.tile_keys;
    std::uint32_t found = 0;
    while (first <= last && (found = shown(first)) == 0) first += 32;
    if (found != 0) first += __ffs(static_cast<int>(found)) - 1;
    if (first > last) return void(seen_by_some = {0, 0});
    for (last -= 31; (found = shown(last)) == 0;) last -= 32;
    last += 31 - __clz(static_cast<int>(found));
    seen_by_some = {max_of(seen_by_some.begin, first * mask.tile_keys),
                    min_of(seen_by_some.end, (last + 1) * mask.tile_keys)};
  }
};

// What boolean masks let a row see of its team's tiles, whose words are loaded a tile before they are used.
template <class Shape>
class RowMask {
  static constexpr int words = (Shape::tile_keys + 31) / 32, tiles_apart = Shape::teams * Shape::tile_keys;

 public:
  // Of row r; `tile`: the team's first.
  HEED_DEVICE void begin(const DecodeWork& work, const PackedMask& mask, int r, int tile) {
    if (!mask.words) return;
    const Query q = work.query(r < work.count ? r : 0);
    from = mask.row(static_cast<int>(q.b), static_cast<int>(q.h), static_cast<int>(q.i));
    end = mask.row_words * 32;
    load(tile);
  }

  // Moves to the tile that is taken now. Returns whether the row sees some key of it.
  HEED_DEVICE bool take(int tile) {
    bool any_seen = false;
#pragma unroll
    for (int n = 0; n < words; ++n) {
      now[n] = Shape::tile_keys == 16 ? later[n] >> tile % 32 & 0xffffu : later[n];
      any_seen = any_seen || now[n] != 0;
    }
    load(tile + tiles_apart);
    return any_seen;
  }
  // Whether it lets the row see key 32 word + bit of the tile; the compiler must know the word.
  HEED_DEVICE bool sees(int word, int bit) const { return (now[word] >> bit & 1) != 0; }

 private:
  HEED_DEVICE void load(int tile) {
#pragma unroll
    for (int n = 0; n < words; ++n) later[n] = tile < end ? from[tile / 32 + n] : 0;
  }

  const std::uint32_t* from;
  int end;  // keys of a row of words
  std::uint32_t now[words], later[words];
};

// Warps that share the tiles of keys which they load.
template <class Shape>
struct DecodeTeam {
  static constexpr int threads = 32 * Shape::team_warps;

  HEED_DEVICE static int number() { return thread_index() / threads; }
  HEED_DEVICE static int thread() { return thread_index() % threads; }  // of the team
  HEED_DEVICE static void sync() {
    if constexpr (Shape::team_warps == 1)
      sync_warp();
    else
      named_sync(1 + number(), threads);
  }
};

// A KV head of a sequence.
struct DecodeHead {
  const Call* c;
  int b, kv_head;
  int begin, end;          // keys that some row sees
  std::int64_t first_key;  // the sequence's, among the rows of a packed call

  HEED_DEVICE bool is_wanted(int j) const { return j >= begin && j < end; }
};
struct KeyStretch {
  int begin, end;
};

// Where a cache has the tokens of each tile that a warp copies, sixteen after sixteen. Looked up for 32
// sixteens at a time, the lanes one each, and 32 ahead: a load waits for the copies that were started before
// it. One tile ahead, 64 sequences of 4096 keys of 64 took 181 us instead of 174 (H200, November 2026).
template <class Shape>
class PageLookups {
 public:
  // A page, and a token of it.
  struct Place {
    const unsigned char* page;
    int token;
  };

  // `first`: the first tile's token.
  HEED_DEVICE PageLookups(const DecodeHead& of, int first)
      : end(of.end),
        page_size(static_cast<int>(of.c->layout.page_size)),
        table(of.c->cached[of.b].table),
        lane_token(first + lane_index() / sixteens * tokens_apart + lane_index() % sixteens * 16) {
    if (end <= 0) return;
    now = found(lane_token), later = found(lane_token + tokens_ahead);
  }

  HEED_DEVICE Place next() {
    const auto page = reinterpret_cast<unsigned long long>(now.page);
    const Place place{reinterpret_cast<const unsigned char*>(__shfl_sync(0xffffffffu, page, taken)),
                      __shfl_sync(0xffffffffu, now.token, taken)};
    if (++taken == 32) {
      taken = 0, lane_token += tokens_ahead;
      now = later, later = found(lane_token + tokens_ahead);
    }
    return place;
  }

 private:
  // Of a tile, a warp's; a warpgroup's warps have one each.
  static constexpr int sixteens = Shape::many ? 1 : Shape::tile_keys / 16;
  static constexpr int tokens_apart = Shape::teams * Shape::tile_keys,
                       tokens_ahead = 32 / sixteens * tokens_apart;

  // What is beyond the sequence, or nobody sees, is hidden: then any page will do. Nothing is added to what
  // the table has: the sum would wait for it.
  HEED_DEVICE Place found(int token) const {
    const int page = token < end ? token / page_size : 0;
    return {table[page], token % page_size};
  }

  const int end, page_size;  // end: of the keys that some row sees
  const unsigned char* const* const table;
  int lane_token, taken = 0;
  Place now{}, later{};
};

// A ring of tiles that the threads of a team copy themselves, some tiles ahead of the one they work on.
// `Copies` knows where a tile lies: it starts a thread's part of the copies of one, and has the Tile that
// products read.
template <class Shape, class Copies>
class DecodeRing {
  using Team = DecodeTeam<Shape>;

 public:
  struct Shared {
    unsigned char stages[Shape::stages][Shape::stage_bytes];
  };
  struct Barriers {};
  using Tile = typename Copies::Tile;

  HEED_DEVICE static void prepare(const DecodePlan&, Barriers&) {}

  // This team's tiles of a stretch of the head's keys.
  HEED_DEVICE DecodeRing(const DecodeHead& head, const DecodePlan& plan, const KeyStretch& keys,
                         Shared& memory, Barriers&)
      : is_eased(Shape::stages == 3 && plan.is_eased),
        end(keys.end),
        ring(shared_address(&memory)),
        next(keys.begin + Team::number() * Shape::tile_keys),
        copies(head, next) {}

  HEED_DEVICE void begin() {
#pragma unroll 1
    for (int n = 0; n < (is_eased ? 1 : Shape::stages - 1); ++n) load();
  }

  // The next tile, visible to the whole team; the tile before it is no longer needed.
  HEED_DEVICE Tile take(int /*first_key*/) {
    wait_for_copies<Shape::stages - 2>();
    if constexpr (Shape::many) fence_async_proxy();
    Team::sync();
    load();
    const SharedAddress at = ring + taken * Shape::stage_bytes;
    taken = after(taken);
    return {at};
  }
  // Instead of take(), where only other teams have a tile.
  HEED_DEVICE void pass() const { Team::sync(); }
  HEED_DEVICE void drain() const { wait_for_copies<0>(); }

 private:
  HEED_DEVICE static int after(int stage) { return stage == Shape::stages - 1 ? 0 : stage + 1; }

  // Starts the copies of the next tile into the stage that is free.
  HEED_DEVICE void load() {
    if (next < end) copies.start(next, ring + loaded * Shape::stage_bytes);
    commit_copies();
    if (is_eased) commit_copies();  // of nothing: take() waits for all but one
    next += Shape::teams * Shape::tile_keys;
    loaded = after(loaded);
  }

  const bool is_eased;
  const int end;
  const SharedAddress ring;
  int next, loaded = 0, taken = 0;  // the next tile's first key, its stage, and that of the tile to take
  Copies copies;
};

// Partial states where teams are merged: warp w of 8 has the rows w, w + 8 ..., each lane some neighbouring
// dimensions of each, and all lanes of a warp have max and sum. In memory, between blocks, a state is (max of
// every row, sum of every row, out (rows, dims)).

// Neighbouring numbers, read and written together.
template <int count>
struct alignas(count < 4 ? 4 * count : 16) Numbers {
  float x[count];
};

// What the teams found in a unit of keys, for some rows; these begin in different banks.
template <class Shape>
struct TeamStates {
  alignas(16) float out[Shape::teams][Shape::end_rows][Shape::dim + 4];
  Numbers<2> ends[Shape::teams][Shape::end_rows];  // max, sum
};

// One row of a state, as one thread has it.
template <int dims>
struct DecodeRow {
  float max, sum;
  Numbers<dims> out;

  HEED_DEVICE void clear() {
    max = minus_infinity, sum = 0;
#pragma unroll
    for (int d = 0; d < dims; ++d) out.x[d] = 0;
  }

  // This = this merged with the keys that follow.
  HEED_DEVICE void add(const DecodeRow& next) {
    const float now = fmaxf(max, next.max), subtract = finite_max(now);
    const float a = fast_exp2(max - subtract), z = fast_exp2(next.max - subtract);
    max = now;
    add_scaled(a, next, z);
  }
  // a times this, and z times the next.
  HEED_DEVICE void add_scaled(float a, const DecodeRow& next, float z) {
    sum = fmaf(sum, a, next.sum * z);
#pragma unroll
    for (int d = 0; d < dims; ++d) out.x[d] = fmaf(out.x[d], a, next.out.x[d] * z);
  }
};

template <class Shape>
struct DecodeState {
  static constexpr int rows = Shape::own_rows, dims = Shape::own_dims;
  DecodeRow<dims> row[rows];

  HEED_DEVICE static int number(int n) { return thread_index() / 32 + Shape::warps * n; }  // of the n-th row
  HEED_DEVICE static int first_dim() { return thread_index() % 32 * dims; }

  HEED_DEVICE void clear() {
#pragma unroll
    for (int n = 0; n < rows; ++n) row[n].clear();
  }
  HEED_DEVICE void add(const DecodeState& next) {
#pragma unroll
    for (int n = 0; n < rows; ++n) row[n].add(next.row[n]);
  }
  // The n-th row, where n is not known to the compiler.
  HEED_DEVICE DecodeRow<dims> at(int n) const {
    DecodeRow<dims> found = row[0];
#pragma unroll
    for (int i = 1; i < rows; ++i)
      if (i == n) found = row[i];
    return found;
  }
};

// The states of one KV head in memory; rows from `rows` on are not stored.
template <class Shape>
struct StoredStates {
  using State = DecodeState<Shape>;
  float* first;
  int rows;

  HEED_DEVICE float* at(int n) const { return first + n * decode_state_floats(Shape::rows, Shape::dim); }

  HEED_DEVICE void store(int n, const State& state) const {
    float* const to = at(n);
#pragma unroll
    for (int i = 0; i < State::rows; ++i) {
      const int r = State::number(i);
      if (r >= rows) continue;
      if (thread_index() % 32 == 0) to[r] = state.row[i].max, to[Shape::rows + r] = state.row[i].sum;
      *reinterpret_cast<Numbers<State::dims>*>(out_of(to, r)) = state.row[i].out;
    }
  }

  template <class Float>
  HEED_DEVICE static Float* out_of(Float* state, int r) {
    return state + 2 * Shape::rows + r * Shape::dim + State::first_dim();
  }
};

// Merges the states that other blocks stored, those of a chunk first, by the operations of DecodeRow::add().
// Many are loaded at once: out to shared memory, max and sum to the lanes, one state each. Maxima are known
// before anything is multiplied, so the lanes find all factors together, and only multiply-adds follow each
// other.
template <class Shape>
class Fold {
  using State = DecodeState<Shape>;
  static constexpr bool is_narrow = Shape::is_small && (Shape::dim == 128 || Shape::quantized);
  static constexpr int together = Shape::many ? 4 : Shape::dim == 256 || is_narrow ? 16 : 32;

 public:
  struct Shared {
    Numbers<State::dims> out[together][State::rows][Shape::threads];  // each thread its own
  };

  HEED_DEVICE Fold(const StoredStates<Shape>& states, Shared& memory) : stored(states), shared(memory) {}

  // States [begin, end); a chunk has in_chunk of them, a power of two.
  HEED_DEVICE State operator()(int begin, int end, int in_chunk) {
    State all;
    all.clear();
#pragma unroll 1
    for (int first = begin & ~(in_chunk - 1); first < end; first += together) {
      const int count = end - first < together ? end - first : together;
      load(first, begin, count);
#pragma unroll
      for (int n = 0; n < State::rows; ++n)
        if (State::number(n) < stored.rows) add(all.row[n], n, count, in_chunk);
    }
    return all;
  }

 private:
  // States [first, first + count); those before `begin` are as if they had seen nothing.
  HEED_DEVICE void load(int first, int begin, int count) {
    const int lane = thread_index() % 32;
    const bool has_one = lane < count && first + lane >= begin;
#pragma unroll
    for (int n = 0; n < State::rows; ++n) {
      const int r = State::number(n);
      max[n] = minus_infinity, sum[n] = 0;
      if (r >= stored.rows) continue;
#pragma unroll 4
      for (int i = 0; i < count; ++i)
        stream_own(&shared.out[i][n][thread_index()], stored.out_of(stored.at(first + i), r),
                   first + i >= begin);
      if (!has_one) continue;
      const float* const state = stored.at(first + lane);
      max[n] = load_l2(state + r), sum[n] = load_l2(state + Shape::rows + r);
    }
    commit_copies();
    wait_for_copies<0>();
  }

  HEED_DEVICE void add(DecodeRow<State::dims>& all, int n, int count, int in_chunk) const {
    const int lane = thread_index() % 32, place = lane & (in_chunk - 1);
    // The chunk's maximum with this state, and that of all before the chunk.
    float of_chunk = max[n], of_all = fmaxf(all.max, max[n]);
#pragma unroll
    for (int before = 1; before < together; before *= 2) {
      const float chunk_before = shuffle(of_chunk, lane - before),
                  all_before = shuffle(of_all, lane - before);
      if (before <= place) of_chunk = fmaxf(of_chunk, chunk_before);
      if (before <= lane) of_all = fmaxf(of_all, all_before);
    }
    const float chunk_before = shuffle(of_chunk, lane - 1), all_before = shuffle(of_all, lane - place - 1);
    const float a = fast_exp2((place == 0 ? minus_infinity : chunk_before) - finite_max(of_chunk)),
                z = fast_exp2(max[n] - finite_max(of_chunk));
    const float all_a = fast_exp2((lane == place ? all.max : all_before) - finite_max(of_all)),
                all_z = fast_exp2(of_chunk - finite_max(of_all));
    if (in_chunk == 1) {  // a chunk is the state itself
#pragma unroll 8
      for (int i = 0; i < count; ++i)
        all.add_scaled(shuffle(all_a, i), {0, shuffle(sum[n], i), shared.out[i][n][thread_index()]},
                       shuffle(all_z, i));
    } else {
      add_chunks(all, n, count, in_chunk, {a, z, all_a, all_z});
    }
    all.max = shuffle(of_all, count - 1);
  }

  // What this lane's state and its chunk so far are multiplied with, and the chunk and all before it.
  struct Factors {
    float a, z, all_a, all_z;
  };
  HEED_DEVICE void add_chunks(DecodeRow<State::dims>& all, int n, int count, int in_chunk,
                              const Factors& of) const {
    DecodeRow<State::dims> chunk;
    chunk.clear();
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
      chunk.add_scaled(shuffle(of.a, i), {0, shuffle(sum[n], i), shared.out[i][n][thread_index()]},
                       shuffle(of.z, i));
      if (((i + 1) & (in_chunk - 1)) != 0 && i + 1 != count) continue;
      all.add_scaled(shuffle(of.all_a, i), chunk, shuffle(of.all_z, i));
      chunk.clear();
    }
  }

  const StoredStates<Shape> stored;
  Shared& shared;
  float max[State::rows], sum[State::rows];
};

}  // namespace heed::cuda
