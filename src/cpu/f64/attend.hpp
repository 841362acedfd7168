// SPDX-License-Identifier: Apache-2.0
// Attention in f64: a panel of queries against all keys, a block of keys at a time. A panel's scores lie
// (key, row), rows side by side in vectors, so that a row is a lane and no sum crosses lanes. Keys and values
// are read where they lie, with any strides. One task is one panel (cpu/f64/driver.cpp).
#pragma once
#include <cstdint>

#include "cpu/f64/call.hpp"
#include "cpu/f64/vector.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"
#include "softmax/philox.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

constexpr double f64_minus_infinity = -__builtin_inf();

inline bool is_number(double x) { return __builtin_isfinite(x); }

// Elements of any type.
inline double f64_read(const Tensor& t, std::int64_t element) {
  return t.type == Type::f64 ? static_cast<const double*>(t.data)[element]
                             : static_cast<double>(read({t.data, element, 1, t.type}, 0));
}
inline void f64_write(const Tensor& t, std::int64_t element, double x) {
  if (t.type == Type::f64)
    static_cast<double*>(const_cast<void*>(t.data))[element] = x;
  else
    write({t.data, element, 1, t.type}, 0, static_cast<float>(x));
}
inline std::int64_t f64_element(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i,
                                std::int64_t d) {
  return b * t.stride.batch + h * t.stride.heads + i * t.stride.length + d * t.stride.dim;
}

// What one query sees, and what is added to its scores.
struct F64Query {
  const Call& c;
  const Sequence& s;
  const std::int64_t b, h, i;
  // The keys of its band, after the first c.front.
  const std::int64_t begin = max(std::int64_t{0}, i + s.first_offset),
                     end = min(s.key_count, i + s.end_offset);

  bool is_in_band(std::int64_t j) const { return j < end && (j >= begin || j < c.front); }

  bool sees(std::int64_t j) const {
    if (!is_in_band(j)) return false;
    for (std::int64_t n = 0; n < c.gap_count; ++n)
      if (const Gap& gap = c.gaps[n * c.batch + b]; j >= gap.front && j < i + gap.first_offset) return false;
    for (std::int64_t n = 0; n < c.document_count; ++n)
      if (!is_of_document(c.documents[n], j)) return false;
    for (std::int64_t n = 0; n < c.mask_count; ++n)
      if (!is_shown_by(c.masks[n], j)) return false;
    return true;
  }

  // With ALiBi and the bias; -inf where the bias hides the key.
  double finished(double score, std::int64_t j) const {
    if (c.alibi.of_heads) {
      const std::int64_t own = i + (c.alibi.queries_are_last ? s.keys - s.queries : 0);
      const auto distance = static_cast<float>(own < j ? j - own : own - j);
      score += static_cast<double>(-c.alibi.of_heads[b * c.alibi.step + h] * distance);
    }
    if (!c.bias.data) return score;
    const double bias = f64_read(c.bias, f64_element(c.bias, b, h, s.first_query + i, j));
    return bias == f64_minus_infinity ? bias : score + bias;
  }

 private:
  bool is_of_document(const DocumentIds& ids, std::int64_t j) const {
    const std::int32_t* const keys = ids.keys + b * ids.keys_step;
    if (ids.queries) return keys[j] == ids.queries[b * ids.queries_step + i];
    const std::int64_t own = i + (ids.queries_are_last ? s.keys - s.queries : 0);
    return own >= 0 && own < s.keys && keys[j] == keys[own];
  }
  bool is_shown_by(const BoolTensor& mask, std::int64_t j) const {
    const std::int64_t column = mask.is_tree ? j - (s.keys - s.queries) : j;
    if (column < 0) return true;
    const std::int64_t e = f64_element(mask.where, b, h, s.first_query + i, column);
    return (static_cast<const unsigned char*>(mask.where.data)[e] != 0) == mask.visible_when;
  }
};

struct F64Keys {
  std::int64_t first, count;
};

inline F64Factor transposed(const F64Factor& x) { return {x.data, x.term, x.column}; }

enum class Writing : std::uint8_t { nothing, scores };

// Whether a result is what a kernel writes where it could not finish: -inf is also a hidden key's score.
inline bool needs_repair(double x, bool may_be_hidden) {
  return !is_number(x) && !(may_be_hidden && x == f64_minus_infinity);
}

// The queries of a panel, and the scores of a block of keys.
template <class D>
struct F64Scores {
  using F = typename D::F;

