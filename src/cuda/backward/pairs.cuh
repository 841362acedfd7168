// SPDX-License-Identifier: Apache-2.0
// Pairs of a row and a key, as all kernels of the backward pass have them: which rows and keys a tile has,
// and what becomes of a score.
#pragma once
#include <cstdint>

#include "cuda/backward/rows.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// What a block of threads owns.
enum class Owned : std::uint8_t { rows, keys };

// The rows of a KV head, or of one head of its group, of one sequence; and its keys.
struct PairRows {
  std::int64_t b, kv_head;
  std::int64_t group, first_head, head_step;

  HEED_DEVICE static PairRows of_group(const Call& c, std::int64_t b, std::int64_t kv_head) {
    // fault: cuda-gradient-of-tiled-heads
    return {b, kv_head, c.group(), c.head(kv_head, 0), c.tiled_heads ? c.kv_heads : 1};
  }
  HEED_DEVICE static PairRows of_head(const Call& c, std::int64_t b, std::int64_t h) {
    return {b, c.kv_head(h), 1, h, 0};
  }
  HEED_DEVICE std::int64_t count(const Call& c) const { return c.sequence(b).queries * group; }
  // The query of a row: 32 bits are divided in a quarter of the time.
  HEED_DEVICE std::int64_t index(std::int64_t row) const {
    return row >> 32 ? row / group : static_cast<std::uint32_t>(row) / static_cast<std::uint32_t>(group);
  }
  HEED_DEVICE Query query(const Call& c, std::int64_t row) const {
    const std::int64_t i = index(row);
    return {b, first_head + (row - i * group) * head_step, i, c.sequence(b).first_query + i};
  }
};

// Of an item of the rows, or of the keys: its row of a gradient, and the number that its marks go by.
template <Owned owned>
HEED_DEVICE Row gradient_row(const Call& c, const PairRows& rows, const Tensor& t, std::int64_t item) {
  if constexpr (owned == Owned::rows) return row_of(t, rows.query(c, item));
  return row_of(t, rows.b, rows.kv_head, c.sequence(rows.b).first_key + item);
}
template <Owned owned>
HEED_DEVICE std::int64_t gradient_number(const GradientCall& g, const PairRows& rows, std::int64_t item) {
  if constexpr (owned == Owned::rows) {
    const Query q = rows.query(g.forward, item);
    return g.row(q.b, q.h, q.row);
  }
  return g.key(rows.b, rows.kv_head, g.forward.sequence(rows.b).first_key + item);
}

constexpr std::int64_t no_item = -(std::int64_t{1} << 62);

// What a row has to itself, and the keys that ranges let it see, besides the front.
struct alignas(16) RowOfPair {
  float lse, delta;
  int begin, end;

  // Gives nothing to anybody: its weights are 0, and it sees nothing.
  HEED_DEVICE static RowOfPair none() { return {-minus_infinity, 0, 0, 0}; }
  HEED_DEVICE bool sees(int j) const { return j >= begin && j < end; }
};

// Some neighbouring rows, or keys, in shared memory: where each begins in the tensors of both products, and
// of rows their numbers. Those that give nothing are as those beyond the last (G6).
template <int capacity>
struct PairItems {
  std::int64_t first, count;
  std::int64_t at[2][capacity];  // q and dO, or k and v; no_item: nothing is read, and zeros stand there
  RowOfPair rows[capacity];
  float rest[capacity];          // of log-sum-exps
  int i[capacity], h[capacity];  // the query and the query head of a row

  HEED_DEVICE void find_rows(const GradientCall& g, const PairRows& of, std::int64_t from) {
    if (thread_index() < capacity) find_row(g, of, from, thread_index());
  }
  HEED_DEVICE void find_row(const GradientCall& g, const PairRows& of, std::int64_t from, int n) {
    const Call& c = g.forward;
    if (n == 0) first = from, count = min(capacity, of.count(c) - from);
    at[0][n] = at[1][n] = no_item, rows[n] = RowOfPair::none(), rest[n] = 0;
    if (from + n >= of.count(c)) return;
    const Query q = of.query(c, from + n);
    const std::int64_t number = g.row(q.b, q.h, q.row);
    i[n] = static_cast<int>(q.i), h[n] = static_cast<int>(q.h);
    const float lse = g.rows.log_sum_exp[number];
    if (lse == -minus_infinity) return;
    const KeyRange seen = visible_keys(c, q.b, q.i);
    at[0][n] = row_of(c.q, q).first, at[1][n] = row_of(g.out_gradient, q).first;
    rows[n] = {lse, g.rows.delta[number], static_cast<int>(seen.begin), static_cast<int>(max(0, seen.end))};
    rest[n] = g.rows.rest[number];
  }
  HEED_DEVICE void find_keys(const GradientCall& g, const PairRows& of, std::int64_t from) {
    const Call& c = g.forward;
    const Sequence& s = c.sequence(of.b);
    const int n = thread_index();
    if (n == 0) first = from, count = min(capacity, s.keys - from);
    if (n >= capacity) return;
    const bool is_key = from + n < s.key_count;
    const std::int64_t row = s.first_key + from + n;
    at[0][n] = is_key ? row_of(c.k, of.b, of.kv_head, row).first : no_item;
    at[1][n] = is_key ? row_of(c.v, of.b, of.kv_head, row).first : no_item;
  }
};

// Whether nothing but ranges of keys hides a key, and nothing changes a score.
constexpr bool has_only_ranges(const Call& c) {
  return !c.bias.data && !c.alibi.of_heads && c.mask_count == 0 && c.document_count == 0 &&
         c.gap_count == 0 && c.front == 0 && c.softcap.cap == 0;
}

// A product of the scaled query with the key, and the row's log-sum-exp.
struct PairProduct {
  float product, lse, rest;
};

// What 2 is raised to, for the weight of a pair: the score less the log-sum-exp; -inf where the row does not
// see the key. And the slope of the softcap.
struct PairScore {
  float exponent, slope;
};

// A softcap and a log-sum-exp are much larger than their difference wherever a weight counts: it is computed
// of all that is known of them.
HEED_DEVICE PairScore score_of(const Call& c, const Query& q, std::int64_t j, const PairProduct& of) {
  float s = of.product, base = of.lse, slope = 1;
  if (of.lse == -minus_infinity) return {minus_infinity, slope};
  if (c.softcap.cap != 0) {
    const Tanh cap = tanh_with_slope(s * c.softcap.argument);
    slope = cap.slope, base = 0;
    s = max_or_nan(-max_finite,
                   fmaf(cap.value, c.softcap.cap, -of.lse) + fmaf(cap.value, c.softcap.rest, -of.rest));
  }
  s = biased_score(c, q, j, s);
  return {s == minus_infinity ? s : s - base, slope};
}

}  // namespace heed::cuda
