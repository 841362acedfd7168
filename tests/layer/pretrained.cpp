// SPDX-License-Identifier: Apache-2.0
// from_pretrained: what it makes of a configuration and its tensors, and what it refuses in which words. That
// the result is what transformers computes is held by tests/interfaces/test_pretrained.py.
#include <functional>

#include "files/scratch_folder.hpp"
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

using test::file_bytes;
using test::put_file;

constexpr const char* second_layer = "model.layers.1.self_attn.";
const std::string config_text = R"({"model_type": "llama", "hidden_size": 16, "num_attention_heads": 4,
  "num_key_value_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 256, "torch_dtype": "bfloat16",
  "rope_theta": 500.0})";

Arrays tensors(const LayerConfig& c, const std::string& before = second_layer) {
  Arrays named;
  for (auto& [name, array] : to_arrays(random_weights(c, 1), Naming::llama)) named[before + name] = array;
  named["model.embed_tokens.weight"] = random_array({3, 16}, 2);
  return named;
}

class pretrained : public test::ScratchFolder {
 protected:
  void SetUp() override {
    ScratchFolder::SetUp();
    std::filesystem::create_directory("m");
    put_file("m/config.json", config_text);
    write_safetensors("m/model.safetensors", tensors(grouped_query(16, 4, 2)));
  }

  // The configuration with one text replaced by another.
  static void reword(const std::string& from, const std::string& to) {
    std::string text = config_text;
    text.replace(text.find(from), from.size(), to);
    put_file("m/config.json", text);
  }
  // The configuration with these keys more.
  static void add(const std::string& keys) { reword("}", ", " + keys + "}"); }

  static void refused(Error::Code code, const std::string& sentence, std::int64_t layer = 1) {
    expect_refusal(code, sentence, [&] { from_pretrained("m", layer); });
  }
};

TEST_F(pretrained, a_layer_has_the_configuration_and_weights_of_its_model) {
  const PretrainedLayer found = from_pretrained("m", 1);
  EXPECT_EQ(found.config.model_dim, 16);
  EXPECT_EQ(found.config.heads, 4);
  EXPECT_EQ(found.config.kv_heads, 2);
  EXPECT_EQ(found.config.head_dim, 4);
  EXPECT_EQ(*found.config.rotary, (Rotary{.base = 500, .dims = 4}));
  EXPECT_EQ(found.sliding_window, std::nullopt);
  EXPECT_TRUE(same_weights(found.weights, random_weights(grouped_query(16, 4, 2), 1)));
  const AttentionLayer layer(found.config, found.weights);
  const Tensor x = random_tensor({1, 1, 5, 16}, 1);
  EXPECT_EQ(run(layer, {.x = x.view()}, causal).shape, (Shape{1, 1, 5, 16}));
}

TEST_F(pretrained, a_model_without_a_head_has_a_shorter_prefix) {
  write_safetensors("m/model.safetensors", tensors(grouped_query(16, 4, 2), "layers.1.self_attn."));
  EXPECT_TRUE(same_weights(from_pretrained("m", 1).weights, random_weights(grouped_query(16, 4, 2), 1)));
}

TEST_F(pretrained, stored_frequencies_of_older_checkpoints_are_passed_over) {
  Arrays with = tensors(grouped_query(16, 4, 2));
  with[std::string(second_layer) + "rotary_emb.inv_freq"] = random_array({2}, 1);
  write_safetensors("m/model.safetensors", with);
  EXPECT_TRUE(same_weights(from_pretrained("m", 1).weights, random_weights(grouped_query(16, 4, 2), 1)));
}

// transformers passes over the key in models that never slide.
TEST_F(pretrained, only_models_that_slide_have_a_window) {
  const auto window_of = [](const std::string& type) {
    reword("\"llama\"", '"' + type + R"(", "sliding_window": 9)");
    return from_pretrained("m", 1).sliding_window;
  };
  for (const char* slides : {"mistral", "mixtral"}) EXPECT_EQ(window_of(slides), 9) << slides;
  for (const char* does_not : {"llama", "gemma"}) EXPECT_EQ(window_of(does_not), std::nullopt) << does_not;
}

TEST_F(pretrained, rotary_scalings_are_read_in_both_spellings) {
  const auto scaling = [](const std::string& text) {
    add(text);
    return *from_pretrained("m", 1).config.rotary;
  };
  const Rotary linear{.base = 500, .dims = 4, .scaling = LinearScaling{4}};
  EXPECT_EQ(scaling(R"("rope_scaling": {"type": "linear", "factor": 4})"), linear);
  EXPECT_EQ(scaling(R"("rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 500.0})"),
            linear);
  EXPECT_EQ(scaling(R"("rope_scaling": null, "rope_parameters": {"rope_theta": 7.5})"),
            (Rotary{.base = 7.5, .dims = 4}));
  const Rotary dynamic{.base = 500, .dims = 4, .scaling = DynamicScaling{2, 256}};
  EXPECT_EQ(scaling(R"("rope_scaling": {"rope_type": "dynamic", "type": "dynamic", "factor": 2.0})"),
            dynamic);
  EXPECT_EQ(scaling(R"("rope_scaling": {"rope_type": "yarn", "factor": null, "beta_fast": 0,
                       "original_max_position_embeddings": 64})"),
            (Rotary{.base = 500, .dims = 4, .scaling = YarnScaling{.factor = 4, .original_length = 64}}));
  EXPECT_EQ(
      scaling(R"("original_max_position_embeddings": 32, "rope_scaling": {"rope_type": "longrope",
                       "short_factor": [1, 2], "long_factor": [3, 4], "original_max_position_embeddings": 64})"),
      (Rotary{.base = 500,
              .dims = 4,
              .scaling = LongRopeScaling{
                  .short_factors = {1, 2}, .long_factors = {3, 4}, .original_length = 32, .factor = 8}}));
}

