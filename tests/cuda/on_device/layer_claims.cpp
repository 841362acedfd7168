// SPDX-License-Identifier: Apache-2.0
// Layers whose inputs and weights have 16 bits, which a GPU's matrix units multiply: what O3 and S16 promise.
#include <algorithm>
#include <cmath>
#include <string>

#include "cases/tensor.hpp"
#include "claims.hpp"
#include "heed/heed.hpp"
#include "on_device/brought.hpp"

namespace heed::cuda::test {
namespace {

using cases::Tensor;
using claims::expect;

// Whole pieces of eight inputs and not, and one KV head.
constexpr struct {
  std::int64_t model_dim, heads, kv_heads, head_dim;
} sizes[] = {{96, 6, 2, 16}, {60, 5, 5, 24}, {512, 4, 1, 128}};

Element element_of(DType dtype) { return dtype == DType::bf16 ? Element::bf16 : Element::f16; }

// Weights and biases that the type holds, in it or as f32.
LayerWeights weights_of(const LayerConfig& config, DType dtype, bool as_floats) {
  LayerWeights w = random_weights(config, 3);
  for (Array* matrix : {&w.w_q, &w.w_k, &w.w_v, &w.w_o}) {
    const Array narrow = Array::from_floats(matrix->shape, matrix->to_floats(), element_of(dtype));
    *matrix = as_floats ? Array::from_floats(narrow.shape, narrow.to_floats(), Element::f32) : narrow;
  }
  w.b_q = Array::from_floats({w.w_q.shape[0]},
                             std::vector<float>(static_cast<std::size_t>(w.w_q.shape[0]), 0.25f));
  return w;
}

struct Layers {
  LayerConfig config;
  AttentionLayer here, there;  // in f32 on the CPU; in 16 bits on the device

  Layers(const LayerConfig& of, DType dtype)
      : config(of),
        here(of, weights_of(of, dtype, true)),
        there(on_device(of), weights_of(of, dtype, false)) {}
  static LayerConfig on_device(LayerConfig config) {
    config.device = Device::cuda;
    return config;
  }
};

Tensor out_of(const AttentionLayer& layer, const Tensor& x, const Options& options,
              KvCache* cache = nullptr) {
  Tensor out(x.view().shape, x.view().dtype);
  Brought brought;
  layer({.x = brought.view(x.view()), .cache = cache}, {.out = brought.view(out.mutable_view())}, options);
  brought.fetch();
  return out;
}

// Q, K, V and what attention makes of them are each stored once, and so is the result.
double bound_of(const Tensor& wanted, DType dtype) {
  double largest = 0;
  const Shape s = wanted.view().shape;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t i = 0; i < s.length; ++i)
      for (std::int64_t d = 0; d < s.dim; ++d)
        largest = std::max(largest, std::abs(static_cast<double>(wanted.at(b, 0, i, d))));
  return 4 * largest * (dtype == DType::bf16 ? 0x1p-8 : 0x1p-11);
}

void expect_close(const Tensor& found, const Tensor& wanted, double bound, const std::string& what) {
  const Shape s = wanted.view().shape;
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t i = 0; i < s.length; ++i)
      for (std::int64_t d = 0; d < s.dim; ++d)
        expect(std::abs(static_cast<double>(found.at(b, 0, i, d)) -
                        static_cast<double>(wanted.at(b, 0, i, d))) <= bound,
               what, ": ", b, ", ", i, ", ", d);
}

const Options causal{.masks = {Causal{}}};

template <class Body>
void for_each_layer(const Body& body) {
  for (const auto& s : sizes)
    for (const DType dtype : {DType::bf16, DType::f16}) {
      LayerConfig config = grouped_query(s.model_dim, s.heads, s.kv_heads);
      config.head_dim = config.value_head_dim = s.head_dim;
      body(Layers(config, dtype), dtype, std::to_string(s.model_dim));
    }
}

CLAIM(layers_of_16_bits_on_the_device_are_as_far_from_f32_as_storing_heads_takes_them) {
  for_each_layer([](const Layers& layers, DType dtype, const std::string& name) {
    const Tensor x = Tensor::random({2, 1, 77, layers.config.model_dim}, 7, 1, dtype),
                 wide = x.as(DType::f32);
    Tensor wanted(wide.view().shape);
    layers.here({.x = wide.view()}, {.out = wanted.mutable_view()}, causal);
    expect_close(out_of(layers.there, x, causal), wanted, bound_of(wanted, dtype), name);
  });
}

