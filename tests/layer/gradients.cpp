// SPDX-License-Identifier: Apache-2.0
// The layer's gradients against finite differences of its definition in double precision (G10).
#include "layer/backward.hpp"

namespace heed::layer_tests {
namespace {

using Numbers = std::vector<double>;

Numbers doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

// A call's inputs and weights as doubles by name, and a loss: out and the log-sum-exp, weighted by
// `out_gradient` and `lse_gradient`.
struct Textbook {
  const Case& c;
  const LayerConfig& config;  // complete
  std::map<std::string, Numbers> arguments{};
  Numbers out_gradient{}, lse_gradient{};
  Numbers applied{};                         // weights with dropout of one call; empty: no dropout
  std::vector<std::vector<Numbers>> turn{};  // (position, dim, dim); empty: no rotary

  const Numbers& of(const std::string& name) const { return arguments.at(name); }
  const Numbers& context() const { return c.has_context ? of("context") : of("x"); }
  const Numbers& value() const { return c.has_value ? of("value") : context(); }

  Numbers linear(const Numbers& x, std::int64_t rows, const char* which) const {
    const std::string suffix(1, which[0]);
    const Numbers& w = of("w_" + suffix);
    const auto found = arguments.find("b_" + suffix);
    const auto in = static_cast<std::int64_t>(x.size()) / rows,
               out = static_cast<std::int64_t>(w.size()) / in;
    Numbers y(static_cast<std::size_t>(rows * out));
    for (std::int64_t t = 0; t < rows; ++t)
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = found == arguments.end() ? 0 : found->second[static_cast<std::size_t>(o)];
        for (std::int64_t i = 0; i < in; ++i)
          sum += x[static_cast<std::size_t>(t * in + i)] * w[static_cast<std::size_t>(o * in + i)];
        y[static_cast<std::size_t>(t * out + o)] = sum;
      }
    return y;
  }

  // Heads of token t at position t % length.
  void rotate_all(Numbers& x, std::int64_t length) const {
    if (turn.empty()) return;
    const auto dim = static_cast<std::size_t>(*config.head_dim);
    const std::size_t heads_of_token = x.size() / dim / static_cast<std::size_t>(c.batch * length);
    for (std::size_t n = 0; n * dim < x.size(); ++n) {
      const std::size_t position = n / heads_of_token % static_cast<std::size_t>(length);
      Numbers turned(dim);
      for (std::size_t d = 0; d < dim; ++d)
        for (std::size_t e = 0; e < dim; ++e) turned[e] += x[n * dim + d] * turn[position][d][e];
      std::copy(turned.begin(), turned.end(), x.begin() + static_cast<std::ptrdiff_t>(n * dim));
    }
  }

