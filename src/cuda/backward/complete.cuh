// SPDX-License-Identifier: Apache-2.0
// Gradients that f32 could not finish, in double precision as src/reference/gradient.cpp has them (S13, G9):
// rows of q, k and v, and elements of the bias and the sink, whose marks say so. Three launches: what each
// row of q has to itself (double_pairs.cuh); gradients by keys and values that this decides
// (key_classes.cuh); and sums, of pairs of rows that are not finite, which decide nearly all others, and else
// of all pairs.
#pragma once
#include <cstdint>

#include "cuda/backward/backward.hpp"
#include "cuda/backward/double_pairs.cuh"
#include "cuda/backward/key_classes.cuh"
#include "cuda/backward/rows.cuh"
#include "cuda/tile/row.cuh"

namespace heed::cuda {

class Completion {
 public:
  static constexpr int threads = gradient_threads, warps = threads / 32;
  // Sums of neighbouring dimensions, 32 apart in a lane: those that are to be completed.
  struct LaneSums {
    static constexpr int each = 8, dims = 32 * each;
    std::int64_t first;  // of all
    std::uint32_t wanted = 0;
    double x[each] = {};

    HEED_DEVICE std::int64_t dim(int n) const { return first + lane_index() + 32 * n; }
    HEED_DEVICE bool wants(int n) const { return (wanted >> n & 1) != 0; }
    HEED_DEVICE void clear() {
#pragma unroll
      for (int n = 0; n < each; ++n) x[n] = 0;
    }
    HEED_DEVICE bool all_nan() const {
      bool is_so = true;
#pragma unroll
      for (int n = 0; n < each; ++n) is_so = is_so && (!wants(n) || x[n] != x[n]);
      return all_of_warp(is_so);
    }
    HEED_DEVICE bool none_finite() const {
      bool is_so = true;
#pragma unroll
      for (int n = 0; n < each; ++n) is_so = is_so && (!wants(n) || !(x[n] - x[n] == 0));
      return all_of_warp(is_so);
    }
  };

  struct Shared {
    KeyClasses::Shared of_keys;
    double terms[threads];
    double sums[warps][LaneSums::dims];
    unsigned char is_seen[threads], is_marked[threads];
    unsigned left[warps];
  };

  HEED_DEVICE Completion(const GradientCall& call, Marked marked, Shared& memory)
      : g(call), c(call.forward), keeps(marked == Marked::written && !call.accumulates), shared(memory) {}

  // Every `blocks`-th part of a launch: each begins when the one before it has ended.
  HEED_DEVICE void find_rows(std::int64_t blocks) {
    if (*g.rows.any_unfinished == 0) return;
    const DoubleRowFinder finder(g, warp_terms());
    for (std::int64_t n = block_index() * warps + warp_index(); n < g.all_rows(); n += blocks * warps)
      finder.find(n);
  }
  HEED_DEVICE void decide_classes(std::int64_t blocks) {
    if (*g.rows.any_unfinished == 0) return;
    KeyClasses classes(g, keeps, shared.of_keys);
    for (std::int64_t n = block_index(); n < parts(g).classes; n += blocks) classes.decide(n);
  }
  HEED_DEVICE void add_sums(std::int64_t blocks) {
    if (*g.rows.any_unfinished == 0) return;
    const Parts of = parts(g);
    if (g.q.data)
      each_row(
          of.rows, blocks, [&](std::int64_t row) { return try_query(row); },
          [&](std::int64_t row, unsigned) { complete_query(row); });
    if (g.k.data || g.v.data)
      each_row(
          g.all_keys(), blocks, [&](std::int64_t key) { return try_key(key); },
          [&](std::int64_t key, unsigned left) { complete_key(key, left); });
    for (std::int64_t n = block_index(); n < of.biases; n += blocks) complete_biases(n * threads);
    for (std::int64_t n = block_index(); n < g.sink.elements(); n += blocks)
      if (is_marked(g.rows.unfinished_sink, n)) complete_sink(n);
  }

