// SPDX-License-Identifier: Apache-2.0
// Scaled rotary embeddings (S15): the frequencies of transformers, what goes by the length of a sequence,
// refusals.
#include "layer/tensors.hpp"

namespace heed::layer_tests {
namespace {

const LongRopeScaling longrope{.short_factors = {1.0f, 1.1f, 1.2f, 1.3f, 1.4f, 1.5f, 1.6f, 1.7f},
                               .long_factors = {1.5f, 2, 3, 4, 5, 6, 7, 8},
                               .original_length = 64,
                               .factor = 4};
const DynamicScaling dynamic{.factor = 2, .original_length = 64};

// What one step turns each of eight pairs by, and what it multiplies them by.
struct Step {
  std::vector<double> angles{};
  double factor = 0;
};

Step step_of(const RotaryScaling& scaling, std::int64_t length) {
  Tensor x{{1, 1, 1, 16}, std::vector<float>(16)};
  std::fill_n(x.values.begin(), 8, 1.0f);
  const std::vector<std::int64_t> lengths{length};
  rotate(x.mutable_view(), counted(1, 1), {.scaling = scaling}, lengths);
  Step step;
  for (std::size_t n = 0; n < 8; ++n) step.angles.push_back(std::atan2(x.values[8 + n], x.values[n]));
  step.factor = std::hypot(x.values[0], x.values[8]);
  return step;
}

struct Known {
  const char* name;
  RotaryScaling scaling;
  std::int64_t length;
  std::vector<double> frequencies;
  double factor;
};

// From transformers 5.22.2, whose own arithmetic is float: base 10000, eight pairs.
const std::vector<Known> known{
    {"linear",
     LinearScaling{4},
     1000,
     {0.25, 0.079056941, 0.025, 0.0079056947, 0.0024999999, 0.00079056947, 0.00025, 7.9056947e-05},
     1},
    {"dynamic, at the original length",
     dynamic,
     64,
     {1, 0.31622776, 0.1, 0.031622779, 0.0099999998, 0.0031622779, 0.001, 0.00031622779},
     1},
    {"dynamic, beyond it",
     dynamic,
     100,
     {1, 0.28394514, 0.080624841, 0.02289303, 0.0065003652, 0.001845747, 0.00052409089, 0.00014881307},
     1},
    {"yarn",
     YarnScaling{.factor = 4, .original_length = 512},
     1,
     {1, 0.25693506, 0.0625, 0.013834965, 0.0024999999, 0.00079056947, 0.00025, 7.9056947e-05},
     1.13862944},
    {"yarn with everything said",
     YarnScaling{.factor = 4,
                 .original_length = 512,
                 .beta_fast = 16,
                 .beta_slow = 2,
                 .truncate = false,
                 .attention_factor = 1.25f},
     1,
     {1, 0.31622776, 0.075664401, 0.010796109, 0.0024999999, 0.00079056947, 0.00025, 7.9056947e-05},
     1.25},
    {"llama3",
     Llama3Scaling{.factor = 8, .original_length = 256},
     1,
     {1, 0.31622776, 0.1, 0.0066131069, 0.00125, 0.00039528473, 0.000125, 3.9528473e-05},
     1},
    {"longrope, short",
     longrope,
     64,
     {1, 0.28747976, 0.083333336, 0.024325214, 0.0071428572, 0.0021081853, 0.000625, 0.00018601633},
     1.15470054},
    {"longrope, long",
     longrope,
     65,
     {0.66666669, 0.15811388, 0.033333335, 0.0079056947, 0.002, 0.00052704633, 0.00014285714, 3.9528473e-05},
     1.15470054}};

TEST(rotary_scaling, frequencies_and_factors_are_those_of_transformers) {
  for (const Known& k : known) {
    const Step step = step_of(k.scaling, k.length);
    for (std::size_t n = 0; n < 8; ++n)
      EXPECT_NEAR(step.angles[n], k.frequencies[n], 1e-6 * k.frequencies[n]) << k.name << ", pair " << n;
    EXPECT_NEAR(step.factor, k.factor, 1e-6) << k.name;
  }
}

TEST(rotary_scaling, the_length_is_the_largest_position_and_one_unless_it_is_said) {
  for (const RotaryScaling& scaling : {RotaryScaling(dynamic), RotaryScaling(longrope)}) {
    const Rotary rotary{.scaling = scaling};
    for (const std::int64_t first : {0, 30, 60, 61, 200}) {
      const Tensor x = random_tensor({1, 2, 4, 16}, 1);
      Tensor unsaid = x, said = x, other = x;
      const std::vector<std::int64_t> length{first + 4}, another{first + 100};
      rotate(unsaid.mutable_view(), counted(4, first), rotary);
      rotate(said.mutable_view(), counted(4, first), rotary, length);
      rotate(other.mutable_view(), counted(4, first), rotary, another);
      EXPECT_EQ(bit_misses(unsaid.values, said.values), 0);
      const bool goes_long_only_then = first + 4 <= 64 || scaling.index() == RotaryScaling(dynamic).index();
      EXPECT_EQ(bit_misses(unsaid.values, other.values) != 0, goes_long_only_then) << first;
    }
  }
}

TEST(rotary_scaling, batch_entries_go_by_lengths_of_their_own) {
  const Rotary rotary{.scaling = longrope};
  const Tensor x = random_tensor({2, 2, 3, 16}, 2);
  Tensor both = x, near = x, far = x;
  rotate(both.mutable_view(), std::vector<std::int64_t>{1, 2, 3, 98, 99, 100}, rotary);
  rotate(near.mutable_view(), counted(3, 1), rotary);
  rotate(far.mutable_view(), counted(3, 98), rotary);
  std::vector<float> wanted = near.values;
  std::copy(far.values.begin() + 96, far.values.end(), wanted.begin() + 96);
  EXPECT_EQ(bit_misses(both.values, wanted), 0);
  Tensor said = x, alike = x;
  rotate(said.mutable_view(), counted(3, 1), rotary, std::vector<std::int64_t>{4, 65});
  rotate(alike.mutable_view(), counted(3, 1), rotary, std::vector<std::int64_t>{65});
  wanted = near.values;
  std::copy(alike.values.begin() + 96, alike.values.end(), wanted.begin() + 96);
  EXPECT_EQ(bit_misses(said.values, wanted), 0);
  EXPECT_NE(bit_misses(said.values, near.values), 0);
}

TEST(rotary_scaling, queries_and_keys_of_a_layer_turn_by_one_length) {
  LayerConfig c = grouped_query(32, 2, 1);
  c.rotary = Rotary{.scaling = longrope};
  const AttentionLayer layer(c, random_weights(c, 1));
  const Tensor x = random_tensor({1, 1, 3, 32}, 2), context = random_tensor({1, 1, 80, 32}, 3);
  // Queries at 0, 1, 2 and keys up to 79: as if both had the long factors from the beginning.
  LongRopeScaling always_long = longrope;
  always_long.short_factors = longrope.long_factors;
  LayerConfig of_long = c;
  of_long.rotary->scaling = always_long;
  const AttentionLayer all_long(of_long, random_weights(c, 1));
  const AttentionLayer::Call call{.x = x.view(), .context = context.view()};
  EXPECT_EQ(bit_misses(run(layer, call).values, run(all_long, call).values), 0);
  const AttentionLayer::Call alone{.x = x.view()};
  EXPECT_NE(bit_misses(run(layer, alone).values, run(all_long, alone).values), 0);
}

// As in transformers: keys stay as they were turned, and only new ones go by the new length.
TEST(rotary_scaling, keys_in_a_cache_stay_as_they_were_turned) {
  for (const RotaryScaling& scaling : {RotaryScaling(dynamic), RotaryScaling(longrope)}) {
    LayerConfig c = grouped_query(32, 2, 1);
    c.rotary = Rotary{.scaling = scaling};
    const AttentionLayer layer(c, random_weights(c, 1));
    const Tensor prompt = random_tensor({1, 1, 60, 32}, 2), rest = random_tensor({1, 1, 10, 32}, 3);
    KvCacheConfig plain{.kv_heads = 1, .capacity = 80, .dim = 16}, turning = plain;
    turning.rotary = CacheRotary{*c.rotary, CacheRotary::When::append};
    KvCache by_layer(plain), by_cache(turning);
    for (KvCache* cache : {&by_layer, &by_cache}) run(layer, {.x = prompt.view(), .cache = cache}, causal);
    const auto keys = [](const KvCache& cache) {
      Tensor k = output({1, 1, cache.length(0), 16}), v = k;
      cache.read(0, k.mutable_view(), v.mutable_view());
      return k.values;
    };
    const std::vector<float> before = keys(by_layer);
    const Tensor a = run(layer, {.x = rest.view(), .cache = &by_layer}, causal);
    const Tensor b = run(layer, {.x = rest.view(), .cache = &by_cache}, causal);
    std::vector<float> after = keys(by_layer);
    EXPECT_EQ(bit_misses(keys(by_cache), after), 0);
    after.resize(before.size());
    EXPECT_EQ(bit_misses(after, before), 0);
    EXPECT_EQ(bit_misses(a.values, b.values), 0);
  }
}

// A cache that turns when it is read turns all of its keys by the length it has then: the rows are those of
// the whole sequence at once, however it grew.
TEST(rotary_scaling, a_cache_that_turns_at_read_goes_by_the_length_it_has) {
  for (const RotaryScaling& scaling : {RotaryScaling(dynamic), RotaryScaling(longrope)}) {
    LayerConfig c = grouped_query(32, 2, 1);
    c.rotary = Rotary{.scaling = scaling};
    const AttentionLayer layer(c, random_weights(c, 1));
    const Tensor x = random_tensor({1, 1, 70, 32}, 2);
    const Tensor prompt{{1, 1, 69, 32}, {x.values.begin(), x.values.end() - 32}};
    const Tensor last{{1, 1, 1, 32}, {x.values.end() - 32, x.values.end()}};
    KvCache cache({.kv_heads = 1,
                   .capacity = 80,
                   .dim = 16,
                   .rotary = CacheRotary{*c.rotary, CacheRotary::When::read}});
    run(layer, {.x = prompt.view(), .cache = &cache}, causal);
    const Tensor whole = run(layer, {.x = x.view()}, causal);
    const std::vector<float> wanted(whole.values.end() - 32, whole.values.end());
    EXPECT_EQ(far_misses(run(layer, {.x = last.view(), .cache = &cache}, causal).values, wanted, 1e-5), 0);
  }
}

TEST(rotary_scaling, bad_numbers_are_refused_before_anything_turns) {
  Tensor x = random_tensor({2, 1, 3, 16}, 10);
  const Tensor before = x;
  const auto refused = [&](Error::Code code, const char* sentence, const RotaryScaling& scaling,
                           Rotary rotary = {}) {
    rotary.scaling = scaling;
    expect_refusal(code, sentence, [&] { rotate(x.mutable_view(), counted(3), rotary); });
  };
  const float nan = std::nanf("");
  refused(Error::value, "rotary.scaling.factor: 0 is not a positive finite number", LinearScaling{});
  refused(Error::value, "rotary.scaling.factor: nan is not a positive finite number", LinearScaling{nan});
  refused(Error::value, "rotary.scaling.original_length: 0 is below 1", DynamicScaling{.factor = 2});
  refused(Error::value, "rotary.scaling: a dynamic one needs more than 2 turning dimensions", dynamic,
          {.dims = 2});
  refused(Error::value, "rotary.scaling.beta_fast: 1 is below beta_slow: 2",
          YarnScaling{.factor = 4, .original_length = 9, .beta_fast = 1, .beta_slow = 2});
  refused(Error::value, "rotary.scaling.attention_factor: -1 is not a positive finite number",
          YarnScaling{.factor = 4, .original_length = 9, .attention_factor = -1.0f});
  refused(Error::value, "rotary.scaling: yarn needs a base above 1, not 1",
          YarnScaling{.factor = 4, .original_length = 9}, {.base = 1});
  refused(Error::value, "rotary.scaling.high_frequency_factor: 1 is not above low_frequency_factor: 1",
          Llama3Scaling{.factor = 8, .original_length = 9, .high_frequency_factor = 1});
  refused(Error::shape, "rotary.scaling.short_factors: 8 numbers are not one per pair: 4", longrope,
          {.dims = 8});
  LongRopeScaling bad = longrope;
  bad.long_factors[3] = 0;
  refused(Error::value, "rotary.scaling.long_factors: 0 is not a positive finite number", bad);
  bad = longrope;
  bad.original_length = 1;
  refused(Error::value, "rotary.scaling.original_length: 1 is below 2", bad);
  expect_refusal(Error::shape, "lengths: 3 entries are neither 1 nor x.batch: 2",
                 [&] { rotate(x.mutable_view(), counted(3), {}, counted(3)); });
  EXPECT_EQ(bit_misses(x.values, before.values), 0);
  LayerConfig c = multi_head(32, 2);
  c.rotary = Rotary{.scaling = LinearScaling{}};
  expect_refusal(Error::value, "config.rotary.scaling.factor: 0 is not a positive finite number",
                 [&] { random_weights(c, 1); });
}

}  // namespace
}  // namespace heed::layer_tests
