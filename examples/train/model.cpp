// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include <algorithm>
#include <cmath>

#include "random.hpp"

namespace train {
namespace {

const heed::Options causal{.masks = {heed::Causal{}}};

heed::LayerConfig layer_config(const ModelConfig& c) {
  heed::LayerConfig layer = heed::grouped_query(c.dim, c.heads, c.kv_heads);
  layer.rotary = heed::Rotary{};
  return layer;
}

void add(const Floats& from, Floats& into) {
  for (std::size_t n = 0; n < from.size(); ++n) into[n] += from[n];
}

// body(token, row of the embedding) for every row that a token's place is the sum of.
template <class Body>
void for_each_embedding(const Batch& b, const Body& body) {
  for (const std::vector<std::int32_t>* rows : {&b.tokens, &b.beside})
    for (std::size_t t = 0; t < rows->size(); ++t)
      if ((*rows)[t] >= 0) body(static_cast<std::int64_t>(t), (*rows)[t]);
}

}  // namespace

Model::Dense Model::make_dense(const std::string& name, std::int64_t in, std::int64_t out,
                               std::uint64_t seed) {
  Dense dense{name, Floats(static_cast<std::size_t>(in * out)), Floats(static_cast<std::size_t>(in * out))};
  const float bound = 1 / std::sqrt(static_cast<float>(in));
  Random random(seed);
  for (float& value : dense.values) value = bound * (2 * random.uniform() - 1);
  return dense;
}

Model::Model(const ModelConfig& c, std::uint64_t seed)
    : config_(c),
      embedding_(make_dense("embedding", c.vocabulary, c.dim, seed + 1)),
      head_(make_dense("head", c.dim, c.vocabulary, seed + 2)) {
  const auto norm = [&](const std::string& name) {
    return Norm{
        {name, Floats(static_cast<std::size_t>(c.dim), 1.0f), Floats(static_cast<std::size_t>(c.dim))},
        {},
        {}};
  };
  for (float& value : embedding_.values) value *= std::sqrt(static_cast<float>(c.vocabulary) / 3);
  for (std::int64_t n = 0; n < c.layers; ++n) {
    const std::string name = "block" + std::to_string(n) + ".";
    const std::uint64_t own = seed + 10 * static_cast<std::uint64_t>(n + 1);
    blocks_.push_back({norm(name + "attention.norm"),
                       norm(name + "perceptron.norm"),
                       heed::AttentionLayer(layer_config(c), heed::random_weights(layer_config(c), own)),
                       {},
                       make_dense(name + "perceptron.up", c.dim, c.hidden, own + 1),
                       make_dense(name + "perceptron.down", c.hidden, c.dim, own + 2),
                       {},
                       {},
                       {}});
  }
  last_norm_ = norm("norm");
}

std::vector<Weight> Model::weights() {
  std::vector<Weight> all;
  const auto put = [&](Dense& dense) { all.push_back({dense.name, dense.values, dense.gradient}); };
  put(embedding_);
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    Block& block = blocks_[n];
    put(block.before_attention.gain);
    const std::vector<heed::Parameter> parameters = block.attention.parameters(),
                                       gradients = block.attention.gradients();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto count = static_cast<std::size_t>(parameters[i].values.shape.elements());
      all.push_back({"block" + std::to_string(n) + ".attention." + parameters[i].name,
                     {static_cast<float*>(parameters[i].values.data), count},
                     {static_cast<float*>(gradients[i].values.data), count}});
    }
    put(block.before_perceptron.gain);
    put(block.up);
    put(block.down);
  }
  put(last_norm_.gain);
  put(head_);
  return all;
}

void Model::use_changed_weights() {
  for (Block& block : blocks_) block.attention.update();
}

heed::AttentionLayer::Call Model::call_of(Block& block) const {
  return {.x = {block.normed, {.batch = batch_, .length = length_, .dim = config_.dim}},
          .activations = &block.activations};
}

