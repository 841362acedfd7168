// SPDX-License-Identifier: Apache-2.0
// Attention for a few rows over many keys: keys and values are read in place, once for all query heads that
// share them. Every sum has prefill's chains in prefill's order, so the bits agree (O1). Rows are few, so
// sums lie (rows, dims) with dimensions on the lanes. First a task's rows and the running softmax, then the
// driver.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/isa/vector.hpp"
#include "cpu/tile/arithmetic.hpp"
#include "cpu/tile/finish.hpp"
#include "cpu/tile/mask.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "cpu/tile/softmax.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// What a chunk of keys leaves behind.
template <Vector S>
StateLayout decode_layout(const Call& c) {
  return {round_up(c.group() * c.queries, max(S::lanes, 4)), round_up(c.value_dim, max(16, 4 * S::lanes))};
}

// Of the caller's tensors.
constexpr std::int64_t element_bytes(const Tensor& x) { return x.type == Type::f32 ? 4 : 2; }

// Whether every row sees every key of a stretch.
enum class Coverage : std::uint8_t { full, partial };

// The memory of a task.
template <Vector S>
struct DecodeBuffers {
  static constexpr std::int64_t copied_keys = 16, copied_values = 32;

  float *q, *s;            // (depth, rows), scaled; (block_keys, width)
  float* unseen;           // (block_keys, width): 1 where a row does not see the key
  float* values;           // (rows, dims): the weighted values of one block
  float *k_rows, *v_rows;  // keys and values that must be widened or copied

  DecodeBuffers(const Call& c, Cutter& memory)
      : DecodeBuffers(decode_layout<S>(c), round_up(c.dim, 4), memory) {}
  DecodeBuffers(const StateLayout& at, std::int64_t depth, Cutter& memory)
      : q(memory.cut(depth * at.rows)),
        s(memory.cut(block_keys * at.rows)),
        unseen(memory.cut(block_keys * at.rows)),
        values(memory.cut(at.rows * at.dims)),
        k_rows(memory.cut(copied_keys * depth)),
        v_rows(memory.cut(copied_values * at.dims)) {}
};

// One task: every row of one sequence that reads one KV head.
template <Vector S>
struct DecodeRows {
  const Call& c;
  const std::int64_t b, kv_head;
  const StateLayout at;
  const std::int64_t depth, count;  // of q, a multiple of 4; the real rows
  const std::int64_t width;         // of scores: all rows, or only the four, or the one, that are real
  const DecodeBuffers<S> buffers;
  const Queries query;  // of row r
  const Exponential<S> power;

  static constexpr std::int64_t copied_keys = DecodeBuffers<S>::copied_keys,
                                copied_values = DecodeBuffers<S>::copied_values;

  // `min_width` is the smallest width of scores that the products can make.
  DecodeRows(const Call& call, const Rows& task, int min_width, Cutter& memory)
      : c(call),
        b(task.batch_entry),
        kv_head(task.kv_head),
        at(decode_layout<S>(call)),
        depth(round_up(call.dim, 4)),
        count(call.group() * call.sequences[task.batch_entry].queries),
        width(packs_scores(call) && at.rows == S::lanes && count <= 4 ? max(count == 1 ? 1 : 4, min_width)
                                                                      : at.rows),
        buffers(at, depth, memory),
        query(call, task),
        power(call.scaling.exponent) {}

  // Where row j of the task's keys or values begins, and the rows from it on.
  const char* place(const Tensor& x, std::int64_t j) const {
    // fault: keys-of-another-batch-entry
    const Row row = row_of(x, b, kv_head, c.sequences[b].first_key + j);
    return static_cast<const char*>(row.data) + row.first * element_bytes(x);
  }
  RowSpan span(const Tensor& x, std::int64_t j, std::int64_t dim) const {
    return {place(x, j), dim * element_bytes(x), x.stride.length * element_bytes(x)};
  }

  // How many keys lie between the beginning of a stretch and the end of its chunk.
  std::int64_t keys_to_chunk_end(const Scores& t) const {
    return min(c.sequences[b].keys, (t.first_key / chunk_keys + 1) * chunk_keys) - t.first_key;
  }