  // Of each launch.
  struct Parts {
    std::int64_t rows, classes, keys, biases;
  };
  static constexpr Parts parts(const GradientCall& g) {
    const auto of = [](std::int64_t all, std::int64_t each) { return (all + each - 1) / each; };
    const std::int64_t lines = g.key_rows == 0 || (!g.k.data && !g.v.data) ? 0 : g.all_keys() / g.key_rows;
    return {g.all_rows(), lines * of(g.key_rows, KeyClasses::threads), g.all_keys(),
            of(g.bias.elements(), threads)};
  }

 private:
  // As many neighbouring rows at once as there are warps. Each warp tries one of them; what that leaves all
  // warps complete together.
  template <class Try, class Complete>
  HEED_DEVICE void each_row(std::int64_t rows, std::int64_t blocks, const Try& try_one,
                            const Complete& complete) const {
    for (std::int64_t first = block_index() * warps; first < rows; first += blocks * warps) {
      const int warp = warp_index();  // asked for by all lanes
      const unsigned left = first + warp < rows ? try_one(first + warp) : 0;
      if (lane_index() == 0) shared.left[warp] = left;
      sync();
      for (int m = 0; m < warps; ++m)
        if (const unsigned of = shared.left[m]) complete(first + m, of);
      sync();
    }
  }

  HEED_DEVICE double* warp_terms() const { return shared.terms + warp_index() * 32; }
  HEED_DEVICE unsigned char* warp_seen() const { return shared.is_seen + warp_index() * 32; }
  HEED_DEVICE static bool is_marked(const std::uint32_t* marks, std::int64_t mark) {
    return (marks[mark / 32] >> mark % 32 & 1) != 0;
  }

  HEED_DEVICE void write_completed(const Row& to, std::int64_t d, double x) const {
    write(to, d, static_cast<float>(g.accumulates ? static_cast<double>(read(to, d)) + x : x));  // G8
  }

  // Row n of a gradient, from dimension `first` on.
  HEED_DEVICE LaneSums wanted_sums(const std::uint32_t* marks, std::int64_t n, const Row& to,
                                   std::int64_t dim, std::int64_t first) const {
    LaneSums sums{first};
    for (int m = 0; m < LaneSums::each; ++m) {
      const std::int64_t d = sums.dim(m);
      const bool is_wanted = d < dim && is_marked(marks, n * g.slabs(dim) + d / GradientCall::slab_dims) &&
                             !(keeps && is_finite(read(to, d)));
      sums.wanted |= static_cast<std::uint32_t>(is_wanted) << m;
    }
    return sums;
  }
  HEED_DEVICE bool has_marks(const std::uint32_t* marks, std::int64_t n, std::int64_t dim) const {
    const std::int64_t slabs = g.slabs(dim);
    for (std::int64_t slab = 0; slab < slabs; ++slab)
      if (is_marked(marks, n * slabs + slab)) return true;
    return false;
  }

  // Adds up to 32 terms in order: a lane finds each with term(n, its number), whose factor is a dimension of
  // the row factor(n).
  template <class Term, class Factor>
  HEED_DEVICE void add(LaneSums& sums, std::int64_t count, const Term& term, const Factor& factor) const {
    const int lane = lane_index();
    double* const terms = warp_terms();  // asked for by all lanes
    unsigned char* const seen = warp_seen();
    sync_warp();
    seen[lane] = lane < count && term(lane, terms[lane]);
    sync_warp();
    constexpr int at_once = 4;  // on their way
    for (int first = 0; first < min(32, count); first += at_once) {
      float factors[at_once][LaneSums::each];
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        const Row row = factor(first + (first + n < count ? n : 0));
#pragma unroll
        for (int m = 0; m < LaneSums::each; ++m)
          factors[n][m] = sums.wants(m) ? read_straight(row, sums.dim(m)) : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        if (seen[first + n] == 0) continue;
        const double x = terms[first + n];
#pragma unroll
        for (int m = 0; m < LaneSums::each; ++m) sums.x[m] += x * static_cast<double>(factors[n][m]);
      }
    }
  }
  HEED_DEVICE void write_sums(const LaneSums& sums, const Row& to, double factor) const {
#pragma unroll
    for (int m = 0; m < LaneSums::each; ++m)
      if (sums.wants(m)) write_completed(to, sums.dim(m), sums.x[m] * factor);
  }