  const Call& c;
  const F64Panel& panel;
  const Sequence& s;
  const std::int64_t width;  // rows, in whole vectors: the last may belong to no query
  // The keys that the band shows to any row, after the first `front`.
  const std::int64_t begin, end;
  double* const q;  // (dim, width)

  static std::int64_t doubles(const Call& c) { return c.dim * f64_panel_rows; }

  F64Scores(const Call& call, const F64Panel& at, double* memory)
      : c(call),
        panel(at),
        s(call.sequences[at.batch_entry]),
        width(round_up(at.queries, D::lanes)),
        begin(query(0).begin),
        end(query(at.queries - 1).end),
        q(memory) {
    transpose(c.q, c.dim, q);
  }

  F64Query query(std::int64_t r) const {
    const F64Row row = panel.row(r);
    return {c, s, panel.batch_entry, row.head, row.query};
  }

  // A tensor's rows of these queries, (dim, width); 0 for rows of no query.
  void transpose(const Tensor& t, std::int64_t dim, double* to) const {
    for (std::int64_t r = 0; r < width; ++r) {
      const bool is_query = r < panel.queries;
      const std::int64_t e = is_query ? place(t, r, 0) : 0;
      for (std::int64_t d = 0; d < dim; ++d)
        to[d * width + r] = is_query ? f64_read(t, e + d * t.stride.dim) : 0;
    }
  }
  double element(const Tensor& t, std::int64_t row, std::int64_t d) const {
    return f64_read(t, place(t, row, d));
  }
  std::int64_t place(const Tensor& t, std::int64_t r, std::int64_t d) const {
    const F64Row row = panel.row(r);
    return f64_element(t, panel.batch_entry, row.head, s.first_query + row.query, d);
  }

  // Keys and values: where they lie, which is in f64; for repair a copy, of pages too.
  F64Factor k_of(const F64Keys& keys, double* copy) const {
    return rows_of<key_row, key_scales>(c.k, keys, c.dim, copy);
  }
  F64Factor v_of(const F64Keys& keys, double* copy) const {
    return rows_of<value_row, value_scales>(c.v, keys, c.value_dim, copy);
  }

  bool sees_any(const F64Keys& keys) const {
    return keys.first < end && (keys.first + keys.count > begin || keys.first < c.front);
  }

  // s(key, row), -inf where a key is not seen; with a softcap also t / cap, of which the slope is made.
  void compute(const F64Keys& keys, const F64Factor& k, Writing writing, double* scores,
               double* capped = nullptr) const {
    multiply<D>({q, width, k, keys.count, c.dim, scores}, Sums::begin);
    const std::int64_t count = keys.count * width;
    for (std::int64_t n = 0; n < count; n += D::lanes) {
      const F product = D::load(scores + n);
      // Fused sums that overflow may be infinite where rounded ones are NaN: repair says which.
      // fault: opposite-overflow-is-infinite
      const F known =
          D::repairs ? product : (product - product == F{} ? product : D::fill(__builtin_nan("")));
      D::store(scores + n, known * c.scale);
    }
    write_at(ScoreStage::raw, keys, writing, scores);
    if (c.cap != 0)
      for (std::int64_t n = 0; n < count; ++n) {
        const double t = __builtin_tanh(scores[n] / c.cap);
        scores[n] = c.cap * t;
        if (capped) capped[n] = D::repairs ? scores[n] / c.cap : t;
      }
    write_at(ScoreStage::softcapped, keys, writing, scores);
    for (std::int64_t r = 0; r < panel.queries; ++r) finish_row(query(r), keys, scores + r);
    write_at(ScoreStage::biased, keys, writing, scores);
  }

  // Whether dropout keeps the weight of a key.
  bool keeps(std::int64_t r, std::int64_t j) const {
    const F64Row row = panel.row(r);
    const std::int64_t head = panel.batch_entry * c.all_heads + c.first_head + row.head;
    const softmax::Words words = softmax::dropout_words(c.seed, head, row.query, j / 4);
    return words.word[j % 4] >= c.drop_below;
  }
  double keep_scale() const { return 1 / (1.0 - c.drop_probability); }