// Root mean square, with a gain.
void Model::normalise(const Floats& x, Norm& norm, Floats& y) const {
  const auto dim = static_cast<std::size_t>(config_.dim);
  norm.input = x;
  norm.inverse.resize(x.size() / dim);
  y.resize(x.size());
  for (std::size_t t = 0; t < norm.inverse.size(); ++t) {
    float sum = 0;
    for (std::size_t d = 0; d < dim; ++d) sum += x[t * dim + d] * x[t * dim + d];
    norm.inverse[t] = 1 / std::sqrt(sum / static_cast<float>(dim) + 1e-6f);
    for (std::size_t d = 0; d < dim; ++d)
      y[t * dim + d] = x[t * dim + d] * norm.inverse[t] * norm.gain.values[d];
  }
}

// Adds to dx.
void Model::normalise_back(const Floats& dy, Norm& norm, Floats& dx) const {
  const auto dim = static_cast<std::size_t>(config_.dim);
  for (std::size_t t = 0; t < norm.inverse.size(); ++t) {
    const float inverse = norm.inverse[t];
    const float *x = norm.input.data() + t * dim, *from = dy.data() + t * dim;
    float along = 0;
    for (std::size_t d = 0; d < dim; ++d) {
      norm.gain.gradient[d] += from[d] * x[d] * inverse;
      along += from[d] * norm.gain.values[d] * x[d];
    }
    along *= inverse * inverse * inverse / static_cast<float>(dim);
    for (std::size_t d = 0; d < dim; ++d)
      dx[t * dim + d] += from[d] * norm.gain.values[d] * inverse - x[d] * along;
  }
}

void Model::forward(const Batch& b) {
  batch_ = b.batch, length_ = b.length;
  const std::int64_t tokens = b.batch * b.length, dim = config_.dim;
  stream_.assign(static_cast<std::size_t>(tokens * dim), 0.0f);
  for_each_embedding(b, [&](std::int64_t token, std::int64_t row) {
    for (std::int64_t d = 0; d < dim; ++d)
      stream_[static_cast<std::size_t>(token * dim + d)] +=
          embedding_.values[static_cast<std::size_t>(row * dim + d)];
  });
  Floats made(stream_.size());
  for (Block& block : blocks_) {
    normalise(stream_, block.before_attention, block.normed);
    block.attention(call_of(block), {.out = {made, {.batch = b.batch, .length = b.length, .dim = dim}}},
                    causal);
    add(made, stream_);
    Floats normed;
    normalise(stream_, block.before_perceptron, normed);
    block.middle.resize(static_cast<std::size_t>(tokens * config_.hidden));
    multiply({tokens, dim, config_.hidden}, normed.data(), block.up.values.data(), block.middle.data());
    block.active = block.middle;
    for (float& x : block.active) x = std::max(x, 0.0f);
    multiply({tokens, config_.hidden, dim}, block.active.data(), block.down.values.data(), made.data());
    add(made, stream_);
  }
  Floats normed;
  normalise(stream_, last_norm_, normed);
  logits_.resize(static_cast<std::size_t>(tokens * config_.vocabulary));
  multiply({tokens, dim, config_.vocabulary}, normed.data(), head_.values.data(), logits_.data());
  stream_ = std::move(normed);
}

// The loss; on the way back, logits_ become its gradient.
Score Model::judge(const Batch& b, Pass pass) {
  Score score;
  const auto vocabulary = static_cast<std::size_t>(config_.vocabulary);
  for (const std::int32_t target : b.targets) score.targets += target >= 0 ? 1 : 0;
  for (std::size_t t = 0; t < b.targets.size(); ++t) {
    float* row = logits_.data() + t * vocabulary;
    if (b.targets[t] < 0) {
      std::fill_n(row, vocabulary, 0.0f);
      continue;
    }
    const auto answer = static_cast<std::size_t>(b.targets[t]);
    const float largest = *std::max_element(row, row + vocabulary);
    score.hits += row[answer] == largest ? 1 : 0;
    float sum = 0;
    for (std::size_t n = 0; n < vocabulary; ++n) sum += std::exp(row[n] - largest);
    score.loss += static_cast<double>(largest + std::log(sum) - row[answer]);
    if (pass == Pass::forward) continue;
    for (std::size_t n = 0; n < vocabulary; ++n)
      row[n] = (std::exp(row[n] - largest) / sum - (n == answer ? 1.0f : 0.0f)) /
               static_cast<float>(score.targets);
  }
  score.loss /= static_cast<double>(std::max<std::int64_t>(score.targets, 1));
  return score;
}