  // Sums that each warp has a part of, added in the order of the parts.
  HEED_DEVICE void join(LaneSums& sums) const {
    sync();
#pragma unroll
    for (int m = 0; m < LaneSums::each; ++m) shared.sums[warp_index()][lane_index() + 32 * m] = sums.x[m];
    sync();
    sums.clear();
    for (int warp = 0; warp < warps; ++warp)
#pragma unroll
      for (int m = 0; m < LaneSums::each; ++m) sums.x[m] += shared.sums[warp][lane_index() + 32 * m];
  }
  // This warp's of `count` terms, in whole chunks of 32.
  HEED_DEVICE static KeyRange own_part(std::int64_t count) {
    const std::int64_t each = (count + 32 * warps - 1) / (32 * warps) * 32;
    return {min(count, warp_index() * each), min(count, (warp_index() + 1) * each)};
  }

  // A row that is not finite: it nearly always becomes NaN at once. Whether something is left.
  HEED_DEVICE unsigned try_query(std::int64_t n) const {
    if (!has_marks(g.rows.unfinished_q, n, c.dim)) return 0;
    const Query q = RowOfQueries(g, n).q;
    const DoubleRow row = kept_row(g, n);
    if (!row.is(DoubleRow::special)) return 1;
    const Row to = row_of(g.q, q);
    for (std::int64_t first = 0; first < c.dim; first += LaneSums::dims) {
      LaneSums sums = wanted_sums(g.rows.unfinished_q, n, to, c.dim, first);
      add_keys(sums, q, row, {0, c.sequence(q.b).keys});
      write_sums(sums, to, c.scale);
    }
    return 0;
  }
  // By all warps.
  HEED_DEVICE void complete_query(std::int64_t n) const {
    const Query q = RowOfQueries(g, n).q;
    const DoubleRow row = kept_row(g, n);
    const Row to = row_of(g.q, q);
    for (std::int64_t first = 0; first < c.dim; first += LaneSums::dims) {
      LaneSums sums = wanted_sums(g.rows.unfinished_q, n, to, c.dim, first);
      add_keys(sums, q, row, own_part(c.sequence(q.b).keys));
      join(sums);
      // fault: cuda-completed-gradient-unscaled
      if (warp_index() == 0) write_sums(sums, to, c.scale);  // G5
    }
    sync();
  }
  HEED_DEVICE void add_keys(LaneSums& sums, const Query& q, const DoubleRow& row,
                            const KeyRange& keys) const {
    const std::int64_t kv_head = c.kv_head(q.h);
    for (std::int64_t begin = keys.begin; begin < keys.end && !sums.all_nan(); begin += 32)
      add(
          sums, keys.end - begin,
          [&](int m, double& term) {
            const DoublePair pair = double_pair(g, q, begin + m, row, Wanted::scores);
            term = pair.raw;
            return pair.is_seen;
          },
          [&](int m) { return key_row(c, q.b, kv_head, begin + m); });
  }

  // Of a key the gradient by it, or by its value.
  struct KeySums {
    Wanted of;
    std::uint32_t* marks;
    std::int64_t dim;
    Row to;
    double factor;
  };
  HEED_DEVICE KeySums key_sums(const RowOfKeys& at) const {
    return {Wanted::scores, g.rows.unfinished_k, c.dim, row_of(g.k, at.b, at.kv_head, at.row), c.scale};
  }
  HEED_DEVICE KeySums value_sums(const RowOfKeys& at) const {
    return {Wanted::weights, g.rows.unfinished_v, c.value_dim, row_of(g.v, at.b, at.kv_head, at.row), 1.0};
  }
  static constexpr unsigned key_left = 1, value_left = 2;

