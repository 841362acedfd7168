// SPDX-License-Identifier: Apache-2.0
// Pictures: their form, and what a token may do to them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "heed/view.hpp"
#include "view/colour.hpp"
#include "view/font.hpp"

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

TEST(Picture, a_head_is_captioned_with_its_own_largest_weight_and_the_scale_with_its_end) {
  Picture picture({.queries = 15, .keys = 15}, {.heads = 2, .kv_heads = 2});
  const std::vector<float> uniform(std::size_t{2 * 15 * 15}, 1.0F / 15);
  picture.add_rows({.weights = {uniform, {.heads = 2, .length = 15, .dim = 15}}});
  const std::string svg = picture.svg();
  EXPECT_NE(svg.find("head 0, up to 0.067"), std::string::npos);
  EXPECT_NE(svg.find("its largest, at least 0.27"), std::string::npos);
}

TEST(Letters, are_lines_that_touch_and_not_dots) {
  const std::vector<Stroke> strokes = strokes_of(letters_of("N")[0]);
  EXPECT_EQ(distance_to(strokes, 0, 3.5), 0) << "between two dots above each other";
  EXPECT_NEAR(distance_to(strokes, 1.5, 2.5), 0, 1e-12) << "across a corner";
  EXPECT_EQ(distance_to(strokes, 2, 0), 2);
}

TEST(Picture, of_a_kind_that_it_does_not_know_is_refused_before_anything_is_written) {
  const Picture picture = small_picture({"a", "b"});
  EXPECT_THROW(picture.save("head.jpg"), Error);
  EXPECT_FALSE(std::filesystem::exists("head.jpg"));
  EXPECT_EQ(picture.png().substr(1, 3), "PNG");
}

}  // namespace
}  // namespace HEED_NAMESPACE::view
