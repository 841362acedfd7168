// SPDX-License-Identifier: Apache-2.0
// A stream of keys has the bits of one call (O1): in whatever stretches the keys come, and whatever part of
// the queries and heads it was given.
#include "heed/stream.hpp"

#include <limits>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "cases/stretches.hpp"
#include "heed/threads.hpp"

namespace heed::cases {
namespace {

// The kernel of one call whose bits a stream's kernel must have.
std::string prefill_of(std::string name) {
  if (const auto at = name.find("stream"); at != std::string::npos) name.replace(at, 6, "prefill");
  return name;
}

class StreamLaw : public testing::TestWithParam<std::string> {
 protected:
  static bool is_taken(const StreamInputs& inputs, const Outputs& outputs, const Options& options) {
    return options.kernel.empty() ||
           std::ranges::any_of(plan(inputs, outputs, options),
                               [](const Verdict& verdict) { return verdict.choice == Verdict::taken; });
  }

  // In stretches of a random schedule; nothing where the kernel refuses.
  static std::optional<Results> stream(const Call& call, StreamInputs inputs, Dice& dice) {
    Results results(call, {.log_sum_exp = true});
    const Options options = call.options(GetParam());
    if (!is_taken(inputs, results.outputs(), options)) return std::nullopt;
    KeyStream keys(inputs, results.outputs(), options);
    feed(keys, call, dice);
    keys.finish();
    return results;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, StreamLaw, testing::ValuesIn([] {
                           std::vector<std::string> names = stream_kernel_names();
                           std::erase(names, "reference");
                           names.insert(names.begin(), "");
                           return names;
                         }()),
                         test_name);

constexpr Limits long_enough{.max_queries = 40,
                             .max_keys = 2600,
                             .max_batch = 2,
                             .long_keys = false,
                             .dropout = true,
                             .no_dims = true};

std::string trace(std::uint64_t seed, const Call& call) {
  return "seed " + std::to_string(seed) + ": " + describe(call);
}

TEST_P(StreamLaw, stretches_of_any_lengths_give_the_bits_of_one_call) {
  int compared = 0;
  for (const std::uint64_t seed : seeds(7000, 7080)) {
    const Call call = random_call(seed, long_enough);
    SCOPED_TRACE(trace(seed, call));
    Dice dice(seed);
    const auto streamed = stream(call, stream_inputs(call), dice);
    const auto whole = run_if_accepted(call, {.log_sum_exp = true}, prefill_of(GetParam()));
    EXPECT_TRUE(same_bits(streamed, whole));
    compared += streamed && whole;
  }
  EXPECT_GT(compared, 0);
}

TEST_P(StreamLaw, keys_need_not_be_counted_before_they_come) {
  int tried = 0;
  for (const std::uint64_t seed : seeds(7100, 7160)) {
    Limits limits = long_enough;
    limits.masks = limits.bias = seed % 2 == 0;  // most of which need to know
    const Call call = random_call(seed, limits);
    SCOPED_TRACE(trace(seed, call));
    StreamInputs inputs = stream_inputs(call);
    inputs.keys.reset();
    Dice dice(seed);
    try {
      EXPECT_TRUE(same_bits(stream(call, inputs, dice),
                            run_if_accepted(call, {.log_sum_exp = true}, prefill_of(GetParam()))));
      ++tried;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Error::ambiguous) << e.what();
    }
  }
  EXPECT_GT(tried, 0);
}

TEST_P(StreamLaw, a_part_of_the_queries_and_heads_gives_the_bits_of_the_whole) {
  for (const std::uint64_t seed : seeds(7200, 7280)) {
    const Call call = random_call(seed, long_enough);
    SCOPED_TRACE(trace(seed, call));
    const auto whole = run_if_accepted(call, {.log_sum_exp = true}, prefill_of(GetParam()));
    Dice dice(seed);
    const CallPart part = random_part(call, dice);
    StreamInputs inputs = stream_inputs(part.call);
    inputs.place = part.place;
    const auto streamed = stream(part.call, inputs, dice);
    if (!whole || !streamed) continue;
    EXPECT_TRUE(same_bits(streamed->out, part_of(whole->out, part)));
    EXPECT_TRUE(same_bits(*streamed->log_sum_exp, part_of(*whole->log_sum_exp, part)));
  }
}

TEST_P(StreamLaw, the_number_of_threads_changes_no_bit) {
  const int before = num_threads();
  for (const std::uint64_t seed : seeds(7300, 7320)) {
    const Call call = random_call(seed, long_enough);
    SCOPED_TRACE(trace(seed, call));
    std::optional<Results> of_one;
    for (const int threads : {1, 2, 5}) {
      set_num_threads(threads);
      Dice dice(seed + static_cast<std::uint64_t>(threads));
      const auto streamed = stream(call, stream_inputs(call), dice);
      if (!of_one && streamed) of_one.emplace(*streamed);
      EXPECT_TRUE(same_bits(streamed, of_one));
    }
  }
  set_num_threads(before);
}

// Enough of them that the last tasks of a stretch are shorter than the others; groups whose queries do not
// divide a panel.
TEST_P(StreamLaw, many_queries_on_several_threads_have_the_bits_of_one_call) {
  const int before = num_threads();
  for (const std::int64_t group : {1, 3}) {
    const Call call{.q = Tensor::random({1, 2 * group, 1301, 8}, 1),
                    .k = Tensor::random({1, 2, 1100, 8}, 2),
                    .v = Tensor::random({1, 2, 1100, 8}, 3)};
    const auto whole = run_if_accepted(call, {.log_sum_exp = true}, prefill_of(GetParam()));
    for (const int threads : {2, 3, 7}) {
      set_num_threads(threads);
      Dice dice(static_cast<std::uint64_t>(threads));
      EXPECT_TRUE(same_bits(stream(call, stream_inputs(call), dice), whole)) << threads << " threads";
    }
    set_num_threads(before);
  }
}

TEST_P(StreamLaw, padded_queries_are_left_alone) {
  Call call = random_call(7400, {.max_batch = 1, .masks = false, .bias = false});
  call.q = Tensor::random({3, 2, 9, 8}, 1);
  call.k = Tensor::random({3, 1, 1300, 8}, 2);
  call.v = Tensor::random({3, 1, 1300, 8}, 3);
  call.sink.reset();
  const std::vector<std::int64_t> counts{4, 0, 9};
  const Options options = call.options();
  Results whole(call, {.log_sum_exp = true}), streamed(call, {.log_sum_exp = true});
  Inputs inputs = call.inputs();
  inputs.query_counts = counts;
  attention(inputs, whole.outputs(), options);
  StreamInputs to_stream = stream_inputs(call);
  to_stream.query_counts = counts;
  KeyStream keys(to_stream, streamed.outputs(), options);
  Dice dice(1);
  feed(keys, call, dice);
  keys.finish();
  EXPECT_TRUE(same_bits(streamed, whole));
}

TEST(Streams, name_the_row_whose_numbers_leave_the_range_of_f32_and_write_the_others) {
  Call call{.q = Tensor::random({1, 2, 5, 4}, 1),
            .k = Tensor::random({1, 2, 1100, 4}, 2),
            .v = Tensor::random({1, 2, 1100, 4}, 3)};
  for (std::int64_t d = 0; d < 4; ++d) call.q.set(0, 1, 3, d, 3e38f);
  Results whole(call, {}), streamed(call, {});
  attention(call.inputs(), whole.outputs());
  KeyStream keys(stream_inputs(call), streamed.outputs());
  keys.add(call.k.view(), call.v.view());
  try {
    keys.finish();
    FAIL() << "nothing was said";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Error::value);
    EXPECT_NE(std::string(e.what()).find("out(0, 1, 3)"), std::string::npos) << e.what();
  }
  EXPECT_TRUE(
      same_bits_where(streamed.out, whole.out, [](auto, auto h, auto i, auto) { return h != 1 || i != 3; }));
}

TEST(Streams, without_keys_see_none) {
  const Call call{.q = Tensor::random({1, 2, 3, 4}, 1), .k = Tensor({1, 2, 0, 4}), .v = Tensor({1, 2, 0, 4})};
  Results results(call, {.log_sum_exp = true});
  KeyStream keys(stream_inputs(call), results.outputs());
  keys.finish();
  for_each(call.out_shape(),
           [&](auto b, auto h, auto i, auto d) { EXPECT_EQ(results.out.at(b, h, i, d), 0.0f); });
  EXPECT_EQ(results.log_sum_exp->at(0, 1, 2, 0), -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace heed::cases
