// SPDX-License-Identifier: Apache-2.0
// The stride of an axis of one entry is never multiplied: at either end of int64 it changes no bit, and under
// UBSan it overflows nowhere. Every argument of every function that takes views, every axis of one entry.
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "cases/counter_random.hpp"
#include "heed/heed.hpp"

namespace heed {
namespace {

// Views of `count` numbers each, every axis of one entry of which has the stride `end`.
class Arena {
 public:
  explicit Arena(std::optional<std::int64_t> end) : end_(end) {}

  MutableView operator()(const Shape& shape) {
    std::vector<float>& numbers = all_.emplace_back(static_cast<std::size_t>(shape.elements()));
    for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = cases::uniform(all_.size(), n);
    return {numbers, shape, far(shape)};
  }
  BoolView bools(const Shape& shape) {
    bools_.push_back(std::make_unique<bool[]>(static_cast<std::size_t>(shape.elements())));
    bool* const first = bools_.back().get();
    for (std::int64_t n = 0; n < shape.elements(); ++n) first[n] = n % 3 != 1;
    return {first, shape, far(shape)};
  }
  const std::vector<std::vector<float>>& numbers() const { return all_; }

 private:
  Strides far(const Shape& n) const {
    const Strides packed = bhsd(n);
    if (!end_) return packed;
    return {n.batch == 1 ? *end_ : packed.batch, n.heads == 1 ? *end_ : packed.heads,
            n.length == 1 ? *end_ : packed.length, n.dim == 1 ? *end_ : packed.dim};
  }

