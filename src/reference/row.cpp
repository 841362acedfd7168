// SPDX-License-Identifier: Apache-2.0
// The specification that runs: textbook loops in the order of docs/spec.md, whose rules the comments name.
// Never optimised, never threaded (a check shares its rows out itself); it shares no arithmetic with any
// kernel.
#include "reference/row.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "heed/half.hpp"
#include "softmax/philox.hpp"

namespace heed::reference {

Rows::Rows(const View& x) : stride_(bhsd(x.shape)) {
  numbers_.reserve(static_cast<std::size_t>(x.shape.elements()));
  for (std::int64_t b = 0; b < x.shape.batch; ++b)
    for (std::int64_t h = 0; h < x.shape.heads; ++h)
      for (std::int64_t i = 0; i < x.shape.length; ++i)
        for (std::int64_t d = 0; d < x.shape.dim; ++d) numbers_.push_back(read(x, b, h, i, d));
  if (x.shape.batch == 1) stride_.batch = 0;
}

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::int64_t at(const Strides& stride, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  return b * stride.batch + h * stride.heads + i * stride.length + d * stride.dim;
}

struct Sees {
  const Problem& p;
  const Sequence& s;
  std::int64_t b, h, i, j;

  // Query 0 stands beside key `offset` (S9); the last query beside the last key where nothing else is said
  // (S18).
  std::int64_t offset(std::optional<Align> align) const {
    return align == Align::starts ? 0 : s.keys - s.queries;
  }

  bool operator()(const Causal& m) const { return j <= i + offset(m.align); }  // S9
  bool operator()(const Window& m) const {                                     // S10
    const std::int64_t own = i + offset(m.align);
    return (own - j <= m.left || j < m.front) && j - own <= m.right;
  }
  bool operator()(const KeyLengths& m) const { return j < m.valid[static_cast<std::size_t>(b)]; }  // S11
  bool operator()(const Document& m) const {                                                       // S20
    const auto number = [this](std::span<const std::int32_t> ids, std::int64_t tokens, std::int64_t n) {
      return ids[static_cast<std::size_t>(std::ssize(ids) == tokens ? n : b * tokens + n)];
    };
    const std::int64_t own = i + offset(m.align),
                       queries = p.inputs.query_starts.empty() ? p.inputs.q.shape.length : p.queries;
    if (!m.query_ids.empty()) return number(m.ids, p.keys, j) == number(m.query_ids, queries, i);
    return own >= 0 && own < s.keys && number(m.ids, p.keys, j) == number(m.ids, p.keys, own);
  }
  bool operator()(const Keep& m) const { return value(m.where, j); }   // S17
  bool operator()(const Hide& m) const { return !value(m.where, j); }  // S17
  bool operator()(const Tree& m) const {                               // S18
    const std::int64_t drafted = j - (s.keys - s.queries);
    return drafted < 0 || value(m.where, drafted);
  }

  bool value(const BoolView& x, std::int64_t column) const {  // S11: an extent of 1 broadcasts
    const std::int64_t e = at(x.stride, x.shape.batch == 1 ? 0 : b, x.shape.heads == 1 ? 0 : h,
                              x.shape.length == 1 ? 0 : s.first_query + i, x.shape.dim == 1 ? 0 : column);
    return reinterpret_cast<const unsigned char*>(x.data)[e] != 0;  // S17: whatever byte somebody's true is
  }
};

}  // namespace