  // Whether scores of four rows, or of one, lie side by side, those of several keys in a vector: a vector for
  // each key would have most of its lanes empty, and its exponentials took 13 % of 32768 keys in f16 (Xeon,
  // two cores, November 2026). What is added or hidden row by row wants a vector of rows, and states of
  // several vectors are taken one by one.
  static constexpr bool can_pack = S::lanes > 4;
  static bool packs_scores(const Call& c) {
    return can_pack && !c.bias.data && c.mask_count == 0 && !c.alibi.of_heads;
  }
};

// How many rows go together, as a type: the sums of a few rows stay in registers only if the compiler knows
// how few.
template <int n>
struct Count {
  static constexpr int value = n;
};

// Calls run(Count<n>) for the next n of the remaining rows, up to four.
template <class Run>
inline void with_rows(std::int64_t remaining, const Run& run) {
  if (remaining >= 4) return run(Count<4>());
  if (remaining == 3) return run(Count<3>());
  if (remaining == 2) return run(Count<2>());
  run(Count<1>());
}

// The largest of `so_far` and of `keys` vectors `width` floats apart.
template <Vector S>
inline typename S::F largest(typename S::F so_far, const float* s, std::int64_t width, std::int64_t keys) {
  std::int64_t j = 0;
  for (; j + 4 <= keys; j += 4) so_far = larger_of_four<S>(so_far, s + j * width, width);
  for (; j < keys; ++j) so_far = S::max(so_far, S::load(s + j * width));
  return so_far;
}

// The same for scores of `width` rows side by side.
template <Vector S, int width>
inline typename S::F largest_packed(typename S::F so_far, const float* s, std::int64_t keys) {
  float rows[S::lanes], found[S::lanes];
  S::store(rows, so_far);
  const std::int64_t whole = keys * width / S::lanes;
  S::store(found, largest<S>(S::fill(minus_infinity), s, S::lanes, whole));
  const auto take = [&rows](const float* key) {
    for (int r = 0; r < width; ++r) rows[r] = key[r] > rows[r] ? key[r] : rows[r];
  };
  for (int n = 0; n < S::lanes; n += width) take(found + n);
  for (std::int64_t n = whole * S::lanes; n < keys * width; n += width) take(s + n);
  return S::load(rows);
}

// The weights of a key, one or four, as one value: of loops over four floats g++ makes vectors of several
// keys, with twenty shuffles for an addition.
template <int width>
struct OfKey {
  typedef float Type __attribute__((vector_size(width * sizeof(float))));
};
template <>
struct OfKey<1> {
  using Type = float;
};

// Adds to `sum`, in order, what `count` chains of `keys` weights p(keys, width) come to. All chains at a
// time: one alone would wait for each of its sums.
template <int width, int count>
inline void add_chains(const float* p, std::int64_t keys, typename OfKey<width>::Type& sum) {
  typename OfKey<width>::Type chain[count] = {}, x;
  for (std::int64_t j = 0; j < keys; ++j)
    for (int n = 0; n < count; ++n) {
      __builtin_memcpy(&x, p + (n * keys + j) * width, sizeof x);
      chain[n] += x;
    }
  for (const auto& one : chain) sum += one;
}

// sums(width) += chains of weights p(keys, width), counted from key 0.
template <int width>
inline void add_packed_chains(const float* p, std::int64_t first_key, std::int64_t keys, float* sums) {
  constexpr int together = width == 1 ? 8 : 4;
  typename OfKey<width>::Type sum;
  __builtin_memcpy(&sum, sums, sizeof sum);
  const auto take = [&](auto count, std::int64_t of_each) {
    add_chains<width, count.value>(p, of_each, sum);
    p += count.value * of_each * width, keys -= count.value * of_each;
  };
  if (const std::int64_t within = first_key % chain_keys; within > 0)
    take(Count<1>(), min(chain_keys - within, keys));
  while (keys >= together * chain_keys) take(Count<together>(), chain_keys);
  while (keys > 0) take(Count<1>(), min(chain_keys, keys));
  __builtin_memcpy(sums, &sum, sizeof sum);
}

