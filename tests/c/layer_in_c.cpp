// SPDX-License-Identifier: Apache-2.0
// A pretrained layer from C is the layer, its scaled rotary included.
#include "c/in_c.hpp"
#include "files/scratch_folder.hpp"
#include "heed/pretrained.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

class layer_in_c : public test::ScratchFolder {
 protected:
  // A model of one layer with this rotary scaling.
  static void save_model(const std::string& scaling, const std::string& kind = "llama") {
    std::filesystem::create_directory("m");
    test::put_file("m/config.json", R"({"model_type": ")" + kind + R"(", "hidden_size": 16,
      "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 256,
      "sliding_window": 8, "rope_scaling": )" +
                                        scaling + "}");
    Arrays named;
    for (auto& [name, array] : to_arrays(random_weights(grouped_query(16, 4, 2), 1), Naming::llama))
      named["model.layers.0.self_attn." + name] = array;
    write_safetensors("m/model.safetensors", named);
  }

  static heed_layer* load() {
    heed_layer* layer = nullptr;
    EXPECT_EQ(heed_layer_from_pretrained("m", 0, &layer), HEED_OK) << heed_last_error();
    return layer;
  }

  static std::vector<float> answer(const heed_layer* layer, const Tensor& x, heed_cache* cache) {
    Tensor y = output(x.shape);
    const in_c::Choices choices(causal);
    heed_call call{};
    call.size = sizeof call;
    call.x = in_c::view(x.view());
    call.cache = cache;
    const heed_outputs outputs = in_c::outputs({.out = y.mutable_view()});
    EXPECT_EQ(heed_layer_call(layer, &call, &outputs, &choices.options), HEED_OK) << heed_last_error();
    return y.values;
  }
};

const char* const scalings[] = {
    "null",
    R"({"rope_type": "linear", "factor": 4})",
    R"({"rope_type": "dynamic", "factor": 2.0})",
    R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": false})",
    R"({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0})",
    R"({"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4], "factor": 4.0,
        "original_max_position_embeddings": 64})",
};

TEST_F(layer_in_c, a_pretrained_one_has_the_bits_of_cpp) {
  const Tensor x = random_tensor({1, 1, 70, 16}, 1);
  for (const char* scaling : scalings) {
    SCOPED_TRACE(scaling);
    save_model(scaling);
    const PretrainedLayer found = from_pretrained("m", 0);
    heed_layer* layer = load();
    ASSERT_NE(layer, nullptr);
    const Tensor wanted = run(AttentionLayer(found.config, found.weights), {.x = x.view()}, causal);
    EXPECT_EQ(bit_misses(answer(layer, x, nullptr), wanted.values), 0);
    heed_layer_destroy(layer);
  }
}

// The configuration a layer tells makes the same layer again.
TEST_F(layer_in_c, one_made_of_what_another_tells_has_its_bits) {
  const Tensor x = random_tensor({1, 1, 70, 16}, 2);
  for (const char* scaling : scalings) {
    SCOPED_TRACE(scaling);
    save_model(scaling);
    heed_layer *layer = load(), *again = nullptr;
    ASSERT_NE(layer, nullptr);
    heed_layer_config config{};
    config.size = sizeof config;
    ASSERT_EQ(heed_layer_get_config(layer, &config), HEED_OK) << heed_last_error();
    ASSERT_EQ(heed_layer_load("m/model.safetensors", "model.layers.0.self_attn.", &config, &again), HEED_OK)
        << heed_last_error();
    EXPECT_EQ(again->layer.config().rotary, layer->layer.config().rotary);
    EXPECT_EQ(bit_misses(answer(layer, x, nullptr), answer(again, x, nullptr)), 0);
    heed_layer_destroy(layer);
    heed_layer_destroy(again);
  }
}

TEST_F(layer_in_c, a_cache_that_turns_its_keys_has_the_rotary_that_the_layer_tells) {
  const Tensor x = random_tensor({1, 1, 70, 16}, 3);
  save_model(scalings[4]);
  heed_layer* layer = load();
  ASSERT_NE(layer, nullptr);
  heed_layer_config told{};
  told.size = sizeof told;
  ASSERT_EQ(heed_layer_get_config(layer, &told), HEED_OK) << heed_last_error();
  heed_cache_config config{};
  config.size = sizeof config;
  config.kv_heads = told.kv_heads;
  config.capacity = 128;
  config.dim = told.head_dim;
  config.rotary = told.rotary;
  config.rotary_when = HEED_ROTARY_WHEN_READ;
  heed_cache* cache = nullptr;
  ASSERT_EQ(heed_cache_create(&config, &cache), HEED_OK) << heed_last_error();
  EXPECT_EQ(cache->cache.config().rotary->when, CacheRotary::When::read);
  EXPECT_EQ(bit_misses(answer(layer, x, cache), answer(layer, x, nullptr)), 0);
  heed_cache_destroy(cache);
  heed_layer_destroy(layer);
}

TEST_F(layer_in_c, a_pretrained_one_tells_its_window) {
  save_model("null", "mistral");
  heed_layer* layer = load();
  ASSERT_NE(layer, nullptr);
  std::int64_t keys = -1;
  EXPECT_EQ(heed_layer_sliding_window(layer, &keys), HEED_OK) << heed_last_error();
  EXPECT_EQ(keys, 8);
  heed_layer_destroy(layer);
}

TEST_F(layer_in_c, a_layer_that_is_not_there_is_refused_in_the_words_of_cpp) {
  save_model("null");
  heed_layer* layer = nullptr;
  EXPECT_EQ(heed_layer_from_pretrained("m", 1, &layer), HEED_ERROR_VALUE);
  EXPECT_STREQ(heed_last_error(), "layer: 1 is not in [0, 1), the layers of m");
  EXPECT_EQ(heed_layer_from_pretrained("nowhere", 0, &layer), HEED_ERROR_FILE);
  EXPECT_EQ(layer, nullptr);
}

}  // namespace
}  // namespace heed::layer_tests
