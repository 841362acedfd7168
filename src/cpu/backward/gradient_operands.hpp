// SPDX-License-Identifier: Apache-2.0
// The operands of the five products of the backward pass, in whatever form the instructions like: a block of
// rows and a block of keys, each once for sums over dimensions and once, packed as values are, for sums over
// rows or keys. What holds NaN or an infinity is marked, and is zeros where weights meet it, so that it
// reaches nobody who does not see it (G6).
#pragma once
#include <cstdint>
#include <type_traits>

#include "cpu/backward/ahead.hpp"
#include "cpu/backward/gradient_sums.hpp"
#include "cpu/gradient_call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Blocks of rows are kept from one block of keys to the next, and blocks of keys from one task to the next:
// operands then use what was packed before, by themselves or by those of another task.
template <class O>
concept GradientOperands =
    Operands<O> && (gradient_keys % O::rows == 0) && (gradient_keys % O::key_step == 0) &&
    (gradient_rows % summed_rows<O> == 0) && requires(O made, typename O::Element* packed, std::int64_t n) {
      made.use_queries(packed, made.known);
      made.use_keys(packed, made.key_known);
      made.use_values(packed, n);
    };

// Whether packed rows are asked for ahead, between the products of the block before them.
template <GradientOperands O>
constexpr bool asks_ahead = requires { O::S::prefetches_rows; } && std::is_same_v<typename O::Element, float>;

template <GradientOperands O>
struct GradientProducts {
  O scores;                   // q k; and dR k, summed over keys
  O by_weights;               // dO v
  RowSums<O> q_sums, g_sums;  // summed over rows: dR q, and the weights times dO

  GradientProducts(const Call& c, const GradientPart& part, Cutter& memory)
      : scores(made({c.dim, c.dim, 0, 0, part.of_rows ? gradient_keys : 0}, memory)),
        by_weights(made({c.value_dim, c.value_dim, 0, 0, 0}, memory)),
        q_sums(c.dim, part.of_keys, memory),
        g_sums(c.value_dim, part.of_keys, memory) {}

 private:
  static O made(const OperandExtents& e, Cutter& memory) { return O(e, memory); }
};

// A hollow row sees no key, or is not there: nothing of it is read. A bad one holds what is no number, or
// what base 2 cannot hold.
enum class RowState : unsigned char { good, bad, hollow };

template <GradientOperands O>
struct RowBlock {
  using Element = typename O::Element;

  std::int64_t first, count;  // rows of the KV head
  Element *q, *g;             // panels: queries, and gradients of out
  typename O::Known q_known, g_known;
  Element *q_rows, *g_rows;  // the same as values
  float *lse, *lse_rest;     // base 2, and what a float does not hold of it
  float* delta;              // less the gradient of the log-sum-exp
  RowState* state;           // of each row
};

template <GradientOperands O>
class PackedRows {
  using S = typename O::S;
  static constexpr int rows = O::rows;

 public:
  // As many blocks are kept as there are slots, in memory that may outlast this.
  PackedRows(const GradientCall& call, GradientProducts<O>& of, std::int64_t slot_count, bool with_sums,
             Cutter& kept, Cutter& memory)
      : g(call), c(call.forward), products(of), slots(slot_count), has_sums(with_sums) {
    Cutter nothing{nullptr};
    empty_block(nothing);
    slot_floats = nothing.floats;
    blocks = reinterpret_cast<RowBlock<O>*>(
        kept.cut(slots * static_cast<std::int64_t>(sizeof(RowBlock<O>) / sizeof(float))));
    packed = kept.cut(slots * slot_floats);
    gradient = memory.cut(rows * c.value_dim), out = memory.cut(rows * c.value_dim);
    widened = memory.cut(4 * max(c.dim, c.value_dim));
  }

  // Of one block, in bytes.
  static std::int64_t bytes_of_slot(const GradientProducts<O>& of) {
    return gradient_rows * static_cast<std::int64_t>(sizeof(typename O::Element)) *
           (of.scores.depth + of.by_weights.depth + of.q_sums.dims + of.g_sums.dims);
  }

  // Whatever lies in the slots of these rows is none of them.
  void forget(std::int64_t first, std::int64_t count) {
    const std::int64_t used = min(slots, (count + gradient_rows - 1) / gradient_rows);
    for (std::int64_t n = first / gradient_rows; n < first / gradient_rows + used; ++n) {
      Cutter slot{packed + n % slots * slot_floats};
      blocks[n % slots] = empty_block(slot);
    }
  }

