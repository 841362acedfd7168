// SPDX-License-Identifier: Apache-2.0
// Blocks of rows and blocks of keys as the products of the backward pass read them. Each is packed twice: as
// queries or keys for sums over dimensions, and as values for sums over rows or over keys. What holds NaN or
// an infinity is marked, and is zeros where weights meet it, so that it reaches nobody who does not see it
// (G6). And the sums over rows, dV += P^T dO and dK += dS^T Q, that a block of keys collects.
#pragma once
#include <cstdint>
#include <type_traits>

#include "cpu/backward/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/finish.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// Sums over rows, for a block of rows and a block of keys. Each is one chain over the rows of the block,
// which is added to the sum so far. P and dS come as ScoreGradients makes them, (keys, rows), a panel of rows
// at a time: both are called pairs here.

constexpr std::int64_t common_multiple(std::int64_t a, std::int64_t b) {
  std::int64_t n = a;
  while (n % b != 0) n += a;
  return n;
}

// Rows that a sum over rows takes together: whole panels, and whole steps of the instructions.
template <Operands O>
constexpr std::int64_t summed_rows = common_multiple(O::rows, O::key_step);

// Keys [first, first + keys) of a block; none: the panel sees none of them.
struct Stretch {
  std::int64_t first = 0, keys = 0;
};

// With keys on the lanes, where everything else has rows: pairs are transposed for it, and the sums once more
// at the end.
template <Operands O>
class TransposedSums {
  using S = typename O::S;
  static constexpr int rows = O::rows, step = O::key_step;
  static constexpr std::int64_t key_panels = gradient_keys / rows, panel_block = gradient_rows * rows,
                                panels_together = summed_rows<O> / rows;

 public:
  static constexpr std::int64_t panels_at_once = 1;  // whose pairs must stay until add_to()
  static std::int64_t dims_for(std::int64_t dim) { return round_up(dim, O::dim_step); }
  const std::int64_t dims;  // of a key's sums, and of a packed row

  // `block_rows` is 0 where the sums are not wanted.
  TransposedSums(std::int64_t dim, std::int64_t block_rows, Cutter& memory)
      : TransposedSums(OperandExtents{dim, dim, 0, 0, block_rows}, memory) {
    pairs = memory.cut(block_rows > 0 ? key_panels * panel_block : 0);
    transposed = memory.cut(block_rows > 0 ? rows * dims : 0);
  }

  void use_rows(typename O::Element* packed, std::int64_t count) { products.use_values(packed, count); }
  void pack_rows(const RowAt auto& row_at, std::int64_t count) { products.pack_values(row_at, count); }

  // A block of rows, whose panels see these keys of the block.
  void begin(KeyRange keys) {
    panels = {keys.begin / step * step / rows, (round_up(keys.end, step) + rows - 1) / rows};
    for (auto& range : seeing) range = {gradient_rows, 0};
  }

  // Panel p of the rows.
  void take(const float* from, const Stretch& at, std::int64_t p, const Reach<S>&) {
    for (std::int64_t n = panels.begin; n < panels.end; ++n) {
      transpose(from, at, pairs + n * panel_block + p * rows * rows, n);
      if (at.keys == 0 || n * rows >= at.first + at.keys || (n + 1) * rows <= at.first) continue;
      seeing[n] = {min(seeing[n].begin, p / panels_together * panels_together),
                   round_up(p + 1, panels_together)};
    }
  }

  void add_to(float* sums) const {
    for (std::int64_t n = panels.begin; n < panels.end; ++n)
      if (const auto [begin, end] = seeing[n]; begin < end)
        products.add_values(begin * rows, (end - begin) * rows, pairs + n * panel_block + begin * rows * rows,
                            sums + n * dims * rows);
  }

  // The sums of key j of the block; asked for in order from the first on.
  float* line_of(const float* sums, std::int64_t j) {
    if (j % rows == 0) transpose_sums<S>(sums + j * dims, dims, rows, transposed);
    return transposed + j % rows * dims;
  }

 private:
  TransposedSums(const OperandExtents& e, Cutter& memory)
      : dims(dims_for(e.value_dim)), products(e, memory) {}

  // From (keys, rows) to (rows, keys) for panel n of the keys: zeros where the stretch does not reach.
  static void transpose(const float* from, const Stretch& at, float* to, std::int64_t n) {
    for (int k = 0; k < rows; k += 4) {
      const std::int64_t j = n * rows + k - at.first;
      if (j >= 0 && j < at.keys) {
        transpose_four(from + j * rows, to + k);
        continue;
      }
      for (int r = 0; r < rows; ++r)
        for (int x = k; x < k + 4; ++x) to[r * rows + x] = 0;
    }
  }
  static void transpose_four(const float* from, float* to) {
    for (int r = 0; r < rows; r += 4) {
      // fault: gradient-rows-swapped
      const float* const four[4] = {from + r, from + rows + r, from + 2 * rows + r, from + 3 * rows + r};
      S::transpose(four, to + r * rows, rows);
    }
  }

  O products;
  float *pairs, *transposed;
  KeyRange panels{0, 0};        // of the keys
  KeyRange seeing[key_panels];  // the panels of rows that see each
};

