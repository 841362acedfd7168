// SPDX-License-Identifier: Apache-2.0
// Gradients that f32 could not finish, in double precision as src/reference/gradient.cpp has them (S13, G9):
// rows of q, k and v, and elements of the bias and the sink, whose marks say so. A block of threads goes
// through a stretch of marks and does one of them after the other.
#pragma once
#include <cstdint>

#include "cuda/backward/rows.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

// What a query and a key that it sees give to the gradients: by the value, by the score, and by the product
// before a softcap.
struct WidePair {
  bool is_seen = false;
  double applied = 0, score = 0, raw = 0;
};

HEED_DEVICE double wide_dot(const Row& a, const Row& b, std::int64_t dim) {
  double sum = 0;
  for (std::int64_t d = 0; d < dim; ++d)
    sum += static_cast<double>(read(a, d)) * static_cast<double>(read(b, d));
  return sum;
}

HEED_DEVICE double wide_delta(const GradientCall& g, const Query& q) {
  return wide_dot(row_of(g.out_gradient, q), row_of(g.forward.out, q), g.forward.value_dim);
}

inline __device__ __noinline__ WidePair wide_pair(const GradientCall& g, const Query& q, std::int64_t j) {
  const Call& c = g.forward;
  const double lse = static_cast<double>(read(row_of(c.log_sum_exp, q), 0));
  if (lse == -__builtin_inf()) return {};  // G6
  const WideScore s = wide_score(c, q, j);
  if (s.biased == -__builtin_inf()) return {};
  const double weight = ::exp(s.biased - lse);  // G1
  const double keep = c.drop_below == 0 ? 1.0
                      : drops(c, q, j)  ? 0.0
                                        : 1 / (1.0 - static_cast<double>(c.drop_probability));
  const double of_value =
      wide_dot(row_of(g.out_gradient, q), value_row(c, q.b, c.kv_head(q.h), j), c.value_dim);
  const double gradient =
      keep * of_value - wide_delta(g, q) + static_cast<double>(log_sum_exp_gradient(g, q));
  const double slope = c.cap != 0 ? s.softcapped / static_cast<double>(c.cap) : 0.0;
  const double score = weight * gradient;                            // G3
  return {true, weight * keep, score, score * (1 - slope * slope)};  // G2, G4
}

class Completion {
 public:
  static constexpr int threads = gradient_threads;
  struct Shared {
    double terms[threads];
    unsigned char is_seen[threads], is_marked[threads];
  };

  HEED_DEVICE Completion(const GradientCall& call, Shared& memory)
      : g(call), c(call.forward), shared(memory) {}

  // Every `blocks`-th stretch of marks: of rows of q, of those of k and v, of bias and sink.
  HEED_DEVICE void run(std::int64_t blocks) {
    if (*g.rows.any_unfinished == 0) return;
    const std::int64_t marks = max_marks(g);
    for (first = block_index() * threads; first < marks; first += blocks * threads) complete_stretch();
  }
  // That one of the five has at most.
  static constexpr std::int64_t max_marks(const GradientCall& g) {
    const auto larger = [](std::int64_t a, std::int64_t b) { return a > b ? a : b; };
    const std::int64_t keys = g.all_keys() * larger(g.slabs(g.forward.dim), g.slabs(g.forward.value_dim));
    return larger(larger(g.all_rows() * g.slabs(g.forward.dim), keys),
                  larger(g.bias.elements(), g.sink.elements()));
  }

 private:
  enum class Of : std::uint8_t { keys, values };

  HEED_DEVICE void complete_stretch() {
    const std::int64_t slabs = g.slabs(c.dim), value_slabs = g.slabs(c.value_dim);
    each_marked(g.q, g.rows.unfinished_q, g.all_rows() * slabs,
                [&](std::int64_t n) { complete_query(n / slabs, slab_of(n % slabs, c.dim)); });
    each_marked(g.k, g.rows.unfinished_k, g.all_keys() * slabs,
                [&](std::int64_t n) { complete_key(n / slabs, slab_of(n % slabs, c.dim), Of::keys); });
    each_marked(g.v, g.rows.unfinished_v, g.all_keys() * value_slabs, [&](std::int64_t n) {
      complete_key(n / value_slabs, slab_of(n % value_slabs, c.value_dim), Of::values);
    });
    each_marked(g.bias.tensor, g.rows.unfinished_bias, g.bias.elements(),
                [&](std::int64_t n) { complete_bias(n); });
    each_marked(g.sink.tensor, g.rows.unfinished_sink, g.sink.elements(),
                [&](std::int64_t n) { complete_sink(n); });
  }

  template <class Complete>
  HEED_DEVICE void each_marked(const Tensor& gradient, const std::uint32_t* marks, std::int64_t count,
                               const Complete& complete) {
    const std::int64_t n = first + thread_index();
    const bool is_marked = gradient.data && n < count && (marks[n / 32] >> n % 32 & 1) != 0;
    if (!any(is_marked)) return;
    shared.is_marked[thread_index()] = is_marked;
    sync();
    for (int m = 0; m < threads; ++m)
      if (shared.is_marked[m]) complete(first + m);
    sync();
  }

  // Dimensions [begin, end) of a row.
  struct Slab {
    std::int64_t begin, end;
  };
  HEED_DEVICE static Slab slab_of(std::int64_t n, std::int64_t dim) {
    return {n * GradientCall::slab_dims, min((n + 1) * GradientCall::slab_dims, dim)};
  }

