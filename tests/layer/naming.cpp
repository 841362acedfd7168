// SPDX-License-Identifier: Apache-2.0
// Checkpoints under the three naming schemes: round trips, prefixes, and what is refused.
#include <filesystem>

#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

const std::string prefix = "model.layers.3.self_attn.";

Arrays prefixed(const Arrays& arrays) {
  Arrays moved{{"embedding.weight", random_array({3, 3}, 0)}, {"W_q.weight", random_array({2}, 0)}};
  for (const auto& [name, array] : arrays) moved[prefix + name] = array;
  return moved;
}

std::vector<std::string> names_of(const Arrays& arrays) {
  std::vector<std::string> names;
  for (const auto& [name, array] : arrays) names.push_back(name);
  return names;
}

using Names = std::vector<std::string>;

void expect_round_trip(const LayerWeights& w, Naming naming, const Names& names) {
  const Arrays arrays = to_arrays(w, naming);
  EXPECT_EQ(names_of(arrays), names);
  EXPECT_TRUE(same_weights(layer_weights(arrays), w));
  EXPECT_TRUE(same_weights(layer_weights(prefixed(arrays), prefix), w));
}

TEST(naming, the_seeds_names_round_trip) {
  const LayerWeights w = random_weights(grouped_query(8, 4, 2), 1);
  expect_round_trip(w, Naming::paper, {"W_k.weight", "W_o.weight", "W_q.weight", "W_v.weight"});
  expect_round_trip(with_biases(w, 2), Naming::paper,
                    {"W_k.bias", "W_k.weight", "W_o.bias", "W_o.weight", "W_q.bias", "W_q.weight", "W_v.bias",
                     "W_v.weight"});
}

TEST(naming, llamas_names_round_trip) {
  LayerWeights w = random_weights(multi_query(8, 4), 3);
  expect_round_trip(w, Naming::llama, {"k_proj.weight", "o_proj.weight", "q_proj.weight", "v_proj.weight"});
  w = with_biases(w, 4);
  w.b_o.reset();  // biases on Q, K and V only, as some models have them
  expect_round_trip(w, Naming::llama,
                    {"k_proj.bias", "k_proj.weight", "o_proj.weight", "q_proj.bias", "q_proj.weight",
                     "v_proj.bias", "v_proj.weight"});
}

TEST(naming, torchs_packed_names_round_trip) {
  const LayerWeights w = random_weights(multi_head(8, 4), 5);
  expect_round_trip(w, Naming::torch, {"in_proj_weight", "out_proj.weight"});
  expect_round_trip(with_biases(w, 6), Naming::torch,
                    {"in_proj_bias", "in_proj_weight", "out_proj.bias", "out_proj.weight"});
}

TEST(naming, torchs_separate_names_round_trip) {
  const std::vector<std::pair<std::int64_t, std::int64_t>> widths{{6, 5}, {6, 8}, {8, 6}};
  for (const auto& [key_dim, value_dim] : widths) {
    const LayerConfig c{.model_dim = 8, .heads = 4, .key_dim = key_dim, .value_dim = value_dim};
    expect_round_trip(with_biases(random_weights(c, 7), 8), Naming::torch,
                      {"in_proj_bias", "k_proj_weight", "out_proj.bias", "out_proj.weight", "q_proj_weight",
                       "v_proj_weight"});
  }
}

TEST(naming, torchs_packed_matrix_is_q_over_k_over_v) {
  const LayerWeights w = with_biases(random_weights(multi_head(2, 1), 9), 10);
  const Arrays arrays = to_arrays(w, Naming::torch);
  std::vector<float> stacked, offsets;
  for (const Array* part : {&w.w_q, &w.w_k, &w.w_v})
    for (const float value : part->to_floats()) stacked.push_back(value);
  for (const Array* part : {&*w.b_q, &*w.b_k, &*w.b_v})
    for (const float value : part->to_floats()) offsets.push_back(value);
  EXPECT_EQ(arrays.at("in_proj_weight").shape, (std::vector<std::int64_t>{6, 2}));
  EXPECT_EQ(bit_misses(arrays.at("in_proj_weight").to_floats(), stacked), 0);
  EXPECT_EQ(bit_misses(arrays.at("in_proj_bias").to_floats(), offsets), 0);
}

TEST(naming, torch_has_every_bias_or_none_so_absent_ones_become_zeros) {
  LayerWeights w = random_weights(multi_head(2, 1), 11);
  w.b_k = random_array({2}, 12);
  const LayerWeights back = layer_weights(to_arrays(w, Naming::torch));
  ASSERT_TRUE(back.b_q && back.b_v && back.b_o);
  EXPECT_EQ(bit_misses(back.b_q->to_floats(), {0, 0}), 0);
  EXPECT_TRUE(same_array(*back.b_k, *w.b_k));
  EXPECT_EQ(bit_misses(back.b_o->to_floats(), {0, 0}), 0);
}

