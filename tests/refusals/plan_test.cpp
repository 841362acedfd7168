// SPDX-License-Identifier: Apache-2.0
// What the plan says of a good call: a verdict for every kernel.
#include <algorithm>
#include <sstream>

#include "gtest/gtest.h"
#include "refusals/call.hpp"

namespace heed {
namespace {

std::vector<Verdict> plan_of(const Call& call) { return plan(call.inputs, call.outputs, call.options); }

std::int64_t count(const std::vector<Verdict>& verdicts, Verdict::Choice choice) {
  return std::ranges::count(verdicts, choice, &Verdict::choice);
}

TEST(Plan, takes_the_first_kernel_that_does_not_refuse_and_needs_none_after_it) {
  for (const bool wants_scores : {false, true}) {
    Call call;
    if (wants_scores) call.outputs.scores.into = call.place({2, 8, 4, 9});
    const std::vector<Verdict> verdicts = plan_of(call);
    EXPECT_EQ(verdicts.back().kernel, "reference");
    ASSERT_EQ(count(verdicts, Verdict::taken), 1);
    bool is_taken = false;
    for (const Verdict& verdict : verdicts) {
      EXPECT_EQ(verdict.reason.empty(), verdict.choice != Verdict::refused) << verdict.kernel;
      EXPECT_TRUE(is_taken || verdict.choice != Verdict::not_needed) << verdict.kernel;
      is_taken = is_taken || verdict.choice == Verdict::taken;
    }
  }
}

TEST(Plan, refuses_what_this_machine_cannot_run_and_names_the_rest_in_the_order_of_kernel_names) {
  std::vector<std::string> names;
  for (const Verdict& verdict : plan_of(Call()))
    if (!verdict.reason.starts_with("this machine lacks ")) names.push_back(verdict.kernel);
  EXPECT_EQ(names, kernel_names());
}

TEST(Plan, takes_a_kernel_that_was_asked_for_by_name_and_no_other) {
  for (const Verdict& asked : plan_of(Call())) {
    Call call;
    call.options.kernel = asked.kernel;
    for (const Verdict& verdict : plan_of(call)) {
      SCOPED_TRACE(asked.kernel + " asked, " + verdict.kernel + " answers");
      const bool refuses = verdict.choice == Verdict::refused;
      EXPECT_EQ(verdict.choice == Verdict::taken, verdict.kernel == asked.kernel && !refuses);
    }
  }
}

TEST(Plan, refuses_a_kernel_that_was_asked_for_in_the_words_of_attention) {
  for (const Verdict& asked : plan_of(Call())) {
    Call call;
    call.outputs.scores.into = call.place({2, 8, 4, 9});
    call.options.kernel = asked.kernel;
    const std::vector<Verdict> verdicts = plan_of(call);
    const Verdict& own = *std::ranges::find(verdicts, asked.kernel, &Verdict::kernel);
    try {
      attention(call.inputs, call.outputs, call.options);
      EXPECT_EQ(own.choice, Verdict::taken);
    } catch (const Error& error) {
      EXPECT_EQ(own.choice, Verdict::refused);
      EXPECT_EQ(error.code, Error::unsupported);
      EXPECT_EQ(error.what(), "options.kernel: \"" + own.kernel + "\" refuses: " + own.reason);
    }
  }
}

TEST(Plan, is_what_explain_prints_and_computes_nothing) {
  Call call;
  call.outputs.scores.into = call.place({2, 8, 4, 9});
  const std::vector<std::byte> before = call.memory();
  std::istringstream lines(explain(call.inputs, call.outputs, call.options));
  for (const Verdict& verdict : plan_of(call)) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(line, verdict.kernel + ": " + name_of(verdict.choice) +
                        (verdict.choice == Verdict::refused ? ": " + verdict.reason : ""));
  }
  EXPECT_EQ(lines.peek(), EOF);
  EXPECT_TRUE(call.memory() == before);
}

}  // namespace
}  // namespace heed
