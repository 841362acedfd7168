// SPDX-License-Identifier: Apache-2.0
// See verify.hpp.
#include "bench/verify.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "heed/check.hpp"

namespace heed::tool {
namespace {

constexpr std::int64_t samples = 8;

struct Place {
  std::int64_t batch, head, query;
};

// Where a query's row of a bias or mask begins; an extent of 1 is shared.
Shape row_of(const Shape& shape, Place at) {
  return {shape.batch == 1 ? 0 : at.batch, shape.heads == 1 ? 0 : at.head, shape.length == 1 ? 0 : at.query,
          0};
}

// The options as one query meets them. A causal one sees only the keys it is given.
Options of_query(const Options& all, Place at) {
  Options own;
  if (all.bias) own.bias = part_of(*all.bias, row_of(all.bias->shape, at), {1, 1, 1, all.bias->shape.dim});
  for (const Mask& mask : all.masks) {
    const Keep* keep = std::get_if<Keep>(&mask);
    if (!keep) continue;
    BoolView row = keep->where;
    row.data += offset_of(row_of(row.shape, at), row.stride);
    row.shape = {1, 1, 1, row.shape.dim};
    own.masks.emplace_back(Keep{row});
  }
  return own;
}

bool is_causal(const Options& options) {
  return std::any_of(options.masks.begin(), options.masks.end(),
                     [](const Mask& mask) { return std::holds_alternative<Causal>(mask); });
}

Findings verify_query(const Inputs& inputs, const View& out, Place at, const Options& options) {
  const std::int64_t kv_head = at.head / (inputs.q.shape.heads / inputs.k.shape.heads);
  const std::int64_t keys = is_causal(options) ? at.query + 1 : inputs.k.shape.length;
  const auto one_row = [&](const View& view) {
    return part_of(view, {at.batch, at.head, at.query, 0}, {1, 1, 1, view.shape.dim});
  };
  const auto seen = [&](const View& view) {
    return part_of(view, {at.batch, kv_head, 0, 0}, {1, 1, keys, view.shape.dim});
  };
  const Check found = check({.q = one_row(inputs.q), .k = seen(inputs.k), .v = seen(inputs.v)},
                            {.out = one_row(out)}, of_query(options, at));
  return {.compared = found.compared,
          .misses = found.beyond_bound,
          .worst_in_bounds = found.worst_error_in_bounds,
          .first_miss = found.first_miss.empty() ? ""
                                                 : fmt::format("batch {}, head {}, query {}: {}", at.batch,
                                                               at.head, at.query, found.first_miss)};
}

using Vector = std::vector<double>;

// rows [first, first + count) of a (rows, in) matrix times x
Vector times(const std::vector<float>& matrix, std::int64_t first, std::int64_t count, const Vector& x) {
  Vector y(static_cast<std::size_t>(count));
  const float* w = matrix.data() + static_cast<std::size_t>(first) * x.size();
  for (double& sum : y)
    for (const double element : x) sum += static_cast<double>(*w++) * element;
  return y;
}

double largest_magnitude(const Vector& row) {
  double largest = 0;
  for (const double element : row) largest = std::max(largest, std::abs(element));
  return largest;
}

// The same rows transposed times q, of as many entries as there are rows.
Vector transposed_times(const std::vector<float>& matrix, std::int64_t first, const Vector& q,
                        std::size_t in) {
  Vector y(in);
  const float* w = matrix.data() + static_cast<std::size_t>(first) * in;
  for (const double element : q)
    for (double& sum : y) sum += static_cast<double>(*w++) * element;
  return y;
}

// The layer over one sequence in double precision, one query at a time. Keys and values are never formed:
// q . (W_k x_j) = (W_k^T q) . x_j and sum_j p_j (W_v x_j) = W_v (sum_j p_j x_j), which takes
// milliseconds instead of seconds.
class ReferenceLayer {
 public:
  explicit ReferenceLayer(const LayerRun& run)
      : config_(run.config),
        w_q_(run.weights.w_q.to_floats()),
        w_k_(run.weights.w_k.to_floats()),
        w_v_(run.weights.w_v.to_floats()),
        w_o_(run.weights.w_o.to_floats()),
        x_(run.x.to_floats()),
        length_(run.x.shape().length),
        width_(static_cast<std::size_t>(run.x.shape().dim)) {}

