// SPDX-License-Identifier: Apache-2.0
// Attention from C is attention: the same bits for random problems with every option, and the same refusals.
#include <gtest/gtest.h>

#include <functional>

#include "c/in_c.hpp"
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/threads.hpp"
#include "refusals/bad_call.hpp"

namespace heed {
namespace {

using cases::Results, cases::Wants;

Results run_in_c(const cases::Call& call, const Wants& wants, const std::string& kernel) {
  Results results(call, wants);
  const in_c::Choices choices(call.options(kernel));
  const heed_inputs inputs = in_c::inputs(call.inputs());
  const heed_outputs outputs = in_c::outputs(results.outputs());
  EXPECT_EQ(heed_attention(&inputs, &outputs, &choices.options), HEED_OK) << heed_last_error();
  return results;
}

TEST(attention_in_c, has_the_bits_of_cpp_for_every_option) {
  for (const std::uint64_t seed : cases::seeds(1, 201)) {
    const cases::Call call =
        cases::for_kernel(seed % 7 == 0 ? "cpu.f64." : "", cases::random_call(seed, {.dropout = true}));
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Wants wants = cases::everything;
    if (seed % 2 == 0) wants.scores = static_cast<Stage>(seed / 2 % 3);
    const std::string kernel = seed % 10 == 0 ? "reference" : "";
    EXPECT_TRUE(same_bits(run_in_c(call, wants, kernel), cases::run(call, wants, kernel)));
  }
}

TEST(attention_in_c, explains_in_the_same_words) {
  const cases::Call call = cases::random_call(3);
  Results results(call, {});
  const in_c::Choices choices(call.options());
  const heed_inputs inputs = in_c::inputs(call.inputs());
  const heed_outputs outputs = in_c::outputs(results.outputs());
  char* text = nullptr;
  ASSERT_EQ(heed_explain(&inputs, &outputs, &choices.options, &text), HEED_OK) << heed_last_error();
  EXPECT_EQ(text, explain(call.inputs(), results.outputs(), call.options()));
  heed_free(text);
}

TEST(attention_in_c, has_the_bits_of_cpp_over_a_cache_and_packed_queries) {
  const cases::Tensor k = cases::Tensor::random({2, 2, 9, 16}, 1), v = cases::Tensor::random({2, 2, 9, 8}, 2);
  const cases::Tensor q = cases::Tensor::random({1, 4, 3, 16}, 3);
  heed_cache cache{KvCache({.batch = 2, .kv_heads = 2, .capacity = 9, .dim = 16, .value_dim = 8})};
  cache.cache.append(k.view(), v.view());
  const std::int64_t numbers[] = {1, 0}, starts[] = {0, 1, 3};
  const Inputs read{.q = q.view(), .cache = &cache.cache, .sequences = numbers, .query_starts = starts};
  cases::Tensor here({1, 4, 3, 8}), there({1, 4, 3, 8});
  attention(read, {.out = here.mutable_view()}, {.masks = {Causal{}}});
  const in_c::Choices choices({.masks = {Causal{}}});
  const heed_inputs inputs = in_c::inputs(read, &cache);
  const heed_outputs outputs = in_c::outputs({.out = there.mutable_view()});
  EXPECT_EQ(heed_attention(&inputs, &outputs, &choices.options), HEED_OK) << heed_last_error();
  EXPECT_TRUE(cases::same_bits(here, there));
}

TEST(attention_in_c, a_scale_and_a_softcap_of_doubles_arrive_whole) {
  const cases::Tensor x = cases::Tensor::random({1, 2, 5, 16}, 1, 2, DType::f64);
  const auto run = [&](const Options& given) {
    cases::Tensor out({1, 2, 5, 16}, DType::f64);
    const in_c::Choices choices(given);
    const heed_inputs inputs = in_c::inputs({.q = x.view(), .k = x.view(), .v = x.view()});
    const heed_outputs outputs = in_c::outputs({.out = out.mutable_view()});
    EXPECT_EQ(heed_attention(&inputs, &outputs, &choices.options), HEED_OK) << heed_last_error();
    return out;
  };
  const Options whole{.scale = 0.1, .softcap = 0.7}, shortened{.scale = 0.1f, .softcap = 0.7f};
  cases::Tensor wanted({1, 2, 5, 16}, DType::f64);
  attention({.q = x.view(), .k = x.view(), .v = x.view()}, {.out = wanted.mutable_view()}, whole);
  EXPECT_TRUE(cases::same_bits(run(whole), wanted));
  EXPECT_FALSE(cases::same_bits(run(shortened), wanted));
}

// Does `meddle` in the middle of whatever is run, and the tasks after that.
struct Meddler : Executor {
  std::function<void()> meddle;
  explicit Meddler(std::function<void()> with) : meddle(std::move(with)) { set_executor(this); }
  ~Meddler() override { set_executor(nullptr); }
  int concurrency() const override { return 4; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    meddle();
    for (std::size_t i = 0; i < tasks; ++i) task(context, i);
  }
};

TEST(attention_in_c, a_cache_that_is_being_read_is_busy) {
  const cases::Tensor tokens = cases::Tensor::random({1, 2, 3000, 16}, 1);
  const cases::Tensor q = cases::Tensor::random({1, 2, 1, 16}, 2);
  heed_cache cache{KvCache({.kv_heads = 2, .capacity = 3000, .dim = 16})};
  cache.cache.append(tokens.view(), tokens.view());
  heed_status status = HEED_OK;
  std::string sentence;
  const Meddler meddler([&] {
    status = heed_cache_truncate(&cache, 0, 1);
    sentence = heed_last_error();
  });
  cases::Tensor out({1, 2, 1, 16});
  const heed_inputs inputs = in_c::inputs({.q = q.view(), .cache = &cache.cache}, &cache);
  const heed_outputs outputs = in_c::outputs({.out = out.mutable_view()});
  EXPECT_EQ(heed_attention(&inputs, &outputs, nullptr), HEED_OK) << heed_last_error();
  EXPECT_EQ(status, HEED_ERROR_BUSY);
  EXPECT_EQ(sentence, "truncate: sequence 0 is being read by another call");
}

// In C numbers beyond an enumeration are told by its names, lists without data by their count, and a softcap
// of 0 is none; tests/c/refusals.c has those.
bool is_said_otherwise(const std::string& sentence) {
  for (const char* part : {" is none of ", "key lengths.data: null", "document mask.data: null",
                           "query_starts.data: null", "options.softcap: 0 "})
    if (sentence.find(part) != std::string::npos) return true;
  return false;
}

std::string in_c_words(std::string sentence) {
  for (const auto& [cpp, c] : {std::pair<std::string, std::string>("Align::ends", "HEED_ALIGN_ENDS"),
                               std::pair<std::string, std::string>("Align::starts", "HEED_ALIGN_STARTS")})
    if (const auto at = sentence.find(cpp); at != std::string::npos) sentence.replace(at, cpp.size(), c);
  return sentence;
}

TEST_P(BadCalls, is_refused_in_c_with_the_same_sentence_and_nothing_is_written) {
  const BadCall& bad = GetParam();
  if (is_said_otherwise(bad.sentence)) return;
  Call call;
  bad.spoil(call);
  std::optional<heed_cache> cache;
  if (call.cache && call.inputs.cache) cache.emplace(heed_cache{std::move(*call.cache)});
  const std::vector<std::byte> before = call.memory();
  const in_c::Choices choices(call.options);
  const heed_inputs inputs = in_c::inputs(call.inputs, cache ? &*cache : nullptr);
  const heed_outputs outputs = in_c::outputs(call.outputs);
  EXPECT_EQ(heed_attention(&inputs, &outputs, &choices.options), bad.code + 1);
  EXPECT_EQ(heed_last_error(), in_c_words(bad.sentence));
  EXPECT_TRUE(call.memory() == before) << "something was written before the refusal";
}

}  // namespace
}  // namespace heed
