// SPDX-License-Identifier: Apache-2.0
// See worked_example.hpp. A token is a list of features, and a head asks for some of them in others:
//   head 0  the word before           head 3  the same word elsewhere
//   head 1  the word after            head 4  the noun that a verb, an adjective or a pronoun is about
//   head 2  the first word            head 5  nothing: all words alike
// The keys of heads 0 and 1 are the same, so they can share a KV head and lose nothing. Others share at a
// price.
#include "worked_example.hpp"

#include <array>
#include <cmath>
#include <string_view>

namespace heed::tool {
namespace {

enum Kind { article, noun, verb, link, pronoun, adjective, stop };

struct Word {
  std::string_view text;
  Kind kind;
  int identity;  // equal for equal words
};

constexpr std::array<Word, 15> sentence = {{{"The", article, 0},
                                            {"cat", noun, 1},
                                            {"that", link, 2},
                                            {"chased", verb, 3},
                                            {"the", article, 0},
                                            {"mouse", noun, 4},
                                            {"sat", verb, 5},
                                            {"on", link, 6},
                                            {"the", article, 0},
                                            {"mat", noun, 7},
                                            {"because", link, 8},
                                            {"it", pronoun, 9},
                                            {"was", verb, 10},
                                            {"tired", adjective, 11},
                                            {".", stop, 12}}};

constexpr std::int64_t example_heads = 6, example_head_dim = 16;
constexpr std::array<float, 4> frequencies = {1.9F, 1.0F, 0.5F, 0.2F};
// Where a feature stands, both in a token and in the keys of the heads that look for it: positions in two by
// two.
enum Feature {
  position = 0,
  is_first = 8,
  identity = 9,
  is_noun = 15,
  is_one = 16,
  asks_for_noun = 17,
  features = 18
};

std::vector<float> token(std::size_t place) {
  const Word& word = sentence[place];
  std::vector<float> x(features);
  for (std::size_t f = 0; f < frequencies.size(); ++f) {
    x[position + 2 * f] = std::cos(frequencies[f] * static_cast<float>(place));
    x[position + 2 * f + 1] = std::sin(frequencies[f] * static_cast<float>(place));
  }
  x[is_first] = place == 0 ? 1.0F : 0.0F;
  // A pattern of signs for each word: equal ones agree in all six, others in about half.
  for (int bit = 0; bit < 6; ++bit)
    x[static_cast<std::size_t>(identity + bit)] =
        ((word.identity * 37 + 11) * (bit + 3) / 8) % 2 == 0 ? 1.0F : -1.0F;
  // The sentence is about its first noun.
  x[is_noun] = word.kind != noun ? 0.0F : place == 1 ? 1.0F : 0.65F;
  x[is_one] = 1;
  x[asks_for_noun] = word.kind == verb || word.kind == adjective || word.kind == pronoun ? 1.0F : 0.0F;
  return x;
}

// (example_heads * example_head_dim, features)
class Matrix {
 public:
  void connect(std::int64_t head, std::int64_t slot, std::int64_t feature, float gain) {
    values_[static_cast<std::size_t>((head * example_head_dim + slot) * features + feature)] = gain;
  }
  Array array() const { return Array::from_floats({example_heads * example_head_dim, features}, values_); }

 private:
  std::vector<float> values_ =
      std::vector<float>(static_cast<std::size_t>(example_heads * example_head_dim * features));
};

// A query of head 0 or 1 is its own position turned by one word.
void ask_for_neighbour(Matrix& w_q, Matrix& w_k, std::int64_t head, float words) {
  for (std::size_t f = 0; f < frequencies.size(); ++f) {
    const auto even = static_cast<std::int64_t>(position + 2 * f), odd = even + 1;
    const float turn = frequencies[f] * words, gain = 11;
    w_q.connect(head, even, even, gain * std::cos(turn));
    w_q.connect(head, even, odd, -gain * std::sin(turn));
    w_q.connect(head, odd, even, gain * std::sin(turn));
    w_q.connect(head, odd, odd, gain * std::cos(turn));
    w_k.connect(head, even, even, 1);
    w_k.connect(head, odd, odd, 1);
  }
}

LayerWeights example_weights(const LayerConfig& config) {
  Matrix w_q, w_k;
  ask_for_neighbour(w_q, w_k, 0, -1);
  ask_for_neighbour(w_q, w_k, 1, 1);
  w_q.connect(2, is_first, is_one, 18);
  w_k.connect(2, is_first, is_first, 1);
  for (std::int64_t bit = 0; bit < 6; ++bit) {
    w_q.connect(3, identity + bit, identity + bit, 5);
    w_k.connect(3, identity + bit, identity + bit, 1);
  }
  w_q.connect(4, is_noun, asks_for_noun, 20);
  w_k.connect(4, is_noun, is_noun, 1);
  LayerWeights weights = random_weights(config, 7);
  weights.w_q = w_q.array();
  weights.w_k = w_k.array();
  return weights;
}

}  // namespace

std::vector<std::string> example_sentence() {
  std::vector<std::string> words;
  for (const Word& word : sentence) words.emplace_back(word.text);
  return words;
}

LayerJob example_job(std::int64_t kv_heads) {
  LayerConfig config = multi_head(features, example_heads);
  config.head_dim = example_head_dim;
  LayerWeights weights = example_weights(config);
  if (kv_heads < example_heads) weights = pool_kv_heads(std::move(weights), example_heads, kv_heads);
  config.kv_heads = kv_heads;
  constexpr auto length = static_cast<std::int64_t>(sentence.size());
  LayerJob job{.extents = {.batch = 1,
                           .queries = length,
                           .keys = length,
                           .model_dim = features,
                           .heads = example_heads,
                           .kv_heads = kv_heads,
                           .head_dim = example_head_dim},
               .config = config,
               .weights = std::move(weights),
               .x = Buffer({1, 1, length, features})};
  for (std::size_t place = 0; place < sentence.size(); ++place) {
    const std::vector<float> x = token(place);
    for (std::size_t f = 0; f < features; ++f) job.x.set(place * features + f, x[f]);
  }
  return job;
}

}  // namespace heed::tool