  // Whether a second-level cache may not hold all blocks beside the sums and a block of keys: from half a MiB
  // on. With 1.1 MB asked for, 12 heads of 1024 x 64 take 3 % less on one thread and on two (Xeon, 2 MiB,
  // November 2026).
  bool outgrows_a_cache() const { return slots * slot_floats >= std::int64_t{1} << 17; }

  // The block that follows the one whose first row this is.
  Ahead after(std::int64_t first) const {
    constexpr std::int64_t tiles = 2 * gradient_keys / O::key_step * gradient_rows / rows;
    return {packed + (first / gradient_rows + 1) % slots * slot_floats, slot_floats, tiles / 4 * 3};
  }

  // The block whose first row this is, for the products to use.
  const RowBlock<O>& operator()(const Queries& query, std::int64_t first, std::int64_t count) {
    RowBlock<O>& block = blocks[first / gradient_rows % slots];
    const std::int64_t summed = round_up(count, summed_rows<O>);
    if (has_sums)
      products.q_sums.use_rows(block.q_rows, summed), products.g_sums.use_rows(block.g_rows, summed);
    const bool is_packed = block.first == first;  // fault: gradient-of-rows-packed-before
    if (!is_packed) block.q_known = block.g_known = {};
    // fault: gradient-of-rows-packed-by-others
    products.scores.use_queries(block.q, block.q_known),
        products.by_weights.use_queries(block.g, block.g_known);
    if (is_packed) return block;
    block.first = first, block.count = count;
    for (std::int64_t r = 0; r < count; r += rows)
      pack_panel(query.some(first + r, min(rows, count - r)), r, block);
    block.q_known = products.scores.known, block.g_known = products.by_weights.known;
    if (!has_sums) return block;
    const Queries all = query.some(first, count);
    products.q_sums.pack_rows(RowsOrZeros{c.q, all}, summed);
    products.g_sums.pack_rows(RowsOrZeros{g.out_gradient, all}, summed);
    return block;
  }

 private:
  RowBlock<O> empty_block(Cutter& memory) const {
    RowBlock<O> block{};
    block.first = -1;
    block.q = cut(products.scores.depth, memory), block.g = cut(products.by_weights.depth, memory);
    block.q_rows = cut(has_sums ? products.q_sums.dims : 0, memory);
    block.g_rows = cut(has_sums ? products.g_sums.dims : 0, memory);
    block.lse = memory.cut(gradient_rows), block.lse_rest = memory.cut(gradient_rows);
    block.delta = memory.cut(gradient_rows);
    block.state = reinterpret_cast<RowState*>(memory.cut(gradient_rows / 4));
    return block;
  }

  static typename O::Element* cut(std::int64_t width, Cutter& memory) {
    constexpr std::int64_t in_float = sizeof(float) / sizeof(typename O::Element);
    return reinterpret_cast<typename O::Element*>(memory.cut(gradient_rows * width / in_float));
  }

  // Row n of some queries; zeros in place of those that are not good, or not there.
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

  void pack_panel(const Queries& queries, std::int64_t first, RowBlock<O>& block) {
    const RowsOrZeros gradients{g.out_gradient, queries};
    pack_rows<S>(gradients, queries.count, rows, c.value_dim, c.value_dim, widened, gradient);
    pack_rows<S>(RowsOrZeros{c.out, queries}, queries.count, rows, c.value_dim, c.value_dim, widened, out);
    multiply_columns(block.delta + first);
    for (std::int64_t r = 0; r < rows; ++r) judge(queries, r, block, first + r);
    const RowState* state = block.state + first;
    products.scores.pack_queries(first / rows, RowsOrZeros{c.q, queries, state}, queries.count,
                                 c.scaling.query);
    products.by_weights.pack_queries(first / rows, RowsOrZeros{g.out_gradient, queries, state}, queries.count,
                                     1.0f);
  }

  // delta = the gradient of out times out, in chains as a score is.
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

  bool is_finite_row(const Row& row, std::int64_t dim) const {
    return all_finite<S>(widen<S>(row, dim, widened), dim);
  }

  void judge(const Queries& queries, std::int64_t r, RowBlock<O>& block, std::int64_t at) const {
    block.state[at] = RowState::hollow;
    if (r < queries.count)
      block.state[at] = judged(queries(r), block.lse[at], block.lse_rest[at], block.delta[at]);
    if (block.state[at] == RowState::good) return;
    block.lse[at] = -minus_infinity;  // its weights are 0
    block.lse_rest[at] = block.delta[at] = 0;
  }

  // Turns delta into what is subtracted.
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

  const GradientCall& g;
  const Call& c;
  GradientProducts<O>& products;
  const std::int64_t slots;
  const bool has_sums;
  std::int64_t slot_floats;
  RowBlock<O>* blocks;
  float *packed, *gradient, *out, *widened;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