 private:
  template <Row (*row_at)(const Call&, std::int64_t, std::int64_t, std::int64_t),
            const float* (*scales_at)(const Call&, std::int64_t, std::int64_t, std::int64_t)>
  F64Factor rows_of(const Tensor& t, const F64Keys& keys, std::int64_t dim, double* copy) const {
    const std::int64_t b = panel.batch_entry, kv_head = c.kv_head(panel.head);
    if constexpr (!D::repairs) {
      const std::int64_t e = f64_element(t, b, kv_head, s.first_key + keys.first, 0);
      return {static_cast<const double*>(t.data) + e, t.stride.length, t.stride.dim};
    } else {
      for (std::int64_t n = 0; n < keys.count; ++n) {
        const Row row = row_at(c, b, kv_head, keys.first + n);
        const float scale = c.layout.is_quantized ? *scales_at(c, b, kv_head, keys.first + n) : 1.0f;
        for (std::int64_t d = 0; d < dim; ++d)
          copy[n * dim + d] = t.type == Type::f64 ? f64_read(t, row.first + d * row.step)
                                                  : static_cast<double>(read(row, d) * scale);
      }
      return {copy, dim, 1};
    }
  }

  void finish_row(const F64Query& row, const F64Keys& keys, double* scores) const {
    const bool is_only_band = c.gap_count + c.document_count + c.mask_count == 0;
    const bool adds = c.alibi.of_heads || c.bias.data;
    if (is_only_band && !adds && row.begin <= keys.first && keys.first + keys.count <= row.end) return;
    for (std::int64_t n = 0; n < keys.count; ++n) {
      double& score = scores[n * width];
      const std::int64_t j = keys.first + n;
      if (!(is_only_band ? row.is_in_band(j) : row.sees(j)))
        score = f64_minus_infinity;
      else if (adds)
        score = row.finished(score, j);
    }
  }

  void write_at(ScoreStage stage, const F64Keys& keys, Writing writing, const double* scores) const {
    if (writing == Writing::nothing || stage != c.stage) return;
    for (std::int64_t r = 0; r < panel.queries; ++r)
      for (std::int64_t n = 0; n < keys.count; ++n) {
        const double score = scores[n * width + r];
        const std::int64_t e = place(c.scores, r, keys.first + n);
        const bool may_be_hidden = c.stage == ScoreStage::biased;
        if (D::repairs && !needs_repair(f64_read(c.scores, e), may_be_hidden)) continue;
        f64_write(c.scores, e, score);
        if (needs_repair(score, may_be_hidden)) ask_for_repair(c);
      }
  }
};

template <Vector S>
class F64Attend {
  using D = Doubles<S>;
  using F = typename D::F;

 public:
  static std::int64_t doubles(const Call& c) {
    return F64Scores<D>::doubles(c) + (f64_block_keys + c.value_dim + 3) * f64_panel_rows;
  }

  F64Attend(const Call& call, const F64Panel& at, double* memory)
      : c(call),
        rows(call, at, memory),
        p(memory + F64Scores<D>::doubles(call)),
        out(p + f64_block_keys * f64_panel_rows),
        max(out + call.value_dim * f64_panel_rows),
        sum(max + f64_panel_rows),
        factor(sum + f64_panel_rows) {}

  void run() {
    const std::int64_t width = rows.width;
    for (std::int64_t n = 0; n < c.value_dim * width; ++n) out[n] = 0;
    for (std::int64_t r = 0; r < width; ++r) max[r] = f64_minus_infinity, sum[r] = 0;
    const bool writes_scores = c.stage != ScoreStage::none;
    for_each_block(writes_scores ? rows.s.keys : rows.end, [&](const F64Keys& keys) {
      const bool is_seen = rows.sees_any(keys);
      if (!writes_scores && !is_seen) return;
      rows.compute(keys, rows.k_of(keys, nullptr), Writing::scores, p);
      if (is_seen) add({keys.first, min(keys.count, rows.end - keys.first)});
    });
    add_sink();
    write();
    if (c.weights.data) write_weights();
    if (writes_scores) write_scores_of_no_key();
  }

 private:
  template <class Body>
  void for_each_block(std::int64_t end, const Body& body) const {
    for (std::int64_t first = 0; first < end; first += f64_block_keys)
      body(F64Keys{first, min(f64_block_keys, end - first)});
  }

  // What is subtracted from scores: 0 where nothing was seen yet, so that -inf stays -inf.
  static F finite(F x) { return x == f64_minus_infinity ? F{} : x; }