// weigh_in_chains() of softmax.hpp for scores of `width` rows side by side. There is room for a whole number
// of vectors.
template <Vector S, int width>
inline void weigh_packed(const Scores& t, const Weighing<S>& by) {
  float max[S::lanes], sums[S::lanes];
  S::store(max, *by.max), S::store(sums, *by.sum);
  for (int lane = width; lane < S::lanes; ++lane) max[lane] = max[lane % width];
  const auto subtrahend = S::load(max);
  const std::int64_t all = t.keys * width;
  constexpr int together = 4;
  for (std::int64_t n = 0; n < all; n += together * S::lanes) {
    typename S::F x[together];
    for (int v = 0; v < together; ++v) x[v] = S::sub(S::load(t.s + n + v * S::lanes), subtrahend);
    exp2<S>(x, by.power);
    for (int v = 0; v < together; ++v) S::store(t.s + n + v * S::lanes, x[v]);
  }
  add_packed_chains<width>(t.s, t.first_key, t.keys, sums);
  *by.sum = S::load(sums);
}

// Either of them, for rows from r on: where scores lie side by side, r is 0.
template <Vector S>
inline typename S::F largest_of_rows(typename S::F so_far, const Scores& t, std::int64_t r) {
  if constexpr (DecodeRows<S>::can_pack)
    if (t.width < S::lanes)
      return t.width == 1 ? largest_packed<S, 1>(so_far, t.s, t.keys)
                          : largest_packed<S, 4>(so_far, t.s, t.keys);
  return largest<S>(so_far, t.s + r, t.width, t.keys);
}
template <Vector S>
inline void weigh_rows(const Scores& t, std::int64_t r, const Weighing<S>& by) {
  if constexpr (DecodeRows<S>::can_pack)
    if (t.width < S::lanes) return t.width == 1 ? weigh_packed<S, 1>(t, by) : weigh_packed<S, 4>(t, by);
  weigh_in_chains<S, 1>(t.s + r, t.width, t.first_key, t.keys, by);
}

// advance() of softmax.hpp for any number of row vectors.
template <Vector S>
inline void advance_rows(const DecodeRows<S>& rows, const Scores& t, const SoftmaxState& state) {
  using F = typename S::F;
  const StateLayout& at = rows.at;
  for (std::int64_t r = 0; r < at.rows; r += S::lanes) {
    const F before = S::load(state.max + r);
    F max = largest_of_rows<S>(before, t, r);
    S::store(state.max + r, max);
    const F factor = softmax::rescaling<S>(before, max, rows.power);
    max = softmax::finite_max<S>(max);
    F sum = S::mul(S::load(state.sum + r), factor);
    weigh_rows<S>(t, r, {&max, &sum, rows.power});
    S::store(state.sum + r, sum);
    float factors[S::lanes];
    S::store(factors, factor);
    for (int lane = 0; lane < S::lanes; ++lane)
      if (factors[lane] != 1.0f)  // fault: rescale-skipped-in-decode
        for (std::int64_t d = 0; d < at.dims; d += S::lanes) {
          float* out = state.out + (r + lane) * at.dims + d;
          S::store(out, S::mul(S::load(out), S::fill(factors[lane])));
        }
  }
}

// merge() of softmax.hpp, for the real rows.
template <Vector S>
inline void merge_rows(const DecodeRows<S>& rows, const SoftmaxState& total, const SoftmaxState& part) {
  const StateLayout& at = rows.at;
  for (std::int64_t r = 0; r < rows.count; r += S::lanes) {
    const auto merged = softmax::merging<S>(S::load(total.max + r), S::load(part.max + r), rows.power);
    S::store(total.max + r, merged.max);
    S::store(total.sum + r, merged(S::load(total.sum + r), S::load(part.sum + r)));
    float ours[S::lanes], theirs[S::lanes];
    S::store(ours, merged.ours), S::store(theirs, merged.theirs);
    for (std::int64_t lane = 0; lane < min(S::lanes, rows.count - r); ++lane) {
      const softmax::Merging<S> row{merged.max, S::fill(ours[lane]), S::fill(theirs[lane])};
      const std::int64_t first = (r + lane) * at.dims;
      for (std::int64_t d = first; d < first + at.dims; d += S::lanes)
        S::store(total.out + d, row(S::load(total.out + d), S::load(part.out + d)));
    }
  }
}

