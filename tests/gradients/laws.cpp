// SPDX-License-Identifier: Apache-2.0
// What holds for the gradients of every problem, bit for bit (O1, G6, G8): they do not depend on threads,
// batch mates, strides, on which of them were asked for, nor on anything that a mask hides.
#include <cmath>
#include <limits>

#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"
#include "heed/threads.hpp"

namespace heed::cases {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

class GradientLaw : public testing::TestWithParam<std::string> {
 protected:
  static std::optional<BackwardResults> attend(const BackwardCall& call, std::optional<DType> dtype = {}) {
    return gradients_of(call, GetParam(), dtype);
  }
  // Every gradient both have.
  static testing::AssertionResult same(const std::optional<BackwardResults>& a,
                                       const std::optional<BackwardResults>& b) {
    if (!a || !b) return testing::AssertionSuccess();
    for (const Of of : every_gradient)
      if ((*a)[of] && (*b)[of])
        if (auto result = same_bits(*(*a)[of], *(*b)[of]); !result) return result << " in " << name_of(of);
    return testing::AssertionSuccess();
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, GradientLaw, testing::ValuesIn([] {
                           std::vector<std::string> names = backward_kernel_names();
                           names.insert(names.begin(), "");
                           return names;
                         }()),
                         test_name);

class WithThreads {
 public:
  explicit WithThreads(int n) : before_(num_threads()) { set_num_threads(n); }
  ~WithThreads() { set_num_threads(before_); }

