// SPDX-License-Identifier: Apache-2.0
// Attention once more, in double precision, from the numbered rules alone: what the library's own reference
// is judged by.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "cases/call.hpp"

namespace heed::cases {

struct OracleRow {
  std::vector<double> raw, softcapped, biased;  // biased is -inf where a key is unseen
  std::vector<double> magnitude;           // scale * sum of |q||k|, what rounding errors of a score grow with
  std::vector<double> weight;              // after dropout
  std::vector<double> out, out_magnitude;  // sum of weight * v, and of weight * |v|
  std::vector<double> largest_value;       // of |v| among the visible keys
  double log_sum_exp = -std::numeric_limits<double>::infinity();
  std::int64_t visible = 0;
};

// Which weights survive dropout: the rules leave the random words to the generator, so a test brings the
// pattern along.
using Survives = std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)>;

inline void oracle_scores(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i, OracleRow& row) {
  const std::int64_t dim = call.q.shape().dim;
  const double scale = call.scale ? *call.scale
                       : dim == 0 ? 1
                                  : 1 / std::sqrt(static_cast<double>(dim));  // S1
  std::vector<double> query;
  for (std::int64_t d = 0; d < dim; ++d) query.push_back(call.q.at(b, h, i, d));
  const std::int64_t kv_head = call.kv_head(h);
  for (std::int64_t j = 0; j < call.keys(); ++j) {
    double dot = 0, magnitude = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      const double product =
          query[static_cast<std::size_t>(d)] * static_cast<double>(call.k.at(b, kv_head, j, d));
      dot += product;
      magnitude += std::abs(product);
    }
    row.raw.push_back(scale * dot);
    row.magnitude.push_back(std::abs(scale) * magnitude);
    row.softcapped.push_back(call.softcap ? *call.softcap * std::tanh(row.raw.back() / *call.softcap)
                                          : row.raw.back());
    const bool seen = call.sees(b, h, i, j);
    const double bias = call.bias && seen ? call.bias_at(b, h, i, j) : 0.0;
    const double linear = call.alibi_at(b, h, i, j);
    row.biased.push_back(seen ? row.softcapped.back() + linear + bias
                              : -std::numeric_limits<double>::infinity());
    row.visible += seen ? 1 : 0;
  }
}

inline OracleRow oracle_row(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i,
                            const Survives& survives = {}) {
  OracleRow row;
  const auto width = static_cast<std::size_t>(call.v.shape().dim);
  row.out.assign(width, 0.0);
  row.out_magnitude.assign(width, 0.0);
  row.largest_value.assign(width, 0.0);
  oracle_scores(call, b, h, i, row);
  row.weight.assign(row.raw.size(), 0.0);
  double sink = -std::numeric_limits<double>::infinity();
  if (call.sink)
    sink = call.sink->at(call.sink->shape().batch == 1 ? 0 : b, call.sink->shape().heads == 1 ? 0 : h, 0, 0);
  row.log_sum_exp = sink;  // S6, S12: without a key only the sink is in the sum
  if (row.visible == 0) return row;

  double largest = sink;
  for (double s : row.biased) largest = std::max(largest, s);
  double sum = std::isinf(sink) ? 0.0 : std::exp(sink - largest);  // S5
  for (std::size_t j = 0; j < row.raw.size(); ++j)
    if (call.sees(b, h, i, static_cast<std::int64_t>(j))) sum += std::exp(row.biased[j] - largest);
  row.log_sum_exp = largest + std::log(sum);
  const double kept = call.dropout ? 1.0 - call.dropout->drop_probability : 1.0;
  for (std::int64_t j = 0; j < call.keys(); ++j) {
    if (!call.sees(b, h, i, j)) continue;  // S4
    const auto n = static_cast<std::size_t>(j);
    if (!survives || survives(b, h, i, j))
      row.weight[n] = std::exp(row.biased[n] - largest) / sum / kept;  // S7
    for (std::size_t d = 0; d < width; ++d) {
      const double v = call.v.at(b, call.kv_head(h), j, static_cast<std::int64_t>(d));
      row.out[d] += row.weight[n] * v;
      row.out_magnitude[d] += row.weight[n] * std::abs(v);
      row.largest_value[d] = std::max(row.largest_value[d], std::abs(v));
    }
  }
  return row;
}

}  // namespace heed::cases
