// SPDX-License-Identifier: Apache-2.0
// Blocks of keys and values as the products of the backward pass read them, packed once for all that share
// them.
#pragma once
#include <cstdint>

#include "cpu/backward/gradient_operands.hpp"
#include "cpu/gradient_call.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

template <GradientOperands O>
struct KeyBlock {
  using Element = typename O::Element;

  std::int64_t first;  // key of the sequence; negative where nothing is packed
  KeyRange packed;     // those that somebody may see, from a whole step on
  Element *k, *v;      // tiles: keys, and values
  typename O::Known k_known, v_known;
  Element* k_sums;  // the keys as values
  bool has_bad;
  unsigned char* is_bad;  // of each key that is packed
};

template <GradientOperands O>
class PackedKeys {
  using S = typename O::S;

 public:
  const KeyBlock<O>* here = nullptr;  // the present block

  // As many blocks are kept as there are slots, in memory that may outlast this.
  PackedKeys(const GradientCall& call, GradientProducts<O>& of, std::int64_t slot_count, bool with_sums,
             Cutter& kept, Cutter& memory)
      : c(call.forward), products(of), slots(slot_count), has_sums(with_sums) {
    Cutter nothing{nullptr};
    empty_block(nothing);
    slot_floats = nothing.floats;
    blocks = reinterpret_cast<KeyBlock<O>*>(
        kept.cut(slots * static_cast<std::int64_t>(sizeof(KeyBlock<O>) / sizeof(float))));
    tiles = kept.cut(slots * slot_floats);
    widened = memory.cut(max(c.dim, c.value_dim));
  }

  // Whatever lies in the slot of the block that begins there is none of it.
  void forget(std::int64_t begin) {
    const std::int64_t slot = begin / gradient_keys % slots;
    Cutter memory{tiles + slot * slot_floats};
    blocks[slot] = empty_block(memory);
  }

  // The block that begins there, for the products to use; `wanted` are those of its keys that somebody may
  // see.
  void use(std::int64_t b, std::int64_t kv_head, std::int64_t begin, KeyRange wanted) {
    KeyBlock<O>& block = blocks[begin / gradient_keys % slots];
    here = &block;
    // fault: gradient-forgets-how-large-keys-are
    products.scores.use_keys(block.k, block.k_known), products.by_weights.use_keys(block.v, block.v_known);
    if (has_sums) products.scores.use_values(block.k_sums, block.packed.end - block.packed.begin);
    if (block.first != begin) pack(block, {b, kv_head, begin, wanted});
  }

 private:
  struct Wanted {
    std::int64_t b, kv_head, begin;
    KeyRange keys;
  };

  void pack(KeyBlock<O>& block, const Wanted& of) {
    block.first = of.begin;
    block.packed = {of.begin + (of.keys.begin - of.begin) / O::key_step * O::key_step, of.keys.end};
    const std::int64_t count = block.packed.end - block.packed.begin;
    const RowsFrom<key_row> key_at{c, of.b, of.kv_head, block.packed.begin, c.k.stride.length};
    const RowsFrom<value_row> value_at{c, of.b, of.kv_head, block.packed.begin, c.v.stride.length};
    products.scores.pack_keys(key_at, count);
    products.by_weights.pack_keys(value_at, count);
    const bool has_poison = has_sums && products.scores.pack_values(key_at, count);
    block.k_known = products.scores.key_known, block.v_known = products.by_weights.key_known;
    block.has_bad = false;
    const bool may_overflow =
        products.scores.may_exceed(max_finite) || products.by_weights.may_exceed(max_finite);
    if (!has_poison && !may_overflow) return;
    for (std::int64_t j = 0; j < round_up(count, O::key_step); ++j) {
      block.is_bad[j] =
          j < count && !(is_finite_row(key_at(j), c.dim) && is_finite_row(value_at(j), c.value_dim));
      block.has_bad |= block.is_bad[j] != 0;
    }
  }

  KeyBlock<O> empty_block(Cutter& memory) const {
    KeyBlock<O> block{};
    block.first = -1;
    block.k = cut(products.scores.depth, memory), block.v = cut(products.by_weights.depth, memory);
    block.k_sums = cut(has_sums ? products.scores.dims : 0, memory);
    block.is_bad = reinterpret_cast<unsigned char*>(memory.cut(gradient_keys / 4));
    return block;
  }

  static typename O::Element* cut(std::int64_t width, Cutter& memory) {
    constexpr std::int64_t in_float = sizeof(float) / sizeof(typename O::Element);
    return reinterpret_cast<typename O::Element*>(memory.cut(gradient_keys * width / in_float));
  }

  bool is_finite_row(const Row& row, std::int64_t dim) const {
    return all_finite<S>(widen<S>(row, dim, widened), dim);
  }

  const Call& c;
  GradientProducts<O>& products;
  const std::int64_t slots;
  const bool has_sums;
  std::int64_t slot_floats;
  KeyBlock<O>* blocks;
  float *tiles, *widened;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
