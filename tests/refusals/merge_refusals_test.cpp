// SPDX-License-Identifier: Apache-2.0
// Bad calls of merge(): the exact code and sentence, and nothing written.
#include <gtest/gtest.h>

#include "refusals/call.hpp"

namespace heed {
namespace {

struct BadMerge {
  const char* claim;
  Error::Code code;
  const char* sentence;
  void (*spoil)(Call&, Outputs& into, Outputs& other);
};

std::ostream& operator<<(std::ostream& out, const BadMerge& bad) { return out << bad.claim; }

const BadMerge bad_merges[] = {
    {"into_without_a_log_sum_exp", Error::shape,
     "into.log_sum_exp: not given; merge needs it to weigh the two results",
     [](Call&, Outputs& into, Outputs&) { into.log_sum_exp.reset(); }},
    {"other_without_a_log_sum_exp", Error::shape,
     "other.log_sum_exp: not given; merge needs it to weigh the two results",
     [](Call&, Outputs&, Outputs& other) { other.log_sum_exp.reset(); }},
    {"results_of_different_shapes", Error::shape,
     "other.out: (2, 8, 3, 8) is not the shape of into.out: (2, 8, 4, 8)",
     [](Call&, Outputs&, Outputs& other) { other.out.shape.length = other.log_sum_exp->shape.length = 3; }},
    {"a_log_sum_exp_without_a_number_per_row", Error::shape,
     "other.log_sum_exp: (2, 8, 1, 1) is not (2, 8, 4, 1), one number per row of other.out",
     [](Call&, Outputs&, Outputs& other) { other.log_sum_exp->shape.length = 1; }},
    {"a_log_sum_exp_that_is_not_f32", Error::dtype, "into.log_sum_exp: f16 is neither f32 nor f64",
     [](Call&, Outputs& into, Outputs&) { into.log_sum_exp->dtype = DType::f16; }},
    {"weights_that_cannot_be_merged", Error::unsupported,
     "other: weights and scores are over different keys and cannot be merged",
     [](Call& call, Outputs&, Outputs& other) { other.weights = call.place({2, 8, 4, 9}); }},
    {"scores_that_cannot_be_merged", Error::unsupported,
     "into: weights and scores are over different keys and cannot be merged",
     [](Call& call, Outputs& into, Outputs&) { into.scores.into = call.place({2, 8, 4, 9}); }},
    {"a_result_without_data", Error::value, "other.out.data: null, but the shape is (2, 8, 4, 8)",
     [](Call&, Outputs&, Outputs& other) { other.out.data = nullptr; }},
    {"a_negative_stride", Error::shape, "into.out.stride.length: -8 is negative",
     [](Call&, Outputs& into, Outputs&) { into.out.stride.length = -8; }},
    {"memory_of_two_devices", Error::device, "other.log_sum_exp.device: cuda is not into.out.device: cpu",
     [](Call&, Outputs&, Outputs& other) { other.log_sum_exp->device = Device::cuda; }},
    {"a_result_merged_with_itself", Error::overlap, "into.out: shares memory with other.out",
     [](Call&, Outputs& into, Outputs& other) { other.out = into.out; }},
    {"one_log_sum_exp_for_both", Error::overlap, "into.log_sum_exp: shares memory with other.log_sum_exp",
     [](Call&, Outputs& into, Outputs& other) { other.log_sum_exp = into.log_sum_exp; }},
    {"a_log_sum_exp_inside_the_result", Error::overlap, "into.out: shares memory with into.log_sum_exp",
     [](Call&, Outputs& into, Outputs&) { into.log_sum_exp->data = into.out.data; }},
    {"an_output_that_is_broadcast", Error::overlap, "into.out.stride.batch: 0 puts 2 results in one place",
     [](Call&, Outputs& into, Outputs&) { into.out.stride.batch = 0; }},
};

class BadMerges : public testing::TestWithParam<BadMerge> {};

TEST_P(BadMerges, is_refused_in_one_sentence_and_nothing_is_written) {
  const BadMerge& bad = GetParam();
  Call call;
  Outputs into{.out = call.place({2, 8, 4, 8}), .log_sum_exp = call.place({2, 8, 4, 1})};
  Outputs other{.out = call.place({2, 8, 4, 8}), .log_sum_exp = call.place({2, 8, 4, 1})};
  bad.spoil(call, into, other);
  const std::vector<std::byte> before = call.memory();
  try {
    merge(into, other);
    ADD_FAILURE() << "was not refused with: " << bad.sentence;
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), bad.sentence);
    EXPECT_EQ(error.code, bad.code) << bad.sentence;
  }
  EXPECT_TRUE(call.memory() == before) << "something was written before the refusal";
}

INSTANTIATE_TEST_SUITE_P(Merges, BadMerges, testing::ValuesIn(bad_merges),
                         [](const auto& row) { return std::string(row.param.claim); });

}  // namespace
}  // namespace heed
