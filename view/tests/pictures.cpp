// SPDX-License-Identifier: Apache-2.0
// Pictures: their form, and what a token may do to them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "heed/view.hpp"
#include "view/colour.hpp"

namespace HEED_NAMESPACE::view {
namespace {

Picture small_picture(const std::vector<std::string>& tokens) {
  Picture picture({.queries = 2, .keys = 2, .query_tokens = tokens, .key_tokens = tokens},
                  {.heads = 1, .kv_heads = 1});
  const std::vector<float> weights = {1, 0, 0.25F, 0.75F};
  const bool hidden[] = {false, true, false, false};
  picture.add_rows(
      {.weights = {weights, {.length = 2, .dim = 2}}, .hidden = BoolView{hidden, {.length = 2, .dim = 2}}});
  return picture;
}

TEST(Colours, grow_darker_with_the_weight) {
  int before = 3 * 255 + 1;
  for (int i = 0; i <= 100; ++i) {
    const Rgb colour = colour_of(i / 100.0);
    const int light = 2126 * colour[0] + 7152 * colour[1] + 722 * colour[2];
    EXPECT_LT(light, before * 10000) << i;
    before = light / 10000 + 1;
  }
}

TEST(Picture, in_a_terminal_hidden_is_not_zero) {
  EXPECT_EQ(small_picture({"cat", "sat"}).text(80, Picture::Ink::shades),
            "head 0\n         cat ██··\n         sat ░░▓▓\n");
  EXPECT_NE(small_picture({"cat", "sat"}).text(80, Picture::Ink::colours).find("\x1b[48;2;"),
            std::string::npos);
  EXPECT_EQ(small_picture({"\x1b[2J", "b\n"}).text(80, Picture::Ink::shades).find('\x1b'), std::string::npos);
}

TEST(Picture, markup_in_a_token_is_text_in_an_svg) {
  const std::string svg = small_picture({"<b>&", "\x01\xef\xbf\xbf"}).svg();
  EXPECT_NE(svg.find("&lt;b&gt;&amp;"), std::string::npos);
  EXPECT_EQ(svg.find('\x01'), std::string::npos);
  EXPECT_NE(svg.find("url(#hidden)"), std::string::npos);
}

TEST(Picture, of_a_kind_that_it_does_not_know_is_refused_before_anything_is_written) {
  const Picture picture = small_picture({"a", "b"});
  EXPECT_THROW(picture.save("head.jpg"), Error);
  EXPECT_FALSE(std::filesystem::exists("head.jpg"));
  EXPECT_EQ(picture.png().substr(1, 3), "PNG");
}

}  // namespace
}  // namespace HEED_NAMESPACE::view
