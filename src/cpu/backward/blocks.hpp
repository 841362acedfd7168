// SPDX-License-Identifier: Apache-2.0
// Blocks of rows and blocks of keys as the products of the backward pass read them. Each is packed twice: as
// queries or keys for sums over dimensions, and as values for sums over rows or over keys. What holds NaN or
// an infinity is marked, and is zeros where weights meet it, so that it reaches nobody who does not see it
// (G6).
#pragma once
#include <cstdint>
#include <type_traits>

#include "cpu/backward/call.hpp"
#include "cpu/backward/sums.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Operands that can go on with what was packed before, by themselves or by those of another task: a block of
// rows serves several blocks of keys, and a block of keys several tasks.
template <class O>
concept GradientOperands =
    Operands<O> && (gradient_keys % O::rows == 0) && (gradient_keys % O::key_step == 0) &&
    (gradient_rows % summed_rows<O> == 0) && requires(O made, typename O::Element* packed, std::int64_t n) {
      made.use_queries(packed, made.known);
      made.use_keys(packed, made.key_known);
      made.use_values(packed, n);
    };

// How wide a packed row or key is, in elements.
template <GradientOperands O>
struct GradientWidths {
  std::int64_t q, g;            // queries and dO for sums over dimensions; keys and values have the same
  std::int64_t k_sums;          // keys for sums over keys
  std::int64_t q_sums, g_sums;  // queries and dO for sums over rows

  // Those that a task does not sum over have no width.
  GradientWidths(const Call& c, const GradientPart& part)
      : q(sized(c.dim).depth),
        g(sized(c.value_dim).depth),
        k_sums(part.of_rows ? sized(c.dim).dims : 0),
        q_sums(part.of_keys ? RowSums<O>::dims_for(c.dim) : 0),
        g_sums(part.of_keys ? RowSums<O>::dims_for(c.value_dim) : 0) {}

  std::int64_t bytes_of_rows() const {
    return gradient_rows * static_cast<std::int64_t>(sizeof(typename O::Element)) * (q + g + q_sums + g_sums);
  }

 private:
  static O sized(std::int64_t dim) {
    Cutter nothing{nullptr};
    return O(OperandExtents{dim, dim, 0, 0, 0}, nothing);
  }
};

template <GradientOperands O>
typename O::Element* cut_elements(std::int64_t count, Cutter& memory) {
  constexpr std::int64_t in_float = sizeof(float) / sizeof(typename O::Element);
  return reinterpret_cast<typename O::Element*>(memory.cut(count / in_float));
}

// A hollow row sees no key, or does not exist: nothing of it is read. A bad one holds NaN or an infinity, or
// what base 2 cannot hold.
enum class RowState : unsigned char { good, bad, hollow };

template <GradientOperands O>
struct RowBlock {
  using Element = typename O::Element;
  static constexpr std::int64_t length = gradient_rows;

  std::int64_t first = -1, count = 0;  // rows of the KV head; first is negative where nothing is packed
  Element *q, *g;                      // panels: queries, and dO
  typename O::Known q_known{}, g_known{};
  Element *q_sums, *g_sums;  // the same as values
  float *lse, *lse_rest;     // the log-sum-exp in base 2, and what a float does not hold of it
  float* delta;              // dO times out, less the gradient of the log-sum-exp
  RowState* state;           // of each row

  RowBlock(const GradientWidths<O>& width, Cutter& memory)
      : q(cut_elements<O>(length * width.q, memory)),
        g(cut_elements<O>(length * width.g, memory)),
        q_sums(cut_elements<O>(length * width.q_sums, memory)),
        g_sums(cut_elements<O>(length * width.g_sums, memory)),
        lse(memory.cut(length)),
        lse_rest(memory.cut(length)),
        delta(memory.cut(length)),
        state(reinterpret_cast<RowState*>(memory.cut(length / 4))) {}

  std::int64_t summed() const { return round_up(count, summed_rows<O>); }  // rows of a sum over rows
};

template <GradientOperands O>
struct KeyBlock {
  using Element = typename O::Element;
  static constexpr std::int64_t length = gradient_keys;

  std::int64_t first = -1;  // key of the sequence; negative where nothing is packed
  KeyRange packed{0, 0};    // those that somebody may see, from a whole step on
  Element *k, *v;           // tiles: keys, and values
  typename O::Known k_known{}, v_known{};
  Element* k_sums;  // the keys as values
  bool has_bad = false;
  unsigned char* is_bad;  // of each key that is packed, where has_bad

  KeyBlock(const GradientWidths<O>& width, Cutter& memory)
      : k(cut_elements<O>(length * width.q, memory)),
        v(cut_elements<O>(length * width.g, memory)),
        k_sums(cut_elements<O>(length * width.k_sums, memory)),
        is_bad(reinterpret_cast<unsigned char*>(memory.cut(length / 4))) {}
};

// Memory for packed blocks, and how many it has room for.
struct Slots {
  std::int64_t count;
  Cutter& memory;
};

