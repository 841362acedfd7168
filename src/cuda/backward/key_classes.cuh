// SPDX-License-Identifier: Apache-2.0
// Gradients by keys and values that NaN and infinities of the rows decide, without a sum: what is NaN stays
// it whatever comes, and an infinity times a weight has a weight's sign. A block has 128 keys of a head, a
// thread each, and goes through the rows that have something not finite.
#pragma once
#include <cstdint>

#include "cuda/backward/double_pairs.cuh"

namespace heed::cuda {

// Whether 64 numbers side by side, or sums of them, are no numbers; a bit each.
struct DimClasses {
  std::uint64_t nan, plus, minus;

  HEED_DEVICE std::uint64_t wild() const { return nan | plus | minus; }
  HEED_DEVICE void note(int n, float x) {
    const std::uint64_t bit = std::uint64_t{1} << n;
    if (x != x) nan |= bit;
    if (x == -minus_infinity) plus |= bit;
    if (x == minus_infinity) minus |= bit;
  }
  // What the other would change.
  HEED_DEVICE bool learns(const DimClasses& x) const {
    return ((x.nan | (x.plus & ~plus) | (x.minus & ~minus)) & ~nan) != 0;
  }
  HEED_DEVICE void add(const DimClasses& x) {
    plus |= x.plus, minus |= x.minus, nan |= x.nan | (plus & minus);
  }
};

class KeyClasses {
 public:
  static constexpr int threads = gradient_threads;
  struct Shared {
    DimClasses of_row[threads];
    float reach[threads];
    std::uint32_t flags[threads];
  };

  // `keeps`: whether finite numbers of what is marked count.
  HEED_DEVICE KeyClasses(const GradientCall& call, bool keeps_finite, Shared& memory)
      : g(call), c(call.forward), keeps(keeps_finite), shared(memory) {}

  HEED_DEVICE static std::int64_t tiles_of_head(const GradientCall& g) {
    return (g.key_rows + threads - 1) / threads;
  }
  HEED_DEVICE void decide(std::int64_t tile) {
    const std::int64_t line = tile / tiles_of_head(g), first = tile % tiles_of_head(g) * threads;
    const std::int64_t end = min(first + threads, g.key_rows), row = min(first + thread_index(), end - 1);
    n = line * g.key_rows + row;
    const RowOfKeys at(g, n);
    b = at.b, kv_head = at.kv_head, j = at.j;
    bool is_key = at.is_real && first + thread_index() < end;
    const std::int64_t first_b = RowOfKeys(g, line * g.key_rows + first).b,
                       last_b = RowOfKeys(g, line * g.key_rows + end - 1).b;
    const std::int64_t slabs = g.slabs(c.value_dim);
    wants_scores = is_key && has_marks(g.k, g.rows.unfinished_k, g.slabs(c.dim));
    has_nan_score = false;
    bool has_length = false;
    for (std::int64_t slab = 0; slab < slabs; ++slab) {
      wants_values = is_key && g.v.data && is_marked(g.rows.unfinished_v, n * slabs + slab);
      if (!any(wants_values || (slab == 0 && wants_scores))) continue;
      if (!has_length && (wants_values || wants_scores)) {
        has_length = true;
        if (!find_length()) is_key = wants_values = wants_scores = false;
      }
      of_values = {}, is_unsure = false;
      for (std::int64_t of = first_b; of <= last_b; ++of)
        for (std::int64_t member = 0; member < c.group(); ++member)
          add_rows(of, c.head(kv_head, member), slab);
      if (wants_values) write_values(slab, slabs);
      if (slab == 0 && wants_scores && has_nan_score) write_keys();
      wants_scores = false;
    }
  }

 private:
  HEED_DEVICE static bool is_marked(const std::uint32_t* marks, std::int64_t mark) {
    return (marks[mark / 32] >> mark % 32 & 1) != 0;
  }
  HEED_DEVICE static void clear_mark(std::uint32_t* marks, std::int64_t mark) {
    atomicAnd(marks + mark / 32, ~(std::uint32_t{1} << mark % 32));
  }
  HEED_DEVICE bool has_marks(const Tensor& gradient, const std::uint32_t* marks, std::int64_t slabs) const {
    bool has = false;
    for (std::int64_t slab = 0; slab < slabs && gradient.data; ++slab)
      has = has || is_marked(marks, n * slabs + slab);
    return has;
  }

  // False for a key that is not finite: its scores may be infinities, of which -inf hides, and so nothing is
  // known.
  HEED_DEVICE bool find_length() {
    const Row key = key_row(c, b, kv_head, j);
    double square = 0;
    for (std::int64_t d = 0; d < c.dim; ++d) {
      const auto x = static_cast<double>(read(key, d));
      square += x * x;
    }
    length = static_cast<float>(::sqrt(square)) * 1.001f;
    return square - square == 0;
  }