  std::optional<std::int64_t> end_;
  std::vector<std::vector<float>> all_{};
  std::vector<std::unique_ptr<bool[]>> bools_{};
};

struct Extents {
  std::int64_t batch, heads, queries, keys, dim, value_dim;
};

// Runs it packed, and with strides at both ends; all numbers must be the same afterwards.
void expect_same(const std::string& what, const std::function<void(Arena&)>& run) {
  Arena packed({});
  run(packed);
  using Limits = std::numeric_limits<std::int64_t>;
  for (const std::int64_t end : {Limits::min(), Limits::max()}) {
    SCOPED_TRACE(what + ", strides " + std::to_string(end));
    Arena strided(end);
    run(strided);
    EXPECT_EQ(strided.numbers(), packed.numbers());
  }
}

// Each extent 1 or more than a vector's lanes: all of them.
template <class Run>
void for_each_extents(const Run& run) {
  for (unsigned which = 0; which < 64; ++which) {
    const auto extent = [&](unsigned bit, std::int64_t more) { return which >> bit & 1 ? more : 1; };
    const Extents n{extent(0, 2), extent(1, 2), extent(2, 17), extent(3, 35), extent(4, 18), extent(5, 19)};
    run(n, std::to_string(n.batch) + " x " + std::to_string(n.heads) + ", " + std::to_string(n.queries) +
               " queries, " + std::to_string(n.keys) + " keys, " + std::to_string(n.dim) + " and " +
               std::to_string(n.value_dim) + " wide");
  }
}

struct Made {
  Inputs inputs;
  Outputs outputs;
  Options options{};
};

Made make(const Extents& n, bool masked, Arena& arena) {
  const Shape scores{n.batch, n.heads, n.queries, n.keys};
  Made made{.inputs = {.q = arena({n.batch, n.heads, n.queries, n.dim}),
                       .k = arena({n.batch, 1, n.keys, n.dim}),
                       .v = arena({n.batch, 1, n.keys, n.value_dim})},
            .outputs = {.out = arena({n.batch, n.heads, n.queries, n.value_dim}),
                        .log_sum_exp = arena({n.batch, n.heads, n.queries, 1})}};
  if (!masked) return made;
  made.outputs.weights = arena(scores);
  made.outputs.scores = {arena(scores), Stage::biased};
  made.options.bias = arena({1, n.heads, 1, n.keys});
  made.options.sink = arena({n.batch, 1, 1, 1});
  made.options.masks = {Keep{arena.bools({n.batch, 1, n.queries, 1})},
                        Hide{arena.bools({1, n.heads, 1, n.keys})}};
  return made;
}

TEST(strides_of_one_entry, change_nothing_of_attention_and_its_gradients) {
  for_each_extents([](const Extents& n, const std::string& name) {
    for (const bool masked : {false, true}) {
      for (const std::string& kernel : kernel_names())
        expect_same(kernel + ", " + name, [&](Arena& arena) {
          Made made = make(n, masked, arena);
          made.options.kernel = kernel;
          const std::vector<Verdict> verdicts = plan(made.inputs, made.outputs, made.options);
          if (std::ranges::any_of(verdicts, [](const Verdict& v) { return v.choice == Verdict::taken; }))
            attention(made.inputs, made.outputs, made.options);
        });
      expect_same("gradients, " + name, [&](Arena& arena) {
        Made made = make(n, masked, arena);
        attention(made.inputs, made.outputs, made.options);
        Gradients gradients{.out = arena(made.outputs.out.shape),
                            .log_sum_exp = arena(made.outputs.log_sum_exp->shape),
                            .q = arena(made.inputs.q.shape),
                            .k = arena(made.inputs.k.shape),
                            .v = arena(made.inputs.v.shape)};
        if (masked) gradients.bias = arena(made.options.bias->shape);
        if (masked) gradients.sink = arena(made.options.sink->shape);
        attention_backward(made.inputs, {made.outputs.out, *made.outputs.log_sum_exp}, gradients,
                           made.options);
      });
    }
  });
}

TEST(strides_of_one_entry, change_nothing_of_streams_and_what_is_merged) {
  for_each_extents([](const Extents& n, const std::string& name) {
    expect_same("stream, " + name, [&](Arena& arena) {
      const Made made = make(n, false, arena);
      KeyStream stream({.q = made.inputs.q, .kv_heads = 1, .value_dim = n.value_dim}, made.outputs);
      for (int times = 0; times < 3; ++times) stream.add(made.inputs.k, made.inputs.v);
      stream.finish();
      const Made other = make(n, false, arena);
      attention(other.inputs, other.outputs);
      EXPECT_EQ(check(other.inputs, other.outputs).beyond_bound, 0);
      merge(made.outputs, other.outputs);
    });
  });
}

TEST(strides_of_one_entry, change_nothing_of_caches_layers_and_rotations) {
  for_each_extents([](const Extents& n, const std::string& name) {
    expect_same("cache, " + name, [&](Arena& arena) {
      const Made made = make(n, false, arena);
      KvCache cache(
          {.batch = n.batch, .kv_heads = 1, .capacity = 99, .dim = n.dim, .value_dim = n.value_dim});
      cache.append(made.inputs.k, made.inputs.v);
      cache.append(made.inputs.k, made.inputs.v);
      const MutableView k = arena({1, 1, 2 * n.keys, n.dim}), v = arena({1, 1, 2 * n.keys, n.value_dim});
      cache.read(0, k, v);
      if (n.queries <= 2 * n.keys) attention({.q = made.inputs.q, .cache = &cache}, made.outputs);
    });
    if (n.dim == 1 || n.keys != 1) return;
    expect_same("layer, " + name, [&](Arena& arena) {
      const LayerConfig config{.model_dim = n.dim, .heads = 1, .value_dim = n.value_dim, .rotary = Rotary{}};
      AttentionLayer layer(config, random_weights(config, 1));
      const AttentionLayer::Call call{.x = arena({n.batch, 1, n.queries, n.dim}),
                                      .context = arena({n.batch, 1, n.keys, n.dim}),
                                      .value = arena({n.batch, 1, n.keys, n.value_dim})};
      const MutableView y = arena(call.x.shape), weights = arena({n.batch, 1, n.queries, n.keys});
      layer(call, {.out = y, .weights = weights});
      layer.backward(call, {.out = arena(y.shape),
                            .x = arena(call.x.shape),
                            .context = arena(call.context->shape),
                            .value = arena(call.value->shape)});
      rotate(y, std::vector<std::int64_t>(static_cast<std::size_t>(n.queries), 3));
    });
  });
}

}  // namespace
}  // namespace heed
