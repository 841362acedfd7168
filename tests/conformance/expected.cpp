// SPDX-License-Identifier: Apache-2.0
// Expected: the reference of one problem, computed once and held against many results.
#include <functional>
#include <stdexcept>
#include <thread>

#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

Expected expected_of(const Call& call, Results& like) {
  return Expected(call.inputs(), like.outputs(), call.options());
}

Call small_call() {
  return {.q = Tensor::random({2, 2, 3, 8}, 1),
          .k = Tensor::random({2, 1, 5, 8}, 2),
          .v = Tensor::random({2, 1, 5, 4}, 3)};
}

TEST(Expected, says_of_every_result_what_a_check_of_its_own_would) {
  for (std::uint64_t seed : seeds(40, 60)) {
    const Call call = random_call(seed, {.max_queries = 9, .max_keys = 60});
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Results like(call, everything);
    const Expected expected = expected_of(call, like);
    for (const std::string& kernel : kernel_names()) {
      auto got = run_if_accepted(call, everything, kernel);
      if (!got) continue;
      EXPECT_EQ(expected.check(got->outputs()).beyond_bound, 0) << kernel;
      if (got->out.shape().elements() > 0) got->out.set(0, 0, 0, 0, 1e3f);
      const Check once = check(call.inputs(), got->outputs(), call.options()),
                  again = expected.check(got->outputs());
      EXPECT_EQ(again.compared, once.compared);
      EXPECT_EQ(again.beyond_bound, once.beyond_bound);
      EXPECT_EQ(again.worst_error, once.worst_error);
      EXPECT_EQ(again.worst_error_in_bounds, once.worst_error_in_bounds);
      EXPECT_EQ(again.first_miss, once.first_miss);
    }
  }
}

TEST(Expected, needs_its_inputs_no_more_once_it_is_made) {
  Call call = small_call();
  Results results = run(call, everything);
  const Expected expected = expected_of(call, results);
  call.q.fill(1e30f);
  call.k.fill(1e30f);
  call.v.fill(1e30f);
  EXPECT_EQ(expected.check(results.outputs()).beyond_bound, 0);
}

TEST(Expected, names_a_miss_by_its_place_in_the_result_also_where_sequences_are_packed) {
  const Tensor q = Tensor::random({1, 2, 7, 8}, 1), kv = Tensor::random({1, 1, 9, 8}, 2);
  const std::vector<std::int64_t> query_starts{0, 3, 7}, key_starts{0, 4, 9};
  const Inputs inputs{
      .q = q.view(), .k = kv.view(), .v = kv.view(), .query_starts = query_starts, .key_starts = key_starts};
  Tensor out(q.shape());
  const Outputs outputs{.out = out.mutable_view()};
  attention(inputs, outputs);
  const Expected expected(inputs, outputs);
  EXPECT_EQ(expected.check(outputs).beyond_bound, 0);
  EXPECT_EQ(expected.check(outputs).compared, out.shape().elements());
  out.set(0, 1, 5, 6, 0.25f);
  const Check found = expected.check(outputs);
  EXPECT_EQ(found.beyond_bound, 1);
  EXPECT_EQ(found.first_miss.rfind("out(0, 1, 5, 6) is 0.25, the reference says ", 0), 0u)
      << found.first_miss;
}

struct Misfit {
  const char* claim;
  Error::Code code;
  const char* sentence;
  void (*spoil)(Outputs&);
};

TEST(Expected, refuses_results_of_another_problem_in_one_sentence) {
  const Misfit misfits[] = {
      {"other extents", Error::shape, "out.shape: (2, 2, 2, 4) is not the one expected: (2, 2, 3, 4)",
       [](Outputs& o) { o.out.shape.length = 2; }},
      {"another dtype", Error::dtype, "out.dtype: bf16 is not the one expected: f32",
       [](Outputs& o) { o.out.dtype = DType::bf16; }},
      {"no data", Error::value, "out.data: null, but the shape is (2, 2, 3, 4)",
       [](Outputs& o) { o.out.data = nullptr; }},
      {"a negative stride", Error::shape, "weights.stride.heads: -9 is negative",
       [](Outputs& o) { o.weights->stride.heads = -9; }},
      {"weights missing", Error::shape, "weights: not given, but expected",
       [](Outputs& o) { o.weights.reset(); }},
      {"log-sum-exp too many", Error::shape, "log_sum_exp: given, but not expected",
       [](Outputs& o) { o.log_sum_exp = o.out; }},
  };
  const Call call = small_call();
  Results results = run(call, {.weights = true});
  const Expected expected = expected_of(call, results);
  for (const Misfit& misfit : misfits) {
    Outputs outputs = results.outputs();
    misfit.spoil(outputs);
    try {
      expected.check(outputs);
      ADD_FAILURE() << misfit.claim << ": was not refused";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), misfit.sentence);
      EXPECT_EQ(error.code, misfit.code) << misfit.claim;
    }
  }
}

TEST(Expected, tells_the_calling_thread_how_far_it_has_come) {
  const Call call{.q = Tensor::random({2, 3, 50, 4}, 1),
                  .k = Tensor::random({2, 3, 5, 4}, 2),
                  .v = Tensor::random({2, 3, 5, 4}, 3)};
  Results results = run(call);
  const auto caller = std::this_thread::get_id();
  std::int64_t told = 0, last = 0;
  const Expected expected(call.inputs(), results.outputs(), {}, [&](std::int64_t rows, std::int64_t of) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_GT(rows, last);
    EXPECT_EQ(of, 300);
    last = rows;
    ++told;
  });
  EXPECT_EQ(last, 300);
  EXPECT_GT(told, 2);
  EXPECT_EQ(expected.check(results.outputs()).beyond_bound, 0);
}

TEST(Expected, ends_with_what_its_listener_throws) {
  const Call call = small_call();
  Results results = run(call);
  const Progress impatient = [](std::int64_t, std::int64_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(Expected(call.inputs(), results.outputs(), {}, impatient), std::runtime_error);
}

}  // namespace
}  // namespace heed::cases