  HEED_DEVICE void add_rows(std::int64_t of, std::int64_t h, std::int64_t slab) {
    const Sequence& s = c.sequence(of);
    for (std::int64_t begin = 0; begin < s.queries; begin += threads) {
      const std::int64_t i = begin + thread_index();
      const bool is_special =
          i < s.queries && (kept_flags(g, g.row(of, h, s.first_query + i)) & DoubleRow::special) != 0;
      if (!any(is_special)) continue;
      stage({of, h, i, s.first_query + i}, is_special, slab);
      sync();
      if (of == b && (wants_values || wants_scores))
        for (int m = 0; m < min(threads, s.queries - begin); ++m)
          if (shared.flags[m] != 0) add_row({of, h, begin + m, s.first_query + begin + m}, m);
      sync();
    }
  }
  HEED_DEVICE void stage(const Query& q, bool is_special, std::int64_t slab) {
    DimClasses classes{};
    DoubleRow row{0, 0, 0};
    if (is_special) row = kept_row(g, g.row(q.b, q.h, q.row));
    if (row.is(DoubleRow::has_wild_gradient) && !row.is(DoubleRow::no_weights)) {
      const Row gradient = row_of(g.out_gradient, q);
      const std::int64_t first = slab * 64, count = min(64, c.value_dim - first);
      if (lies_in_eights(gradient, c.value_dim)) {
        for (int d = 0; d < count; d += 8) {
          float x[8];
          read_eight(x, gradient, first + d);
#pragma unroll
          for (int e = 0; e < 8; ++e)
            if (!is_finite(x[e])) classes.note(d + e, x[e]);
        }
      } else {
        for (int d = 0; d < count; ++d) classes.note(d, read(gradient, first + d));
      }
    }
    if (row.is(DoubleRow::no_weights)) classes.nan = ~std::uint64_t{0};
    shared.of_row[thread_index()] = classes;
    shared.reach[thread_index()] = row.reach, shared.flags[thread_index()] = row.flags;
  }

  HEED_DEVICE void add_row(const Query& q, int m) {
    const std::uint32_t flags = shared.flags[m];
    const bool may_hide = (flags & DoubleRow::unsure) != 0,
               of_scores = wants_scores && !has_nan_score && !may_hide && (flags & DoubleRow::no_scores) != 0;
    DimClasses of_row = shared.of_row[m], most = of_row;
    if (c.drop_below > 0) most.nan = of_row.wild();  // 0 times an infinity
    const bool of_value = wants_values && (may_hide ? !is_unsure : of_values.learns(most));
    if ((!of_scores && !of_value) || !sees_key(q)) return;
    has_nan_score |= of_scores;
    if (!of_value) return;
    if (may_hide || ((flags & DoubleRow::no_weights) == 0 && !(length < shared.reach[m]))) {
      is_unsure = is_unsure || may_hide || (of_row.plus | of_row.minus) != 0;
      of_row.plus = of_row.minus = 0;
      if (may_hide) of_row.nan = 0;
    } else if (c.drop_below > 0 && drops(c, q, j)) {
      of_row = most;
    }
    of_values.add(of_row);
  }
  HEED_DEVICE bool sees_key(const Query& q) const {
    const Sequence& s = c.sequence(b);
    if (j >= s.key_count || j >= q.i + s.end_offset || (j >= c.front && j < q.i + s.first_offset))
      return false;
    // Slopes times distances beyond f32: such a score is -inf, which hides.
    if (c.alibi.of_heads && alibi_at(c, q, j) == minus_infinity) return false;
    const bool has_more = c.mask_count > 0 || c.document_count > 0 || c.gap_count > 0 || c.bias.data;
    return !has_more || sees(c, q, j);
  }

  HEED_DEVICE void write_completed(const Row& to, std::int64_t d, float x) const {
    write(to, d, g.accumulates ? read(to, d) + x : x);  // G8
  }

  // Infinities stay where all else is finite, which a bias need not be; NaN stays in any case.
  HEED_DEVICE void write_values(std::int64_t slab, std::int64_t slabs) const {
    const std::int64_t first = slab * 64, count = min(64, c.value_dim - first);
    const Row to = row_of(g.v, b, kv_head, c.sequence(b).first_key + j);
    const std::uint64_t known = is_unsure || c.bias.data ? of_values.nan : of_values.wild();
    for (int d = 0; d < count; ++d)
      if ((known >> d & 1) == 0 && !(keeps && is_finite(read(to, first + d)))) return;
    for (int d = 0; d < count; ++d) {
      if ((known >> d & 1) == 0) continue;
      const bool is_nan = (of_values.nan >> d & 1) != 0, is_plus = (of_values.plus >> d & 1) != 0;
      write_completed(to, first + d,
                      is_nan    ? __builtin_nanf("")
                      : is_plus ? -minus_infinity
                                : minus_infinity);
    }
    clear_mark(g.rows.unfinished_v, n * slabs + slab);
  }
  HEED_DEVICE void write_keys() const {
    const std::int64_t slabs = g.slabs(c.dim);
    const Row to = row_of(g.k, b, kv_head, c.sequence(b).first_key + j);
    for (std::int64_t slab = 0; slab < slabs; ++slab) {
      if (!is_marked(g.rows.unfinished_k, n * slabs + slab)) continue;
      for (std::int64_t d = slab * 64; d < min(slab * 64 + 64, c.dim); ++d)
        write_completed(to, d, __builtin_nanf(""));
      clear_mark(g.rows.unfinished_k, n * slabs + slab);
    }
  }

  const GradientCall& g;
  const Call& c;
  const bool keeps;
  Shared& shared;
  // Of this thread's key.
  std::int64_t n = 0, b = 0, kv_head = 0, j = 0;
  float length = 0;
  bool wants_scores = false, wants_values = false, has_nan_score = false, is_unsure = false;
  DimClasses of_values{};
};

}  // namespace heed::cuda