void Model::backward(const Batch& b) {
  const std::int64_t tokens = b.batch * b.length, dim = config_.dim;
  const heed::Shape shape{.batch = b.batch, .length = b.length, .dim = dim};
  add_outer({tokens, dim, config_.vocabulary}, stream_.data(), logits_.data(), head_.gradient.data());
  Floats gained(static_cast<std::size_t>(tokens * dim)), middle, normed;
  multiply_back({tokens, dim, config_.vocabulary}, logits_.data(), head_.values.data(), gained.data());
  stream_gradient_.assign(gained.size(), 0.0f);
  normalise_back(gained, last_norm_, stream_gradient_);
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
    middle.resize(block->middle.size());
    add_outer({tokens, config_.hidden, dim}, block->active.data(), stream_gradient_.data(),
              block->down.gradient.data());
    multiply_back({tokens, config_.hidden, dim}, stream_gradient_.data(), block->down.values.data(),
                  middle.data());
    for (std::size_t n = 0; n < middle.size(); ++n)
      if (block->middle[n] <= 0) middle[n] = 0;
    normed.resize(gained.size());
    for (std::size_t t = 0; t < block->before_perceptron.inverse.size(); ++t)
      for (std::size_t d = 0; d < static_cast<std::size_t>(dim); ++d) {
        const std::size_t n = t * static_cast<std::size_t>(dim) + d;
        normed[n] = block->before_perceptron.input[n] * block->before_perceptron.inverse[t] *
                    block->before_perceptron.gain.values[d];
      }
    add_outer({tokens, dim, config_.hidden}, normed.data(), middle.data(), block->up.gradient.data());
    multiply_back({tokens, dim, config_.hidden}, middle.data(), block->up.values.data(), gained.data());
    normalise_back(gained, block->before_perceptron, stream_gradient_);
    block->attention.backward(call_of(*block), {.out = {stream_gradient_, shape}, .x = {gained, shape}},
                              causal);
    normalise_back(gained, block->before_attention, stream_gradient_);
  }
  for_each_embedding(b, [&](std::int64_t token, std::int64_t row) {
    for (std::int64_t d = 0; d < dim; ++d)
      embedding_.gradient[static_cast<std::size_t>(row * dim + d)] +=
          stream_gradient_[static_cast<std::size_t>(token * dim + d)];
  });
}

Score Model::score(const Batch& b) {
  forward(b);
  return judge(b, Pass::forward);
}

Score Model::differentiate(const Batch& b) {
  for (const Weight& weight : weights()) std::fill(weight.gradient.begin(), weight.gradient.end(), 0.0f);
  forward(b);
  const Score score = judge(b, Pass::both);
  backward(b);
  return score;
}

Model Model::pooled(std::int64_t kv_heads) const {
  ModelConfig fewer = config_;
  fewer.kv_heads = kv_heads;
  Model made(fewer, 0);
  made.embedding_ = embedding_;
  made.head_ = head_;
  made.last_norm_ = last_norm_;
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    Block& to = made.blocks_[n];
    const Block& from = blocks_[n];
    to.before_attention = from.before_attention;
    to.before_perceptron = from.before_perceptron;
    to.up = from.up;
    to.down = from.down;
    to.attention = heed::AttentionLayer(
        layer_config(fewer), heed::pool_kv_heads(from.attention.weights(), config_.kv_heads, kv_heads));
  }
  return made;
}

}  // namespace train