  double loss() const {
    Numbers q = linear(of("x"), c.batch * c.queries, "q"), k = linear(context(), c.batch * c.keys, "k");
    const Numbers v = linear(value(), c.batch * c.keys, "v");
    rotate_all(q, c.queries);
    rotate_all(k, c.keys);
    const std::int64_t heads = config.heads, kv_heads = *config.kv_heads, dim = *config.head_dim,
                       value_dim = *config.value_head_dim;
    Numbers merged(static_cast<std::size_t>(c.batch * c.queries * heads * value_dim));
    double loss = 0;
    for (std::int64_t row = 0; row < c.batch * heads * c.queries; ++row) {
      const std::int64_t b = row / (heads * c.queries), h = row / c.queries % heads, i = row % c.queries,
                         kv = config.head_map == HeadMap::tiled ? h % kv_heads : h / (heads / kv_heads);
      Numbers weight(static_cast<std::size_t>(c.keys));
      double sum = 0;
      for (std::int64_t j = 0; j < (c.is_causal ? i + 1 : c.keys); ++j) {
        double score = 0;
        for (std::int64_t d = 0; d < dim; ++d)
          score += q[static_cast<std::size_t>(((b * c.queries + i) * heads + h) * dim + d)] *
                   k[static_cast<std::size_t>(((b * c.keys + j) * kv_heads + kv) * dim + d)];
        sum += weight[static_cast<std::size_t>(j)] = std::exp(score / std::sqrt(static_cast<double>(dim)));
      }
      loss += std::log(sum) * lse_gradient[static_cast<std::size_t>(row)];
      for (std::int64_t j = 0; j < c.keys; ++j) {
        double a = weight[static_cast<std::size_t>(j)] / sum;
        if (!applied.empty())
          a *= applied[static_cast<std::size_t>(row * c.keys + j)] == 0
                   ? 0
                   : 1 / (1 - static_cast<double>(config.drop_probability));
        for (std::int64_t d = 0; d < value_dim; ++d)
          merged[static_cast<std::size_t>(((b * c.queries + i) * heads + h) * value_dim + d)] +=
              a * v[static_cast<std::size_t>(((b * c.keys + j) * kv_heads + kv) * value_dim + d)];
      }
    }
    const Numbers out = linear(merged, c.batch * c.queries, "o");
    for (std::size_t n = 0; n < out.size(); ++n) loss += out[n] * out_gradient[n];
    return loss;
  }

  Numbers differences(const std::string& name) {
    constexpr double step = 1e-5;
    Numbers found;
    for (double& number : arguments.at(name)) {
      const double before = number;
      number = before + step;
      const double above = loss();
      number = before - step;
      found.push_back((above - loss()) / (2 * step));
      number = before;
    }
    return found;
  }
};

// How heed turns the unit vectors, for every position.
std::vector<std::vector<Numbers>> turns_of(const LayerConfig& config, std::int64_t length) {
  std::vector<std::vector<Numbers>> turns(static_cast<std::size_t>(length));
  const std::int64_t dim = *config.head_dim;
  for (std::int64_t p = 0; p < length; ++p)
    for (std::int64_t d = 0; d < dim; ++d) {
      Tensor unit = filled({1, 1, 1, dim}, 0);
      unit.values[static_cast<std::size_t>(d)] = 1;
      rotate(unit.mutable_view(), std::vector<std::int64_t>{p}, *config.rotary,
             std::vector<std::int64_t>{length});
      turns[static_cast<std::size_t>(p)].push_back(doubles(unit.values));
    }
  return turns;
}

Textbook textbook_of(Backward& run) {
  Textbook book{run.c, run.layer.config()};
  book.arguments["x"] = doubles(run.x.values);
  if (run.c.has_context) book.arguments["context"] = doubles(run.context.values);
  if (run.c.has_value) book.arguments["value"] = doubles(run.value.values);
  for (const Parameter& parameter : run.layer.parameters())
    book.arguments[parameter.name] = doubles(floats_of(parameter));
  book.out_gradient = doubles(run.out_gradient.values);
  book.lse_gradient = doubles(run.lse_gradient.values);
  if (run.c.config.rotary) book.turn = turns_of(run.layer.config(), std::max(run.c.queries, run.c.keys));
  if (run.c.dropout_seed) {
    Tensor applied = output({run.c.batch, run.c.config.heads, run.c.queries, run.c.keys});
    run.layer(run.call(), {.out = run.out.mutable_view(), .weights = applied.mutable_view()}, run.options());
    book.applied = doubles(applied.values);
  }
  return book;
}

TEST(the_gradients_of_a_layer, are_the_finite_differences_of_its_definition) {
  unsigned seed = 1000;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Backward run(c, seed += 100);
    Textbook book = textbook_of(run);
    run.layer.backward(run.call(), run.gradients(), run.options());
    for (const auto& [name, values] : run.found()) {
      SCOPED_TRACE(name);
      EXPECT_EQ(far_misses(values, book.differences(name), 2e-5), 0);
    }
  }
}

}  // namespace
}  // namespace heed::layer_tests