 private:
  int before_;
};

std::string trace(std::uint64_t seed, const Call& call) {
  return "seed " + std::to_string(seed) + ": " + describe(call);
}

// One KV head goes through two passes as soon as there are two threads, and through one pass before.
TEST_P(GradientLaw, the_number_of_threads_changes_no_bit) {
  for (const std::uint64_t seed : seeds(1, 40)) {
    const Call call =
        for_kernel(GetParam(),
                   random_call(seed, {.max_queries = 150, .max_keys = 420, .max_batch = 2, .dropout = true}));
    SCOPED_TRACE(trace(seed, call));
    const BackwardCall backward(call, seed);
    std::optional<BackwardResults> one;
    {
      const WithThreads single(1);
      one = attend(backward);
    }
    for (const int threads : {2, 3, 7}) {
      const WithThreads several(threads);
      EXPECT_TRUE(same(one, attend(backward))) << threads << " threads";
    }
    if (HasFailure()) return;
  }
}

TEST_P(GradientLaw, which_gradients_were_asked_for_changes_no_bit) {
  for (const std::uint64_t seed : seeds(100, 140)) {
    const Call call = for_kernel(GetParam(), random_call(seed, {.dropout = true, .no_dims = true}));
    SCOPED_TRACE(trace(seed, call));
    const BackwardCall backward(call, seed, true);
    const auto all = attend(backward);
    if (!all) continue;
    for (const std::vector<Of>& wanted : std::vector<std::vector<Of>>{
             {Of::q}, {Of::k}, {Of::v}, {Of::bias}, {Of::sink}, {Of::q, Of::v}, {}}) {
      std::optional<BackwardResults> some(std::in_place, backward, std::nullopt, wanted);
      differentiate(backward, *some, GetParam());
      EXPECT_TRUE(same(all, some));
    }
    if (HasFailure()) return;
  }
}

Tensor entry(const Tensor& x, std::int64_t b) {
  if (x.shape().batch == 1) return x;
  Shape shape = x.shape();
  shape.batch = 1;
  Tensor made(shape, x.dtype());
  for_each(shape, [&](auto, auto h, auto i, auto d) { made.set(0, h, i, d, x.at(b, h, i, d)); });
  return made;
}

TEST_P(GradientLaw, other_entries_of_the_batch_change_no_bit) {
  for (const std::uint64_t seed : seeds(200, 260)) {
    Call call = random_call(seed, {.max_batch = 3, .masks = false, .bias = false, .sink = false});
    if (call.batch() < 2) continue;
    SCOPED_TRACE(trace(seed, call));
    const BackwardCall all(call, seed);
    const auto together = attend(all);
    const std::int64_t last = call.batch() - 1;
    BackwardCall alone = all;
    for (Tensor Call::* x : {&Call::q, &Call::k, &Call::v}) alone.call.*x = entry(call.*x, last);
    for (Tensor BackwardCall::* x :
         {&BackwardCall::out, &BackwardCall::log_sum_exp, &BackwardCall::out_gradient})
      alone.*x = entry(all.*x, last);
    const auto single = attend(alone);
    if (!together || !single) continue;
    for (const Of of : {Of::q, Of::k, Of::v})
      EXPECT_TRUE(same_bits(entry(*(*together)[of], last), *(*single)[of])) << name_of(of);
    if (HasFailure()) return;
  }
}

// Heads beside length, a gap after every row, and a first element that is not aligned.
Strides other_strides(const Shape& s, std::uint64_t seed) {
  const std::int64_t dim = seed % 3 + 1, head = s.dim * dim + static_cast<std::int64_t>(seed % 2),
                     length = s.heads * head + 1;
  return {s.length * length + 3, head, length, dim};
}

TEST_P(GradientLaw, strides_of_no_array_change_a_bit) {
  for (const std::uint64_t seed : seeds(300, 340)) {
    const Call call = for_kernel(GetParam(), random_call(seed, {.dropout = true, .no_dims = true}));
    SCOPED_TRACE(trace(seed, call));
    const BackwardCall plain(call, seed, true);
    const auto expected = attend(plain);
    if (!expected) continue;
    BackwardCall strided = plain;
    std::uint64_t n = seed;
    const auto lay_out = [&](Tensor& x) { x = x.laid_out(other_strides(x.shape(), n++)); };
    for (Tensor Call::* x : {&Call::q, &Call::k, &Call::v}) lay_out(strided.call.*x);
    if (strided.call.bias) lay_out(*strided.call.bias);
    for (Tensor BackwardCall::* x :
         {&BackwardCall::out, &BackwardCall::log_sum_exp, &BackwardCall::out_gradient})
      lay_out(strided.*x);
    lay_out(*strided.log_sum_exp_gradient);
    std::optional<BackwardResults> got(std::in_place, strided);
    for (const Of of : every_gradient)
      if ((*got)[of]) lay_out(*(*got)[of]);
    differentiate(strided, *got, GetParam());
    EXPECT_TRUE(same(expected, got));
    if (HasFailure()) return;
  }
}

TEST_P(GradientLaw, accumulating_adds_the_same_numbers_to_what_is_there) {
  for (const std::uint64_t seed : seeds(400, 440)) {
    const Call call = random_call(seed, {.dropout = true, .no_dims = true});
    SCOPED_TRACE(trace(seed, call));
    const BackwardCall backward(call, seed);
    const auto fresh = attend(backward, DType::f32);
    if (!fresh || GetParam() == "reference") continue;  // which adds before it rounds
    BackwardResults added(backward);
    added.accumulate = true;
    std::array<Tensor, 5> before;
    for (const Of of : every_gradient)
      if (auto& x = added[of]) {
        *x = Tensor::random(x->shape(), seed + 7, 3, x->dtype());
        before[static_cast<std::size_t>(of)] = *x;
      }
    differentiate(backward, added, GetParam());
    for (const Of of : every_gradient) {
      if (!added[of]) continue;
      Tensor expected = before[static_cast<std::size_t>(of)];
      for_each(expected.shape(), [&](auto b, auto h, auto i, auto d) {
        expected.set(b, h, i, d, expected.at(b, h, i, d) + (*fresh)[of]->at(b, h, i, d));
      });
      EXPECT_TRUE(same_bits(expected, *added[of])) << name_of(of);
    }
    if (HasFailure()) return;
  }
}

// In every element of the bias whose keys other masks hide from all who share it.
void plant_in_bias(Call& c, float poison) {
  Call without = c;
  without.bias.reset();
  Tensor& bias = *c.bias;
  std::vector<std::array<std::int64_t, 4>> hidden;
  for_each(bias.shape(), [&](auto b, auto h, auto i, auto j) {
    bool is_seen = false;
    for_each(c.score_shape(), [&](auto b2, auto h2, auto i2, auto j2) {
      const auto shares = [](auto own, auto at, auto extent) { return extent == 1 || own == at; };
      const Shape& s = bias.shape();
      is_seen = is_seen || (shares(b, b2, s.batch) && shares(h, h2, s.heads) && shares(i, i2, s.length) &&
                            shares(j, j2, s.dim) && without.sees(b2, h2, i2, j2));
    });
    if (!is_seen) hidden.push_back({b, h, i, j});
  });
  for (const auto& [b, h, i, j] : hidden) bias.set(b, h, i, j, poison);
}

// NaN, infinities and the largest numbers there are, in every key, value, bias, query and gradient of out
// that no rule reads.
void plant(BackwardCall& to, std::uint64_t seed) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  Dice dice(seed);
  Call& c = to.call;
  const auto poison = [&](const Tensor& in) {
    const float largest = in.dtype() == DType::f16 ? 65504.0f : 3e38f;
    return dice.pick<float>({nan, infinity, -infinity, largest, -largest});
  };
  for_each({c.batch(), c.k.shape().heads, c.keys(), 1}, [&](auto b, auto kv_head, auto j, auto) {
    bool is_seen = false;
    for (std::int64_t h = 0; h < c.heads(); ++h)
      for (std::int64_t i = 0; i < c.queries(); ++i)
        is_seen = is_seen || (c.kv_head(h) == kv_head && c.sees(b, h, i, j));
    for (Tensor Call::* x : {&Call::k, &Call::v})
      for (std::int64_t d = 0; !is_seen && d < (c.*x).shape().dim; ++d)
        (c.*x).set(b, kv_head, j, d, poison(c.*x));
  });
  if (c.bias && c.bias->shape().elements() < 200) plant_in_bias(c, poison(*c.bias));
  for_each({c.batch(), c.heads(), c.queries(), 1}, [&](auto b, auto h, auto i, auto) {
    if (c.sees_any(b, h, i)) return;
    for (std::int64_t d = 0; d < c.q.shape().dim; ++d) c.q.set(b, h, i, d, poison(c.q));
    for (Tensor BackwardCall::* x : {&BackwardCall::out, &BackwardCall::out_gradient})
      for (std::int64_t d = 0; d < c.v.shape().dim; ++d) (to.*x).set(b, h, i, d, poison(to.*x));
    to.log_sum_exp.set(b, h, i, 0, dice.pick<float>({nan, infinity, 1.0f, 3e38f}));
  });
}

TEST_P(GradientLaw, nothing_planted_in_what_is_hidden_changes_a_bit) {
  if (is_f64(GetParam())) GTEST_SKIP() << "in f64 the reference computes what is hidden and no number (O1)";
  std::int64_t planted = 0;
  for (const std::uint64_t seed : seeds(500, 600)) {
    const Call call = random_call(seed, {.dropout = true, .no_dims = true});
    SCOPED_TRACE(trace(seed, call));
    const BackwardCall clean(call, seed, true);
    const auto expected = attend(clean);
    BackwardCall poisoned = clean;
    plant(poisoned, seed);
    const auto got = attend(poisoned);
    EXPECT_TRUE(same(expected, got));
    planted += got.has_value();
    if (HasFailure()) return;
  }
  EXPECT_GT(planted, small_selection() ? 2 : 10);
}

// A key that some rows see and others do not: what it holds reaches the rows that see it and no others.
TEST_P(GradientLaw, a_nan_in_one_key_reaches_exactly_the_rows_that_see_it) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (Tensor Call::* where : {&Call::k, &Call::v}) {
      Call call{.q = Tensor::random({1, 2, 120, 8}, 1, 1, dtype),
                .k = Tensor::random({1, 1, 120, 8}, 2, 1, dtype),
                .v = Tensor::random({1, 1, 120, 8}, 3, 1, dtype)};
      call.causal = Causal{};
      const BackwardCall clean(call, 4);
      const auto expected = attend(clean);
      BackwardCall poisoned = clean;
      (poisoned.call.*where).set(0, 0, 70, 3, nan);
      const auto got = attend(poisoned);
      if (!expected || !got) continue;
      const auto sees = [](auto, auto, auto i, auto) { return i >= 70; };
      const auto does_not = [](auto, auto, auto i, auto) { return i < 70; };
      const auto other_key = [](auto, auto, auto j, auto) { return j != 70; };
      EXPECT_TRUE(same_bits_where(*(*expected)[Of::q], *(*got)[Of::q], does_not));
      EXPECT_TRUE(same_bits_where(*(*expected)[Of::k], *(*got)[Of::k], other_key));
      EXPECT_TRUE(same_bits_where(*(*expected)[Of::v], *(*got)[Of::v], other_key));
      for_each((*got)[Of::q]->shape(), [&](auto b, auto h, auto i, auto d) {
        if (sees(b, h, i, d)) {
          EXPECT_TRUE(std::isnan((*got)[Of::q]->at(b, h, i, d)));
        }
      });
      for (std::int64_t d = 0; d < 8; ++d) {
        EXPECT_TRUE(std::isnan((*got)[Of::k]->at(0, 0, 70, d)));
        EXPECT_EQ(std::isnan((*got)[Of::v]->at(0, 0, 70, d)), where == &Call::k);
      }
    }
}

