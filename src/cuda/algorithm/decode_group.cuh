// SPDX-License-Identifier: Apache-2.0
// A warpgroup's state {max, sum, out} of up to 32 rows over its tiles of a unit of keys. Of the 64 rows of
// its matrix instructions every other eight are real, so that each warp has eight of them and a quad of lanes
// one: the instructions wait for memory in any case.
#pragma once
#include <cstdint>

#include "cuda/algorithm/decode_thread.cuh"
#include "cuda/algorithm/exact_state.cuh"
#include "cuda/tile/wgmma.cuh"

namespace heed::cuda {

template <class Shape>
class DecodeGroup : public DecodeThread<Shape> {
  using Thread = DecodeThread<Shape>;
  using Tile = typename DecodeLoads<Shape>::Tile;
  static constexpr Type type = Shape::type;
  static constexpr int dim = Shape::dim, keys = Shape::tile_keys;

 protected:
  using Thread::c, Thread::shared, Thread::b, Thread::count, Thread::lane, Thread::warp, Thread::all_see;
  using Thread::Thread;

  HEED_DEVICE void load_queries() {
    const bool is_there = row() < count;
    const Row of = row_of(c.q, Thread::query(is_there ? row() : 0));
    const auto* from = static_cast<const std::uint16_t*>(of.data) + of.first + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < dim / 8; ++k)
      q[k] = is_there ? *reinterpret_cast<const std::uint32_t*>(from + 8 * k) : 0u;
  }

  // The keys that ranges let this thread's row see.
  HEED_DEVICE void find_ranges() {
    const KeyRange range =
        row() < count ? visible_keys(Thread::sequence, Thread::query_of(row())) : KeyRange{0, 0};
    begin = static_cast<int>(range.begin), end = static_cast<int>(range.end);
  }

  HEED_DEVICE void clear_own() {
    max = minus_infinity, sum = 0;
#pragma unroll
    for (int n = 0; n < dim / 2; ++n) o[n] = 0;
  }

  // A tile of keys for all rows.
  HEED_DEVICE void attend_tile(const Tile& tile, int first_key) {
    float s[keys / 2];
    multiply_keys(s, tile);
    weigh(s, first_key);
    multiply_values(s, tile);
  }

  // What the warpgroup found, for all to see.
  HEED_DEVICE void put_state() { put_state(shared.found[row() / Shape::end_rows]); }

  // Of a pair of blocks: what the warpgroup found in the block's n-th unit of keys, for the one in which the
  // row ends.
  HEED_DEVICE void put_state_of_pair(int unit) {
    const int own = block_in_column(), to_block = row() / Shape::end_rows;
    to_block == own ? put_state(shared.found[unit]) : send_state(shared.other.found[unit], to_block);
  }

 private:
  HEED_DEVICE int team() const { return warp / Shape::team_warps; }
  HEED_DEVICE int row() const { return warp % Shape::team_warps * 8 + lane / 4; }

  HEED_DEVICE void put_state(TeamStates<Shape>& to) {
    const int r = row() % Shape::end_rows;
    add_up();
    if (lane % 4 == 0) to.ends[team()][r] = {max, sum};
    float* const out = to.out[team()][r] + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) *reinterpret_cast<float2*>(out + 8 * n) = {o[4 * n], o[4 * n + 1]};
  }
  HEED_DEVICE void send_state(TeamStates<Shape>& to, int block) {
    const int r = row() % Shape::end_rows;
    const SharedAddress all_there = in_block(shared_address(&shared.other.all_there), block);
    add_up();
    if (lane % 4 == 0) send(in_block(shared_address(&to.ends[team()][r]), block), {max, sum}, all_there);
    const SharedAddress out = in_block(shared_address(to.out[team()][r] + lane % 4 * 2), block);
#pragma unroll
    for (int n = 0; n < dim / 8; ++n) send(out + 32 * n, {o[4 * n], o[4 * n + 1]}, all_there);
  }
  HEED_DEVICE void add_up() { sum += from_lane_across(sum, 1), sum += from_lane_across(sum, 2); }

  // s = queries * keys^T
  HEED_DEVICE void multiply_keys(float (&s)[keys / 2], const Tile& tile) const {
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) s[n] = 0;
    pin(s);
    begin_products();
#pragma unroll
    for (int k = 0; k < dim / 16; ++k) {
      const std::uint32_t a[4] = {q[2 * k], 0, q[2 * k + 1], 0};
      multiply<type, Tile::keys_are_rotated>(s, a, tile.keys_at(k));
    }
    close_products();
    wait_for_products<0>();
    pin(s);
  }

  // Scores become weights against the row's maximum and are added to the sum, each thread those of its
  // columns. The maximum follows when it is left behind by 2^8, which weights can bear: then alone what was
  // summed so far is rescaled.
  HEED_DEVICE void weigh(float (&s)[keys / 2], int first_key) {
    float top = minus_infinity;
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) s[n] = spoil_infinity(s[n] * c.scale_log2e);
    if (c.softcap_log2e != 0) cap(s);
    if (first_key < all_see.begin || first_key + keys > all_see.end) hide_unseen(s, first_key);
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) top = fmaxf(top, s[n]);
    top = fmaxf(top, from_lane_across(top, 1)), top = fmaxf(top, from_lane_across(top, 2));
    const bool moves = top > max + 8.0f;
    if (any_of_warp(moves)) rescale(moves ? top : max);
    const float subtract = finite_max(max) - lift<type>;
    float total[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) s[n] = fast_exp2(s[n] - subtract), total[n % 4] += s[n];
    sum += total[0] + total[1];
  }

  HEED_DEVICE void cap(float (&s)[keys / 2]) const {
#pragma unroll
    for (int n = 0; n < keys / 2; ++n)
      if (n % 4 < 2) s[n] = softcapped_score(c.softcap_log2e, s[n]);
  }
  HEED_DEVICE void hide_unseen(float (&s)[keys / 2], int first_key) const {
#pragma unroll
    for (int n = 0; n < keys / 2; ++n) {
      const int j = first_key + n / 4 * 8 + lane % 4 * 2 + n % 4;
      if (n % 4 < 2 && (j < begin || j >= end)) s[n] = minus_infinity;
    }
  }
  HEED_DEVICE void rescale(float now) {
    const float factor = fast_exp2(max - finite_max(now));
    max = now, sum *= factor;
#pragma unroll
    for (int n = 0; n < dim / 2; ++n)
      if (n % 4 < 2) o[n] *= factor;
  }

  // o += weights * values
  HEED_DEVICE void multiply_values(const float (&s)[keys / 2], const Tile& tile) {
    std::uint32_t p[keys / 4];
#pragma unroll
    for (int n = 0; n < keys / 4; ++n) p[n] = n % 2 == 0 ? side_by_side<type>(s[2 * n], s[2 * n + 1]) : 0u;
    pin(p), pin(o);
    begin_products();
#pragma unroll
    for (int k = 0; k < keys / 16; ++k) multiply<type, 1>(o, p + 4 * k, tile.values_at(k));
    close_products();
    wait_for_products<0>();
    pin(o), pin(p);
  }

  std::uint32_t q[dim / 8];
  int begin, end;
  float max, sum;
  float o[dim / 2];  // of four, two are of this thread's row
};

}  // namespace heed::cuda
