// SPDX-License-Identifier: Apache-2.0
// Text inside a page: nothing of it can end the element it stands in.
#include <gtest/gtest.h>

#include "view/base64.hpp"
#include "view/json_text.hpp"

namespace HEED_NAMESPACE::view {
namespace {

TEST(Json, markup_quotes_and_line_separators_are_escaped) {
  EXPECT_EQ(json_of(std::string_view("</script>")), R"("\u003c/script\u003e")");
  EXPECT_EQ(json_of(std::string_view("a\"b\\c&d")), R"("a\u0022b\u005cc\u0026d")");
  EXPECT_EQ(json_of(std::string_view("\u2028x\u2029")), R"("\u2028x\u2029")");
  EXPECT_EQ(json_of(std::string_view(std::string("\0\n\x7f", 3))), R"("\u0000\u000a\u007f")");
  EXPECT_EQ(json_of(std::string_view("猫 ‏שלום 🐈")), "\"猫 ‏שלום 🐈\"");
}

TEST(Json, numbers_are_written_so_that_they_come_back) {
  for (const double number : {0.0, 1.0 / 3, 1e-300, 123456789.125})
    EXPECT_EQ(std::stod(json_of(number)), number);
  EXPECT_EQ(json_of(std::numeric_limits<double>::infinity()), "null");
}

TEST(Base64, is_that_of_rfc_4648) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xff\xfe\xfd"), "//79");
}

}  // namespace
}  // namespace HEED_NAMESPACE::view
