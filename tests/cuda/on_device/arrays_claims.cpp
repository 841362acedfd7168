// SPDX-License-Identifier: Apache-2.0
// What the device does beside attention: layers, rotations, merges and checks of what lies there.
#include <cmath>
#include <cstring>

#include "cases/random_call.hpp"
#include "claims.hpp"
#include "heed/heed.hpp"
#include "on_device/brought.hpp"

namespace heed::cuda::test {
namespace {

using cases::Call;
using cases::Results;
using cases::Tensor;
using claims::expect;

bool same(const Tensor& a, const Tensor& b) { return a.memory() == b.memory(); }

struct LayerCase {
  LayerConfig config;
  std::int64_t batch, queries, keys;
  DType dtype;
};

CLAIM(a_layer_on_the_device_has_the_bits_of_the_cpu) {
  LayerConfig turned = grouped_query(96, 6, 2);
  turned.rotary = Rotary{};
  for (const LayerCase& t :
       {LayerCase{multi_head(33, 3), 2, 7, 7, DType::f32}, LayerCase{turned, 2, 130, 130, DType::f32},
        LayerCase{grouped_query(256, 4, 1), 1, 70, 300, DType::bf16}}) {
    LayerConfig config = t.config;
    const LayerWeights weights = random_weights(config, 7);
    const AttentionLayer here(config, weights);
    config.device = Device::cuda;
    const AttentionLayer there(config, weights);
    const std::int64_t width = config.model_dim;
    const Tensor x = Tensor::random({t.batch, 1, t.queries, width}, 5, 1, t.dtype),
                 context = Tensor::random({t.batch, 1, t.keys, width}, 6, 1, t.dtype);
    Tensor wanted({t.batch, 1, t.queries, width}, t.dtype), found = wanted;
    Tensor average({t.batch, 1, t.queries, t.keys}), found_average = average;
    here({.x = x.view(), .context = context.view()},
         {.out = wanted.mutable_view(), .weights = average.mutable_view()});
    Brought brought;
    there({.x = brought.view(x.view()), .context = brought.view(context.view())},
          {.out = brought.view(found.mutable_view()), .weights = brought.view(found_average.mutable_view())});
    brought.fetch();
    expect(same(found, wanted), "out of a layer of ", width);
    expect(same(found_average, average), "averaged weights of a layer of ", width);
  }
}

// One step of training: kept activations or none, overwritten or added.
CLAIM(a_layer_trains_on_the_device_to_the_bits_of_the_cpu) {
  LayerConfig config = grouped_query(96, 6, 2);
  config.rotary = Rotary{};
  LayerWeights weights = random_weights(config, 7);
  weights.b_q = Array::from_floats({96}, std::vector<float>(96, 0.25f));
  AttentionLayer here(config, weights);
  config.device = Device::cuda;
  AttentionLayer there(config, weights);
  const Tensor x = Tensor::random({2, 1, 150, 96}, 5), out_gradient = Tensor::random({2, 1, 150, 96}, 6);
  const Options options{.masks = {Causal{}}};
  for (const bool accumulate : {false, true}) {
    Tensor wanted = Tensor::random({2, 1, 150, 96}, 8), found = wanted, out({2, 1, 150, 96});
    here.backward({.x = x.view()},
                  {.out = out_gradient.view(), .x = wanted.mutable_view(), .accumulate = accumulate},
                  options);
    Brought brought;
    AttentionLayer::Activations kept;
    const AttentionLayer::Call call{.x = brought.view(x.view()), .activations = accumulate ? &kept : nullptr};
    if (call.activations) there(call, {.out = brought.view(out.mutable_view())}, options);
    there.backward(call,
                   {.out = brought.view(out_gradient.view()),
                    .x = brought.view(found.mutable_view()),
                    .accumulate = accumulate},
                   options);
    brought.fetch();
    expect(same(found, wanted), "the gradient by x");
    for (std::size_t n = 0; n < here.gradients().size(); ++n) {
      const MutableView ours = there.gradients()[n].values, theirs = here.gradients()[n].values;
      const auto bytes = static_cast<std::size_t>(ours.shape.elements()) * 4;
      expect(std::memcmp(ours.data, theirs.data, bytes) == 0, "the gradient by ", here.gradients()[n].name);
    }
  }
}

CLAIM(a_layer_on_the_device_refuses_a_stream) {
  LayerConfig config = multi_head(8, 2);
  config.device = Device::cuda;
  const AttentionLayer layer(config, random_weights(config, 1));
  const Tensor x = Tensor::random({1, 1, 3, 8}, 1);
  Tensor out({1, 1, 3, 8});
  Brought brought;
  try {
    layer({.x = brought.view(x.view())}, {.out = brought.view(out.mutable_view())}, {.stream = &out});
    expect(false, "it is taken");
  } catch (const Error& error) {
    expect(error.code == Error::unsupported, error.what());
  }
}

CLAIM(rotations_on_the_device_have_the_bits_of_the_cpu) {
  const std::vector<std::int64_t> positions{0, 1, 5, 100000, 3}, each{0, 1, 2, 3, 4, 7, 8, 9, 10, 11};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::adjacent})
      for (const auto* at : {&positions, &each}) {
        Tensor here = Tensor::random({2, 3, 5, 16}, 4, 1, dtype), there = here;
        rotate(here.mutable_view(), *at, {.dims = 12, .pairs = pairs});
        Brought brought;
        rotate(brought.view(there.mutable_view()), *at, {.dims = 12, .pairs = pairs});
        brought.fetch();
        expect(same(here, there), "they differ");
      }
}

CLAIM(merges_and_checks_take_what_lies_on_the_device) {
  Call call{.q = Tensor::random({2, 4, 50, 64}, 1, 3, DType::bf16),
            .k = Tensor::random({2, 2, 300, 64}, 2, 2, DType::bf16),
            .v = Tensor::random({2, 2, 300, 64}, 3, 2, DType::bf16)};
  call.causal = Causal{Align::ends};
  Results results(call, {.log_sum_exp = true}), other = results;
  Brought brought;
  const Inputs inputs = brought.inputs(call.inputs());
  const Outputs outputs = brought.outputs(results.outputs()), others = brought.outputs(other.outputs());
  attention(inputs, outputs, call.options());
  const Check found = check(inputs, outputs, call.options());
  expect(found.beyond_bound == 0 && found.compared > 0, found.first_miss);
  attention(inputs, others, {.scale = 0.5f});
  brought.fetch();
  merge(results.outputs(), other.outputs());
  const Results wanted = results;
  merge(outputs, others);
  brought.fetch();
  cases::for_each(wanted.log_sum_exp->shape(), [&](auto b, auto h, auto i, auto) {
    const float x = results.log_sum_exp->at(b, h, i, 0), y = wanted.log_sum_exp->at(b, h, i, 0);
    expect(std::abs(x - y) <= 1e-6f * std::abs(y), "log-sum-exp ", x, " is not ", y);
    for (std::int64_t d = 0; d < 64; ++d) {
      const float ours = results.out.at(b, h, i, d), theirs = wanted.out.at(b, h, i, d);
      expect(std::abs(ours - theirs) <= 0x1p-7f * std::abs(theirs), "out ", ours, " is not ", theirs);
    }
  });
}

}  // namespace
}  // namespace heed::cuda::test
