// SPDX-License-Identifier: Apache-2.0
// What comes before the products of a backward pass: of every row of q its log-sum-exp in base 2 and its
// delta, dO times out less the gradient of the log-sum-exp (G3). And what comes beside them: the gradient by
// the sink, which needs nothing else of a row (G7).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

constexpr int gradient_threads = 128;  // of a block, in the steps around the products

// The sequence that a row of packed ones is of. Those without rows begin where the next one does.
template <class First>
HEED_DEVICE std::int64_t packed_sequence(const Call& c, std::int64_t row, const First& first) {
  std::int64_t begin = 0, end = c.batch;
  while (end - begin > 1) {
    const std::int64_t middle = (begin + end) / 2;
    (first(c.sequence(middle)) <= row ? begin : end) = middle;
  }
  return begin;
}

// Row n of all rows of q, and of all rows of k and v. is_real: false for padding.
struct RowOfQueries {
  Query q;
  bool is_real;

  HEED_DEVICE RowOfQueries(const GradientCall& g, std::int64_t n) {
    const Call& c = g.forward;
    const std::int64_t head = n / g.query_rows, row = n % g.query_rows;
    const std::int64_t b = g.shares_query_rows
                               ? packed_sequence(c, row, [](const Sequence& s) { return s.first_query; })
                               : head / c.heads;
    const Sequence& s = c.sequence(b);
    q = {b, head % c.heads, row - s.first_query, row};
    is_real = q.i >= 0 && q.i < s.queries;
  }
};
struct RowOfKeys {
  std::int64_t b, kv_head, j, row;
  bool is_real;

  HEED_DEVICE RowOfKeys(const GradientCall& g, std::int64_t n) {
    const Call& c = g.forward;
    const std::int64_t head = n / g.key_rows;
    row = n % g.key_rows, kv_head = head % c.kv_heads;
    b = g.shares_key_rows ? packed_sequence(c, row, [](const Sequence& s) { return s.first_key; })
                          : head / c.kv_heads;
    j = row - c.sequence(b).first_key;
    is_real = j >= 0 && j < c.sequence(b).keys;
  }
};

HEED_DEVICE float log_sum_exp_gradient(const GradientCall& g, const Query& q) {
  return g.log_sum_exp_gradient.data ? read(row_of(g.log_sum_exp_gradient, q), 0) : 0.0f;
}

// Whether the query sees any key. Called for rows that are no numbers, and for those of a sink.
inline __device__ __noinline__ bool sees_any(const Call& c, const Query& q) {
  const KeyRange range = visible_keys(c, q.b, q.i);
  for (std::int64_t j = 0; j < min(c.front, range.end); ++j)
    if (sees(c, q, j)) return true;
  for (std::int64_t j = max(c.front, range.begin); j < range.end; ++j)
    if (sees(c, q, j)) return true;
  return false;
}

// dO times out in chains, as the CPU has it (O2).
HEED_DEVICE float chained_delta(const GradientCall& g, const Query& q) {
  const Row gradient = row_of(g.out_gradient, q), out = row_of(g.forward.out, q);
  float delta = 0;
  for (std::int64_t d = 0; d < g.forward.value_dim;) {
    float chain = 0;
    for (const std::int64_t end = min(d + chain_terms, g.forward.value_dim); d < end; ++d)
      chain = fmaf(read(gradient, d), read(out, d), chain);
    delta = delta + chain;
  }
  return delta;
}

HEED_DEVICE bool is_finite_row(const Row& row, std::int64_t dim) {
  bool is_so = true;
  for (std::int64_t d = 0; d < dim; ++d) is_so = is_so && is_finite(read(row, d));
  return is_so;
}

// What a row has to itself, but for its rest.
struct RowNumbers {
  float log_sum_exp, delta;
};
// Row n: `product` is dO times out. Where that is not finite, dS is NaN, but weights are numbers: what they
// have of dO that is finite, dV has. Where the row is not finite otherwise, there are no weights.
HEED_DEVICE RowNumbers write_row_numbers(const GradientCall& g, std::int64_t n, const Query& q, float product,
                                         bool is_finite_otherwise) {
  // fault: cuda-gradient-of-log-sum-exp
  const float natural = read(row_of(g.forward.log_sum_exp, q), 0), lse = natural * log2_e,
              delta = product - log_sum_exp_gradient(g, q);
  const bool has_weights = lse < 0x1p126f && lse > -0x1p126f && is_finite_otherwise;
  const bool is_hollow =
      natural == minus_infinity || (!(has_weights && is_finite(delta)) && !sees_any(g.forward, q));  // G6
  const RowNumbers numbers{is_hollow     ? -minus_infinity
                           : has_weights ? lse
                                         : __builtin_nanf(""),
                           is_hollow          ? 0.0f
                           : is_finite(delta) ? delta
                                              : __builtin_nanf("")};
  g.rows.log_sum_exp[n] = numbers.log_sum_exp, g.rows.delta[n] = numbers.delta;
  g.rows.rest[n] =
      has_weights && !is_hollow
          ? static_cast<float>(static_cast<double>(natural) * softmax::log2_e - static_cast<double>(lse))
          : 0.0f;
  return numbers;
}