// With dimensions on the lanes and pairs as they are, one of which multiplies a line of a row at a time: for
// instruction sets that broadcast from memory. The rows lie (dims / line, rows, line).
template <Operands O>
class LineSums {
  using S = typename O::S;
  static constexpr int rows = O::rows, step = O::key_step;
  static constexpr int line = S::line_vectors * S::lanes;

 public:
  static constexpr std::int64_t panels_at_once = gradient_rows / rows;
  static std::int64_t dims_for(std::int64_t dim) { return round_up(dim, S::lanes); }
  const std::int64_t dims;

  LineSums(std::int64_t dim, std::int64_t block_rows, Cutter& memory)
      : dims(dims_for(dim)), dim_(dim), widened(memory.cut(block_rows > 0 ? dims : 0)) {}

  void use_rows(float* packed, std::int64_t) { lines = packed; }

  // NaN and infinities as 0.
  void pack_rows(const RowAt auto& row_at, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) {
      const float* x = widen<S>(row_at(n), dim_, widened);
      for (std::int64_t first = 0; first < dims; first += line) {
        const std::int64_t width = min(line, dims - first), real = min(width, dim_ - first);
        float* to = lines + first * gradient_rows + n * width;
        __builtin_memcpy(to, x + first, static_cast<std::size_t>(real) * sizeof(float));
        fill(to + real, width - real, 0.0f);
        if (all_finite<S>(to, width)) continue;
        for (std::int64_t d = 0; d < real; ++d)
          if (!is_finite(to[d])) to[d] = 0;
      }
    }
  }

  void begin(KeyRange) { taken_count = 0; }
  void take(const float* from, const Stretch& at, std::int64_t p, const Reach<S>& reach) {
    if (at.keys > 0) taken[taken_count++] = {from, at, p, reach};
  }

  void add_to(float* sums) const {
    std::int64_t begin = gradient_keys, end = 0;
    for (int n = 0; n < taken_count; ++n)
      begin = min(begin, taken[n].at.first), end = max(end, taken[n].at.first + taken[n].at.keys);
    for (std::int64_t first = 0; first < dims; first += line) {
      const std::int64_t vectors = min(line, dims - first) / S::lanes;
      const float* const from = lines + first * gradient_rows;
      for (std::int64_t j = begin; j < end;) j += add_some(vectors, from, j, sums + first);
    }
  }

  float* line_of(float* sums, std::int64_t j) const { return sums + j * dims; }

 private:
  static_assert(S::line_vectors == 4 && step == 8);
  static constexpr std::int64_t sixes = 3 * step;  // keys in whole steps, and in sixes
  struct Panel {
    const float* pairs;
    Stretch at;
    std::int64_t p;
    Reach<S> reach{0};
  };

  // The first keys from j on; returns how many. Six at a time load less for a product than four: 16 threads
  // of a Xeon take 4 % less for the sums (November 2026).
  std::int64_t add_some(std::int64_t vectors, const float* from, std::int64_t j, float* sums) const {
    if (vectors == 4 && is_seen_alike(j, j + sixes)) {
      for (std::int64_t k = 0; k < sixes; k += 6) add<4, 6>(from, j + k, sums);
      return sixes;
    }
    if (vectors == 4) add<4, 4>(from, j, sums), add<4, 4>(from, j + 4, sums);
    if (vectors == 3) add<3, 8>(from, j, sums);
    if (vectors == 2) add<2, 8>(from, j, sums);
    if (vectors == 1) add<1, 8>(from, j, sums);
    return step;
  }

  // Whether every panel sees all of these keys or none.
  bool is_seen_alike(std::int64_t begin, std::int64_t end) const {
    for (int n = 0; n < taken_count; ++n) {
      const std::int64_t first = taken[n].at.first, last = first + taken[n].at.keys;
      if ((first > begin || last < end) && first < end && last > begin) return false;
    }
    return true;
  }

  // `columns` keys from j on, which a panel sees all of or none; and of a panel the rows that may see one.
  template <int vectors, int columns>
  void add(const float* from, std::int64_t j, float* sums) const {
    LinePanel seeing[panels_at_once];
    std::int64_t count = 0;
    for (int n = 0; n < taken_count; ++n) {
      const Panel& panel = taken[n];
      if (j < panel.at.first || j >= panel.at.first + panel.at.keys) continue;
      const std::int64_t first = panel.reach.first_at(j - panel.at.first) * S::lanes,
                         end = panel.reach.vectors * S::lanes;
      if (first == end) continue;
      seeing[count++] = {from + (panel.p * rows + first) * vectors * S::lanes,
                         panel.pairs + (j - panel.at.first) * rows + first, end - first};
    }
    if (count > 0) line_product<S, vectors, columns>(seeing, count, sums + j * dims, dims);
  }

  const std::int64_t dim_;
  float *widened, *lines = nullptr;
  Panel taken[panels_at_once];
  int taken_count = 0;
};

template <Operands O>
constexpr bool sums_by_lines = requires { O::S::line_vectors; } && std::is_same_v<typename O::Element, float>;

template <Operands O>
using RowSums = std::conditional_t<sums_by_lines<O>, LineSums<O>, TransposedSums<O>>;

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