// Walks a cache's tiles of sixteen keys, values or scales, from page to page: to divide a key by the page
// size for every tile would cost some cycles of every key.
class TileWalk {
 public:
  // From the tile that begins with this key.
  static TileWalk of_keys(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t key) {
    return {c, b, key, kv_head * c.layout.head_bytes(), c.dim * c.layout.element_bytes};
  }
  static TileWalk of_values(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t key) {
    return {c, b, key, kv_head * c.layout.head_bytes() + c.layout.values_at(),
            c.layout.value_width() * c.layout.element_bytes};
  }
  static TileWalk of_key_scales(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t key) {
    return {c, b, key, kv_head * c.layout.head_bytes() + c.layout.key_scales_at(), sizeof(float)};
  }

  const unsigned char* place() const { return *page_ + offset_ + within_ * token_bytes_; }
  void step() {
    within_ += PageLayout::tile;
    if (within_ == page_size_) ++page_, within_ = 0;  // fault: walk-stays-on-its-page
  }

 private:
  TileWalk(const Call& c, std::int64_t b, std::int64_t key, std::int64_t offset, std::int64_t token_bytes)
      : page_(c.cached[b].table + key / c.layout.page_size),
        within_(key % c.layout.page_size),
        page_size_(c.layout.page_size),
        offset_(offset),
        token_bytes_(token_bytes) {}

  const unsigned char* const* page_;
  std::int64_t within_, page_size_, offset_, token_bytes_;
};

// A task. Products score keys and add weighted values in the way of an instruction set; everything else is
// the same for all.
template <class Products>
class Decode {
  using S = typename Products::S;

 public:
  static constexpr std::int64_t panel_rows = S::lanes;

  static std::int64_t scratch_floats(const Call& c) {
    Cutter nothing{nullptr};
    DecodeBuffers<S>(c, nothing);
    Products::measure(c, nothing);
    return nothing.floats;
  }
  static PartialLayout partial(const Call& c) {
    const StateLayout at = decode_layout<S>(c);
    return {at.rows, at.dims, 1};
  }

  Decode(const Call& call, const Rows& task, float* memory) : Decode(call, task, Cutter{memory}) {}

  // Attends to keys [chunk, chunk + chunk_keys) and writes the state they leave.
  void run(std::int64_t chunk, float* partial) {
    const SoftmaxState state = at.in(partial);
    fill(state.max, at.rows, minus_infinity);
    fill(state.sum, at.rows, 0.0f);
    fill(state.out, rows.count * at.dims, 0.0f);  // of real rows
    products.begin();
    const Seen seen = seen_by(c, rows.b, 0, c.sequences[rows.b].queries - 1);
    for (std::int64_t block = chunk; block < chunk + chunk_keys; block += block_keys) {
      KeyRange keys = trim_hidden<S>(c, seen.within({block, block + block_keys}), rows.query);
      if (keys.end <= keys.begin) keys = {block, block};
      const std::int64_t step = Products::key_step(c);  // tiles are whole at their beginning
      keys.begin = keys.begin / step * step;
      const Scores t{rows.buffers.s, rows.width, keys.begin, keys.end - keys.begin};
      if (t.keys > 0) attend(t, state);
      if (c.weights.data) store_hidden(block, t);
    }
  }

  // Merges the chunks' states in order and writes the rows. The first chunk is the total so far: merging it
  // into an empty state changes nothing.
  void finish(float* partials, std::int64_t chunks) {
    const SoftmaxState total = at.in(partials);
    // fault: chunk-forgotten
    for (std::int64_t n = 1; n < chunks; ++n) merge_rows<S>(rows, total, at.in(partials + n * at.floats()));
    WriteOut<S> write_out;
    for (int r = 0; r < rows.count; ++r) {
      const Query n = rows.query(r);
      const RowEnd end{total.max[r], total.sum[r]};
      const float factor = close_row<S>(c, n, end);
      write_out(row_of(c.out, n), total.out + r * at.dims, c.value_dim, factor);
      if (c.weights.data) finish_weights(n, end);
    }
    if (!write_out.wrote_only_numbers()) ask_for_repair(c);  // fault: overflow-unnoticed-in-decode
  }