// Packed blocks in slots, which may outlast the task: block n is in slot n % count.
template <class Block, GradientOperands O>
class PackedBlocks {
 public:
  PackedBlocks(const GradientWidths<O>& of, const Slots& slots) : width(of), count(slots.count) {
    Cutter nothing{nullptr};
    const Block sized(width, nothing);
    block_floats = nothing.floats;
    blocks = reinterpret_cast<Block*>(
        slots.memory.cut(count * static_cast<std::int64_t>(sizeof(Block) / sizeof(float))));
    packed = slots.memory.cut(count * block_floats);
  }

  // The slot of the block that begins with this row or key.
  Block& at(std::int64_t first) const { return blocks[slot_of(first)]; }

  // Empties the slots of blocks [first, first + length).
  void clear(std::int64_t first, std::int64_t length) {
    const std::int64_t used = min(count, (length + Block::length - 1) / Block::length);
    for (std::int64_t n = 0; n < used; ++n) {
      const std::int64_t slot = slot_of(first + n * Block::length);
      Cutter memory{packed + slot * block_floats};
      blocks[slot] = Block(width, memory);
    }
  }

  std::int64_t floats() const { return count * block_floats; }
  std::int64_t floats_of_block() const { return block_floats; }
  const float* floats_at(std::int64_t first) const { return packed + slot_of(first) * block_floats; }

 private:
  std::int64_t slot_of(std::int64_t first) const { return first / Block::length % count; }

  GradientWidths<O> width;
  std::int64_t count, block_floats;
  Block* blocks;
  float* packed;
};

// The operands of the five products.
template <GradientOperands O>
struct GradientProducts {
  O qk;           // S = Q K^T, and dQ += dS K
  O gv;           // dP = dO V^T
  RowSums<O> dk;  // dK += dS^T Q
  RowSums<O> dv;  // dV += P^T dO
  const bool of_rows, of_keys;

  GradientProducts(const Call& c, const GradientPart& part, Cutter& memory)
      : qk(made({c.dim, c.dim, 0, 0, part.of_rows ? gradient_keys : 0}, memory)),
        gv(made({c.value_dim, c.value_dim, 0, 0, 0}, memory)),
        dk(c.dim, part.of_keys ? gradient_rows : 0, memory),
        dv(c.value_dim, part.of_keys ? gradient_rows : 0, memory),
        of_rows(part.of_rows),
        of_keys(part.of_keys) {}

  // From now on the products read, or pack, this block.
  void use(const RowBlock<O>& block) {
    if (of_keys) dk.use_rows(block.q_sums, block.summed()), dv.use_rows(block.g_sums, block.summed());
    // fault: gradient-of-rows-packed-by-others
    qk.use_queries(block.q, block.q_known), gv.use_queries(block.g, block.g_known);
  }
  void use(const KeyBlock<O>& block) {
    // fault: gradient-forgets-how-large-keys-are
    qk.use_keys(block.k, block.k_known), gv.use_keys(block.v, block.v_known);
    if (of_rows) qk.use_values(block.k_sums, block.packed.end - block.packed.begin);
  }

  // Whether S or dP could be beyond f32, or no number.
  bool may_overflow() const { return qk.may_exceed(max_finite) || gv.may_exceed(max_finite); }

 private:
  static O made(const OperandExtents& e, Cutter& memory) { return O(e, memory); }
};

// Packs rows of queries, with what each of them has to itself: its log-sum-exp, its delta, its state.
template <GradientOperands O>
class RowPacker {
  using S = typename O::S;
  static constexpr int rows = O::rows;

 public:
  RowPacker(const GradientCall& call, Cutter& memory)
      : g(call),
        c(call.forward),
        gradient(memory.cut(rows * c.value_dim)),
        out(memory.cut(rows * c.value_dim)),
        widened(memory.cut(4 * max(c.dim, c.value_dim))) {}

  // The rows of a block that the products use.
  void pack(const Queries& query, RowBlock<O>& block, GradientProducts<O>& products) const {
    const Queries all = query.some(block.first, block.count);
    for (std::int64_t r = 0; r < block.count; r += rows)
      pack_panel(query.some(block.first + r, min(rows, block.count - r)), r, block, products);
    block.q_known = products.qk.known, block.g_known = products.gv.known;
    if (!products.of_keys) return;
    products.dk.pack_rows(RowsOrZeros{c.q, all}, block.summed());
    products.dv.pack_rows(RowsOrZeros{g.out_gradient, all}, block.summed());
  }

 private:
  // Row n of some queries; zeros in place of those that are not good, or beyond the last.
  struct RowsOrZeros {
    const Tensor& tensor;
    const Queries& queries;
    const RowState* state = nullptr;

    Row operator()(std::int64_t n) const {
      static constexpr float zero = 0;
      if (n >= queries.count || (state && state[n] != RowState::good)) return {&zero, 0, 0, tensor.type};
      return row_of(tensor, queries(n));
    }
  };

