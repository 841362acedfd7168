// SPDX-License-Identifier: Apache-2.0
// One tile of keys after the other for the rows of a warp, where nothing but ranges hides keys and these are
// arrays: most tiles are seen by all rows and lie in whole rows of 16-byte pieces, and what decides that is
// known before the first, so that the loop is nearly products and exponentials alone: 5 to 8 % faster at 4096
// keys (H200, November 2026). Exponentials of the next tile among the products of this one made it slower.
#pragma once
#include <cstdint>

#include "cuda/general/rows.cuh"
#include "cuda/general/shared_rows.cuh"
#include "cuda/general/sources.cuh"
#include "cuda/general/state.cuh"

namespace heed::cuda::general {

// Slots of keys lie before those of values. With two of each the next tile is on its way while one is
// multiplied. With one, a tile's values are while its keys are multiplied, and the next keys while the values
// are: longer tiles then fit 99 or 163 KB.
template <class Shape, class Source, class Stage, class Team>
class Tiles {
  static constexpr bool has_one_slot = Shape::stages == 1;
  static constexpr int values_at = Shape::stages * Source::key_bytes;
  static constexpr int key_copies = Source::key_copies, value_copies = Source::value_copies;
  static constexpr int value_steps = Shape::sharing * Shape::key_steps * Shape::out_steps;
  static_assert(Shape::key_warps == 1 && Shape::stages <= 2);

 public:
  HEED_DEVICE Tiles(const BlockFacts<Shape>& block, Source& from, const Stage& of_scores, State<Shape>& of,
                    const Team& of_warps, const Place<Shape>& place, SharedAddress at, float by)
      : source(from),
        stage(of_scores),
        state(of),
        team(of_warps),
        share(place.share),
        first_dim(place.first_dim()),
        ring(at),
        scale(by),
        eight(8.0f / by),
        begin(block.keys.begin / Shape::tile_keys),
        end((block.keys.end + Shape::tile_keys - 1) / Shape::tile_keys) {
    const IntRange seen = stage.seen_tiles(), whole = stage.whole_tiles();
    const int copied = source.whole_tiles() < end ? source.whole_tiles() - 1 : end;
    // With one slot a plain tile copies its own values, and rows before the first key must become 0.
    const int first = has_one_slot && !source.is_whole(begin) ? begin + 1 : begin;
    plain_begin = max_of(first, seen.begin), plain_count = max_of(min_of(seen.end, copied) - plain_begin, 0);
    whole_begin = whole.begin, whole_count = max_of(whole.end - whole.begin, 0);
  }

  // What walk() begins with.
  HEED_DEVICE void load_first() {
    if (begin >= end) return;
    load_keys(begin);
    if (!has_one_slot) load_values(begin);
  }

  HEED_DEVICE void walk(Queries<Shape>& queries) {
#pragma unroll 1
    for (int t = begin; t < end; ++t) {
      wait_for_copies<0>();
      sync();
      if (Shape::held_steps > 0 && t == begin) queries.hold();
      if (is_of(plain_begin, plain_count, t))
        add_plain(queries, t);
      else
        add(queries, t);
    }
    wait_for_copies<0>();
  }

 private:
  HEED_DEVICE static bool is_of(int first, int count, int t) {
    return static_cast<unsigned>(t - first) < static_cast<unsigned>(count);
  }
  HEED_DEVICE SharedAddress keys(int t) const {
    return ring + (has_one_slot ? 0 : (t & 1) * Source::key_bytes);
  }
  HEED_DEVICE SharedAddress values(int t) const {
    return ring + values_at + (has_one_slot ? 0 : (t & 1) * Shape::value_bytes);
  }