TEST(naming, sixteen_bit_elements_round_trip_unchanged) {
  LayerWeights w = random_weights(multi_head(4, 2), 13);
  for (Array* matrix : {&w.w_q, &w.w_k, &w.w_v, &w.w_o}) *matrix = random_array({4, 4}, 14, Element::bf16);
  for (const Naming naming : {Naming::paper, Naming::torch, Naming::llama})
    EXPECT_TRUE(same_weights(layer_weights(to_arrays(w, naming)), w));
}

TEST(naming, every_scheme_survives_a_safetensors_file) {
  const LayerWeights w = with_biases(random_weights(multi_head(6, 3), 15), 16);
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "heed_layer_naming.safetensors";
  for (const Naming naming : {Naming::paper, Naming::torch, Naming::llama}) {
    write_safetensors(file, to_arrays(w, naming));
    EXPECT_TRUE(same_weights(layer_weights(read_safetensors(file)), w));
  }
  std::filesystem::remove(file);
}

TEST(naming, a_checkpoint_that_fits_no_scheme_is_refused) {
  const auto a = random_array({2, 2}, 0);
  expect_refusal(
      Error::value,
      "arrays: no W_q.weight, in_proj_weight, q_proj_weight or q_proj.weight after the prefix \"\"; found "
      "nothing",
      [] { layer_weights({}); });
  expect_refusal(
      Error::value,
      "arrays: no W_q.weight, in_proj_weight, q_proj_weight or q_proj.weight after the prefix \"blk.\"; "
      "found \"a?b\", \"c\", \"d\" and 1 more",
      [&] {
        layer_weights({{"a\x1b"
                        "b",
                        a},
                       {"c", a},
                       {"d", a},
                       {"my_q_proj.weight", a}},
                      "blk.");
      });
}

TEST(naming, a_wrong_prefix_is_told_the_right_ones) {
  const auto a = random_array({2, 2}, 0);
  const std::string none =
      "arrays: no W_q.weight, in_proj_weight, q_proj_weight or q_proj.weight after the prefix ";
  expect_refusal(Error::value, none + "\"blk.\"; there are some after \"\"",
                 [&] { layer_weights({{"q_proj.weight", a}, {"other", a}}, "blk."); });
  Arrays model;
  for (const char* layer : {"0", "1", "2", "3"})
    for (const char* name : {"q_proj.weight", "k_proj.weight"})
      model["model.layers." + std::string(layer) + ".self_attn." + name] = a;
  expect_refusal(Error::value,
                 none +
                     "\"model.layers.4.self_attn.\"; there are some after \"model.layers.0.self_attn.\", "
                     "\"model.layers.1.self_attn.\", \"model.layers.2.self_attn.\" and 1 more",
                 [&] { layer_weights(model, "model.layers.4.self_attn."); });
  expect_refusal(Error::value, none + "\"\"; there are some after \"encoder.attn.\"",
                 [&] { layer_weights({{"encoder.attn.in_proj_weight", a}}); });
}

TEST(naming, a_checkpoint_that_fits_two_schemes_is_refused) {
  const LayerWeights w = random_weights(multi_head(2, 1), 17);
  Arrays both = to_arrays(w, Naming::paper);
  both.merge(to_arrays(w, Naming::llama));
  expect_refusal(Error::ambiguous, "arrays: W_q.weight and q_proj.weight belong to two naming schemes",
                 [&] { layer_weights(both); });
  Arrays packed = to_arrays(w, Naming::torch);
  packed["k_proj_weight"] = w.w_k;
  expect_refusal(Error::ambiguous, "arrays: in_proj_weight and k_proj_weight name the same weights",
                 [&] { layer_weights(packed); });
}

struct Spoiled {
  Naming naming;
  Error::Code code;
  const char* sentence;
  std::function<void(Arrays&)> spoil;
};

