// SPDX-License-Identifier: Apache-2.0
// What the layer's gradients do not depend on, what they are added to, and what is refused (G10).
#include <cstring>

#include "cases/listed.hpp"
#include "heed/gradient.hpp"
#include "layer/backward.hpp"

namespace heed::layer_tests {
namespace {

TEST(the_gradients_of_a_layer, are_the_same_bits_from_activations_that_were_kept) {
  unsigned seed = 3000;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    Backward kept(c, seed += 100), again(c, seed);
    AttentionLayer::Activations activations;
    AttentionLayer::Call call = kept.call();
    call.activations = &activations;
    const Tensor y = layer_tests::run(again.layer, again.call(), again.options());
    kept.layer(call, {.out = kept.out.mutable_view()}, kept.options());
    EXPECT_EQ(bit_misses(kept.out.values, y.values), 0);
    kept.layer.backward(call, kept.gradients(), kept.options());
    again.layer.backward(again.call(), again.gradients(), again.options());
    EXPECT_EQ(kept.found(), again.found());
  }
}

TEST(the_gradients_of_a_layer, are_the_same_bits_on_any_number_of_threads) {
  const int before = num_threads();
  Case c{"large", shaped(96, 6, 2, 16), 3, 210, 210, true, false, false};
  std::map<std::string, std::vector<float>> first;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Backward run(c, 77);
    run.layer.backward(run.call(), run.gradients(), run.options());
    if (first.empty()) first = run.found();
    EXPECT_EQ(run.found(), first) << threads << " threads";
  }
  set_num_threads(before);
}

// Tokens come in blocks of 256, outputs and inputs in tiles and parts of several widths: every tail once.
TEST(the_gradients_of_a_layer, add_up_every_token_of_every_width) {
  for (const std::int64_t width : {1, 3, 8, 13, 130, 390})
    for (const std::int64_t tokens : {1, 2, 255, 257}) {
      LayerWeights weights = with_biases(random_weights(multi_head(width, 1), 5), 6);
      std::vector<float> unit(static_cast<std::size_t>(width * width));
      for (std::int64_t n = 0; n < width; ++n) unit[static_cast<std::size_t>(n * width + n)] = 1;
      weights.w_o = Array::from_floats({width, width}, unit);  // so that y is what the heads made
      weights.b_o = Array::from_floats({width}, std::vector<float>(static_cast<std::size_t>(width)));
      AttentionLayer layer(multi_head(width, 1), weights);
      const Shape shape{1, 1, tokens, width};
      const Tensor x = random_tensor(shape, 7), dy = random_tensor(shape, 8);
      AttentionLayer::Activations activations;
      Tensor y = output(shape);
      const AttentionLayer::Call call{.x = x.view(), .activations = &activations};
      layer(call, {.out = y.mutable_view()});
      layer.backward(call, {.out = dy.view()});
      const auto all = static_cast<std::size_t>(width);
      std::vector<double> of_bias(all), of_matrix(all * all);
      for (std::size_t n = 0; n < dy.values.size(); ++n) {
        const auto gradient = static_cast<double>(dy.values[n]);
        of_bias[n % all] += gradient;
        for (std::size_t i = 0; i < all; ++i)
          of_matrix[n % all * all + i] += gradient * static_cast<double>(y.values[n / all * all + i]);
      }
      SCOPED_TRACE(std::to_string(width) + " wide, " + std::to_string(tokens) + " tokens");
      EXPECT_EQ(far_misses(floats_of(layer.gradients()[3]), of_matrix, 1e-4), 0);
      EXPECT_EQ(far_misses(floats_of(layer.gradients().back()), of_bias, 1e-4), 0);
    }
}

