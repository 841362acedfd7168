// SPDX-License-Identifier: Apache-2.0
// Generating text with a cache. A model of one attention layer chooses the next word over and over. Without a
// cache every word costs a pass over all the words before it; with one it costs a pass over itself, and the
// sentence is the same, to the bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <heed/heed.hpp>
#include <vector>

namespace {

constexpr std::array<const char*, 12> words{"the",   "cat", "sat",    "on",  "a",      "mat",
                                            "while", "it",  "rained", "and", "nobody", "noticed"};
constexpr std::int64_t model_dim = 64, sentence_length = 16;

// A word's vector: any will do as long as no two are alike.
std::vector<float> embedding(std::size_t word) {
  std::vector<float> x;
  for (std::int64_t d = 0; d < model_dim; ++d)
    x.push_back(std::sin(static_cast<float>((word + 1) * static_cast<std::size_t>(7 * d + 3))));
  return x;
}

// The word whose vector is most like y, the last one said aside.
std::size_t likeliest(const float* y, std::size_t last) {
  std::array<float, words.size()> score{};
  for (std::size_t word = 0; word < words.size(); ++word) {
    const std::vector<float> x = embedding(word);
    for (std::size_t d = 0; d < x.size(); ++d) score[word] += x[d] * y[d];
  }
  score[last] = -INFINITY;
  return static_cast<std::size_t>(std::max_element(score.begin(), score.end()) - score.begin());
}

struct RecordedCall {
  std::vector<std::size_t> sentence{0, 1, 2, 3};
  std::vector<float> last_row{};
  std::int64_t rows = 0;  // that went through the layer
};

// With a cache only the words that the layer has not seen yet go in; without one, all of them.
RecordedCall tell(const heed::AttentionLayer& layer, heed::KvCache* cache) {
  RecordedCall told;
  while (std::ssize(told.sentence) < sentence_length) {
    std::vector<float> x, y;
    const std::int64_t first = cache ? cache->length(0) : 0;
    for (std::size_t n = static_cast<std::size_t>(first); n < told.sentence.size(); ++n) {
      const std::vector<float> word = embedding(told.sentence[n]);
      x.insert(x.end(), word.begin(), word.end());
    }
    y.resize(x.size());
    const heed::Shape shape{.length = std::ssize(told.sentence) - first, .dim = model_dim};
    layer({.x = {x, shape}, .cache = cache}, {.out = {y, shape}}, {.masks = {heed::Causal{}}});
    told.rows += shape.length;
    told.last_row.assign(y.end() - model_dim, y.end());
    told.sentence.push_back(likeliest(told.last_row.data(), told.sentence.back()));
  }
  return told;
}

}  // namespace

int main() {
  heed::LayerConfig config = heed::grouped_query(model_dim, 8, 2);
  config.rotary = heed::Rotary{};
  const heed::AttentionLayer layer(config, heed::random_weights(config, 5));
  heed::KvCache cache({.kv_heads = 2, .capacity = sentence_length, .dim = model_dim / 8});

  const RecordedCall again = tell(layer, nullptr), once = tell(layer, &cache);
  for (const std::size_t word : once.sentence) std::printf("%s ", words[word]);
  std::printf("\n\n%-28s %4d rows through the layer\n",
              "all words again each time:", static_cast<int>(again.rows));
  std::printf("%-28s %4d rows, and %d bytes per word kept\n",
              "each word once, with a cache:", static_cast<int>(once.rows),
              static_cast<int>(cache.bytes_per_token()));

  const bool same = again.sentence == once.sentence && again.last_row == once.last_row;
  std::printf("\nthe two sentences are %s\n", same ? "the same, to the bit" : "DIFFERENT");
  return same ? 0 : 1;
}