// What attends does not depend on it either: others may (docs/bits.md).
CLAIM(layers_of_16_bits_on_the_device_have_rows_that_do_not_depend_on_how_many_there_are) {
  Options options = causal;
  options.kernel = "cuda.exact.sm80";
  for_each_layer([&](const Layers& layers, DType dtype, const std::string& name) {
    const Tensor x = Tensor::random({1, 1, 600, layers.config.model_dim}, 8, 1, dtype),
                 all = out_of(layers.there, x, options);
    for (const std::int64_t length : {1, 8, 33, 65, 300}) {
      const Tensor some = out_of(layers.there, x.rows(0, length), options);
      expect(some.memory() == all.rows(0, length).memory(), name, ", ", length, " rows");
    }
  });
}

// Token by token into a cache of the type, by a kernel of the matrix units, and with x at other strides.
CLAIM(layers_of_16_bits_on_the_device_decode_over_a_cache_with_the_rows_of_one_call) {
  for_each_layer([](const Layers& layers, DType dtype, const std::string& name) {
    const std::int64_t width = layers.config.model_dim;
    const Tensor x = Tensor::random({1, 1, 40, width}, 9, 1, dtype);
    Options options = causal;
    options.kernel = "cuda.general.sm80";
    const Tensor all = out_of(layers.there, x, options);
    KvCache cache({.kv_heads = *layers.config.kv_heads,
                   .capacity = 64,
                   .dim = *layers.there.config().head_dim,
                   .type = dtype == DType::bf16 ? CacheType::bf16 : CacheType::f16,
                   .page_size = 16,
                   .device = Device::cuda});
    for (std::int64_t first = 0; first < 40;) {
      const std::int64_t count = first == 0 ? 30 : 1;
      const Tensor part = x.rows(first, count).laid_out({count * (width + 3), 0, width + 3, 1});
      const Tensor rows = out_of(layers.there, part, options, &cache);
      expect_close(rows, all.rows(first, count), bound_of(all, dtype),
                   name + ", rows from " + std::to_string(first));
      first += count;
    }
    expect(cache.lengths()[0] == 40, name, ", lengths");
  });
}

// Weights that a call lends lie on the device, at any strides, with their biases.
CLAIM(weights_that_are_lent_on_the_device_have_the_bits_of_the_layers_own) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    LayerConfig config = Layers::on_device(grouped_query(60, 5, 5));
    LayerWeights w = weights_of(config, dtype == DType::f32 ? DType::bf16 : dtype, dtype == DType::f32);
    const AttentionLayer own(config, w), lends(config);
    const Tensor x = Tensor::random({2, 1, 33, 60}, 5, 1, dtype);
    Brought brought;
    std::vector<Tensor> matrices;
    for (const Array* matrix : {&w.w_q, &w.w_k, &w.w_v, &w.w_o}) {
      Tensor t({1, 1, 60, 60}, Strides{0, 0, 67, 1}, dtype);
      const std::vector<float> values = matrix->to_floats();
      for (std::int64_t n = 0; n < 3600; ++n)
        t.set(0, 0, n / 60, n % 60, values[static_cast<std::size_t>(n)]);
      matrices.push_back(t);
    }
    Tensor bias({1, 1, 1, 60}, dtype), out(x.view().shape, dtype);
    for (std::int64_t d = 0; d < 60; ++d) bias.set(0, 0, 0, d, 0.25f);
    const LayerViews views{.w_q = brought.view(matrices[0].view()),
                           .w_k = brought.view(matrices[1].view()),
                           .w_v = brought.view(matrices[2].view()),
                           .w_o = brought.view(matrices[3].view()),
                           .b_q = brought.view(bias.view())};
    lends({.x = brought.view(x.view()), .weights = &views}, {.out = brought.view(out.mutable_view())},
          causal);
    brought.fetch();
    expect(out.memory() == out_of(own, x, causal).memory(), name_of(dtype));
  }
}

// Whatever was rounded on the way: the heads, the gradients by them, and what attention made of both.
CLAIM(layers_of_16_bits_train_on_the_device_as_far_from_f32_as_storing_takes_them) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    Layers layers(grouped_query(96, 6, 2), dtype);
    const Tensor x = Tensor::random({2, 1, 70, 96}, 7, 1, dtype),
                 dy = Tensor::random({2, 1, 70, 96}, 8, 1, dtype), wide_x = x.as(DType::f32),
                 wide_dy = dy.as(DType::f32);
    Tensor wanted({2, 1, 70, 96}), found = wanted;
    layers.here.backward({.x = wide_x.view()}, {.out = wide_dy.view(), .x = wanted.mutable_view()}, causal);
    Brought brought;
    layers.there.backward({.x = brought.view(x.view())},
                          {.out = brought.view(dy.view()), .x = brought.view(found.mutable_view())}, causal);
    brought.fetch();
    expect_close(found, wanted, 2 * bound_of(wanted, dtype), name_of(dtype));
  }
}

}  // namespace
}  // namespace heed::cuda::test