  // A block's scores become weights, and their values are added.
  void add(const F64Keys& keys) {
    const std::int64_t width = rows.width;
    bool moves = false;
    for (std::int64_t w = 0; w < width; w += D::lanes) {
      const F before = D::load(max + w);
      F highest = before;
      for (std::int64_t n = 0; n < keys.count; ++n) {
        const F score = D::load(p + n * width + w);
        highest = score > highest ? score : highest;
      }
      const F base = finite(highest),
              rescaled = before == highest ? D::fill(1) : exponential<D>(before - base);
      F total = D::load(sum + w) * rescaled;
      for (std::int64_t n = 0; n < keys.count; ++n) {
        const F weight = exponential<D>(D::load(p + n * width + w) - base);
        total += weight;
        D::store(p + n * width + w, weight);
      }
      D::store(max + w, highest), D::store(sum + w, total), D::store(factor + w, rescaled);
      for (int n = 0; n < D::lanes; ++n) moves |= rescaled[n] != 1;
    }
    if (c.drop_probability > 0) drop(keys);
    if (moves)
      for (std::int64_t d = 0; d < c.value_dim; ++d)
        for (std::int64_t w = 0; w < width; w += D::lanes)
          D::store(out + d * width + w, D::load(out + d * width + w) * D::load(factor + w));
    const F64Factor v = rows.v_of(keys, nullptr);
    multiply<D>({p, width, transposed(v), c.value_dim, keys.count, out}, Sums::go_on);
  }

  void drop(const F64Keys& keys) {
    for (std::int64_t r = 0; r < rows.panel.queries; ++r)
      for (std::int64_t n = 0; n < keys.count; ++n)
        p[n * rows.width + r] *= rows.keeps(r, keys.first + n) ? rows.keep_scale() : 0;
  }

  // One more logit in the denominator. A row that sees no key keeps a sum of 0 (S6).
  void add_sink() {
    if (!c.sink.data) return;
    const double sink = f64_read(c.sink, f64_element(c.sink, rows.panel.batch_entry, rows.panel.head, 0, 0));
    for (std::int64_t r = 0; r < rows.panel.queries; ++r) {
      if (max[r] == f64_minus_infinity && sum[r] == 0) {
        max[r] = sink;
        continue;
      }
      const double highest = sink > max[r] ? sink : max[r];
      factor[r] = __builtin_exp(max[r] - highest);
      for (std::int64_t d = 0; d < c.value_dim; ++d) out[d * rows.width + r] *= factor[r];
      sum[r] = sum[r] * factor[r] + (sink == f64_minus_infinity ? 0 : __builtin_exp(sink - highest));
      max[r] = highest;
    }
  }

  void write() {
    for (std::int64_t r = 0; r < rows.panel.queries; ++r) {
      const bool sees_none = sum[r] == 0;
      const std::int64_t e = rows.place(c.out, r, 0);
      bool is_finished = true;
      for (std::int64_t d = 0; d < c.value_dim; ++d) {
        const double x = sees_none ? 0 : out[d * rows.width + r] / sum[r];
        is_finished &= is_number(x);
        f64_write(c.out, e + d * c.out.stride.dim, x);
      }
      const double lse = sees_none ? max[r] : max[r] + __builtin_log(sum[r]);
      if (c.log_sum_exp.data) f64_write(c.log_sum_exp, rows.place(c.log_sum_exp, r, 0), lse);
      if (!is_finished || __builtin_isnan(lse)) ask_for_repair(c);
    }
  }

  // The scores once more, now that their maximum and sum are known.
  void write_weights() {
    for_each_block(c.keys, [&](const F64Keys& keys) {
      const std::int64_t known = min(keys.count, rows.s.keys - keys.first);
      const bool is_seen = known > 0 && rows.sees_any(keys);
      if (is_seen) rows.compute({keys.first, known}, rows.k_of(keys, nullptr), Writing::nothing, p);
      for (std::int64_t r = 0; r < rows.panel.queries; ++r)
        for (std::int64_t n = 0; n < keys.count; ++n) {
          const double score = is_seen && n < known ? p[n * rows.width + r] : f64_minus_infinity;
          f64_write(c.weights, rows.place(c.weights, r, keys.first + n), weight(r, keys.first + n, score));
        }
    });
  }
  double weight(std::int64_t r, std::int64_t j, double score) {
    if (score == f64_minus_infinity || sum[r] == 0) return 0;
    double x = __builtin_exp(score - max[r]) / sum[r];
    if (c.drop_probability > 0) x *= rows.keeps(r, j) ? rows.keep_scale() : 0;
    if (!is_number(x)) ask_for_repair(c);
    return x;
  }

  // Columns beyond the keys of a sequence that is not the longest.
  void write_scores_of_no_key() {
    for (std::int64_t r = 0; r < rows.panel.queries; ++r)
      for (std::int64_t j = rows.s.keys; j < c.keys; ++j)
        f64_write(c.scores, rows.place(c.scores, r, j),
                  c.stage == ScoreStage::biased ? f64_minus_infinity : 0);
  }

  const Call& c;
  F64Scores<D> rows;
  double *const p, *const out, *const max, *const sum, *const factor;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
