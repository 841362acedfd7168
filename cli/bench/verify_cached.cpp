// SPDX-License-Identifier: Apache-2.0
// See verify_cached.hpp.
#include "bench/verify_cached.hpp"

#include "bench/vectors.hpp"

namespace heed::tool {
namespace {

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

View batch_entry(View view, std::int64_t b) {
  view.data = static_cast<const std::byte*>(view.data) +
              b * view.stride.batch * static_cast<std::int64_t>(bytes_of(view.dtype));
  view.shape.batch = 1;
  return view;
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
