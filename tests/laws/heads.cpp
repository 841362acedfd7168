// SPDX-License-Identifier: Apache-2.0
// Laws of heads (S8): grouped-query attention is multi-head attention with shared K and V, bit for bit.
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"

namespace heed::cases {
namespace {

class Heads : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Heads, testing::ValuesIn(plan_and_kernels()), test_name);

// K or V with one head per query head.
Tensor repeated(const Call& call, const Tensor& shared) {
  const Shape s = shared.shape();
  Tensor made({s.batch, call.heads(), s.length, s.dim}, shared.dtype());
  for_each(made.shape(), [&](auto b, auto h, auto j, auto d) {
    made.set(b, h, j, d, shared.at(b, call.kv_head(h), j, d));
  });
  return made;
}

TEST_P(Heads, gqa_equals_mha_with_repeated_heads) {
  for (std::uint64_t seed : seeds(100, 140)) {
    const Call grouped = random_call(seed, {.dropout = true});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(grouped));
    Call full = grouped;
    full.k = repeated(grouped, grouped.k);
    full.v = repeated(grouped, grouped.v);
    full.head_map = HeadMap::interleaved;
    const auto a = attend(grouped, everything), b = attend(full, everything);
    EXPECT_TRUE(same_bits(a, b));
  }
}

TEST_P(Heads, repeating_heads_by_a_stride_of_zero_equals_mqa) {
  for (std::uint64_t seed : seeds(150, 165)) {
    Call call = random_call(seed);
    call.k = call.k.laid_out(bhsd(call.k.shape()));
    Inputs inputs = call.inputs();
    inputs.k.shape.heads = inputs.v.shape.heads = 1;  // multi-query: the first KV head serves all
    Inputs broadcast = inputs;
    broadcast.k.shape.heads = broadcast.v.shape.heads = call.heads();
    broadcast.k.stride.heads = broadcast.v.stride.heads = 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Results a(call, everything), b(call, everything);
    const Options options = call.options(GetParam());
    if (!attend_if_accepted(inputs, a.outputs(), options)) continue;
    if (!attend_if_accepted(broadcast, b.outputs(), options)) continue;
    EXPECT_TRUE(same_bits(a, b));
  }
}

TEST_P(Heads, a_head_computed_alone_equals_the_head_among_others) {
  for (std::uint64_t seed : seeds(170, 190)) {
    Call call = random_call(seed, {.max_batch = 2});
    call.matrices.clear();
    call.bias.reset();
    call.sink.reset();
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    const auto all = attend(call, everything);
    if (!all) continue;
    for (std::int64_t h = 0; h < call.heads(); ++h) {
      auto only = [](const Tensor& t, std::int64_t head) {
        Tensor made({t.shape().batch, 1, t.shape().length, t.shape().dim}, t.dtype());
        for_each(made.shape(),
                 [&](auto b, auto, auto i, auto d) { made.set(b, 0, i, d, t.at(b, head, i, d)); });
        return made;
      };
      Call alone = call;
      alone.q = only(call.q, h);
      alone.k = only(call.k, call.kv_head(h));
      alone.v = only(call.v, call.kv_head(h));
      if (call.alibi) alone.alibi = call.alibi->some(h, 1, call.heads());
      const auto one = attend(alone, everything);
      ASSERT_TRUE(one);
      EXPECT_TRUE(same_bits(one->out, only(all->out, h))) << "head " << h;
      EXPECT_TRUE(same_bits(*one->weights, only(*all->weights, h))) << "head " << h;
    }
  }
}

}  // namespace
}  // namespace heed::cases
