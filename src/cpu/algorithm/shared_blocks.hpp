// SPDX-License-Identifier: Apache-2.0
// Blocks of keys and values that are packed once for all tasks of prefill that read them: whoever comes to a
// block first packs it, the others take it. What it holds depends on the call alone, so it does not matter
// who.
#pragma once
#include <cstdint>

#include "cpu/algorithm/operands.hpp"
#include "cpu/algorithm/pack.hpp"
#include "cpu/call.hpp"
#include "threads/pool.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Operands that are better taken from another task than packed again. They pack into memory they are given,
// and go on with what others have packed.
template <class O>
concept SharesBlocks = Operands<O> && requires(O made, typename O::Element* packed, std::int64_t n) {
  requires O::shares_blocks;
  made.use_keys(packed, made.key_known);
  made.use_values(packed, n);
};

// In front of the memory of a block, which is cleared before there are tasks.
template <class O>
class SharedBlock {
  using Element = typename O::Element;
  static constexpr std::uint32_t empty = 0, begun = 1, done = 2;

  std::uint32_t state;  // through atomic operations alone
  bool has_poison;
  typename O::Known known;

  static std::int64_t floats_for(std::int64_t width) {
    return block_keys * width * static_cast<std::int64_t>(sizeof(Element)) /
           static_cast<std::int64_t>(sizeof(float));
  }
  float* memory() { return reinterpret_cast<float*>(this) + shared_header_floats; }
  bool is_done() const { return __atomic_load_n(&state, __ATOMIC_ACQUIRE) == done; }

 public:
  static std::int64_t floats(const typename O::Parts& of) {
    static_assert(sizeof(SharedBlock) <= shared_header_floats * sizeof(float));
    return shared_header_floats + floats_for(of.depth) + floats_for(of.dims);
  }

  // Whether it is the caller's to pack.
  bool begin() {
    std::uint32_t expected = empty;
    return __atomic_load_n(&state, __ATOMIC_RELAXED) == empty &&  // fault: block-packed-by-two
           __atomic_compare_exchange_n(&state, &expected, begun, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }

  // By whoever began: pack() does it and returns whether there are values that are no numbers.
  template <class Pack>
  void pack_with(O& operands, std::int64_t count, const Pack& pack) {
    use(operands, count, {});
    has_poison = pack();  // fault: block-shown-early
    known = operands.key_known;
    __atomic_store_n(&state, done, __ATOMIC_RELEASE);
  }

  // Whoever packs it is at it, unless the system has put another thread in its place: then it is better not
  // waited for.
  bool is_done_soon() const {
    constexpr int max_looks = 2000;
    for (int n = 0; n < max_looks; ++n) {
      if (is_done()) return true;
      threads::relax();
    }
    return is_done();
  }

  // Once it is done; returns what pack() did.
  bool use_in(O& operands, std::int64_t count) {
    use(operands, count, known);
    return has_poison;
  }

 private:
  void use(O& operands, std::int64_t count, typename O::Known of) {
    operands.use_keys(reinterpret_cast<Element*>(memory()), of);
    operands.use_values(reinterpret_cast<Element*>(memory() + floats_for(operands.depth)), count);
  }
};

}  // namespace heed::cpu::HEED_THIS_TARGET