TEST_P(GradientLaw, a_nan_in_one_row_reaches_exactly_the_keys_it_sees) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int which : {0, 1, 2, 3}) {
      Call call{.q = Tensor::random({1, 2, 120, 8}, 1, 1, dtype),
                .k = Tensor::random({1, 1, 120, 8}, 2, 1, dtype),
                .v = Tensor::random({1, 1, 120, 8}, 3, 1, dtype)};
      call.causal = Causal{};
      const BackwardCall clean(call, 4);
      const auto expected = attend(clean);
      BackwardCall poisoned = clean;
      (which == 0   ? poisoned.call.q
       : which == 1 ? poisoned.out_gradient
       : which == 2 ? poisoned.out
                    : poisoned.log_sum_exp)
          .set(0, 1, 50, 0, nan);
      const auto got = attend(poisoned);
      if (!expected || !got) continue;
      EXPECT_TRUE(same_bits_where(*(*expected)[Of::q], *(*got)[Of::q],
                                  [](auto, auto h, auto i, auto) { return h != 1 || i != 50; }));
      const auto unseen = [](auto, auto, auto j, auto) { return j > 50; };
      EXPECT_TRUE(same_bits_where(*(*expected)[Of::k], *(*got)[Of::k], unseen));
      EXPECT_TRUE(same_bits_where(*(*expected)[Of::v], *(*got)[Of::v], unseen));
      for (std::int64_t j = 0; j <= 50; ++j)
        for (std::int64_t d = 0; d < 8; ++d) {
          EXPECT_TRUE(std::isnan((*got)[Of::k]->at(0, 0, j, d)));
          const bool reaches_values = which == 0 || which == 3 || (which == 1 && d == 0);
          EXPECT_EQ(std::isnan((*got)[Of::v]->at(0, 0, j, d)), reaches_values)
              << which << ", " << j << ", " << d;
        }
    }
}