TEST(the_gradients_of_a_layer, are_added_to_what_is_there) {
  Case c = cases()[3];
  Backward run(c, 5000);
  run.layer.backward(run.call(), run.gradients(), run.options());
  const auto once = run.found();
  LayerGradients more = run.gradients();
  more.accumulate = true;
  run.layer.backward(run.call(), more, run.options());
  for (const auto& [name, values] : run.found())
    for (std::size_t n = 0; n < values.size(); ++n) ASSERT_EQ(values[n], once.at(name)[n] * 2) << name;
  more.accumulate = false;
  more.skip_parameters = true;
  const auto twice = run.found();
  run.layer.backward(run.call(), more, run.options());
  EXPECT_EQ(run.found()["w_k"], twice.at("w_k"));
  EXPECT_EQ(run.found()["x"], once.at("x"));
  run.layer.zero_gradients();
  run.layer.backward(run.call(), run.gradients(), run.options());
  EXPECT_EQ(run.found(), once);
}

TEST(the_gradients_of_a_layer, do_not_depend_on_strides_or_on_which_are_asked_for) {
  Case c = cases()[1];
  Backward run(c, 6000), strided(c, 6000);
  run.out_gradient = filled(run.out.shape, 0.5f);
  run.layer.backward(run.call(), {.out = run.out_gradient.view(), .x = run.dx.mutable_view()}, causal);
  const float half = 0.5f;
  const View everywhere{&half, run.out.shape, Strides{0, 0, 0, 0}};
  Tensor wide = output({c.batch, 1, 2 * c.queries, 2 * run.x.shape.dim});
  const Strides every_second{0, 0, 4 * run.x.shape.dim, 2};
  strided.layer.backward(
      strided.call(), {.out = everywhere, .x = MutableView{wide.values, run.x.shape, every_second}}, causal);
  for (std::int64_t t = 0; t < c.queries; ++t)
    for (std::int64_t d = 0; d < run.x.shape.dim; ++d)
      ASSERT_EQ(wide.at(0, 0, 2 * t, 2 * d), run.dx.at(0, 0, t, d));
  strided.dx = run.dx;
  EXPECT_EQ(strided.found(), run.found());
  Backward alone(c, 6000);
  alone.layer.backward(alone.call(), {.out = everywhere}, causal);
  alone.dx = run.dx;
  EXPECT_EQ(alone.found(), run.found());
}

TEST(the_gradients_of_a_layer, are_not_reached_by_a_hidden_token_that_is_not_a_number) {
  Case c{"padding", shaped(8, 2, 2, 4), 1, 4, 6, false, true, false};
  Backward run(c, 7000), poisoned(c, 7000);
  for (std::size_t n = 4 * 8; n < poisoned.context.values.size(); ++n) poisoned.context.values[n] = NAN;
  const std::vector<int> lengths{4};
  const Options padding{.masks = {KeyLengths{lengths}}};
  run.layer.backward(run.call(), run.gradients(), padding);
  poisoned.layer.backward(poisoned.call(), poisoned.gradients(), padding);
  EXPECT_EQ(poisoned.found(), run.found());
  for (const auto& [name, values] : run.found())
    for (const float number : values) ASSERT_TRUE(std::isfinite(number)) << name;
}

TEST(the_gradients_of_a_layer, know_dropout_in_training_only_and_a_probability_of_0_not_at_all) {
  Case c = cases()[8];
  c.dropout_seed = 0;
  const auto gradients = [&](float drop_probability, AttentionLayer::Mode mode, std::uint64_t seed) {
    c.config.drop_probability = drop_probability;
    Backward run(c, 9000);
    run.layer.set_mode(mode);
    AttentionLayer::Call call = run.call();
    call.dropout_seed = seed;
    run.layer.backward(call, run.gradients(), run.options());
    return run.found();
  };
  using enum AttentionLayer::Mode;
  const auto plain = gradients(0, eval, 1);
  EXPECT_EQ(gradients(0, train, 1), plain);
  EXPECT_EQ(gradients(0.3f, eval, 1), plain);
  const auto dropped = gradients(0.3f, train, 1);
  EXPECT_NE(dropped, plain);
  EXPECT_EQ(gradients(0.3f, train, 1), dropped);
  EXPECT_NE(gradients(0.3f, train, 2), dropped);
}