  // Sums over `count` terms, in order: term(n) gives a pair's number, and factor(n, d) what dimension d
  // multiplies it with. Each thread has a dimension.
  template <class Term, class Factor, class Write>
  HEED_DEVICE void sum(std::int64_t count, const Slab& dims, const Term& term, const Factor& factor,
                       const Write& write_sum) {
    static_assert(threads >= GradientCall::slab_dims);
    const std::int64_t d = dims.begin + thread_index();
    double total = 0;
    for (std::int64_t begin = 0; begin < count; begin += threads) {
      const std::int64_t n = begin + thread_index();
      sync();
      shared.is_seen[thread_index()] = n < count && term(n, shared.terms[thread_index()]);
      sync();
      for (int m = 0; m < min(threads, count - begin) && d < dims.end; ++m)
        if (shared.is_seen[m]) total += shared.terms[m] * static_cast<double>(factor(begin + m, d));
    }
    if (d < dims.end) write_sum(d, total);
  }

  HEED_DEVICE void write_wide(const Row& to, std::int64_t d, double x) const {
    write(to, d, static_cast<float>(g.accumulates ? static_cast<double>(read(to, d)) + x : x));  // G8
  }

  HEED_DEVICE void complete_query(std::int64_t n, const Slab& dims) {
    const Query q = RowOfQueries(g, n).q;
    const std::int64_t kv_head = c.kv_head(q.h);
    sum(
        c.sequence(q.b).keys, dims,
        [&](std::int64_t j, double& term) {
          const WidePair pair = wide_pair(g, q, j);
          term = pair.raw;
          return pair.is_seen;
        },
        [&](std::int64_t j, std::int64_t d) { return read(key_row(c, q.b, kv_head, j), d); },
        // fault: cuda-completed-gradient-unscaled
        [&](std::int64_t d, double x) { write_wide(row_of(g.q, q), d, x * c.scale); });  // G5
  }

  // Over all rows that read the KV head.
  HEED_DEVICE void complete_key(std::int64_t n, const Slab& dims, Of of) {
    const RowOfKeys at(g, n);
    const Sequence& s = c.sequence(at.b);
    const auto query = [&](std::int64_t row) -> Query {
      const std::int64_t i = row / c.group();
      return {at.b, c.head(at.kv_head, row % c.group()), i, s.first_query + i};
    };
    sum(
        s.queries * c.group(), dims,
        [&](std::int64_t row, double& term) {
          const WidePair pair = wide_pair(g, query(row), at.j);
          term = of == Of::keys ? pair.raw : pair.applied;
          return pair.is_seen;
        },
        [&](std::int64_t row, std::int64_t d) {
          return read(row_of(of == Of::keys ? c.q : g.out_gradient, query(row)), d);
        },
        [&](std::int64_t d, double x) {
          write_wide(row_of(of == Of::keys ? g.k : g.v, at.b, at.kv_head, at.row), d,
                     of == Of::keys ? x * c.scale : x);
        });
  }

  // One element, which every thread has a part of the terms of: queries of those who share it.
  template <class OfQuery>
  HEED_DEVICE double sum_over_queries(const SharedGradient& of, std::int64_t own_b, std::int64_t own_h,
                                      const OfQuery& of_query) {
    const Sharing entries(of.batch, own_b, c.batch), heads(of.heads, own_h, c.heads);
    double total = 0;
    for (std::int64_t b = entries.begin; b < entries.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end; ++h)
        for (std::int64_t i = thread_index(); i < c.sequence(b).queries; i += threads)
          total += of_query(Query{b, h, i, c.sequence(b).first_query + i});
    sync();
    shared.terms[thread_index()] = total;
    sync();
    total = 0;
    for (int m = 0; m < threads; ++m) total += shared.terms[m];
    return total;
  }

  HEED_DEVICE void complete_bias(std::int64_t n) {
    const SharedGradient& to = g.bias;
    const std::int64_t own_j = n % to.dim, row = n / to.dim % to.length,
                       h = n / to.dim / to.length % to.heads, b = n / to.dim / to.length / to.heads;
    const double x = sum_over_queries(to, b, h, [&](const Query& q) {
      double of_query = 0;
      if (to.length != 1 && q.row != row) return of_query;
      const std::int64_t keys = c.sequence(q.b).keys;
      if (to.dim != 1) return own_j < keys ? wide_pair(g, q, own_j).score : 0.0;
      for (std::int64_t j = 0; j < keys; ++j) of_query += wide_pair(g, q, j).score;
      return of_query;
    });
    if (thread_index() == 0) write_wide(row_of(to.tensor, b, h, row), own_j, x);
  }

  HEED_DEVICE void complete_sink(std::int64_t n) {
    const std::int64_t own_b = n / g.sink.heads, own_h = n % g.sink.heads;
    const double x = sum_over_queries(g.sink, own_b, own_h, [&](const Query& q) {
      const double of_lse = static_cast<double>(log_sum_exp_gradient(g, q)),
                   lse = static_cast<double>(read(row_of(c.log_sum_exp, q), 0));
      if (lse == -__builtin_inf() || !sees_any(c, q)) return of_lse;  // G7
      return ::exp(static_cast<double>(sink_of(c, q)) - lse) * (of_lse - wide_delta(g, q));
    });
    if (thread_index() == 0) write_wide(row_of(g.sink.tensor, own_b, own_h, 0), 0, x);
  }

  const GradientCall& g;
  const Call& c;
  Shared& shared;
  std::int64_t first = 0;  // of the stretch
};

}  // namespace heed::cuda