TEST_F(pretrained, a_folder_that_is_none_is_refused) {
  expect_refusal(Error::file, "nowhere: is not a folder; a model's has config.json and safetensors files",
                 [] { from_pretrained("nowhere", 0); });
  expect_refusal(Error::file,
                 "m/model.safetensors: is not a folder; a model's has config.json and safetensors files",
                 [] { from_pretrained("m/model.safetensors", 0); });
  std::filesystem::remove("m/config.json");
  refused(Error::file, "m/config.json: cannot be opened: No such file or directory");
}

TEST_F(pretrained, a_wrong_layer_is_told_the_right_ones) {
  refused(Error::value, "layer: 2 is not in [0, 2), the layers of m", 2);
  refused(Error::value, "layer: -1 is not in [0, 2), the layers of m", -1);
  refused(Error::file,
          "m: no tensor's name begins with \"model.layers.0.self_attn.\"; there are some after "
          "\"model.layers.1.self_attn.\"",
          0);
  write_safetensors("m/model.safetensors", {{"a", random_array({2}, 1)}});
  refused(Error::file,
          "m: no tensor's name begins with \"model.layers.1.self_attn.\"; there are no attention weights");
}

TEST_F(pretrained, models_that_are_not_known_are_refused_by_name) {
  reword("llama", "marvin");
  refused(
      Error::unsupported,
      "m/config.json: model_type: \"marvin\" is not known here; known are llama, mistral, mixtral, qwen2, "
      "gemma, phi3");
  for (const char* with_norms : {"qwen3", "gemma3_text"}) {
    reword("llama", with_norms);
    refused(Error::unsupported,
            std::string("m/config.json: model_type: \"") + with_norms +
                "\": it normalises its queries and keys (q_norm, k_norm), which the layer "
                "does not");
  }
  put_file("m/config.json", config_text);
  Arrays with = tensors(grouped_query(16, 4, 2));
  with[std::string(second_layer) + "q_norm.weight"] = random_array({4}, 1);
  write_safetensors("m/model.safetensors", with);
  refused(Error::unsupported, "\"model.layers.1.self_attn.q_norm.weight\": the layer has no such part");
}

struct Hostile {
  std::string from, to;
  Error::Code code;
  const char* sentence;  // after "m/config.json: "
};

TEST_F(pretrained, hostile_configurations_are_refused) {
  const std::vector<Hostile> cases{
      {"16", "\"16\"", Error::file, "hidden_size: \"16\" is not a whole number in [1, 2147483647]"},
      {"16", "0", Error::file, "hidden_size: 0 is not a whole number in [1, 2147483647]"},
      {"16", "-16", Error::file, "hidden_size: -16 is not a whole number in [1, 2147483647]"},
      {"16", "16.5", Error::file, "hidden_size: 16.5 is not a whole number in [1, 2147483647]"},
      {"16", "1e18", Error::file, "hidden_size: 1e+18 is not a whole number in [1, 2147483647]"},
      {"16", "1e999", Error::file, "byte 39: a number is beyond those of 64 bits"},
      {"16", "null", Error::file, "hidden_size: missing"},
      {"16", "[16]", Error::file, "hidden_size: a list is not a whole number in [1, 2147483647]"},
      {"16", "18", Error::shape,
       "config.heads: 4 does not divide config.model_dim: 18, and no head_dim is given"},
      {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", Error::shape,
       "config.kv_heads: 3 does not divide config.heads: 4"},
      {"\"hidden_size\"", "\"model_type\"", Error::file, "byte 37: key \"model_type\" appears twice"},
      {"\"llama\"", "null", Error::file, "model_type: missing"},
      {"\"llama\"", "7", Error::file, "model_type: 7 is not a string"},
      {"500.0", "0", Error::value, "config.rotary.base: 0 is not a positive finite number"},
      {"500.0", "1e300", Error::file, "rope_theta: 1e+300 is not a number of 32 bits"},
      {"500.0", "500, \"rope_scaling\": []", Error::file, "rope_scaling: a list is not an object"},
      {"500.0", "500, \"rope_scaling\": {\"type\": \"su\"}", Error::unsupported,
       "rope_scaling.rope_type: \"su\" is none of default, linear, dynamic, yarn, llama3, longrope"},
      {"500.0", "500, \"rope_scaling\": {\"type\": \"linear\"}", Error::file, "rope_scaling.factor: missing"},
      {"500.0", "500, \"rope_scaling\": {\"type\": \"linear\", \"factor\": -1}", Error::value,
       "config.rotary.scaling.factor: -1 is not a positive finite number"},
      {"500.0", "500, \"rope_parameters\": {\"mrope_section\": [1, 1]}", Error::unsupported,
       "rope_parameters.mrope_section: is not known here, and may change the result"},
      {"500.0", "500, \"rope_parameters\": {\"full_attention\": {}}", Error::unsupported,
       "rope_parameters.full_attention: is not known here, and may change the result"},
      {"500.0",
       "500, \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1, \"x\"]}",
       Error::file, "rope_scaling.long_factor: \"x\" in it is not a number"},
      {"500.0",
       "500, \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1, 2]}",
       Error::shape, "config.rotary.scaling.short_factors: 1 numbers are not one per pair: 2"},
      {"500.0", "500, \"partial_rotary_factor\": 0.5", Error::unsupported,
       "partial_rotary_factor: is not 1, and a llama turns its whole heads"},
      {"500.0", "500, \"attention_bias\": 1", Error::file, "attention_bias: 1 is neither true nor false"},
      {"500.0", "500, \"attention_dropout\": 1.0", Error::value,
       "config.drop_probability: 1 is not in [0, 1)"},
      {"500.0", "500, \"quantization_config\": {}", Error::unsupported,
       "quantization_config: the weights are quantised, which is not read here"},
      {"\"num_hidden_layers\": 2, ", "", Error::file, "num_hidden_layers: missing"},
  };
  for (const Hostile& c : cases) {
    reword(c.from, c.to);
    refused(c.code, std::string("m/config.json: ") + c.sentence);
  }
  put_file("m/config.json", "{\"a\": \"" + std::string(1 << 20, 'x') + "\"}");
  refused(Error::file, "m/config.json: 1048585 bytes, more than 1048576");
}

