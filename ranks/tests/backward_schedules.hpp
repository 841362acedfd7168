// SPDX-License-Identifier: Apache-2.0
// The gradients of a random call that is spread over ranks in a random way.
#pragma once
#include "cases/backward.hpp"
#include "ranks/tests/schedules.hpp"

namespace heed::cases {

// As random_call() makes it, with heads that share keys side by side.
inline Call differentiable_call(std::uint64_t seed) {
  Call call = random_call(
      seed, {.max_queries = 50, .max_keys = 400, .max_batch = 2, .long_keys = false, .dropout = true});
  call.head_map = HeadMap::interleaved;
  call.out_dtype.reset();
  return call;
}

// That the call has such an argument, and that its ranks have what it needs: no heads of other ranks share
// it, and a row is known to be everybody's because some rank has more of them.
inline bool has_gradient(Of of, const BackwardCall& whole, const Split& split) {
  const Tensor* x = whole.argument(of);
  if (!x) return false;
  if (of != Of::bias && of != Of::sink) return true;
  const bool is_of_all_heads = x->shape().heads == 1 && whole.call.heads() > 1;
  bool can_tell = of == Of::sink || x->shape().length > 1 || whole.call.queries() == 1;
  for (const Share& share : split.of_rank) {
    std::int64_t rows = 0;
    for (const Stretch& s : share.queries) rows += s.length;
    can_tell |= share.kv_heads > 0 && rows != 1;
    if (is_of_all_heads && share.kv_heads != split.whole.kv_heads) return false;
  }
  return can_tell;
}

// What a rank has of a gradient.
inline Tensor share_of_gradient(Of of, const Tensor& whole, const Call& call, const Share& share) {
  if (of == Of::k || of == Of::v) return share_of(whole, share.keys, share.first_kv_head, share.kv_heads);
  const std::int64_t of_group = call.heads() / call.k.shape().heads;
  const bool has_heads = whole.shape().heads > 1 || of == Of::q,
             has_rows = of == Of::q || (of == Of::bias && whole.shape().length > 1);
  return share_of(whole, has_rows ? share.queries : std::vector<Stretch>{{0, 1}},
                  has_heads ? share.first_kv_head * of_group : 0, has_heads ? share.kv_heads * of_group : 1);
}

inline testing::AssertionResult gradients_have_the_bits_of_one_process(Group& group, std::uint64_t seed) {
  Dice dice(seed + 1);
  const BackwardCall whole(differentiable_call(seed), seed, dice.one_in(2));
  const std::optional<DType> dtype = dice.one_in(2) ? std::optional(DType::f32) : std::nullopt;
  const bool accumulate = dice.one_in(3);
  const Split split = random_split(whole.call, group.size(), dice);
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  std::vector<Of> wanted;
  for (const Of of : every_gradient)
    if (!dice.one_in(4) && has_gradient(of, whole, split)) wanted.push_back(of);
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
  if (share.kv_heads == 0) return testing::AssertionSuccess();  // nothing is this rank's
  for (const Of of : wanted) {
    const Tensor part = share_of_gradient(of, *expected[of], whole.call, share);
    const auto same = same_bits(*found[of], part);
    if (!same)
      return testing::AssertionFailure()
             << same.message() << " in the gradient by " << name_of(of) << " on rank " << group.rank()
             << " of " << group.size() << ", seed " << seed << ": " << describe(whole.call);
  }
  return testing::AssertionSuccess();
}

}  // namespace heed::cases
