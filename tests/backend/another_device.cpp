// SPDX-License-Identifier: Apache-2.0
// Everything that computes does so where its arguments lie: on a device that only this test knows of, it
// gives the bits of the CPU.
#include <gtest/gtest.h>

#include <cstring>

#include "backend/far_device.hpp"
#include "cases/compare.hpp"
#include "cases/random_call.hpp"
#include "heed/heed.hpp"

namespace heed::cases {
namespace {

using test::far;

class AnotherDevice : public testing::Test {
 protected:
  test::WithFarDevice with{};
};

Inputs far(Inputs inputs) {
  inputs.q = far(inputs.q);
  inputs.k = far(inputs.k);
  inputs.v = far(inputs.v);
  return inputs;
}

template <class AnyView>
Optional<AnyView> far(const std::optional<AnyView>& x) {
  return x ? Optional<AnyView>(far(*x)) : Optional<AnyView>();
}

Outputs far(Outputs outputs) {
  outputs.out = far(outputs.out);
  outputs.weights = far(outputs.weights);
  outputs.log_sum_exp = far(outputs.log_sum_exp);
  outputs.scores.into = far(outputs.scores.into);
  return outputs;
}

Options far(Options options) {
  options.bias = far(options.bias);
  options.sink = far(options.sink);
  return options;
}

void expect_refused(Error::Code code, const std::string& sentence, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "was not refused with: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), sentence);
    EXPECT_EQ(error.code, code);
  }
}

TEST_F(AnotherDevice, attends_to_the_bits_of_the_cpu) {
  for (std::uint64_t seed = 700; seed < 730; ++seed) {
    const Call call = random_call(seed, {.dropout = true});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Results here(call, everything), there(call, everything);
    attention(call.inputs(), here.outputs(), call.options());
    attention(far(call.inputs()), far(there.outputs()), far(call.options()));
    EXPECT_TRUE(same_bits(here, there));
  }
}

TEST_F(AnotherDevice, is_one_that_no_other_kernel_takes) {
  const Call call = random_call(731);
  Results results(call, {});
  for (const Verdict& verdict : plan(far(call.inputs()), far(results.outputs()), far(call.options()))) {
    const bool is_own = verdict.kernel == "far.any";
    EXPECT_EQ(verdict.choice, is_own ? Verdict::taken : Verdict::refused) << verdict.kernel;
    if (!verdict.reason.starts_with("this machine lacks ")) {
      EXPECT_EQ(verdict.reason, is_own ? "" : "it reads the CPU's memory") << verdict.kernel;
    }
  }
  for (const Verdict& verdict : plan(call.inputs(), results.outputs(), call.options())) {
    if (verdict.kernel == "far.any") {
      EXPECT_EQ(verdict.reason, "it reads CUDA's memory");
    }
  }
}

TEST_F(AnotherDevice, where_nothing_takes_a_call_says_so) {
  const Call call = random_call(732);
  Results results(call, {});
  const auto attend = [&](const std::string& kernel) {
    attention(far(call.inputs()), far(results.outputs()), far(call.options(kernel)));
  };
  expect_refused(Error::unsupported, "options.kernel: \"reference\" refuses: it reads the CPU's memory",
                 [&] { attend("reference"); });
  with.device.refuses = [](const Problem&) { return [] { return std::string("it is Sunday"); }; };
  expect_refused(Error::device, "q.device: cuda, where no kernel takes this call; explain() says why",
                 [&] { attend(""); });
}

TEST_F(AnotherDevice, shares_no_call_with_the_cpu) {
  const Call call = random_call(733);
  Results results(call, everything);
  Inputs inputs = far(call.inputs());
  inputs.v = call.inputs().v;
  expect_refused(Error::device, "v.device: cpu is not q.device: cuda",
                 [&] { attention(inputs, far(results.outputs()), far(call.options())); });
  expect_refused(Error::device, "out.device: cuda is not q.device: cpu",
                 [&] { attention(call.inputs(), far(results.outputs()), call.options()); });
  KvCache cache({.kv_heads = 1, .capacity = 4, .dim = call.q.shape().dim});
  expect_refused(Error::device, "q.device: cuda is not the cache's: cpu",
                 [&] { attention({.q = far(call.q.view()), .cache = &cache}, far(results.outputs()), {}); });
  const Tensor token({1, 1, 1, call.q.shape().dim});
  expect_refused(Error::device, "v.device: cuda is not the cache's: cpu",
                 [&] { cache.append(token.view(), far(token.view())); });
}

TEST_F(AnotherDevice, has_its_results_checked_and_merged) {
  const Call call{.q = Tensor::random({2, 4, 5, 8}, 1),
                  .k = Tensor::random({2, 2, 9, 8}, 2, 1, DType::f32),
                  .v = Tensor::random({2, 2, 9, 6}, 3)};
  Results here(call, {.log_sum_exp = true}), there = here, other = here;
  attention(call.inputs(), here.outputs(), {});
  attention(call.inputs(), there.outputs(), {});
  const Check found = check(far(call.inputs()), far(there.outputs()), {});
  EXPECT_EQ(found.beyond_bound, 0) << found.first_miss;
  EXPECT_EQ(found.compared, 2 * 4 * 5 * 7);

  attention(call.inputs(), other.outputs(), {.scale = 2.0f});
  merge(here.outputs(), other.outputs());
  merge(far(there.outputs()), far(other.outputs()));
  EXPECT_TRUE(same_bits(here, there));
  expect_refused(Error::device, "other.out.device: cpu is not into.out.device: cuda",
                 [&] { merge(far(there.outputs()), other.outputs()); });
}

TEST_F(AnotherDevice, turns_what_lies_there) {
  Tensor here = Tensor::random({2, 3, 5, 8}, 4), there = here;
  const std::vector<std::int64_t> positions{0, 1, 2, 3, 100};
  rotate(here.mutable_view(), positions);
  rotate(far(there.mutable_view()), positions);
  EXPECT_TRUE(same_bits(here, there));
}

// Rotary, a bias in another type, averaged weights and outputs in 16 bits: everything a layer does itself.
TEST_F(AnotherDevice, runs_a_layer) {
  LayerConfig config = grouped_query(16, 4, 2);
  config.rotary = Rotary{};
  const LayerWeights weights = random_weights(config, 7);
  const AttentionLayer layer_here(config, weights);
  config.device = Device::cuda;
  const AttentionLayer layer_there(config, weights);
  const Tensor x = Tensor::random({2, 1, 6, 16}, 5), context = Tensor::random({2, 1, 9, 16}, 6),
               bias = Tensor::random({1, 4, 6, 9}, 8, 1, DType::bf16);
  Tensor out_here({2, 1, 6, 16}, DType::bf16), out_there = out_here;
  Tensor average_here({2, 1, 6, 9}), average_there = average_here;
  layer_here({.x = x.view(), .context = context.view()},
             {.out = out_here.mutable_view(), .weights = average_here.mutable_view()}, {.bias = bias.view()});
  layer_there({.x = far(x.view()), .context = far(context.view())},
              {.out = far(out_there.mutable_view()), .weights = far(average_there.mutable_view())},
              {.bias = far(bias.view())});
  EXPECT_TRUE(same_bits(out_here, out_there));
  EXPECT_TRUE(same_bits(average_here, average_there));
  expect_refused(Error::device, "x.device: cpu is not config.device: cuda",
                 [&] { layer_there({.x = x.view()}, {.out = far(out_there.mutable_view())}); });
  expect_refused(Error::device, "options.bias.device: cpu is not config.device: cuda", [&] {
    layer_there({.x = far(x.view()), .context = far(context.view())}, {.out = far(out_there.mutable_view())},
                {.bias = bias.view()});
  });
  KvCache cache({.batch = 2, .kv_heads = 2, .capacity = 8, .dim = 4});
  expect_refused(Error::device, "config.device: cuda is not the cache's: cpu", [&] {
    layer_there({.x = far(x.view()), .cache = &cache}, {.out = far(out_there.mutable_view())});
  });
}

TEST_F(AnotherDevice, trains_a_layer) {
  LayerConfig config = grouped_query(16, 4, 2);
  config.rotary = Rotary{};
  const LayerWeights weights = random_weights(config, 7);
  AttentionLayer layer_here(config, weights);
  config.device = Device::cuda;
  AttentionLayer layer_there(config, weights);
  const Tensor x = Tensor::random({2, 1, 6, 16}, 5), out_gradient = Tensor::random({2, 1, 6, 16}, 6),
               bias = Tensor::random({1, 4, 6, 6}, 8);
  Tensor x_here({2, 1, 6, 16}), bias_here({1, 4, 6, 6}), out({2, 1, 6, 16});
  x_here.fill_bytes(0), bias_here.fill_bytes(0);
  Tensor x_there = x_here, bias_there = bias_here;
  AttentionLayer::Activations kept;
  layer_there({.x = far(x.view()), .activations = &kept}, {.out = far(out.mutable_view())},
              {.bias = far(bias.view())});
  layer_here.backward({.x = x.view()},
                      {.out = out_gradient.view(),
                       .x = x_here.mutable_view(),
                       .bias = bias_here.mutable_view(),
                       .accumulate = true},
                      {.bias = bias.view()});
  layer_there.backward({.x = far(x.view()), .activations = &kept},
                       {.out = far(out_gradient.view()),
                        .x = far(x_there.mutable_view()),
                        .bias = far(bias_there.mutable_view()),
                        .accumulate = true},
                       {.bias = far(bias.view())});
  EXPECT_TRUE(same_bits(x_here, x_there));
  EXPECT_TRUE(same_bits(bias_here, bias_there));
  for (std::size_t n = 0; n < 4; ++n) {
    const MutableView here = layer_here.gradients()[n].values, there = layer_there.gradients()[n].values;
    EXPECT_EQ(std::memcmp(here.data, there.data, static_cast<std::size_t>(here.shape.elements()) * 4), 0);
  }
  layer_there.zero_gradients();
  EXPECT_EQ(static_cast<const float*>(layer_there.gradients()[0].values.data)[5], 0.0f);
}

TEST(NoBackend, is_said_of_the_first_argument_and_of_a_layer) {
  Tensor q({1, 1, 1, 8}), out = q;
  const View there = far(q.view());
  const std::string none = ".device: cuda, but this build has no CUDA backend";
  expect_refused(Error::device, "q" + none,
                 [&] { attention({.q = there, .k = there, .v = there}, {.out = far(out.mutable_view())}); });
  expect_refused(Error::device, "x" + none,
                 [&] { rotate(far(out.mutable_view()), std::vector<std::int64_t>{0}); });
  LayerConfig config = multi_head(8, 2);
  config.device = Device::cuda;
  expect_refused(Error::device, "config" + none, [&] { AttentionLayer(config, random_weights(config, 1)); });
  config.device = static_cast<Device>(7);
  expect_refused(Error::device, "config.device: 7 is none of cpu, cuda",
                 [&] { AttentionLayer(config, random_weights(config, 1)); });
}

}  // namespace
}  // namespace heed::cases
