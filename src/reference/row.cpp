// SPDX-License-Identifier: Apache-2.0
// The specification that runs: textbook loops in the order of docs/spec.md, whose rules the comments name.
// Never optimised, never threaded; it shares no arithmetic with any kernel.
#include "reference/row.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "heed/half.hpp"
#include "softmax/philox.hpp"

namespace heed::reference {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::int64_t at(const Shape& stride, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  return b * stride.batch + h * stride.heads + i * stride.length + d * stride.dim;
}

// Query 0 stands beside key `offset` (S9).
std::int64_t offset(const Problem& p, std::optional<Align> align) {
  return align == Align::ends ? p.keys - p.queries : 0;
}

struct Sees {
  const Problem& p;
  std::int64_t b, h, i, j;

  bool operator()(const Causal& m) const { return j <= i + offset(p, m.align); }  // S9
  bool operator()(const Window& m) const {                                        // S10
    const std::int64_t own = i + offset(p, m.align);
    return own - j <= m.left && j - own <= m.right;
  }
  bool operator()(const KeyLengths& m) const { return j < m.valid[static_cast<std::size_t>(b)]; }  // S11
  bool operator()(const Keep& m) const { return value(m.where); }                                  // S17
  bool operator()(const Hide& m) const { return !value(m.where); }                                 // S17

  bool value(const BoolView& x) const {  // S11: an extent of 1 broadcasts
    return x.data[at(x.stride, x.shape.batch == 1 ? 0 : b, x.shape.heads == 1 ? 0 : h,
                     x.shape.length == 1 ? 0 : i, x.shape.dim == 1 ? 0 : j)];
  }
};

bool dropped(const Dropout& dropout, std::int64_t head, std::int64_t i, std::int64_t j) {  // S7
  return dropout_word(dropout.seed, head, i, j) < dropout_threshold(dropout.drop_probability);
}

// The score of key j at each stage.
void score(const Problem& p, Sees sees, Row& row) {
  const auto [b, h, i, j] = std::tuple(sees.b, sees.h, sees.i, sees.j);
  const auto k = static_cast<std::size_t>(j);
  double dot = 0;
  for (std::int64_t d = 0; d < p.dim; ++d)
    dot += read(p.inputs.q, b, h, i, d) * read(p.inputs.k, b, p.kv_head(h), j, d);         // S8
  row.raw[k] = dot * p.options.scale.value_or(1 / std::sqrt(static_cast<double>(p.dim)));  // S1
  const std::optional<float> c = p.options.softcap;
  row.softcapped[k] = c ? *c * std::tanh(row.raw[k] / *c) : row.raw[k];  // S2
  const double bias = p.bias ? read(*p.bias, b, h, i, j) : 0;
  const auto lets = [&](const Mask& mask) { return std::visit(sees, mask); };
  const bool visible = std::all_of(p.options.masks.begin(), p.options.masks.end(), lets);  // S4
  row.biased[k] = visible && bias != -infinity ? row.softcapped[k] + bias : -infinity;     // S3
}

}  // namespace

double read(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d) {
  const std::int64_t e = at(x.stride, b, h, i, d);
  if (x.dtype == DType::f16) return to_float(static_cast<const f16*>(x.data)[e]);
  if (x.dtype == DType::bf16) return to_float(static_cast<const bf16*>(x.data)[e]);
  return static_cast<const float*>(x.data)[e];
}

void write(const MutableView& x, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t d,
           double value) {  // S13
  const std::int64_t e = at(x.stride, b, h, i, d);
  const float rounded = static_cast<float>(value);
  if (x.dtype == DType::f16)
    static_cast<f16*>(x.data)[e] = from_float<f16>(rounded);
  else if (x.dtype == DType::bf16)
    static_cast<bf16*>(x.data)[e] = from_float<bf16>(rounded);
  else
    static_cast<float*>(x.data)[e] = rounded;
}

Row row(const Problem& p, std::int64_t b, std::int64_t h, std::int64_t i) {
  const auto keys = static_cast<std::size_t>(p.keys);
  const std::vector<double> zeros(keys, 0.0);
  Row r{zeros,    zeros, zeros, zeros, zeros, std::vector<double>(static_cast<std::size_t>(p.value_dim), 0.0),
        -infinity};
  for (std::int64_t j = 0; j < p.keys; ++j) score(p, {p, b, h, i, j}, r);
  const auto unseen = [](double s) { return s == -infinity; };
  const double sink = p.sink ? read(*p.sink, b, h, 0, 0) : -infinity;
  r.log_sum_exp = sink;                                                 // S12
  if (std::all_of(r.biased.begin(), r.biased.end(), unseen)) return r;  // S6, S14: the row sees no key
  double max = sink;
  for (const double s : r.biased) max = std::max(max, s);
  double sum = sink == -infinity ? 0 : std::exp(sink - max);  // S5
  for (const double s : r.biased) sum += std::exp(s - max);
  r.log_sum_exp = max + std::log(sum);  // S12
  for (std::int64_t j = 0; j < p.keys; ++j) {
    const auto k = static_cast<std::size_t>(j);
    if (unseen(r.biased[k])) continue;  // S4: its value is not read
    r.probability[k] = std::exp(r.biased[k] - max) / sum;
    r.weight[k] = r.probability[k];
    if (const auto& drop = p.options.dropout)
      r.weight[k] = dropped(*drop, b * p.heads + h, i, j) ? 0 : r.weight[k] / (1.0 - drop->drop_probability);
    for (std::int64_t d = 0; d < p.value_dim; ++d)
      r.out[static_cast<std::size_t>(d)] += r.weight[k] * read(p.inputs.v, b, p.kv_head(h), j, d);
  }
  return r;
}

void run(const Problem& p) {
  const auto copy = [](const std::vector<double>& from, const MutableView& to, auto... index) {
    for (std::size_t n = 0; n < from.size(); ++n) write(to, index..., static_cast<std::int64_t>(n), from[n]);
  };
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.queries; ++i) {
        const Row r = row(p, b, h, i);
        copy(r.out, p.outputs.out, b, h, i);
        if (p.outputs.weights) copy(r.weight, *p.outputs.weights, b, h, i);
        if (p.outputs.log_sum_exp) write(*p.outputs.log_sum_exp, b, h, i, 0, r.log_sum_exp);
        if (const auto& s = p.outputs.scores)
          copy(s->stage == Stage::raw          ? r.raw
               : s->stage == Stage::softcapped ? r.softcapped
                                               : r.biased,
               s->into, b, h, i);
      }
}

}  // namespace heed::reference