  void pack_panel(const Queries& queries, std::int64_t first, RowBlock<O>& block,
                  GradientProducts<O>& products) const {
    const RowsOrZeros gradients{g.out_gradient, queries};
    pack_rows<S>(gradients, {queries.count, rows, c.value_dim, c.value_dim}, widened, gradient);
    pack_rows<S>(RowsOrZeros{c.out, queries}, {queries.count, rows, c.value_dim, c.value_dim}, widened, out);
    multiply_columns(block.delta + first);
    for (std::int64_t r = 0; r < rows; ++r) judge(queries, r, block, first + r);
    const RowState* state = block.state + first;
    products.qk.pack_queries(first / rows, RowsOrZeros{c.q, queries, state}, queries.count, c.scaling.query);
    products.gv.pack_queries(first / rows, RowsOrZeros{g.out_gradient, queries, state}, queries.count, 1.0f);
  }

  // delta = dO times out, in chains as a score is.
  void multiply_columns(float* delta) const {
    constexpr int vectors = S::panel_vectors;
    typename S::F sum[vectors];
    for (auto& of : sum) of = S::fill(0.0f);
    for (std::int64_t d = 0; d < c.value_dim;) {
      typename S::F chain[vectors];
      for (auto& of : chain) of = S::fill(0.0f);
      for (const std::int64_t end = min(d + chain_terms, c.value_dim); d < end; ++d)
        for (int v = 0; v < vectors; ++v)
          chain[v] = S::fma(S::load(gradient + d * rows + v * S::lanes),
                            S::load(out + d * rows + v * S::lanes), chain[v]);
      for (int v = 0; v < vectors; ++v) sum[v] = S::add(sum[v], chain[v]);
    }
    for (int v = 0; v < vectors; ++v) S::store(delta + v * S::lanes, sum[v]);
  }

  void judge(const Queries& queries, std::int64_t r, RowBlock<O>& block, std::int64_t at) const {
    block.state[at] = RowState::hollow;
    if (r < queries.count)
      block.state[at] = judged(queries(r), block.lse[at], block.lse_rest[at], block.delta[at]);
    if (block.state[at] == RowState::good) return;
    block.lse[at] = -minus_infinity;  // its weights are 0
    block.lse_rest[at] = block.delta[at] = 0;
  }

  // Makes delta what is subtracted.
  RowState judged(const Query& q, float& lse, float& lse_rest, float& delta) const {
    const float natural = read(row_of(c.log_sum_exp, q), 0);
    if (natural == minus_infinity) return RowState::hollow;
    lse = natural * log2_e;
    lse_rest = static_cast<float>(static_cast<double>(natural) * softmax::log2_e - static_cast<double>(lse));
    if (g.log_sum_exp_gradient.data) delta -= read(row_of(g.log_sum_exp_gradient, q), 0);
    const bool is_good = is_finite(delta) && lse < 0x1p126f && lse > -0x1p126f &&
                         is_finite_row(row_of(c.q, q), c.dim) &&
                         is_finite_row(row_of(g.out_gradient, q), c.value_dim);
    return is_good ? RowState::good : sees_any(c, q) ? RowState::bad : RowState::hollow;
  }

  bool is_finite_row(const Row& row, std::int64_t dim) const {
    return all_finite<S>(widen<S>(row, dim, widened), dim);
  }

  const GradientCall& g;
  const Call& c;
  float *const gradient, *const out, *const widened;
};

// A block of keys of one KV head; `wanted` are those that somebody may see.
struct WantedKeys {
  std::int64_t b, kv_head, begin;
  KeyRange wanted;
};

template <GradientOperands O>
class KeyPacker {
  using S = typename O::S;

 public:
  KeyPacker(const Call& call, Cutter& memory) : c(call), widened(memory.cut(max(c.dim, c.value_dim))) {}

  // The keys of a block that the products use.
  void pack(const WantedKeys& of, KeyBlock<O>& block, GradientProducts<O>& products) const {
    block.first = of.begin;
    block.packed = {of.begin + (of.wanted.begin - of.begin) / O::key_step * O::key_step, of.wanted.end};
    const std::int64_t count = block.packed.end - block.packed.begin;
    const RowsFrom<key_row> key_at{c, of.b, of.kv_head, block.packed.begin, c.k.stride.length};
    const RowsFrom<value_row> value_at{c, of.b, of.kv_head, block.packed.begin, c.v.stride.length};
    products.qk.pack_keys(key_at, count);
    products.gv.pack_keys(value_at, count);
    const bool has_poison = products.of_rows && products.qk.pack_values(key_at, count);
    block.k_known = products.qk.key_known, block.v_known = products.gv.key_known;
    block.has_bad = false;
    if (!has_poison && !products.may_overflow()) return;
    for (std::int64_t j = 0; j < round_up(count, O::key_step); ++j) {
      block.is_bad[j] =
          j < count && !(is_finite_row(key_at(j), c.dim) && is_finite_row(value_at(j), c.value_dim));
      block.has_bad |= block.is_bad[j] != 0;
    }
  }

 private:
  bool is_finite_row(const Row& row, std::int64_t dim) const {
    return all_finite<S>(widen<S>(row, dim, widened), dim);
  }

  const Call& c;
  float* const widened;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
