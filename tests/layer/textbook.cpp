// SPDX-License-Identifier: Apache-2.0
// The layer against its definition, y = concat(heads) * W_o^T + b_o, in double precision (S16).
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix rows_of(const View& x, std::int64_t b) {
  Matrix rows(static_cast<std::size_t>(x.shape.length));
  for (std::size_t t = 0; t < rows.size(); ++t)
    for (std::int64_t d = 0; d < x.shape.dim; ++d)
      rows[t].push_back(static_cast<const float*>(
          x.data)[b * x.stride.batch + static_cast<std::int64_t>(t) * x.stride.length + d * x.stride.dim]);
  return rows;
}

Matrix linear(const Matrix& x, const Array& w, const std::optional<Array>& bias) {
  const std::vector<float> weights = w.to_floats(), offsets = bias ? bias->to_floats() : std::vector<float>{};
  const auto out = static_cast<std::size_t>(w.shape[0]), in = static_cast<std::size_t>(w.shape[1]);
  Matrix y(x.size(), std::vector<double>(out));
  for (std::size_t t = 0; t < x.size(); ++t)
    for (std::size_t o = 0; o < out; ++o) {
      y[t][o] = offsets.empty() ? 0.0 : static_cast<double>(offsets[o]);
      for (std::size_t i = 0; i < in; ++i) y[t][o] += x[t][i] * static_cast<double>(weights[o * in + i]);
    }
  return y;
}

struct Case {
  LayerConfig config;  // every field given
  std::int64_t batch, queries, keys;
  bool has_biases, is_causal;
};

Matrix attend(const Case& c, const Matrix& q, const Matrix& k, const Matrix& v) {
  const auto heads = static_cast<std::size_t>(c.config.heads),
             kv_heads = static_cast<std::size_t>(*c.config.kv_heads);
  const auto dim = static_cast<std::size_t>(*c.config.head_dim);
  const auto value_dim = static_cast<std::size_t>(*c.config.value_head_dim);
  Matrix merged(q.size(), std::vector<double>(heads * value_dim));
  for (std::size_t h = 0; h < heads; ++h) {
    const std::size_t kv = c.config.head_map == HeadMap::tiled ? h % kv_heads : h / (heads / kv_heads);
    for (std::size_t i = 0; i < q.size(); ++i) {
      std::vector<double> weight(k.size());
      double sum = 0;
      for (std::size_t j = 0; j < k.size() && (!c.is_causal || j <= i); ++j) {
        double score = 0;
        for (std::size_t d = 0; d < dim; ++d) score += q[i][h * dim + d] * k[j][kv * dim + d];
        sum += weight[j] = std::exp(score / std::sqrt(static_cast<double>(dim)));
      }
      for (std::size_t j = 0; j < k.size(); ++j)
        for (std::size_t d = 0; d < value_dim; ++d)
          merged[i][h * value_dim + d] += weight[j] / sum * v[j][kv * value_dim + d];
    }
  }
  return merged;
}

std::vector<double> textbook(const Case& c, const LayerWeights& w, const AttentionLayer::Call& call) {
  std::vector<double> all;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const Matrix q = linear(rows_of(call.x, b), w.w_q, w.b_q),
                 k = linear(rows_of(*call.context, b), w.w_k, w.b_k);
    const Matrix v = linear(rows_of(*call.value, b), w.w_v, w.b_v);
    for (const std::vector<double>& row : linear(attend(c, q, k, v), w.w_o, w.b_o))
      all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

LayerConfig config(std::int64_t model, std::int64_t heads, std::int64_t kv_heads, std::int64_t head) {
  return {.model_dim = model,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head,
          .value_head_dim = head,
          .key_dim = model,
          .value_dim = model};
}

TEST(the_layer, equals_its_definition) {
  std::vector<Case> cases{
      {config(8, 2, 2, 4), 1, 3, 3, false, false}, {config(8, 4, 2, 2), 2, 5, 5, true, true},
      {config(12, 4, 1, 3), 2, 1, 7, true, false}, {config(6, 1, 1, 6), 3, 4, 2, false, false},
      {config(6, 3, 3, 5), 1, 2, 2, true, true},   {config(24, 6, 3, 4), 2, 9, 9, false, true}};
  cases.push_back({config(8, 4, 2, 2), 2, 4, 6, true, false});
  cases.back().config.head_map = HeadMap::tiled;
  cases.push_back({config(10, 4, 2, 3), 2, 3, 4, true, false});
  cases.back().config.key_dim = 7;
  cases.back().config.value_dim = 5;
  cases.back().config.value_head_dim = 2;
  std::int64_t failed = 0;
  for (std::size_t n = 0; n < cases.size(); ++n) {
    const Case& c = cases[n];
    const auto seed = static_cast<unsigned>(100 * n);
    LayerWeights w = random_weights(c.config, seed);
    if (c.has_biases) w = with_biases(w, seed);
    const Tensor x = random_tensor({c.batch, 1, c.queries, c.config.model_dim}, seed + 10);
    const Tensor keys = random_tensor({c.batch, 1, c.keys, *c.config.key_dim}, seed + 11);
    const Tensor values = random_tensor({c.batch, 1, c.keys, *c.config.value_dim}, seed + 12);
    std::vector<AttentionLayer::Call> calls{{.x = x.view(), .context = keys.view(), .value = values.view()}};
    if (c.config.key_dim == c.config.value_dim)
      calls.push_back({.x = x.view(), .context = keys.view(), .value = keys.view()});
    if (x.shape == keys.shape) calls.push_back({.x = x.view(), .context = x.view(), .value = x.view()});
    Options options;
    if (c.is_causal) options.masks.emplace_back(Causal{});
    for (const AttentionLayer::Call& call : calls) {
      const Tensor y = run(AttentionLayer(c.config, w), call, options);
      if (far_misses(y.values, textbook(c, w, call), 1e-5) == 0) continue;
      ++failed;
      ADD_FAILURE() << "case " << n << " differs from the definition";
    }
  }
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace heed::layer_tests