// Of padding: it gives nothing, and gets nothing from anybody (G8).
HEED_DEVICE void write_no_row(const GradientCall& g, std::int64_t n, const Query& q) {
  g.rows.log_sum_exp[n] = -minus_infinity;
  g.rows.rest[n] = g.rows.delta[n] = 0;
  if (!g.q.data || g.accumulates) return;
  for (std::int64_t d = 0; d < g.forward.dim; ++d) write(row_of(g.q, q), d, 0.0f);
}

// A thread for each row. Kernels that have the CPU's bits have no weights of a row that is not finite.
HEED_DEVICE void prepare_exact_row(const GradientCall& g, bool of_the_cpu = true) {
  const std::int64_t n = block_index() * gradient_threads + thread_index();
  if (n >= g.all_rows()) return;
  const RowOfQueries of(g, n);
  if (!of.is_real) return write_no_row(g, n, of.q);
  const float product = chained_delta(g, of.q);
  const bool are_finite = !of_the_cpu || (is_finite(product - log_sum_exp_gradient(g, of.q)) &&
                                          is_finite_row(row_of(g.forward.q, of.q), g.forward.dim) &&
                                          is_finite_row(row_of(g.out_gradient, of.q), g.forward.value_dim));
  write_row_numbers(g, n, of.q, product, are_finite);
}

// Leaves element or row n of a gradient to Completion.
HEED_DEVICE void leave_unfinished(const GradientCall& g, std::uint32_t* marks, std::int64_t n) {
  atomicOr(marks + n / 32, std::uint32_t{1} << n % 32);
  *g.rows.any_unfinished = 1;  // whoever comes last writes the same
}

HEED_DEVICE void write_gradient(const GradientCall& g, const Row& to, std::int64_t d, float x) {
  write(to, d, g.accumulates ? read(to, d) + x : x);
}

// Batch entries, or heads, that share an element of a gradient.
struct Sharing {
  std::int64_t begin, end;

  HEED_DEVICE Sharing(std::int64_t extent, std::int64_t own, std::int64_t count)
      : begin(extent == 1 ? 0 : own), end(extent == 1 ? count : own + 1) {}
};

// One element of the sink's gradient: a chain over the queries of all heads that share it, in order. A block
// computes the terms of as many rows as it has threads, and one thread adds them.
struct SinkTerm {
  float weight, x;
};

class SinkGradient {
 public:
  static constexpr int threads = gradient_threads;
  using Shared = SinkTerm[threads];

  HEED_DEVICE static void run(const GradientCall& g, Shared& terms) {
    const Call& c = g.forward;
    const std::int64_t element = block_index(), own_b = element / g.sink.heads,
                       own_h = element % g.sink.heads;
    const Sharing entries(g.sink.batch, own_b, c.batch), heads(g.sink.heads, own_h, c.heads);
    float sum = 0;
    for (std::int64_t b = entries.begin; b < entries.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end; ++h) add_head(g, b, h, terms, sum);
    if (thread_index() != 0) return;
    sum = sum + 0.0f;
    if (is_finite(sum))
      write_gradient(g, row_of(g.sink.tensor, own_b, own_h, 0), 0, sum);
    else
      leave_unfinished(g, g.rows.unfinished_sink, element);
  }

 private:
  HEED_DEVICE static void add_head(const GradientCall& g, std::int64_t b, std::int64_t h, Shared& terms,
                                   float& sum) {
    const Sequence& s = g.forward.sequence(b);
    for (std::int64_t first = 0; first < s.queries; first += threads) {
      const std::int64_t i = first + thread_index();
      sync();
      if (i < s.queries) terms[thread_index()] = term(g, {b, h, i, s.first_query + i});
      sync();
      for (int n = 0; n < min(threads, s.queries - first) && thread_index() == 0; ++n)
        sum = fmaf(terms[n].weight, terms[n].x, sum);
    }
  }

  // Of a row that sees no key, 1 times the gradient by its log-sum-exp, which is the sink (G7).
  HEED_DEVICE static SinkTerm term(const GradientCall& g, const Query& q) {
    const std::int64_t n = g.row(q.b, q.h, q.row);
    const float base = g.rows.log_sum_exp[n], sink = sink_of(g.forward, q) * log2_e;
    if (base == -minus_infinity || !sees_any(g.forward, q)) return {1.0f, log_sum_exp_gradient(g, q)};
    // An infinity of base 2 that is none in natural numbers, and a weight beyond 1, are no numbers here.
    const bool is_good = (sink == minus_infinity || is_finite(sink)) && sink - base < 64;
    // fault: cuda-sink-gradient-sign
    return {is_good ? exp2(sink - base) : __builtin_nanf(""), -g.rows.delta[n]};
  }
};

}  // namespace heed::cuda