TEST(the_parameters_of_a_layer, are_read_anew_after_an_update) {
  const LayerConfig config = multi_head(8, 2);
  for (const Element element : {Element::f32, Element::bf16}) {
    LayerWeights weights = with_biases(random_weights(config, 1), 2),
                 others = with_biases(random_weights(config, 3), 4);
    for (Array* w : {&weights.w_v, &others.w_v}) *w = Array::from_floats(w->shape, w->to_floats(), element);
    AttentionLayer layer(config, weights), wanted(config, others);
    const Tensor x = random_tensor({2, 1, 5, 8}, 5);
    const std::vector<Parameter> from = wanted.parameters(), into = layer.parameters();
    ASSERT_EQ(into.size(), 8u);
    for (std::size_t n = 0; n < into.size(); ++n) {
      EXPECT_EQ(into[n].name, from[n].name);
      std::memcpy(into[n].values.data, from[n].values.data,
                  static_cast<std::size_t>(into[n].values.shape.elements()) * bytes_of(into[n].values.dtype));
    }
    layer.update();
    EXPECT_EQ(bit_misses(run(layer, {.x = x.view()}).values, run(wanted, {.x = x.view()}).values), 0);
    EXPECT_TRUE(same_weights(layer.weights(), wanted.weights()));
    Tensor dx = output(x.shape), other = dx;
    layer.backward({.x = x.view()}, {.out = x.view(), .x = dx.mutable_view()});
    wanted.backward({.x = x.view()}, {.out = x.view(), .x = other.mutable_view()});
    EXPECT_EQ(bit_misses(dx.values, other.values), 0);
  }
}

TEST(the_gradients_of_a_layer, are_refused_for_activations_of_another_call) {
  LayerConfig config = multi_head(8, 2);
  config.rotary = Rotary{};
  config.drop_probability = 0.5f;
  const LayerWeights weights = random_weights(config, 1);
  AttentionLayer layer(config, weights), twin(config, weights);
  const Tensor x = random_tensor({2, 1, 4, 8}, 2);
  Tensor y = output(x.shape), dx = output(x.shape);
  const std::vector<std::int32_t> lengths{3, 4}, others{4, 3};
  const std::vector<std::int64_t> positions{0, 1, 2, 3}, later{1, 2, 3, 4};
  const std::vector<float> slopes{0.5f, 0.25f}, steep{0.5f, 1.0f};
  const Tensor bias = random_tensor({1, 1, 4, 4}, 3), row = random_tensor({1, 1, 1, 4}, 3);

  AttentionLayer::Activations kept;
  const AttentionLayer::Call call{.x = x.view(), .activations = &kept};
  const auto expect = [&](const Options& then, const Options& now, const std::string& sentence,
                          const AttentionLayer::Call& with) {
    layer(call, {.out = y.mutable_view()}, then);
    const auto backward = [&](const Options& options) {
      layer.backward(with, {.out = x.view(), .x = dx.mutable_view()}, options);
    };
    expect_refusal(Error::value, sentence, [&] { backward(now); });
    EXPECT_EQ(dx.values, output(x.shape).values) << sentence;
  };
  expect({.masks = {Causal{}}}, {}, "options.masks: none, but the activations were made with causal", call);
  expect({}, {.masks = {Causal{}}}, "options.masks: causal, but the activations were made with none", call);
  expect({.masks = {Causal{}}}, {.masks = {Causal{Align::ends}}},
         "options.masks: causal, but with other numbers or alignments than the activations were made with",
         call);
  expect(
      {.masks = {KeyLengths{lengths}}}, {.masks = {KeyLengths{others}}},
      "options.masks: key lengths, but with other numbers or alignments than the activations were made with",
      call);
  expect({.bias = bias.view()}, {.bias = row.view()},
         "options.bias: (1, 1, 1, 4), but the activations were made with (1, 1, 4, 4)", call);
  expect({.alibi = Alibi{slopes}}, {.alibi = Alibi{steep}},
         "options.alibi: 2 slopes, but with other numbers or alignments than the activations were made with",
         call);
  expect({.scale = 0.5f}, {}, "options.scale: 1/sqrt(dim), but the activations were made with 0.5", call);
  expect({}, {.softcap = 5.0f}, "options.softcap: 5, but the activations were made with none", call);
  expect({}, {},
         "positions: 4 numbers, but with other numbers or alignments than the activations were made with",
         {.x = x.view(), .positions = later, .activations = &kept});

  layer.set_mode(AttentionLayer::Mode::train);
  expect({}, {}, "options.dropout: 0.5 with seed 7, but the activations were made with 0.5 with seed 0",
         {.x = x.view(), .dropout_seed = 7, .activations = &kept});
  layer.set_mode(AttentionLayer::Mode::eval);
  const std::string stale = "activations: made by another layer, or before update() changed the weights";
  expect_refusal(Error::value, stale, [&] { twin.backward(call, {.out = x.view()}); });
  layer(call, {.out = y.mutable_view()});
  layer.update();
  expect_refusal(Error::value, stale, [&] { layer.backward(call, {.out = x.view()}); });

  // What says the same in other words is the same call.
  layer({.x = x.view(), .positions = positions, .activations = &kept}, {.out = y.mutable_view()});
  layer.backward(call, {.out = x.view()}, {.threads = 1});
}