 private:
  Decode(const Call& call, const Rows& task, Cutter memory)
      : rows(call, task, Products::min_width, memory), c(call), at(rows.at), products(rows, memory) {}

  void attend(const Scores& t, const SoftmaxState& state) {
    products.score(t);
    spoil_beyond<S>(max_product(c), t);
    if (c.softcap) apply_softcap<S>(c, t);
    const bool hides = bias_and_mask<S>(c, t, rows.query) && note_unseen(t);
    if (c.weights.data) store_scores(t);
    advance_rows<S>(rows, t, state);
    if (c.drop_below)
      for (int r = 0; r < rows.count; ++r) apply_dropout(c, rows.query(r), r, t);
    products.add_values(t, hides ? Coverage::partial : Coverage::full, state.out);
  }

  // Every score is compared, because a minimum could lose an infinity to a NaN beside it. Four vectors at a
  // time, each with its own sum, which stays 0 where every score is above -inf.
  bool any_hidden(const Scores& t) const {
    typename S::F found[4];
    for (auto& of : found) of = S::fill(0.0f);
    const std::int64_t all = t.keys * t.width, step = 4 * S::lanes;
    std::int64_t n = 0;
    for (; n + step <= all; n += step)
      for (int v = 0; v < 4; ++v) found[v] = hidden_or(S::load(t.s + n + v * S::lanes), found[v]);
    for (; n < all; n += S::lanes) found[0] = hidden_or(S::load(t.s + n), found[0]);
    float lanes[S::lanes], sum = 0;
    S::store(lanes, S::add(S::add(found[0], found[1]), S::add(found[2], found[3])));
    for (int lane = 0; lane < S::lanes; ++lane) sum += lanes[lane];
    return sum != 0;
  }
  static typename S::F hidden_or(typename S::F score, typename S::F found) {
    return S::less(S::fill(minus_infinity), score, found, S::fill(1.0f));
  }

  // Whether any score is -inf; if so, marks which, because weights do not tell a key that is unseen from one
  // that is faint.
  bool note_unseen(const Scores& t) {
    const bool any = any_hidden(t);
    if (any) mark_unseen<S>(t, rows.buffers.unseen);
    return any;
  }

  // -inf for keys of the block that were not scored.
  [[gnu::noinline]] void store_hidden(std::int64_t block, const Scores& t) {
    const std::int64_t end = min(block + block_keys, c.sequences[rows.b].keys);
    for (int r = 0; r < rows.count; ++r) {
      float* const stored = stored_scores(c, rows.query(r));
      fill(stored + block, max(0, min(end, t.first_key) - block), minus_infinity);
      const std::int64_t last = max(block, t.first_key + t.keys);
      fill(stored + last, max(0, end - last), minus_infinity);
    }
  }

  [[gnu::noinline]] void store_scores(const Scores& t) {
    for (int r = 0; r < rows.count; ++r) {
      float* const stored = stored_scores(c, rows.query(r)) + t.first_key;
      for (std::int64_t j = 0; j < t.keys; ++j) stored[j] = t.s[j * t.width + r];
    }
  }

  // Chunks that no row sees have no scores.
  [[gnu::noinline]] void finish_weights(const Query& n, const RowEnd& end) {
    const Seen seen = seen_by(c, n.b, 0, c.sequences[n.b].queries - 1);
    const RowWeights<S> weights(c, n, end, rows.power);
    float* const stored = stored_scores(c, n);
    for (std::int64_t chunk = 0; chunk < c.sequences[n.b].keys; chunk += chunk_keys) {
      const std::int64_t count = min(chunk_keys, c.sequences[n.b].keys - chunk);
      const KeyRange part = seen.within({chunk, chunk + chunk_keys});
      if (part.begin < part.end)
        weights.make(stored + chunk, chunk, count);
      else
        fill(stored + chunk, count, 0.0f);
    }
    write_beyond(c, n);
  }

  const DecodeRows<S> rows;
  const Call& c;
  const StateLayout& at;
  Products products;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
