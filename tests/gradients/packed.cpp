// SPDX-License-Identifier: Apache-2.0
// Packed and padded sequences (S19): their gradients are those of each sequence alone, bit for bit where
// nothing is shared, and what no query has a part in is 0.
#include <numeric>

#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

class PackedGradient : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, PackedGradient, testing::ValuesIn(backward_kernel_names()), test_name);

struct Packed {
  std::vector<std::int64_t> query_starts{0}, key_starts{0};
  Tensor q, k, v, out, log_sum_exp, out_gradient, log_sum_exp_gradient, bias, sink;

  Packed(Dice& dice, std::uint64_t seed, std::int64_t heads, std::int64_t kv_heads, std::int64_t dim) {
    std::int64_t max_keys = 0;
    for (std::int64_t n = dice.between(1, 4); n > 0; --n) {
      query_starts.push_back(query_starts.back() + dice.between(0, 110));
      key_starts.push_back(key_starts.back() + dice.between(0, 210));
      max_keys = std::max(max_keys, key_starts.back() - *(key_starts.end() - 2));
    }
    const std::int64_t queries = query_starts.back(), keys = key_starts.back();
    q = Tensor::random({1, heads, queries, dim}, seed, 2);
    k = Tensor::random({1, kv_heads, keys, dim}, seed + 1, 2);
    v = Tensor::random({1, kv_heads, keys, dim + 1}, seed + 2, 2);
    out = Tensor({1, heads, queries, dim + 1});
    log_sum_exp = Tensor({1, heads, queries, 1});
    out_gradient = Tensor::random(out.shape(), seed + 3);
    log_sum_exp_gradient = Tensor::random(log_sum_exp.shape(), seed + 4);
    bias = Tensor::random(
        {1, dice.one_in(2) ? 1 : heads, dice.one_in(3) ? 1 : queries, dice.one_in(4) ? 1 : max_keys},
        seed + 5);
    sink = Tensor::random({dice.one_in(2) ? 1 : std::ssize(query_starts) - 1, heads, 1, 1}, seed + 6);
  }

  Inputs inputs() const {
    return {
        .q = q.view(), .k = k.view(), .v = v.view(), .query_starts = query_starts, .key_starts = key_starts};
  }
  Options options(const std::string& kernel) const {
    return {.masks = {Causal{Align::ends}}, .bias = bias.view(), .sink = sink.view(), .kernel = kernel};
  }
};

TEST_P(PackedGradient, is_within_the_bound_of_the_reference) {
  for (const std::uint64_t seed : seeds(1, 21)) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    Packed p(dice, seed * 100, 4, dice.one_in(2) ? 2 : 1, 6);
    attention(p.inputs(), {.out = p.out.mutable_view(), .log_sum_exp = p.log_sum_exp.mutable_view()},
              p.options(""));
    Tensor dq(p.q.shape()), dk(p.k.shape()), dv(p.v.shape()), db(p.bias.shape()), ds(p.sink.shape());
    for (Tensor* x : {&dq, &dk, &dv, &db, &ds}) x->fill_bytes(0xff);
    const Saved saved{p.out.view(), p.log_sum_exp.view()};
    const Gradients gradients{.out = p.out_gradient.view(),
                              .log_sum_exp = p.log_sum_exp_gradient.view(),
                              .q = dq.mutable_view(),
                              .k = dk.mutable_view(),
                              .v = dv.mutable_view(),
                              .bias = db.mutable_view(),
                              .sink = ds.mutable_view()};
    try {
      attention_backward(p.inputs(), saved, gradients, p.options(GetParam()));
    } catch (const Error& error) {
      ASSERT_EQ(error.code, Error::unsupported) << error.what();
      return;
    }
    const Check result = check(p.inputs(), saved, gradients, p.options(""));
    ASSERT_EQ(result.beyond_bound, 0) << result.first_miss;
  }
}