  // Rows that are not finite. All others leave an infinity or NaN as it is, unless the key is wild, or the
  // bias may be. What is left.
  HEED_DEVICE unsigned try_key(std::int64_t n) const {
    const bool of_key = g.k.data && has_marks(g.rows.unfinished_k, n, c.dim),
               of_value = g.v.data && has_marks(g.rows.unfinished_v, n, c.value_dim);
    if (!of_key && !of_value) return 0;
    const RowOfKeys at(g, n);
    const bool is_wild = is_wild_key(at);
    return (of_key && !finds(n, at, key_sums(at), is_wild) ? key_left : 0) |
           (of_value && !finds(n, at, value_sums(at), is_wild) ? value_left : 0);
  }
  HEED_DEVICE bool finds(std::int64_t n, const RowOfKeys& at, const KeySums& of, bool is_wild) const {
    if (of.dim > LaneSums::dims) return false;
    LaneSums sums = wanted_sums(of.marks, n, of.to, of.dim, 0);
    add_rows(sums, at, of.of, DoubleRow::special, {0, c.sequence(at.b).queries});
    const bool is_found = sums.all_nan() || (sums.none_finite() && !is_wild);
    if (is_found) write_sums(sums, of.to, of.factor);
    return is_found;
  }
  HEED_DEVICE bool is_wild_key(const RowOfKeys& at) const {
    bool is_wild = c.bias.data != nullptr;
    const Row key = key_row(c, at.b, at.kv_head, at.j), value = value_row(c, at.b, at.kv_head, at.j);
    for (std::int64_t d = lane_index(); d < c.dim; d += 32) is_wild = is_wild || !is_finite(read(key, d));
    for (std::int64_t d = lane_index(); d < c.value_dim; d += 32)
      is_wild = is_wild || !is_finite(read(value, d));
    return warp_any(is_wild);
  }
  // All rows, by all warps.
  HEED_DEVICE void complete_key(std::int64_t n, unsigned left) const {
    const RowOfKeys at(g, n);
    if ((left & key_left) != 0) complete_sums(n, at, key_sums(at));
    if ((left & value_left) != 0) complete_sums(n, at, value_sums(at));
  }
  HEED_DEVICE void complete_sums(std::int64_t n, const RowOfKeys& at, const KeySums& of) const {
    for (std::int64_t first = 0; first < of.dim; first += LaneSums::dims) {
      LaneSums sums = wanted_sums(of.marks, n, of.to, of.dim, first);
      add_rows(sums, at, of.of, 0, own_part(c.sequence(at.b).queries));
      join(sums);
      if (warp_index() == 0) write_sums(sums, of.to, of.factor);
    }
    sync();
  }
  // Of all rows that read the KV head, or those that have this flag.
  HEED_DEVICE void add_rows(LaneSums& sums, const RowOfKeys& at, Wanted of, std::uint32_t flag,
                            const KeyRange& rows) const {
    constexpr int chunks = 4;
    const Sequence& s = c.sequence(at.b);
    for (std::int64_t member = 0; member < c.group(); ++member) {
      const std::int64_t h = c.head(at.kv_head, member), number = g.row(at.b, h, s.first_query);
      for (std::int64_t begin = rows.begin; begin < rows.end; begin += 32 * chunks) {
        std::uint32_t has = flag == 0 ? ~std::uint32_t{0} : 0;
#pragma unroll
        for (int m = 0; m < chunks; ++m) {
          const std::int64_t i = begin + 32 * m + lane_index();
          if (i < rows.end && (kept_flags(g, number + i) & flag) != 0) has |= 1u << m;
        }
        for (int m = 0; m < chunks && begin + 32 * m < rows.end; ++m) {
          const bool is_one = (has >> m & 1) != 0;
          if (!warp_any(is_one)) continue;
          if (sums.all_nan()) return;
          add_chunk(sums, at, of, h, begin + 32 * m, is_one);
        }
      }
    }
  }
  HEED_DEVICE void add_chunk(LaneSums& sums, const RowOfKeys& at, Wanted of, std::int64_t h,
                             std::int64_t begin, bool is_one) const {
    const Sequence& s = c.sequence(at.b);
    const auto query = [&](int m) -> Query { return {at.b, h, begin + m, s.first_query + begin + m}; };
    add(
        sums, s.queries - begin,
        [&](int m, double& term) {
          if (!is_one) return false;
          const Query q = query(m);
          const DoublePair pair = double_pair(g, q, at.j, kept_row(g, g.row(q.b, q.h, q.row)), of);
          term = of == Wanted::scores ? pair.raw : pair.applied;
          return pair.is_seen;
        },
        [&](int m) { return row_of(of == Wanted::scores ? c.q : g.out_gradient, query(m)); });
  }

