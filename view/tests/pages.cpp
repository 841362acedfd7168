// SPDX-License-Identifier: Apache-2.0
// What a page takes, refuses and never lets through.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "heed/view.hpp"

namespace HEED_NAMESPACE::view {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was refused";
}

Page page_of(const Run& run, const std::vector<float>& weights, std::int64_t heads = 1) {
  Page page;
  page.add_run(run);
  page.add_layer({.heads = heads, .kv_heads = heads});
  page.add_rows({.weights = {weights, {.heads = heads, .length = run.queries, .dim = run.keys}}});
  return page;
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Page, no_token_name_or_title_becomes_markup) {
  const std::string evil = "</script><img src=x onerror=alert(1)><!--";
  Page page({.title = evil});
  page.add_run(
      {.name = evil, .queries = 2, .keys = 2, .query_tokens = {evil, "\u2028"}, .key_tokens = {evil, "b"}});
  page.add_layer({.name = evil});
  const std::vector<float> weights = {1, 0, 0.5F, 0.5F};
  page.add_rows({.weights = {weights, {.length = 2, .dim = 2}}});
  const std::string html = page.html();
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_EQ(count_of(html, "<script"), count_of(html, "</script>"));
  EXPECT_EQ(html.find("onerror=alert(1)>"), std::string::npos);
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
}

TEST(Page, rows_may_come_in_any_stretches) {
  std::vector<float> weights(6 * 6);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 7) / 21;
  const view::Run run{.queries = 6, .keys = 6, .first_position = 0};
  const std::string whole = page_of(run, weights).html();
  for (const std::int64_t stretch : {1, 2, 4, 5}) {
    Page page;
    page.add_run(run);
    page.add_layer({});
    for (std::int64_t first = 0; first < 6; first += stretch) {
      const std::int64_t count = std::min(stretch, 6 - first);
      page.add_rows({.weights = {weights.data() + first * 6, {.length = count, .dim = 6}}});
    }
    EXPECT_TRUE(page.html() == whole) << "stretches of " << stretch;
  }
}

TEST(Page, what_does_not_fit_is_refused_by_a_sentence) {
  const std::vector<float> two = {1, 0, 0.5F, 0.5F};
  const view::Run run{.queries = 2, .keys = 2};
  EXPECT_EQ(refusal([&] { page_of({.queries = 2, .keys = 2, .key_tokens = {"a"}}, two); }),
            "key_tokens: 1 for 2 keys");
  EXPECT_EQ(refusal([&] { page_of({.queries = 0, .keys = 2}, two); }),
            "run: 0 queries and 2 keys; there must be at least one of each");
  EXPECT_EQ(refusal([&] { page_of({.queries = 2, .keys = 2, .query_tokens = {"a", "\xff"}}, two); }),
            "query_tokens[1]: \"\\xff\" is not UTF-8");
  EXPECT_EQ(refusal([&] {
              page_of({.queries = 2, .keys = 2, .query_tokens = {"a", std::string(10 << 20, 'x')}}, two);
            }),
            "query_tokens[1]: 10485760 bytes, at most 4096 can be shown");
  EXPECT_EQ(refusal([&] { page_of(run, {1, 0, -0.5F, 1.5F}); }),
            "weights: -0.500000 at head 0, query 1, key 0 is negative, which no weight of attention is");
  EXPECT_EQ(refusal([&] { Page({.budget_bytes = 10}); }), "budget: 10 bytes, a page takes at least 200000");
  Page page;
  EXPECT_EQ(refusal([&] { page.add_layer({}); }), "layer: there is no run yet that it could be of");
  page.add_run(run);
  EXPECT_EQ(refusal([&] { page.add_layer({.heads = 4, .kv_heads = 3}); }),
            "kv_heads: 3 does not divide heads: 4");
  EXPECT_EQ(refusal([&] { page.add_rows({.weights = {two, {.length = 2, .dim = 2}}}); }),
            "rows: there is no layer that lacks any");
  page.add_layer({});
  EXPECT_EQ(refusal([&] { page.add_rows({.weights = {two, {.length = 1, .dim = 4}}}); }),
            "weights: 4 keys, not 2");
  EXPECT_EQ(refusal([&] { page.add_rows({.weights = {two, {.heads = 2, .length = 1, .dim = 2}}}); }),
            "weights: 2 heads, not 1");
  page.add_rows({.weights = {two.data(), {.length = 1, .dim = 2}}});
  EXPECT_EQ(refusal([&] { page.html(); }), "rows: 1 of the layer's 2 queries were given");
  EXPECT_EQ(refusal([&] { page.add_rows({.weights = {two, {.length = 2, .dim = 2}}}); }),
            "weights: 2 rows are more than the 1 that are left of 2");
  page.add_rows({.weights = {two.data(), {.length = 1, .dim = 2}}});
  EXPECT_EQ(refusal([&] { page.add_layer({}); }), "layers: 1 were announced, and this is another");
}

TEST(Page, a_weight_that_its_mask_hides_is_refused) {
  const std::vector<float> weights = {1, 0, 0.75F, 0.25F};
  const std::unique_ptr<bool[]> hidden(new bool[4]{false, true, false, true});
  const auto add = [&](auto& shown, std::int64_t rows) {
    shown.add_rows({.weights = {weights.data(), {.length = rows, .dim = 2}},
                    .hidden = BoolView(hidden.get(), {.length = rows, .dim = 2})});
  };
  Page page;
  page.add_run({.queries = 2, .keys = 2});
  page.add_layer({});
  const char* const sentence =
      "weights: 0.250000 at head 0, query 1, key 1 is hidden by the mask that came with it";
  EXPECT_EQ(refusal([&] { add(page, 2); }), sentence);
  Picture picture({.queries = 2, .keys = 2}, {});
  EXPECT_EQ(refusal([&] { add(picture, 2); }), sentence);
  add(page, 1);  // whose hidden weight is 0
}

TEST(Page, stays_below_its_budget) {
  const std::int64_t length = 700;
  std::vector<float> weights(static_cast<std::size_t>(length * length));
  std::uint32_t random = 1;
  for (float& weight : weights)
    weight = static_cast<float>((random = random * 1664525 + 1013904223) >> 8) * 0x1p-34F;
  for (const std::int64_t budget : {250'000, 600'000, 3'000'000}) {
    Page page({.budget_bytes = budget});
    page.add_run({.queries = length, .keys = length});
    page.add_layer({});
    page.add_rows({.weights = {weights, {.length = length, .dim = length}}});
    const auto size = static_cast<std::int64_t>(page.html().size());
    EXPECT_LE(size, budget);
    EXPECT_GE(size, budget / 4) << "more would have fitted";
  }
}

TEST(Page, causal_weights_are_told_by_their_zeros) {
  const std::vector<float> causal = {1, 0, 0.5F, 0.5F}, full = {0.9F, 0.1F, 0.5F, 0.5F}, zeros(4);
  EXPECT_TRUE(looks_causal({causal, {.length = 2, .dim = 2}}));
  EXPECT_FALSE(looks_causal({full, {.length = 2, .dim = 2}}));
  EXPECT_FALSE(looks_causal({causal, {.length = 1, .dim = 4}}));
  EXPECT_FALSE(looks_causal({zeros, {.length = 2, .dim = 2}})) << "what is all zeros shows no mask";
}

}  // namespace
}  // namespace HEED_NAMESPACE::view