TEST_P(GradientLaw, a_query_that_sees_no_key_gives_zeros_to_everybody_but_the_sink) {
  for (const bool has_sink : {false, true}) {
    Call call{.q = Tensor::random({2, 2, 5, 8}, 1),
              .k = Tensor::random({2, 2, 7, 8}, 2),
              .v = Tensor::random({2, 2, 7, 8}, 3),
              .key_lengths = {{0, 0}}};
    if (has_sink) call.sink = Tensor::random({1, 2, 1, 1}, 4);
    BackwardCall backward(call, 5, true);
    backward.out_gradient.fill(nan);
    const auto got = attend(backward);
    if (!got) continue;
    for (const Of of : {Of::q, Of::k, Of::v})
      for_each((*got)[of]->shape(),
               [&](auto... at) { EXPECT_EQ((*got)[of]->bits(at...), 0u) << name_of(of); });
    if (!has_sink) continue;
    for (std::int64_t h = 0; h < 2; ++h) {
      double sum = 0;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t i = 0; i < 5; ++i) sum += backward.log_sum_exp_gradient->at(b, h, i, 0);
      EXPECT_NEAR((*got)[Of::sink]->at(0, h, 0, 0), sum, 1e-5);
    }
  }
}

}  // namespace
}  // namespace heed::cases
