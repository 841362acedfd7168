// SPDX-License-Identifier: Apache-2.0
// Every kernel, forced by name, on every problem of tests/cases: within the stated bound of the reference;
// and the reference itself within the bound of an oracle that shares no code with it. `--case N --kernel
// NAME` runs one.
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/lattice.hpp"
#include "cases/selection.hpp"
#include "heed/check.hpp"

namespace heed::cases {
namespace {

std::optional<std::int64_t> only_case;
std::optional<std::string> only_kernel;

bool chosen(std::int64_t number) {
  if (only_case) return number == *only_case;
  return !small_selection() || in_small_selection(number);
}

struct Count {
  std::int64_t accepted = 0, refused = 0, failed = 0, elements = 0;
  double worst_in_bounds = 0;
  void fail(std::int64_t number, const std::string& kernel, const std::string& why) {
    if (++failed <= 20)
      std::cout << "  --case " << number << " --kernel " << kernel << "   # " << make_case(number).name
                << ": " << why << std::endl;
  }
};

// The reference of a case, computed when the first kernel is judged by it and kept for the others.
const Expected& expected_of(std::int64_t number, const Case& c, Results& like) {
  static std::map<std::int64_t, Expected> kept;
  const auto found = kept.find(number);
  if (found != kept.end()) return found->second;
  return kept.emplace(number, Expected(c.call.inputs(), like.outputs(), c.call.options())).first->second;
}

void judge(std::int64_t number, const std::string& kernel, Count& count) {
  const Case c = make_case(number);
  auto got = run_if_accepted(c.call, c.wants, kernel);
  if (!got) {
    ++count.refused;
    return;
  }
  ++count.accepted;
  const Check result = expected_of(number, c, *got).check(got->outputs());
  count.elements += result.compared;
  count.worst_in_bounds = std::max(count.worst_in_bounds, result.worst_error_in_bounds);
  if (result.beyond_bound > 0)
    count.fail(number, kernel, std::to_string(result.beyond_bound) + " elements, first " + result.first_miss);
  if (!c.wants.scores && kernel != "reference") return;
  // check() does not look at scores, and cannot judge the reference. Which weights drop is the generator's to
  // say.
  auto survives = [&](auto b, auto h, auto i, auto j) {
    return !c.call.dropout || (got->weights && got->weights->at(b, h, i, j) != 0);
  };
  if (c.call.dropout && !got->weights) return;
  const Tally tally = against_oracle(c.call, *got, kernel == "reference" ? 0x1p-50 : f32_roundoff, survives);
  if (tally.beyond > 0)
    count.fail(number, kernel, std::to_string(tally.beyond) + " against the oracle, " + tally.first);
}

class Conformance : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, Conformance, testing::ValuesIn(kernel_names()), test_name);

TEST_P(Conformance, every_problem_is_within_the_stated_bound) {
  const std::string& kernel = GetParam();
  if (only_kernel && *only_kernel != kernel) GTEST_SKIP() << "not the kernel that was asked for";
  Count count;
  for (std::int64_t number = 0; number < case_count(); ++number)
    if (chosen(number)) judge(number, kernel, count);
  std::cout << kernel << ": " << count.accepted << " problems, " << count.refused << " refused, "
            << count.elements << " elements, worst error " << count.worst_in_bounds << " bounds" << std::endl;
  EXPECT_EQ(count.failed, 0);
  if (only_case) return;
  EXPECT_GT(count.accepted, 0) << "a kernel that takes no problem is not a kernel";
  if (kernel == "reference") {
    EXPECT_EQ(count.refused, 0) << "the reference takes every problem";
  }
}

TEST(Plan, takes_every_problem_and_ends_with_the_reference) {
  ASSERT_FALSE(kernel_names().empty());
  EXPECT_EQ(kernel_names().back(), "reference");
  if (only_kernel) GTEST_SKIP() << "a kernel was asked for";
  Count count;
  for (std::int64_t number = 0; number < case_count(); number += 7)
    if (chosen(number)) judge(number, "", count);
  EXPECT_EQ(count.failed, 0);
  EXPECT_EQ(count.refused, 0);
}

}  // namespace
}  // namespace heed::cases

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    if (i + 1 < argc && flag == "--case") {
      heed::cases::only_case = std::strtoll(argv[i + 1], nullptr, 10);
    } else if (i + 1 < argc && flag == "--kernel") {
      heed::cases::only_kernel = argv[i + 1];
    } else {
      std::cerr << "usage: " << argv[0] << " [--case N] [--kernel NAME]\n";
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