TEST(naming, arrays_that_do_not_fit_are_refused) {
  const LayerWeights w = with_biases(random_weights(multi_head(4, 2), 18), 19);
  const std::vector<Spoiled> rows{
      {Naming::paper, Error::value, "W_v.weight: missing beside W_q.weight",
       [](auto& a) { a.erase("W_v.weight"); }},
      {Naming::paper, Error::value, "W_q.weight: missing beside W_k.weight",
       [](auto& a) { a.erase("W_q.weight"); }},
      {Naming::llama, Error::value, "o_proj.weight: missing beside q_proj.weight",
       [](auto& a) { a.erase("o_proj.weight"); }},
      {Naming::torch, Error::value, "out_proj.weight: missing beside in_proj_weight",
       [](auto& a) { a.erase("out_proj.weight"); }},
      {Naming::paper, Error::shape, "W_k.weight.shape: (4, 2, 2) has rank 3, not 2",
       [](auto& a) { a["W_k.weight"].shape = {4, 2, 2}; }},
      {Naming::llama, Error::shape, "v_proj.bias.shape: (4, 1) has rank 2, not 1",
       [](auto& a) { a["v_proj.bias"].shape = {4, 1}; }},
      {Naming::paper, Error::dtype, "W_o.weight.element: u32 is not a floating-point type",
       [](auto& a) { a["W_o.weight"].element = Element::u32; }},
      {Naming::paper, Error::shape, "W_q.weight.shape: (0, 4) has an extent below 1",
       [](auto& a) { a["W_q.weight"] = random_array({0, 4}, 0); }},
      {Naming::paper, Error::shape, "W_k.weight.rows: 3 does not divide W_q.weight.rows: 4",
       [](auto& a) { a["W_k.weight"] = random_array({3, 4}, 0); }},
      {Naming::paper, Error::shape, "W_v.weight.rows: 3 does not divide W_o.weight.columns: 4",
       [](auto& a) { a["W_v.weight"] = random_array({3, 4}, 0); }},
      {Naming::paper, Error::shape,
       "W_v.weight.rows: 2 is W_o.weight.columns / 2, but W_k.weight.rows: 4 is W_q.weight.rows / 1",
       [](auto& a) { a["W_v.weight"] = random_array({2, 4}, 0); }},
      {Naming::llama, Error::shape, "o_proj.weight.rows: 5 is not the model dim, q_proj.weight.columns: 4",
       [](auto& a) { a["o_proj.weight"] = random_array({5, 4}, 0); }},
      {Naming::llama, Error::shape, "k_proj.bias.length: 3 is not k_proj.weight.rows: 4",
       [](auto& a) { a["k_proj.bias"] = random_array({3}, 0); }},
      {Naming::torch, Error::shape, "in_proj_weight.rows: 10 is not 3 * model_dim: 12",
       [](auto& a) { a["in_proj_weight"] = random_array({10, 4}, 0); }},
      {Naming::torch, Error::shape, "in_proj_bias.length: 11 is not 3 * model_dim: 12",
       [](auto& a) { a["in_proj_bias"] = random_array({11}, 0); }},
      {Naming::torch, Error::unsupported, "bias_k: the layer has no such part",
       [](auto& a) { a["bias_k"] = random_array({1, 1, 4}, 0); }},
      {Naming::llama, Error::unsupported, "q_norm.weight: the layer has no such part",
       [](auto& a) { a["q_norm.weight"] = random_array({2}, 0); }}};
  for (const Spoiled& row : rows) {
    Arrays arrays = to_arrays(w, row.naming);
    row.spoil(arrays);
    expect_refusal(row.code, row.sentence, [&] { layer_weights(arrays); });
  }
}

TEST(naming, torchs_separate_matrices_must_be_model_dim_wide) {
  Arrays arrays = to_arrays(random_weights({.model_dim = 4, .heads = 2, .key_dim = 6}, 0), Naming::torch);
  arrays["k_proj_weight"] = random_array({2, 6}, 1);
  arrays["v_proj_weight"] = random_array({2, 6}, 2);
  expect_refusal(Error::shape, "k_proj_weight.rows: 2 is not model_dim: 4", [&] { layer_weights(arrays); });
}

TEST(naming, sentences_name_the_array_with_its_prefix) {
  Arrays arrays = prefixed(to_arrays(random_weights(multi_head(4, 2), 20), Naming::llama));
  arrays.erase(prefix + "k_proj.weight");
  expect_refusal(Error::value, prefix + "k_proj.weight: missing beside " + prefix + "q_proj.weight",
                 [&] { layer_weights(arrays, prefix); });
}

TEST(naming, torchs_scheme_refuses_what_it_cannot_say) {
  expect_refusal(
      Error::unsupported,
      "w_k.rows: 4 is not model_dim: 8, and torch's scheme knows neither grouped heads nor another head_dim",
      [] { to_arrays(random_weights(grouped_query(8, 4, 2), 0), Naming::torch); });
  LayerWeights w = random_weights(multi_head(4, 2), 0);
  w.w_v = random_array({4, 4}, 0, Element::f16);
  expect_refusal(Error::dtype,
                 "w_v.element: f16 is not that of w_q: f32, and torch's scheme packs them into one array",
                 [&] { to_arrays(w, Naming::torch); });
}

}  // namespace
}  // namespace heed::layer_tests
