// SPDX-License-Identifier: Apache-2.0
// A small causal transformer: embeddings, blocks of attention and a two-layer perceptron, each after a norm
// and added to the stream, and a projection to the vocabulary. heed's layer is the attention; the rest is
// written here.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "heed/layer.hpp"
#include "products.hpp"

namespace train {

struct ModelConfig {
  std::int64_t vocabulary = 0, dim = 32, heads = 4, kv_heads = 4, layers = 2, hidden = 64;

  // What a key and a value of one token take in a cache of f32, over all layers.
  std::int64_t cache_bytes() const { return 2 * layers * kv_heads * (dim / heads) * 4; }
};

// A weight, its gradient, and its name.
struct Weight {
  std::string name;
  std::span<float> values, gradient;
};

// (batch, length) tokens, and the token to be predicted at each of them; below 0: none. A token may have
// another beside it in its place: both embeddings are added.
struct Batch {
  std::int64_t batch = 0, length = 0;
  std::vector<std::int32_t> tokens{}, targets{}, beside{};
};

struct Score {
  double loss = 0;                     // nats, averaged over the targets
  std::int64_t hits = 0, targets = 0;  // how often the likeliest token was the right one
  double accuracy() const { return targets ? static_cast<double>(hits) / static_cast<double>(targets) : 0; }
};

class Model {
 public:
  Model(const ModelConfig&, std::uint64_t seed);

  const ModelConfig& config() const { return config_; }
  std::vector<Weight> weights();  // by name, always in the same order
  void use_changed_weights();     // after an optimiser changed them

  Score score(const Batch&);          // forward only
  Score differentiate(const Batch&);  // and the gradients, in place of those of the step before

  // The same model with fewer KV heads, each the mean of those it replaces.
  Model pooled(std::int64_t kv_heads) const;

 private:
  struct Dense {
    std::string name;
    Floats values, gradient;
  };
  struct Norm {
    Dense gain;
    Floats input, inverse;  // kept for the way back
  };
  struct Block {
    Norm before_attention, before_perceptron;
    heed::AttentionLayer attention;
    heed::AttentionLayer::Activations activations;
    Dense up, down;
    Floats normed, middle, active;  // kept for the way back
  };

  static Dense make_dense(const std::string& name, std::int64_t in, std::int64_t out, std::uint64_t seed);
  void normalise(const Floats& x, Norm&, Floats& y) const;
  void normalise_back(const Floats& dy, Norm&, Floats& dx) const;
  void forward(const Batch&);
  void backward(const Batch&);
  enum class Pass : std::uint8_t { forward, both };
  Score judge(const Batch&, Pass);
  heed::AttentionLayer::Call call_of(Block&) const;

  ModelConfig config_;
  Dense embedding_, head_;
  std::vector<Block> blocks_;
  Norm last_norm_;
  std::int64_t batch_ = 0, length_ = 0;
  Floats stream_, stream_gradient_, logits_;
};

}  // namespace train
