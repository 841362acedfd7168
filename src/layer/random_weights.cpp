// SPDX-License-Identifier: Apache-2.0
// Weights for a layer that has none, from a counter-based generator: element n of matrix m is word n % 4 of
// philox({n / 4, m}, seed), the same on every machine.
#include <cmath>

#include "layer/config.hpp"
#include "softmax/philox.hpp"

namespace heed::inline v0_2 {
using namespace layer;

namespace {

// The 2^24 odd multiples of 2^-24 in (-1, 1): symmetric, and exact in float.
float symmetric_uniform(std::uint32_t word) {
  return static_cast<float>(2 * static_cast<std::int32_t>(word >> 8) + 1 - (1 << 24)) * 0x1p-24f;
}

Array random_matrix(std::int64_t out, std::int64_t in, std::uint32_t matrix, std::uint64_t seed) {
  const auto largest = static_cast<float>(1 / std::sqrt(static_cast<double>(in)));
  std::vector<float> values(static_cast<std::size_t>(out * in));
  for (std::size_t n = 0; n < values.size(); n += 4) {
    const std::uint64_t four = n / 4;
    const softmax::Words words = softmax::philox(
        {static_cast<std::uint32_t>(four), static_cast<std::uint32_t>(four >> 32), matrix, 0}, seed);
    for (std::size_t i = 0; i < 4 && n + i < values.size(); ++i)
      values[n + i] = symmetric_uniform(words.word[i]) * largest;
  }
  return Array::from_floats({out, in}, values);
}

}  // namespace

LayerWeights random_weights(const LayerConfig& config, std::uint64_t seed) {
  const LayerConfig c = complete(config);
  return {.w_q = random_matrix(query_width(c), c.model_dim, 0, seed),
          .w_k = random_matrix(key_width(c), *c.key_dim, 1, seed),
          .w_v = random_matrix(value_width(c), *c.value_dim, 2, seed),
          .w_o = random_matrix(c.model_dim, merged_width(c), 3, seed)};
}

}  // namespace heed::inline v0_2
