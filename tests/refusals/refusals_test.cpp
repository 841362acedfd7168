// SPDX-License-Identifier: Apache-2.0
// Every row of the tables in bad_*.cpp: the exact code and sentence, whichever kernel is asked for, and
// nothing written.
#include <functional>

#include "cases/listed.hpp"
#include "refusals/bad_call.hpp"

namespace heed {
namespace {

void expect_refused(const BadCall& bad, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), bad.sentence);
    EXPECT_EQ(error.code, bad.code) << bad.sentence;
    return;
  }
  ADD_FAILURE() << "was not refused with: " << bad.sentence;
}

TEST_P(BadCalls, is_refused_in_one_sentence_and_nothing_is_written) {
  const BadCall& bad = GetParam();
  Call call;
  bad.spoil(call);
  const std::vector<std::byte> before = call.memory();
  expect_refused(bad, [&] { attention(call.inputs, call.outputs, call.options); });
  expect_refused(bad, [&] { plan(call.inputs, call.outputs, call.options); });
  expect_refused(bad, [&] { explain(call.inputs, call.outputs, call.options); });
  for (const std::string& kernel : kernel_names()) {
    SCOPED_TRACE("kernel " + kernel);
    call.options.kernel = kernel;
    expect_refused(bad, [&] { attention(call.inputs, call.outputs, call.options); });
  }
  EXPECT_TRUE(call.memory() == before) << "something was written before the refusal";
}

TEST(Calls, the_call_that_the_tables_spoil_is_a_good_one) {
  Call call;
  const std::vector<std::byte> before = call.memory();
  EXPECT_NO_THROW(attention(call.inputs, call.outputs, call.options));
  EXPECT_FALSE(call.memory() == before) << "a good call writes its result";
}

TEST(Calls, a_kernel_that_does_not_exist_is_refused_and_nothing_is_written) {
  const std::string sentence =
      "options.kernel: \"cpu.prefill.abacus\" is not a kernel of this build; there are " +
      cases::listed(kernel_names());
  const BadCall bad{"", Error::unsupported, sentence.c_str(),
                    [](Call& c) { c.options.kernel = "cpu.prefill.abacus"; }};
  Call call;
  bad.spoil(call);
  const std::vector<std::byte> before = call.memory();
  expect_refused(bad, [&] { attention(call.inputs, call.outputs, call.options); });
  expect_refused(bad, [&] { plan(call.inputs, call.outputs, call.options); });
  expect_refused(bad, [&] { explain(call.inputs, call.outputs, call.options); });
  EXPECT_TRUE(call.memory() == before) << "something was written before the refusal";
}

}  // namespace
}  // namespace heed
