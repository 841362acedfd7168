// SPDX-License-Identifier: Apache-2.0
// A tile of rows that comes for the second time, since a row of it came out as no number. A weight of 0 times
// a value that is no number is none either, so that a NaN reaches rows which do not see it, and which of them
// depends on how rows lie in tiles. Here every such value is taken for 0; rows that do see it get it back at
// the end. So each row has the bits of its own keys (O3), and only what it sees sends it to double precision.
//
// The sums are those of the first time, one after the other: nothing runs beside them.
#pragma once
#include <cstdint>

#include "cuda/algorithm/prefill_products.cuh"

namespace heed::cuda {

// Two numbers side by side, with 0 for what is NaN or an infinity.
template <Type type>
HEED_DEVICE std::uint32_t numbers_of(std::uint32_t two) {
  constexpr std::uint32_t exponent = type == Type::bf16 ? 0x7F80u : 0x7C00u;
  if ((two & exponent) == exponent) two &= 0xFFFF0000u;
  if ((two >> 16 & exponent) == exponent) two &= 0xFFFFu;
  return two;
}

template <class Shape, bool capped>
class PrefillAgain : public PrefillProducts<Shape, capped> {
  using Products = PrefillProducts<Shape, capped>;
  using Thread = PrefillThread<Shape, capped>;
  using RowBits = unsigned long long;  // one for each row of a warpgroup

 protected:
  using Products::multiply_keys, Products::multiply_values, Products::stage, Products::taken;
  using Products::PrefillProducts, Thread::release, Thread::dim, Thread::keys;
  using Thread::c, Thread::shared, Thread::tile, Thread::group, Thread::team, Thread::rows_here;
  using Thread::lane, Thread::row_in_group, Thread::o, Thread::s, Thread::p;

  HEED_DEVICE void attend_again(unsigned n) {
    Products::begin_rows(n);
#pragma unroll 1
    for (int j = tile->last; j >= tile->first; --j, ++taken) {
      barrier_wait(shared.keys_there(taken), shared.phase(taken));
      multiply_keys(stage(taken));
      wait_for_products<0>();
      pin(s);
      release(shared.keys_used(taken));
      Products::weigh(j, true, true);
      Products::narrow();
      Products::rescale();
      barrier_wait(shared.values_there(taken), shared.phase(taken));
      clear_poison();
      multiply_values(stage(taken));
      wait_for_products<0>();
      pin(o), pin(p);
      release(shared.values_used(taken));
    }
    if (Shape::out_has_room) release(shared.queries_used(n));
    give_poison_back();
  }

 private:
  // In the tile of values at hand, by all warpgroups.
  HEED_DEVICE void clear_poison() const {
    for (int n = thread_index() - 128; n < Shape::key_bytes / 16; n += 128 * Shape::groups) {
      const SharedAddress at = shared.values(taken) + n * 16;
      const uint4 x = load_shared16(at);
      store_shared16(at, {numbers_of<Shape::type>(x.x), numbers_of<Shape::type>(x.y),
                          numbers_of<Shape::type>(x.z), numbers_of<Shape::type>(x.w)});
    }
    show_to_engines();
    meet(4, 128 * Shape::groups);
  }

  // The sums that a value which is no number belongs to. The outputs' memory holds them for each dimension.
  HEED_DEVICE void give_poison_back() {
    if (team.thread() == 0) wait_for_stores_to_read();
    team.sync();
    auto* const poisoned = static_cast<RowBits*>(__cvta_shared_to_generic(Products::out_piece(0)));
    for (int d = team.thread(); d < dim; d += 128) poisoned[d] = rows_poisoned_in(d);
    team.sync();
#pragma unroll
    for (int i = 0; i < dim / 2; ++i) {
      const int d = i / 4 * 8 + lane % 4 * 2 + i % 2, r = row_in_group + i / 2 % 2 * 8;
      if (poisoned[d] >> r & 1) o[i] = __builtin_nanf("");
    }
    team.sync();
  }

  HEED_DEVICE RowBits rows_poisoned_in(int d) const {
    const int i0 = tile->first_query + group * 64, i1 = i0 + 63;
    const std::int64_t kv_head = c.kv_head(tile->h);
    RowBits rows = 0;
    for (int j = tile->begin_of(i0); j < tile->end_of(i1); ++j)
      if (!is_finite(read(value_row(c, tile->b, kv_head, j), d)))
        rows |= rows_before(j - tile->first_offset + 1 - i0) & ~rows_before(j - tile->end_offset + 1 - i0);
    return rows;
  }
  HEED_DEVICE static RowBits rows_before(int r) {
    return r <= 0 ? 0 : r >= 64 ? ~RowBits{0} : (RowBits{1} << r) - 1;
  }
};

}  // namespace heed::cuda