  // A tile that the warp sees, where copies need not look at rows.
  HEED_DEVICE void add_plain(const Queries<Shape>& queries, int t) {
    const bool has_next = t + 1 < end;
    const int of_values = has_one_slot ? t : t + 1;
    if (!has_one_slot) source.aim_keys(t + 1, keys(t + 1));
    source.aim_values(of_values, values(of_values));
    Scores<Shape> s;
    multiply_keys<Shape, Source>(s, queries, keys(t), share, [&](int k) {
      if (!has_one_slot)
        in_groups<Shape::dim_steps, key_copies>(k, [&](int n) { source.copy_keys(n, has_next); });
      in_groups<Shape::dim_steps, value_copies>(
          k, [&](int n) { source.copy_values(n, has_one_slot || has_next); });
    });
    commit_copies();
    if (!is_of(whole_begin, whole_count, t)) stage.apply(s, t);
    state.weigh(s, scale, eight, team);
    if constexpr (has_one_slot) {
      wait_for_copies<0>();
      sync();
      source.aim_keys(t + 1, keys(t + 1));
    }
    add_values(s, t, [&](int x) {
      if (has_one_slot) in_groups<value_steps, key_copies>(x, [&](int n) { source.copy_keys(n, has_next); });
    });
    if (has_one_slot) commit_copies();
  }

  // Any tile.
  HEED_DEVICE void add(const Queries<Shape>& queries, int t) {
    const bool is_seen = stage.sees(t), has_next = t + 1 < end;
    if (!has_one_slot && has_next) load_keys(t + 1);
    if (has_one_slot || has_next) load_values(has_one_slot ? t : t + 1);
    commit_copies();
    Scores<Shape> s;
    if (is_seen) {
      multiply_keys<Shape, Source>(s, queries, keys(t), share, [](int) {});
      stage.apply(s, t);
      state.weigh(s, scale, eight, team);
    }
    if constexpr (has_one_slot) {
      wait_for_copies<0>();
      sync();
      if (has_next) load_keys(t + 1);
      commit_copies();
    }
    if (is_seen) add_values(s, t, [](int) {});
  }

  // Of two warps that share rows each begins with its own keys' weights (HalvedSums).
  template <class Meanwhile>
  HEED_DEVICE void add_values(const Scores<Shape>& s, int t, const Meanwhile& meanwhile) {
    if constexpr (Shape::sharing == 1) {
      state.add_values(s, values(t), 0, meanwhile);
    } else {
      const SharedAddress at = values(t) + first_dim * 2;
      Weights<Shape> p;
      pack<Shape>(p, s);
      team.give(p);
      multiply_values<Shape>(state.o, p, at, share, meanwhile);
      team.take(p);
      multiply_values<Shape>(state.o, p, at, 1 - share,
                             [&](int x) { meanwhile(Shape::key_steps * Shape::out_steps + x); });
    }
  }

  // The copies that go beside step k of so many: in a few groups, as the compiler puts three idle loads
  // before each.
  template <int steps, int copies, class Copy>
  HEED_DEVICE static void in_groups(int k, const Copy& copy) {
    constexpr int groups = steps >= 8 ? 4 : 2, apart = (steps + groups - 1) / groups;
    static_assert((steps - 1) / apart == groups - 1, "some copies would never be asked for");
    if (k % apart != 0) return;
#pragma unroll
    for (int n = k / apart * copies / groups; n < (k / apart + 1) * copies / groups; ++n) copy(n);
  }
  HEED_DEVICE void load_keys(int t) {
    source.aim_keys(t, keys(t));
    if (!source.is_whole(t)) return source.prefetch_keys(t, keys(t));
#pragma unroll
    for (int n = 0; n < key_copies; ++n) source.copy_keys(n, true);
  }
  HEED_DEVICE void load_values(int t) {
    source.aim_values(t, values(t));
    if (!source.is_whole(t)) return source.prefetch_values(t, values(t));
#pragma unroll
    for (int n = 0; n < value_copies; ++n) source.copy_values(n, true);
  }

  Source& source;
  const Stage& stage;
  State<Shape>& state;
  const Team& team;
  const int share, first_dim;
  const SharedAddress ring;
  const float scale, eight;
  const int begin, end;
  int plain_begin, plain_count;  // tiles for add_plain()
  int whole_begin, whole_count;  // tiles of which the warp's rows see every key
};

}  // namespace heed::cuda::general
