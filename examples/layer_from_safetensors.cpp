// SPDX-License-Identifier: Apache-2.0
// A checkpoint on disk becomes a layer, and its twelve KV heads become six and then one by averaging, as the
// GQA paper does. With a path as argument the weights come from there (heads of 64), otherwise from a file
// this program writes.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <heed/heed.hpp>
#include <vector>

namespace {

constexpr std::int64_t head_dim = 64, tokens = 16;

// The tokens after the layer: every row a mixture of the rows before it.
std::vector<float> run(const heed::LayerConfig& config, const heed::LayerWeights& weights) {
  const heed::Shape shape{.length = tokens, .dim = config.model_dim};
  std::vector<float> x(static_cast<std::size_t>(shape.elements())), y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const heed::AttentionLayer layer(config, weights);
  layer({.x = {x, shape}}, {.out = {y, shape}}, {.masks = {heed::Causal{}}});
  return y;
}

void describe(const char* name, const heed::LayerConfig& config, const heed::LayerWeights& weights) {
  const auto parameters =
      weights.w_q.elements() + weights.w_k.elements() + weights.w_v.elements() + weights.w_o.elements();
  const auto y = run(config, weights);
  std::printf("%-14s %8lld %12lld   %9.6f %9.6f %9.6f\n", name, static_cast<long long>(*config.kv_heads),
              static_cast<long long>(parameters), y[0], y[1], y[2]);
}

}  // namespace

int main(int argc, char** argv) {
  const auto written = std::filesystem::temp_directory_path() / "heed_example_layer.safetensors";
  if (argc < 2) {
    const auto made = heed::random_weights(heed::multi_head(12 * head_dim, 12), 42);
    heed::write_safetensors(written, heed::to_arrays(made, heed::Naming::llama));
  }
  const heed::LayerWeights weights =
      heed::layer_weights(heed::read_safetensors(argc < 2 ? written : argv[1]));
  if (argc < 2) std::filesystem::remove(written);

  const std::int64_t model_dim = weights.w_q.shape[1], heads = weights.w_q.shape[0] / head_dim;
  std::printf("%-14s %8s %12s   %s\n", "", "KV heads", "parameters", "first outputs");
  describe("multi-head", heed::grouped_query(model_dim, heads, heads), weights);
  if (heads % 2 == 0) {
    describe("grouped-query", heed::grouped_query(model_dim, heads, heads / 2),
             heed::pool_kv_heads(weights, heads, heads / 2));
  }
  describe("multi-query", heed::grouped_query(model_dim, heads, 1), heed::pool_kv_heads(weights, heads, 1));
}