  Vector row(std::int64_t batch, std::int64_t query) const {
    const Vector x = token(batch, query);
    const std::int64_t dim = *config_.head_dim, group = config_.heads / *config_.kv_heads;
    Vector context;
    for (std::int64_t head = 0; head < config_.heads; ++head) {
      const std::int64_t kv_row = head / group * dim;
      Vector q = times(w_q_, head * dim, dim, x);
      for (double& element : q) element /= std::sqrt(static_cast<double>(dim));
      const Vector mean = weighted_token(batch, transposed_times(w_k_, kv_row, q, width_));
      const Vector out = times(w_v_, kv_row, dim, mean);
      context.insert(context.end(), out.begin(), out.end());
    }
    return times(w_o_, 0, config_.model_dim, context);
  }

 private:
  const float* token_data(std::int64_t batch, std::int64_t position) const {
    return x_.data() + static_cast<std::size_t>(batch * length_ + position) * width_;
  }
  Vector token(std::int64_t batch, std::int64_t position) const {
    const float* data = token_data(batch, position);
    return {data, data + width_};
  }

  // sum_j softmax_j(direction . x_j) x_j
  Vector weighted_token(std::int64_t batch, const Vector& direction) const {
    Vector scores(static_cast<std::size_t>(length_));
    for (std::int64_t j = 0; j < length_; ++j) {
      const float* x = token_data(batch, j);
      for (std::size_t d = 0; d < width_; ++d) scores[static_cast<std::size_t>(j)] += direction[d] * x[d];
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    Vector sum(width_);
    double total = 0;
    for (std::int64_t j = 0; j < length_; ++j) {
      const double weight = std::exp(scores[static_cast<std::size_t>(j)] - largest);
      const float* x = token_data(batch, j);
      for (std::size_t d = 0; d < width_; ++d) sum[d] += weight * x[d];
      total += weight;
    }
    for (double& element : sum) element /= total;
    return sum;
  }

  const LayerConfig& config_;
  std::vector<float> w_q_, w_k_, w_v_, w_o_, x_;
  std::int64_t length_;
  std::size_t width_;
};

// How far rounding may take an element, as a share of its row's largest. In f32: one unit for every step of
// the longest chain of sums, two projections deep and through the scores and the keys. In 16 bits also one
// for each time a result is stored: query or key, value, context, output.
double relative_bound(const LayerRun& run, DType dtype) {
  const auto steps =
      static_cast<double>(2 * run.config.model_dim + *run.config.head_dim + run.x.shape().length);
  const double stored = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0;
  return steps * 0x1p-24 + 4 * stored;
}

DType read_as(CacheType type) {
  return type == CacheType::f16 ? DType::f16 : type == CacheType::bf16 ? DType::bf16 : DType::f32;
}

// A sequence as attention sees it.
struct Contents {
  Contents(const KvCache& cache, std::int64_t sequence)
      : k({1, cache.config().kv_heads, cache.length(sequence), cache.config().dim},
          read_as(cache.config().type)),
        v({1, cache.config().kv_heads, cache.length(sequence), *cache.config().value_dim},
          read_as(cache.config().type)) {
    cache.read(sequence, k.writable(), v.writable());
  }
  Buffer k, v;
};

View batch_entry(const View& view, std::int64_t b) {
  return part_of(view, {b, 0, 0, 0}, {1, view.shape.heads, view.shape.length, view.shape.dim});
}

// One head of one query over the keys and values of its KV head, each (length, dim).
Vector attend(const Vector& q, const float* k, const float* v, std::int64_t length) {
  const std::size_t dim = q.size();
  Vector scores(static_cast<std::size_t>(length));
  for (double& score : scores) {
    for (std::size_t d = 0; d < dim; ++d) score += q[d] * static_cast<double>(*k++);
    score /= std::sqrt(static_cast<double>(dim));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  Vector out(dim);
  double total = 0;
  for (const double score : scores) {
    const double weight = std::exp(score - largest);
    for (double& sum : out) sum += weight * static_cast<double>(*v++);
    total += weight;
  }
  for (double& element : out) element /= total;
  return out;
}

// The last token's keys or values of every head are its projection: one unit of rounding for every step.
Findings verify_last_token(const std::vector<float>& held, const Shape& shape,
                           const std::vector<float>& matrix, const Vector& x) {
  const Vector expected = times(matrix, 0, shape.heads * shape.dim, x);
  const double bound = static_cast<double>(x.size()) * 0x1p-24 * largest_magnitude(expected);
  Findings findings;
  for (std::int64_t h = 0; h < shape.heads; ++h)
    for (std::int64_t d = 0; d < shape.dim; ++d) {
      const std::int64_t at = (h * shape.length + shape.length - 1) * shape.dim + d;
      findings.add(verify_element({held[static_cast<std::size_t>(at)],
                                   expected[static_cast<std::size_t>(h * shape.dim + d)],
                                   bound,
                                   {0, h, shape.length - 1, d}}));
    }
  return findings;
}

}  // namespace

void Findings::add(const Findings& other) {
  compared += other.compared;
  misses += other.misses;
  worst_in_bounds = std::max(worst_in_bounds, other.worst_in_bounds);
  if (first_miss.empty()) first_miss = other.first_miss;
}

std::set<std::int64_t> spread_over(std::int64_t count) {
  std::set<std::int64_t> chosen;
  for (std::int64_t n = 0; count > 0 && n < samples; ++n) chosen.insert(n * (count - 1) / (samples - 1));
  return chosen;
}

Findings verify_attention(const Inputs& inputs, const View& computed, const Options& options) {
  const Shape& shape = computed.shape;
  Findings findings;
  for (const std::int64_t row : spread_over(shape.batch * shape.heads * shape.length)) {
    const std::int64_t head = row / shape.length;
    findings.add(verify_query(inputs, computed, {head / shape.heads, head % shape.heads, row % shape.length},
                              options));
  }
  return findings;
}

Findings verify_element(const Compared& element) {
  const double error = std::abs(element.found - element.expected);
  Findings one{.compared = 1, .worst_in_bounds = error / element.bound};
  if (error <= element.bound) return one;
  one.misses = 1;
  one.first_miss =
      fmt::format("out({}, {}, {}) is {}, the reference says {}, the bound is {:.3g}", element.at.batch,
                  element.at.length, element.at.dim, element.found, element.expected, element.bound);
  return one;
}

Findings verify_layer(const LayerRun& run) {
  const ReferenceLayer reference(run);
  const std::vector<float> y = run.y.to_floats();
  const Shape& shape = run.y.shape();
  const double share = relative_bound(run, run.y.view().dtype);
  Findings findings;
  for (const std::int64_t row : spread_over(shape.batch * shape.length)) {
    const Vector expected = reference.row(row / shape.length, row % shape.length);
    const double bound = share * largest_magnitude(expected);
    for (std::size_t d = 0; d < expected.size(); ++d) {
      const double found = y[static_cast<std::size_t>(row) * expected.size() + d];
      const Shape at{row / shape.length, 0, row % shape.length, static_cast<std::int64_t>(d)};
      findings.add(verify_element({found, expected[d], bound, at}));
    }
  }
  return findings;
}

Findings verify_written(const Buffer& computed) {
  const std::vector<float> values = computed.to_floats();
  Findings findings{.compared = static_cast<std::int64_t>(values.size())};
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    if (findings.misses++ == 0)
      findings.first_miss = fmt::format("element {} of the result is {}", i, values[i]);
  }
  return findings;
}

Findings verify_cached(const KvCache& cache, const View& q, const View& computed) {
  Findings findings;
  for (const std::int64_t b : spread_over(computed.shape.batch)) {
    const Contents held(cache, b);
    findings.add(verify_attention({.q = batch_entry(q, b), .k = held.k.view(), .v = held.v.view()},
                                  batch_entry(computed, b), {}));
  }
  return findings;
}

Findings verify_step(const StepRun& run) {
  const LayerConfig& c = run.config;
  const Contents held(run.cache, 0);
  const std::vector<float> k = held.k.to_floats(), v = held.v.to_floats(), token = run.x.to_floats();
  const Vector x(token.begin(), token.end());
  const std::int64_t dim = *c.head_dim, length = held.k.shape().length;
  Findings findings = verify_last_token(k, held.k.shape(), run.weights.w_k.to_floats(), x);
  findings.add(verify_last_token(v, held.v.shape(), run.weights.w_v.to_floats(), x));

  const Vector q = times(run.weights.w_q.to_floats(), 0, c.heads * dim, x);
  Vector joined;
  for (std::int64_t h = 0; h < c.heads; ++h) {
    const std::int64_t first = h / (c.heads / *c.kv_heads) * length * dim;
    const Vector out =
        attend({q.begin() + h * dim, q.begin() + (h + 1) * dim}, k.data() + first, v.data() + first, length);
    joined.insert(joined.end(), out.begin(), out.end());
  }
  const Vector expected = times(run.weights.w_o.to_floats(), 0, c.model_dim, joined);
  // As for a whole layer: one for every step of the longest chain of sums.
  const double share = static_cast<double>(2 * c.model_dim + dim + length) * 0x1p-24;
  const double bound = share * largest_magnitude(expected);
  const std::vector<float> y = run.y.to_floats();
  for (std::size_t d = 0; d < expected.size(); ++d)
    findings.add(verify_element({y[d], expected[d], bound, {0, 0, 0, static_cast<std::int64_t>(d)}}));
  return findings;
}

}  // namespace heed::tool