TEST_F(pretrained, tensors_that_do_not_fit_the_configuration_are_refused) {
  const auto changed = [](const std::function<void(Arrays&)>& change) {
    Arrays arrays = tensors(grouped_query(16, 4, 2));
    change(arrays);
    write_safetensors("m/model.safetensors", arrays);
  };
  const std::string p = second_layer;
  changed([&](Arrays& a) { a.erase(p + "o_proj.weight"); });
  refused(Error::value,
          "m: model.layers.1.self_attn.o_proj.weight: missing beside model.layers.1.self_attn.q_proj.weight");
  changed([&](Arrays& a) { a[p + "k_proj.weight"] = random_array({16, 16}, 1); });
  refused(
      Error::shape,
      "m: model.layers.1.self_attn.v_proj.weight.rows: 8 is model.layers.1.self_attn.o_proj.weight.columns "
      "/ 2, but model.layers.1.self_attn.k_proj.weight.rows: 16 is model.layers.1.self_attn.q_proj.weight"
      ".rows / 1");
  changed([](Arrays& a) {
    for (auto& [name, array] : tensors(multi_head(16, 4))) a[name] = array;
  });
  refused(Error::shape, "m: w_k.shape: (16, 16) is not (kv_heads * head_dim, key_dim): (8, 16)");
  changed([&](Arrays& a) { a[p + "q_proj.bias"] = random_array({16}, 1); });
  refused(Error::file,
          "\"model.layers.1.self_attn.q_proj.bias\": there, but config.json's llama has no such bias");
  changed([](Arrays&) {});
  add("\"attention_bias\": true");
  refused(
      Error::file,
      "\"model.layers.1.self_attn.q_proj.bias\": missing, but config.json's llama with attention_bias has "
      "it");
  reword("llama", "qwen2");
  refused(Error::file, "\"model.layers.1.self_attn.q_proj.bias\": missing, but config.json's qwen2 has it");
  reword("llama", "phi3");
  refused(Error::unsupported, "\"model.layers.1.self_attn.k_proj.weight\": the layer has no such part");
  write_safetensors("m/model.safetensors", {{p + "qkv_proj.weight", random_array({30, 16}, 1)}});
  refused(
      Error::shape,
      "\"model.layers.1.self_attn.qkv_proj.weight\".rows: 30 are not (heads + 2 * kv_heads) * head_dim: 32");
}

TEST_F(pretrained, damaged_configurations_are_read_or_refused) {
  add(R"("rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4], "factor": 2})");
  const std::string valid = file_bytes("m/config.json");
  const std::string likely = "0123456789[]{},:\"-.e truefalsn";
  std::mt19937_64 random(1);
  int accepted = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    std::string bytes = valid;
    for (std::uint64_t changes = 1 + random() % 2; changes > 0; --changes) {
      const std::size_t at = random() % bytes.size();
      if (random() % 2)
        bytes[at] = likely[random() % likely.size()];
      else
        bytes.insert(at, 1, likely[random() % likely.size()]);
    }
    put_file("m/config.json", bytes);
    try {
      const PretrainedLayer found = from_pretrained("m", 1);
      AttentionLayer(found.config, found.weights);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_GT(std::string(error.what()).size(), 10u);
    }
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 1000);
}

}  // namespace
}  // namespace heed::layer_tests