  // Elements of one row and one key are a thread's, whoever shares them; of others every thread has a part of
  // the terms.
  HEED_DEVICE void complete_biases(std::int64_t first) const {
    const std::int64_t n = first + thread_index();
    const bool is_left = n < g.bias.elements() && is_marked(g.rows.unfinished_bias, n);
    if (!any(is_left)) return;
    if (g.bias.length != 1 && g.bias.dim != 1) {
      if (is_left) complete_bias_of_pairs(n);
      return;
    }
    shared.is_marked[thread_index()] = is_left;
    sync();
    for (int m = 0; m < threads; ++m)
      if (shared.is_marked[m]) complete_bias(first + m);
    sync();
  }

  struct BiasPlace {
    std::int64_t b, h, row, j;

    HEED_DEVICE BiasPlace(const SharedGradient& of, std::int64_t n)
        : b(n / of.dim / of.length / of.heads),
          h(n / of.dim / of.length % of.heads),
          row(n / of.dim % of.length),
          j(n % of.dim) {}
  };
  HEED_DEVICE double score_of(const Query& q, std::int64_t j) const {
    return double_pair(g, q, j, kept_row(g, g.row(q.b, q.h, q.row)), Wanted::scores).score;
  }

  HEED_DEVICE void complete_bias_of_pairs(std::int64_t n) const {
    const SharedGradient& to = g.bias;
    const BiasPlace at(to, n);
    const Sharing entries(to.batch, at.b, c.batch), heads(to.heads, at.h, c.heads);
    double total = 0;
    for (std::int64_t b = entries.begin; b < entries.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end && total == total; ++h) {
        const Sequence& s = c.sequence(b);
        const std::int64_t i = at.row - s.first_query;
        if (i >= 0 && i < s.queries && at.j < s.keys) total += score_of({b, h, i, at.row}, at.j);
      }
    write_completed(row_of(to.tensor, at.b, at.h, at.row), at.j, total);
  }

  // One element, which every thread has a part of the terms of: queries of those who share it.
  template <class OfQuery>
  HEED_DEVICE double sum_over_queries(const SharedGradient& of, std::int64_t own_b, std::int64_t own_h,
                                      const OfQuery& of_query) const {
    const Sharing entries(of.batch, own_b, c.batch), heads(of.heads, own_h, c.heads);
    double total = 0;
    for (std::int64_t b = entries.begin; b < entries.end; ++b)
      for (std::int64_t h = heads.begin; h < heads.end; ++h)
        for (std::int64_t i = thread_index(); i < c.sequence(b).queries && total == total; i += threads)
          total += of_query(Query{b, h, i, c.sequence(b).first_query + i});
    sync();
    shared.terms[thread_index()] = total;
    sync();
    total = 0;
    for (int m = 0; m < threads; ++m) total += shared.terms[m];
    return total;
  }

  HEED_DEVICE void complete_bias(std::int64_t n) const {
    const SharedGradient& to = g.bias;
    const BiasPlace at(to, n);
    const double x = sum_over_queries(to, at.b, at.h, [&](const Query& q) {
      double of_query = 0;
      if (to.length != 1 && q.row != at.row) return of_query;
      const std::int64_t keys = c.sequence(q.b).keys;
      if (to.dim != 1) return at.j < keys ? score_of(q, at.j) : 0.0;
      for (std::int64_t j = 0; j < keys && of_query == of_query; ++j) of_query += score_of(q, j);
      return of_query;
    });
    if (thread_index() == 0) write_completed(row_of(to.tensor, at.b, at.h, at.row), at.j, x);
  }

  HEED_DEVICE void complete_sink(std::int64_t n) const {
    const std::int64_t own_b = n / g.sink.heads, own_h = n % g.sink.heads;
    const double x = sum_over_queries(g.sink, own_b, own_h, [&](const Query& q) {
      const double lse = static_cast<double>(read(row_of(c.log_sum_exp, q), 0));
      if (lse == -__builtin_inf() || !sees_any(c, q))
        return static_cast<double>(log_sum_exp_gradient(g, q));  // G7
      return ::exp(static_cast<double>(sink_of(c, q)) - lse) * kept_row(g, g.row(q.b, q.h, q.row)).gradient;
    });
    if (thread_index() == 0) write_completed(row_of(g.sink.tensor, own_b, own_h, 0), 0, x);
  }

  const GradientCall& g;
  const Call& c;
  const bool keeps;
  Shared& shared;
};

}  // namespace heed::cuda