double alibi(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {  // S21
  if (!p.options.alibi) return 0;
  const auto& [slopes, align] = *p.options.alibi;
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  const std::int64_t own = i + (align == Align::starts ? 0 : s.keys - s.queries);
  const std::int64_t slope = std::ssize(slopes) == p.heads ? h : b * p.heads + h;
  return -slopes[static_cast<std::size_t>(slope)] * static_cast<float>(std::abs(own - j));
}

KeyScore score(const Problem& p, const double* q_row, const double* k_row, std::int64_t b, std::int64_t h,
               std::int64_t i, std::int64_t j) {
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  double dot = 0;
  for (std::int64_t d = 0; d < p.dim; ++d) dot += q_row[d] * k_row[d];
  const double raw = dot * *p.options.scale;  // S1
  const std::optional<double> c = p.options.softcap;
  const double softcapped = c ? *c * std::tanh(raw / *c) : raw;  // S2
  const double bias = p.bias ? read(*p.bias, b, h, s.first_query + i, j) : 0,
               from_alibi = alibi(p, b, h, i, j);
  const auto lets = [sees = Sees{p, s, b, h, i, j}](const Mask& mask) { return std::visit(sees, mask); };
  const bool visible = std::all_of(p.options.masks.begin(), p.options.masks.end(), lets);  // S4
  return {raw, softcapped,
          visible && bias != -infinity ? softcapped + from_alibi + bias : -infinity};  // S21, S3
}

bool dropped(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {  // S7
  const Dropout& dropout = *p.options.dropout;
  const std::int64_t head = p.place ? b * p.place->heads + p.place->first_head + h : b * p.heads + h;
  const std::uint32_t word = softmax::dropout_words(dropout.seed, head, i, j / 4).word[j % 4];
  return word < softmax::dropout_threshold(dropout.drop_probability);
}

double read(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  const std::int64_t e = at(x.stride, b, h, i, d);
  if (x.dtype == DType::f64) return static_cast<const double*>(x.data)[e];
  if (x.dtype == DType::f16) return to_float(static_cast<const f16*>(x.data)[e]);
  if (x.dtype == DType::bf16) return to_float(static_cast<const bf16*>(x.data)[e]);
  return static_cast<const float*>(x.data)[e];
}

void write(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d,
           double value) {  // S13
  const std::int64_t e = at(x.stride, b, h, i, d);
  const float rounded = static_cast<float>(value);
  if (x.dtype == DType::f64)
    static_cast<double*>(x.data)[e] = value;
  else if (x.dtype == DType::f16)
    static_cast<f16*>(x.data)[e] = from_float<f16>(rounded);
  else if (x.dtype == DType::bf16)
    static_cast<bf16*>(x.data)[e] = from_float<bf16>(rounded);
  else
    static_cast<float*>(x.data)[e] = rounded;
}

Row row(const Problem& p, const Numbers& numbers, std::int64_t b, std::int64_t h, std::int64_t i) {
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  const auto keys = static_cast<std::size_t>(p.keys);
  const std::vector<double> zeros(keys, 0.0), unseen_keys(keys, -infinity);
  Row r{zeros,    zeros, unseen_keys,
        zeros,    zeros, std::vector<double>(static_cast<std::size_t>(p.value_dim), 0.0),
        -infinity};
  const double* q_row = numbers.q(b, h, s.first_query + i);  // S19
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const double* k_row = numbers.k(b, p.kv_head(h), s.first_key + j);  // S8, S19
    const KeyScore found = score(p, q_row, k_row, b, h, i, j);
    const auto k = static_cast<std::size_t>(j);
    r.raw[k] = found.raw, r.softcapped[k] = found.softcapped, r.biased[k] = found.biased;
  }
  const auto unseen = [](double x) { return x == -infinity; };
  const double sink = p.sink ? read(*p.sink, b, h, 0, 0) : -infinity;
  r.log_sum_exp = sink;                                                 // S12
  if (std::all_of(r.biased.begin(), r.biased.end(), unseen)) return r;  // S6, S14: the row sees no key
  double max = sink;
  for (const double x : r.biased) max = std::max(max, x);
  double sum = sink == -infinity ? 0 : std::exp(sink - max);  // S5
  for (const double x : r.biased) sum += std::exp(x - max);
  r.log_sum_exp = max + std::log(sum);  // S12
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const auto k = static_cast<std::size_t>(j);
    if (unseen(r.biased[k])) continue;  // S4: its value is not read
    r.probability[k] = std::exp(r.biased[k] - max) / sum;
    r.weight[k] = r.probability[k];
    if (const auto& drop = p.options.dropout)
      r.weight[k] = dropped(p, b, h, i, j) ? 0 : r.weight[k] / (1.0 - drop->drop_probability);
    const double* v_row = numbers.v(b, p.kv_head(h), s.first_key + j);
    for (std::int64_t d = 0; d < p.value_dim; ++d)
      r.out[static_cast<std::size_t>(d)] += r.weight[k] * v_row[d];
  }
  return r;
}

void run(const Problem& p) {
  const auto copy = [](const std::vector<double>& from, const MutableView& to, auto... index) {
    for (std::size_t n = 0; n < from.size(); ++n) write(to, index..., static_cast<std::int64_t>(n), from[n]);
  };
  const Numbers numbers(p);
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].queries; ++i) {
        const Row r = row(p, numbers, b, h, i);
        const std::int64_t to = p.sequences[static_cast<std::size_t>(b)].first_query + i;  // S19
        copy(r.out, p.outputs.out, b, h, to);
        if (p.outputs.weights) copy(r.weight, *p.outputs.weights, b, h, to);
        if (p.outputs.log_sum_exp) write(*p.outputs.log_sum_exp, b, h, to, 0, r.log_sum_exp);
        if (const Scores& s = p.outputs.scores; s.into)
          copy(s.stage == Stage::raw          ? r.raw
               : s.stage == Stage::softcapped ? r.softcapped
                                              : r.biased,
               *s.into, b, h, to);
      }
}

}  // namespace heed::reference
