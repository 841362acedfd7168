// SPDX-License-Identifier: Apache-2.0
// The gradients of a random call that is spread over ranks in a random way.
#pragma once
#include "cases/backward.hpp"
#include "ranks/schedules.hpp"

namespace heed::cases {

// As random_call() makes it, less what has no gradient over ranks.
inline Call differentiable_call(std::uint64_t seed) {
  Call call = random_call(
      seed, {.most_queries = 50, .most_keys = 400, .most_batch = 2, .long_keys = false, .dropout = true});
  call.bias.reset();
  call.matrices.clear();
  call.head_map = HeadMap::interleaved;
  call.out_dtype.reset();
  return call;
}

inline testing::AssertionResult gradients_have_the_bits_of_one_process(Group& group, std::uint64_t seed) {
  Dice dice(seed + 1);
  const BackwardCall whole(differentiable_call(seed), seed, dice.one_in(2));
  const std::optional<DType> dtype = dice.one_in(2) ? std::optional(DType::f32) : std::nullopt;
  std::vector<Of> wanted;
  for (const Of of : {Of::q, Of::k, Of::v})
    if (!dice.one_in(4)) wanted.push_back(of);
  const bool accumulate = dice.one_in(3);
  const Split split = random_split(whole.call, group.size(), dice);
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  const std::int64_t of_group = whole.call.heads() / whole.call.k.shape().heads,
                     first = share.first_kv_head * of_group, heads = share.kv_heads * of_group;
  const auto of_queries = [&](const Tensor& x) { return share_of(x, share.queries, first, heads); };

  BackwardCall own = whole;
  own.call = call_of(whole.call, share);
  own.out = of_queries(whole.out), own.log_sum_exp = of_queries(whole.log_sum_exp);
  own.out_gradient = of_queries(whole.out_gradient);
  if (whole.log_sum_exp_gradient) own.log_sum_exp_gradient = of_queries(*whole.log_sum_exp_gradient);

  const auto begin = [&](const BackwardCall& call) {
    BackwardResults results(call, dtype, wanted);
    results.accumulate = accumulate;
    for (const Of of : wanted)
      if (accumulate)
        for_each(results[of]->shape(),
                 [&](auto b, auto h, auto i, auto d) { results[of]->set(b, h, i, d, 0.25); });
    return results;
  };
  BackwardResults expected = begin(whole), found = begin(own);
  differentiate(whole, expected);
  attention_backward(group, split, own.call.inputs(), own.saved(), found.views(own), own.call.options());
  for (const Of of : wanted) {
    const Tensor part = of == Of::q
                            ? of_queries(*expected[of])
                            : share_of(*expected[of], share.keys, share.first_kv_head, share.kv_heads);
    const auto same = same_bits(*found[of], part);
    if (!same)
      return testing::AssertionFailure()
             << same.message() << " in the gradient by " << name_of(of) << " on rank " << group.rank()
             << " of " << group.size() << ", seed " << seed << ": " << describe(whole.call);
  }
  return testing::AssertionSuccess();
}

}  // namespace heed::cases