TEST_P(PackedGradient, has_the_bits_of_each_sequence_alone) {
  for (const std::uint64_t seed : seeds(50, 60)) {
    SCOPED_TRACE(seed);
    Dice dice(seed);
    Packed p(dice, seed * 100, 4, 2, 6);
    const Options options{.masks = {Causal{Align::ends}}, .kernel = GetParam()};
    attention(p.inputs(), {.out = p.out.mutable_view(), .log_sum_exp = p.log_sum_exp.mutable_view()},
              {.masks = options.masks});
    Tensor dq(p.q.shape()), dk(p.k.shape()), dv(p.v.shape());
    const auto differentiate = [&](const Inputs& in, const Saved& saved, const Tensor& out_gradient,
                                   Tensor& q, Tensor& k, Tensor& v) {
      attention_backward(
          in, saved,
          {.out = out_gradient.view(), .q = q.mutable_view(), .k = k.mutable_view(), .v = v.mutable_view()},
          options);
    };
    try {
      differentiate(p.inputs(), {p.out.view(), p.log_sum_exp.view()}, p.out_gradient, dq, dk, dv);
    } catch (const Error& error) {
      ASSERT_EQ(error.code, Error::unsupported) << error.what();
      return;
    }
    for (std::size_t n = 0; n + 1 < p.query_starts.size(); ++n) {
      const std::int64_t i = p.query_starts[n], queries = p.query_starts[n + 1] - i, j = p.key_starts[n],
                         keys = p.key_starts[n + 1] - j;
      const Tensor q = p.q.rows(i, queries), k = p.k.rows(j, keys), v = p.v.rows(j, keys),
                   out = p.out.rows(i, queries), lse = p.log_sum_exp.rows(i, queries),
                   out_gradient = p.out_gradient.rows(i, queries);
      Tensor q1(q.shape()), k1(k.shape()), v1(v.shape());
      differentiate({.q = q.view(), .k = k.view(), .v = v.view()}, {out.view(), lse.view()}, out_gradient, q1,
                    k1, v1);
      EXPECT_TRUE(same_bits(dq.rows(i, queries), q1));
      EXPECT_TRUE(same_bits(dk.rows(j, keys), k1));
      EXPECT_TRUE(same_bits(dv.rows(j, keys), v1));
    }
  }
}

TEST_P(PackedGradient, is_zero_for_the_padding_of_queries) {
  const std::vector<std::int64_t> counts{3, 0, 7};
  const Tensor q = Tensor::random({3, 2, 7, 8}, 1), k = Tensor::random({3, 2, 9, 8}, 2),
               v = Tensor::random({3, 2, 9, 8}, 3), bias = Tensor::random({3, 1, 7, 9}, 4);
  Tensor out(q.shape()), lse({3, 2, 7, 1}), out_gradient = Tensor::random(q.shape(), 5);
  out.fill_bytes(0xff), lse.fill_bytes(0xff);  // nothing is written for the padding, and nothing of it read
  const Inputs inputs{.q = q.view(), .k = k.view(), .v = v.view(), .query_counts = counts};
  Options options{.bias = bias.view()};
  attention(inputs, {.out = out.mutable_view(), .log_sum_exp = lse.mutable_view()}, options);
  Tensor dq(q.shape()), dk(k.shape()), dv(v.shape()), db(bias.shape());
  for (Tensor* x : {&dq, &dk, &dv, &db}) x->fill_bytes(0xff);
  options.kernel = GetParam();
  const Saved saved{out.view(), lse.view()};
  const Gradients gradients{.out = out_gradient.view(),
                            .q = dq.mutable_view(),
                            .k = dk.mutable_view(),
                            .v = dv.mutable_view(),
                            .bias = db.mutable_view()};
  try {
    attention_backward(inputs, saved, gradients, options);
  } catch (const Error& error) {
    ASSERT_EQ(error.code, Error::unsupported) << error.what();
    return;
  }
  const Check result = check(inputs, saved, gradients, options);
  EXPECT_EQ(result.beyond_bound, 0) << result.first_miss;
  EXPECT_EQ(result.compared,
            dq.shape().elements() + dk.shape().elements() + dv.shape().elements() + db.shape().elements());
  for_each(dq.shape(), [&](auto b, auto h, auto i, auto d) {
    if (i >= counts[static_cast<std::size_t>(b)]) {
      EXPECT_EQ(dq.bits(b, h, i, d), 0u);
    }
  });
  for_each(db.shape(), [&](auto b, auto h, auto i, auto j) {
    if (i >= counts[static_cast<std::size_t>(b)]) {
      EXPECT_EQ(db.bits(b, h, i, j), 0u);
    }
  });
}

}  // namespace
}  // namespace heed::cases