TEST(the_gradients_of_a_layer, are_refused_in_a_sentence) {
  Case c{"", shaped(8, 2, 2, 4), 1, 4, 6, false, true, false};
  Backward run(c, 8000);
  const auto refused = [&](Error::Code code, const std::string& sentence, const AttentionLayer::Call& call,
                           const LayerGradients& g, const Options& options = {}) {
    expect_refusal(code, sentence, [&] { run.layer.backward(call, g, options); });
  };
  LayerGradients g = run.gradients();
  g.value = run.dvalue.mutable_view();
  refused(Error::value, "gradients.value: given, but value is not", run.call(), g);
  g = run.gradients();
  g.out = run.context.view();
  refused(Error::shape,
          "gradients.out.shape: (1, 1, 6, 8) is not (batch, 1, queries, model_dim): (1, 1, 4, 8)", run.call(),
          g);
  g = run.gradients();
  g.x = run.dcontext.mutable_view();
  refused(Error::shape, "gradients.x.shape: (1, 1, 6, 8) is not x.shape: (1, 1, 4, 8)", run.call(), g);
  g = run.gradients();
  g.x = run.x.mutable_view();
  refused(Error::overlap, "gradients.x: shares memory with x", run.call(), g);
  g = run.gradients();
  refused(Error::value, "options.dropout: the layer owns it; set config.drop_probability and Mode::train",
          run.call(), g, {.dropout = Dropout{0.5f, 1}});
  refused(Error::unsupported,
          "options.kernel: \"cpu.prefill.scalar\" is not a kernel for gradients; there are " +
              cases::listed(backward_kernel_names()),
          run.call(), g, {.kernel = "cpu.prefill.scalar"});
  KvCache cache({.kv_heads = 2, .capacity = 8, .dim = 4});
  refused(Error::unsupported, "cache: given, but there is no gradient by what a cache holds",
          {.x = run.x.view(), .cache = &cache}, {.out = run.out_gradient.view()});
  AttentionLayer::Activations others;
  run.layer({.x = run.x.view(), .activations = &others}, {.out = run.out.mutable_view()});
  AttentionLayer::Call call = run.call();
  call.activations = &others;
  refused(Error::shape, "activations.k: (1, 2, 4, 4) is not this call's: (1, 2, 6, 4)", call, g);
  expect_refusal(Error::value, "activations: given beside a cache, by which there is no gradient", [&] {
    run.layer({.x = run.x.view(), .cache = &cache, .activations = &others}, {.out = run.out.mutable_view()});
  });
  EXPECT_EQ(run.dx.values, output(run.dx.shape).values);
  EXPECT_EQ(run.dcontext.values, output(run.dcontext.shape).values);
  for (const auto& [name, values] : run.found())
    if (name[1] == '_') {
      EXPECT_EQ(values, std::vector<float>(values.size())) << name;
    }

  LayerWeights doubles = random_weights(multi_head(8, 2), 1);
  doubles.w_k = Array::from_floats(doubles.w_k.shape, doubles.w_k.to_floats(), Element::f64);
  expect_refusal(Error::dtype, "w_k.element: f64 is none that views have; give f32 weights",
                 [&] { AttentionLayer(multi_head(8, 2), doubles).parameters(); });
}

}  // namespace
}  // namespace heed::layer_tests
