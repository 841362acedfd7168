// SPDX-License-Identifier: Apache-2.0
// What a stream of keys refuses, and in which words.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "cases/listed.hpp"
#include "heed/stream.hpp"

namespace heed {
namespace {

struct Given {
  std::vector<float> numbers = std::vector<float>(64);
  std::vector<float> out = std::vector<float>(24), other = std::vector<float>(60);
  StreamInputs inputs{.q = {numbers, {1, 2, 3, 4}}, .kv_heads = 1, .keys = 5};
  Outputs outputs{.out = {out, {1, 2, 3, 4}}};
  Options options{};
  View k{numbers, {1, 1, 5, 4}}, v{numbers, {1, 1, 5, 4}};
};

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was refused";
}
std::string refusal_of(const Given& g) {
  return refusal_of([&] { KeyStream(g.inputs, g.outputs, g.options); });
}

TEST(StreamRefusals, name_what_needs_all_keys_at_once) {
  Given g;
  g.outputs.weights = {g.other, {1, 2, 3, 5}};
  EXPECT_EQ(refusal_of(g), "weights: asked for, but a stream keeps no keys to compute them");
  g.outputs.weights.reset();
  g.outputs.scores.into = {g.other, {1, 2, 3, 5}};
  EXPECT_EQ(refusal_of(g), "scores.into: asked for, but a stream keeps no keys to compute them");
}

TEST(StreamRefusals, name_what_needs_the_number_of_keys) {
  Given g;
  const std::vector<std::int32_t> ids(5);
  const auto with = [&](const Mask& mask) {
    Given unsaid;
    unsaid.inputs.keys.reset();
    unsaid.options.masks = {mask};
    return refusal_of(unsaid);
  };
  EXPECT_EQ(
      with(Causal{}),
      "causal mask: an alignment other than Align::starts needs the number of keys; say it by inputs.keys");
  EXPECT_EQ(
      with(Window{3, 0, Align::ends}),
      "window mask: an alignment other than Align::starts needs the number of keys; say it by inputs.keys");
  EXPECT_EQ(with(KeyLengths{ids}),
            "key lengths: a count of keys needs the number of keys; say it by inputs.keys");
  EXPECT_EQ(with(Document{ids}),
            "document mask: a number for every key needs the number of keys; say it by inputs.keys");
  EXPECT_EQ(with(Causal{Align::starts}), "nothing was refused");
  g.inputs.keys.reset();
  g.options.bias = {g.numbers, {1, 2, 3, 5}};
  EXPECT_EQ(refusal_of(g),
            "options.bias: a column for every key needs the number of keys; say it by inputs.keys");
}

TEST(StreamRefusals, name_a_stretch_that_does_not_fit) {
  Given g;
  KeyStream stream(g.inputs, g.outputs, g.options);
  const auto add = [&](const View& k, const View& v) { return refusal_of([&] { stream.add(k, v); }); };
  EXPECT_EQ(add({g.numbers, {1, 2, 5, 4}}, g.v),
            "k.shape: (1, 2, 5, 4) is not (batch, kv_heads, any, dim), as the stream was told: (1, 1, 5, 4)");
  EXPECT_EQ(
      add(g.k, {g.numbers, {1, 1, 5, 3}}),
      "v.shape: (1, 1, 5, 3) is not (batch, kv_heads, any, value_dim), as the stream was told: (1, 1, 5, 4)");
  EXPECT_EQ(add(g.k, {g.numbers, {1, 1, 4, 4}}), "v.length: 4 is not k.length: 5");
  EXPECT_EQ(add({g.numbers, {1, 1, 6, 4}}, {g.numbers, {1, 1, 6, 4}}),
            "k.length: 6 keys after 0 are more than the 5 that were to come");
  std::vector<bf16> halves(20);
  EXPECT_EQ(add({halves, {1, 1, 5, 4}}, g.v), "k.dtype: bf16 is not q.dtype: f32");
  EXPECT_EQ(refusal_of([&] { stream.finish(); }), "finish: 0 keys were added, not 5, as was said");
  stream.add(g.k, g.v);
  EXPECT_EQ(stream.keys(), 5);
  stream.finish();
  EXPECT_EQ(add(g.k, g.v), "add: the stream is finished");
  EXPECT_EQ(refusal_of([&] { stream.finish(); }), "finish: the stream is finished");
}

TEST(StreamRefusals, name_a_place_that_is_nowhere) {
  Given g;
  g.inputs.place = Place{.first_query = 4, .queries = 6, .heads = 2};
  EXPECT_EQ(refusal_of(g), "inputs.place: queries [4, 4 + 3) are not among the 6 of place.queries");
  g.inputs.place = Place{.queries = 3, .first_head = 1, .heads = 2};
  EXPECT_EQ(refusal_of(g), "inputs.place: heads [1, 1 + 2) are not among the 2 of place.heads");
}

TEST(StreamRefusals, are_those_of_attention_for_everything_else) {
  Given g;
  g.inputs.kv_heads = 3;
  EXPECT_EQ(refusal_of(g), "k.heads: 3 does not divide q.heads: 2");
  g = Given();
  g.options.kernel = "cpu.prefill.scalar";
  EXPECT_EQ(refusal_of(g), "options.kernel: \"cpu.prefill.scalar\" is not a kernel for streams; there are " +
                               cases::listed(stream_kernel_names()));
  g.options.kernel = "reference";
  EXPECT_EQ(refusal_of(g), "options.kernel: \"reference\" refuses: it needs all keys at once");
  g = Given();
  g.options.scale = 3e38f;
  EXPECT_NE(explain(g.inputs, g.outputs, g.options).find("cpu.stream.scalar: refused: options.scale"),
            std::string::npos);
}

}  // namespace
}  // namespace heed
