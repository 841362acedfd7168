// SPDX-License-Identifier: Apache-2.0
// Gradients of every CUDA kernel where something is no number: what is seen reaches what it must, as NaN or
// as an infinity, and nothing else.
#include <algorithm>
#include <cmath>

#include "gradients.hpp"

namespace heed::cuda::test {
namespace {

// What is seen and is no number reaches what the rules say.
CLAIM(what_is_seen_and_no_number_reaches_what_it_must) {
  for (const std::string& kernel : backward_kernel_names())
    for (const float poison : {static_cast<float>(NAN), static_cast<float>(HUGE_VALF)})
      for (int where = 0; where < 8; ++where) {
        Call call = middling_call(kernel, 1, 71);
        call.q = Tensor::random({1, 4, 40, 16}, 72, 2, call.q.dtype());
        call.k = Tensor::random({1, 2, 40, 16}, 73, 2, call.k.dtype());
        call.v = Tensor::random({1, 2, 40, 16}, 74, 2, call.v.dtype());
        if (kernel != hopper && where % 2 == 0) {  // -inf and NaN of a softcap's difference and of ALiBi
          call.softcap = 30.0f;
          call.alibi = cases::Slopes{.of_heads = {0.5f, 0.1f, 2.0f, 0.0f}, .align = Align::ends};
        }
        if (where >= 4) call.bias = Tensor::random({1, 4, 40, 40}, 76, 2, call.q.dtype());
        BackwardCall backward(call, 75);
        Tensor& x = where % 4 == 0   ? backward.call.q
                    : where % 4 == 1 ? backward.call.k
                    : where % 4 == 2 ? backward.call.v
                                     : backward.out_gradient;
        x.set(0, 1, 20, 3, poison);
        expect_right(kernel, backward, kernel + ", poison " + std::to_string(where));
      }
}

// A few rows and keys with any option, of which some numbers, a row, or everything of one tensor is replaced
// by NaN and infinities: before the forward pass, or only in what the backward pass is given.
BackwardCall wild_call(std::uint64_t seed, DType dtype) {
  Dice dice(seed);
  const std::int64_t dim = dice.pick<std::int64_t>({8, 24, 64, 72, 136}), kv_heads = dice.between(1, 2),
                     heads = kv_heads * dice.between(1, 2), batch = dice.between(1, 2),
                     queries = dice.between(1, 150), keys = dice.between(1, 150);
  Call call{.q = Tensor::random({batch, heads, queries, dim}, 3 * seed, 3, dtype),
            .k = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 1, 2, dtype),
            .v = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 2, 2, dtype)};
  if (dice.one_in(2)) call.causal = Causal{dice.one_in(2) ? Align::ends : Align::starts};
  if (dice.one_in(3)) add_random_options(dice, call, seed);
  const std::vector<float> numbers = dice.one_in(2)
                                         ? std::vector<float>{HUGE_VALF}
                                         : std::vector<float>{static_cast<float>(NAN), HUGE_VALF, -HUGE_VALF};
  const auto spoil = [&](Tensor& x) {
    const Shape s = x.shape();
    const std::int64_t kind = dice.between(0, 3), row = dice.between(0, s.length - 1);
    cases::for_each(s, [&](auto b, auto h, auto i, auto d) {
      const bool is_one = kind == 0 || (kind == 1 && dice.one_in(40)) ||
                          (i == row && (kind == 2 || (kind == 3 && d == 3 % s.dim)));
      if (is_one) x.set(b, h, i, d, dice.pick(numbers));
    });
  };
  const std::int64_t where = dice.between(0, 9);
  // Of a weight or a value that is no number the reference has NaN where kernels drop it. A forward pass over
  // such values has NaN there, too.
  if (where <= 4) call.dropout.reset();
  if (where == 0) spoil(call.k);
  if (where == 1) spoil(call.v);
  BackwardCall backward(call, seed ^ 0xD0u, dice.one_in(3));
  if (where == 2) spoil(backward.call.q);
  if (where == 3) spoil(backward.call.k);
  if (where == 4) spoil(backward.call.v);
  if (where == 5) spoil(backward.out);
  if (where >= 6 && !dice.one_in(8)) spoil(backward.out_gradient);
  if (where == 9 && backward.log_sum_exp_gradient) spoil(*backward.log_sum_exp_gradient);
  return backward;
}

// NaN, +inf, -inf or a number, as the reference has it in double precision; one that rounds to an infinity
// may have become it.
void expect_same_kinds(const BackwardResults& found, const BackwardResults& wanted, const std::string& what) {
  const auto kind = [](float x) { return x != x ? 0 : std::isinf(x) ? (x > 0 ? 1 : 2) : 3; };
  expect_each(found, wanted, what, [&](const Tensor& of_kernel, const Tensor& of_reference, auto... at) {
    const float x = of_kernel.at(at...), y = of_reference.at(at...);
    const bool may_round = !std::isnan(x) && !std::isnan(y) && std::signbit(x) == std::signbit(y) &&
                           std::min(std::fabs(x), std::fabs(y)) > 65000;
    return kind(x) == kind(y) || may_round;
  });
}

CLAIM(random_numbers_that_are_not_finite_reach_what_the_reference_says) {
  for (const std::string& kernel : backward_kernel_names()) {
    int taken = 0;
    for (const std::uint64_t seed : some_seeds(kernel == exact ? 60 : 240)) {
      const DType dtype = kernel == exact ? DType::f32 : seed % 3 == 0 ? DType::bf16 : DType::f16;
      const BackwardCall backward = wild_call(seed, dtype);
      const std::string what = named(kernel, seed, backward.call);
      if (!expect_right(kernel, backward, what)) continue;
      ++taken;
      BackwardResults found(backward), wanted(backward);
      const bool accumulates = seed % 5 == 0;
      for (BackwardResults* of : {&found, &wanted}) {
        of->accumulate = accumulates;
        for (auto& gradient : of->gradients)
          if (gradient && accumulates)
            cases::for_each(gradient->shape(), [&](auto b, auto h, auto i, auto d) {
              gradient->set(b, h, i, d, static_cast<float>((i + d) % 3));
            });
      }
      differentiate(kernel, backward, found);
      cases::differentiate(backward, wanted, "reference");
      expect_same_kinds(found, wanted, what);
    }
    expect(cases::small_selection() || taken > 5, kernel, " took ", taken);
  }
}

}  // namespace
}  // namespace heed::cuda::test
