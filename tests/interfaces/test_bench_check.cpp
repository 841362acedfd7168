// SPDX-License-Identifier: Apache-2.0
// What stands between a wrong result and a figure in `heed bench`: right results pass, planted faults do not.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "bench/measure.hpp"
#include "bench/verify.hpp"
#include "bench/workload.hpp"
#include "heed/error.hpp"
#include "random_values.hpp"

namespace heed::tool {
namespace {

struct Attention {
  explicit Attention(DType dtype)
      : q(random_buffer({2, 4, 37, 16}, dtype, {.stream = Stream::q})),
        k(random_buffer({2, 2, 37, 16}, dtype, {.stream = Stream::k})),
        v(random_buffer(k.shape(), dtype, {.stream = Stream::v})),
        out(q.shape(), dtype) {}

  Inputs inputs() const { return {.q = q.view(), .k = k.view(), .v = v.view()}; }
  void run(const Options& options) { attention(inputs(), {.out = out.writable()}, options); }
  Buffer q, k, v, out;
};

// One of each that `heed bench` times.
struct Choices {
  Buffer bias = random_buffer({1, 1, 37, 37}, DType::f32, {.stream = Stream::bias});
  std::unique_ptr<bool[]> keep = std::make_unique<bool[]>(37 * 37);
  std::vector<Options> options{};

  Choices() {
    for (std::size_t n = 0; n < 37 * 37; ++n) keep[n] = n % 3 != 0;
    const Shape pairs = bias.shape();
    options.push_back({});
    options.push_back({.masks = {Causal{}}});
    options.push_back({.bias = bias.view()});
    options.push_back({.masks = {Keep{{keep.get(), pairs}}}});
  }
};

TEST(VerifyAttention, a_right_result_passes) {
  const Choices choices;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const Options& options : choices.options) {
      Attention attention(dtype);
      attention.run(options);
      const Findings findings = verify_attention(attention.inputs(), attention.out.view(), options);
      EXPECT_TRUE(findings.all_right()) << name_of(dtype) << ": " << findings.first_miss;
      EXPECT_EQ(findings.compared, 8 * 16);  // eight rows of 16 elements
    }
}

TEST(VerifyAttention, one_wrong_element_of_the_first_or_last_row_is_found) {
  Attention attention(DType::f32);
  attention.run({});
  const std::vector<float> right = attention.out.to_floats();
  for (const std::size_t element : {std::size_t{0}, std::size_t{15}, right.size() - 16, right.size() - 1}) {
    attention.out.set(element, right[element] + 1e-4f);
    const Findings findings = verify_attention(attention.inputs(), attention.out.view(), {});
    EXPECT_EQ(findings.misses, 1) << "element " << element;
    EXPECT_NE(findings.first_miss, "") << "element " << element;
    attention.out.set(element, right[element]);
  }
}

TEST(VerifyAttention, the_wrong_mask_is_found) {
  const Choices choices;
  Attention attention(DType::bf16);
  for (std::size_t ran = 0; ran < choices.options.size(); ++ran)
    for (std::size_t checked = 0; checked < choices.options.size(); ++checked) {
      if (ran == checked) continue;
      attention.run(choices.options[ran]);
      const Findings findings =
          verify_attention(attention.inputs(), attention.out.view(), choices.options[checked]);
      EXPECT_GT(findings.misses, 0) << "ran " << ran << ", checked " << checked;
    }
}

TEST(VerifyAttention, the_wrong_kv_head_is_found) {
  Attention attention(DType::f32);
  heed::attention(attention.inputs(), {.out = attention.out.writable()}, {.head_map = HeadMap::tiled});
  EXPECT_GT(verify_attention(attention.inputs(), attention.out.view(), {}).misses, 0);
}

struct Layer {
  explicit Layer(DType dtype)
      : config(grouped_query(32, 4, 2)),
        weights(random_weights(config, 7)),
        layer(config, weights),
        x(random_buffer({2, 1, 21, 32}, dtype, {.stream = Stream::x})),
        y(x.shape(), dtype) {
    layer({.x = x.view()}, {.out = y.writable()});
  }
  Findings verify() const { return verify_layer({layer.config(), weights, x, y}); }

  LayerConfig config;
  LayerWeights weights;
  AttentionLayer layer;
  Buffer x, y;
};

TEST(VerifyLayer, a_right_result_passes) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Findings findings = Layer(dtype).verify();
    EXPECT_TRUE(findings.all_right()) << name_of(dtype) << ": " << findings.first_miss;
    EXPECT_EQ(findings.compared, 8 * 32);  // eight rows of 32 elements
  }
}

TEST(VerifyLayer, one_wrong_element_of_the_first_or_last_row_is_found) {
  Layer layer(DType::f32);
  const std::vector<float> right = layer.y.to_floats();
  for (const std::size_t element : {std::size_t{0}, right.size() - 1}) {
    layer.y.set(element, right[element] + 1e-3f);
    EXPECT_EQ(layer.verify().misses, 1) << "element " << element;
    layer.y.set(element, right[element]);
  }
}

TEST(VerifyLayer, other_weights_are_found) {
  Layer layer(DType::bf16);
  std::vector<float> w_v = layer.weights.w_v.to_floats();
  for (float& element : w_v) element *= 1.25f;
  layer.weights.w_v = Array::from_floats(layer.weights.w_v.shape, w_v);
  EXPECT_GT(layer.verify().misses, 0);
}

struct Cached {
  explicit Cached(CacheType type, DType dtype)
      : cache({.batch = 3, .kv_heads = 2, .capacity = 40, .dim = 16, .type = type, .page_size = 16}),
        q(random_buffer({3, 4, 1, 16}, dtype, {.stream = Stream::q})),
        out(q.shape(), dtype) {
    for (std::int64_t b = 0; b < 3; ++b) fill_sequence(cache, b, 10 + 15 * b);
    attention({.q = q.view(), .cache = &cache}, {.out = out.writable()});
  }
  Findings verify() const { return verify_cached(cache, q.view(), out.view()); }

  KvCache cache;
  Buffer q, out;
};

TEST(VerifyCached, a_right_result_passes) {
  for (const auto& [type, dtype] :
       {std::pair(CacheType::f32, DType::f32), std::pair(CacheType::f16, DType::f16),
        std::pair(CacheType::bf16, DType::bf16), std::pair(CacheType::int8, DType::f32)}) {
    const Findings findings = Cached(type, dtype).verify();
    EXPECT_TRUE(findings.all_right()) << name_of(type) << ": " << findings.first_miss;
    EXPECT_EQ(findings.compared, 3 * 4 * 16);
  }
}

TEST(VerifyCached, one_wrong_element_of_any_sequence_is_found) {
  Cached cached(CacheType::f32, DType::f32);
  const std::vector<float> right = cached.out.to_floats();
  for (const std::size_t element : {std::size_t{0}, std::size_t{64}, right.size() - 1}) {
    cached.out.set(element, right[element] + 1e-4f);
    EXPECT_EQ(cached.verify().misses, 1) << "element " << element;
    cached.out.set(element, right[element]);
  }
}

TEST(VerifyCached, a_result_over_fewer_tokens_is_found) {
  Cached cached(CacheType::bf16, DType::bf16);
  cached.cache.truncate(1, 12);
  EXPECT_GT(cached.verify().misses, 0);
}

struct Step {
  Step()
      : weights(random_weights(config, 7)),
        layer(config, weights),
        cache({.kv_heads = 2, .capacity = 40, .dim = 8}),
        x(random_buffer({1, 1, 1, 32}, DType::f32, {.stream = Stream::x})),
        y(x.shape()) {
    fill_sequence(cache, 0, 33);
    layer({.x = x.view(), .cache = &cache}, {.out = y.writable()}, {.masks = {Causal{}}});
  }
  Findings verify() const { return verify_step({layer.config(), weights, cache, x, y}); }

  LayerConfig config = grouped_query(32, 4, 2);
  LayerWeights weights;
  AttentionLayer layer;
  KvCache cache;
  Buffer x, y;
};

TEST(VerifyStep, a_right_result_passes) {
  const Findings findings = Step().verify();
  EXPECT_TRUE(findings.all_right()) << findings.first_miss;
  EXPECT_EQ(findings.compared, 2 * 16 + 32);  // a key and a value of two heads, and the row
}

TEST(VerifyStep, a_wrong_row_or_another_last_token_is_found) {
  Step step;
  step.y.set(31, step.y.to_floats()[31] + 1e-3f);
  EXPECT_EQ(step.verify().misses, 1);
  Step other;
  other.cache.truncate(0, 33);
  fill_sequence(other.cache, 0, 34);
  EXPECT_GE(other.verify().misses, 32);
}

TEST(Cases, are_what_their_names_say) {
  const std::vector<Case> all = cases_of(Suite::all, Size::full);
  EXPECT_GT(all.size(), 70u);
  for (const Case& c : all) EXPECT_EQ(Case::parse(c.name()), c) << c.name();
  for (const char* name :
       {"", "prefill", "prefill/f32", "prefill/f64/1x2x2x8x8x64", "prefill/int8/1x2x2x8x8x64",
        "prefill/f32/1x2x2x8x8", "prefill/f32/1x2x2x8x8x64x1", "prefill/f32/1x2x2x0x8x64",
        "prefill/f32/1x2x2x-8x8x64", "prefill/f32/1x2x2x8x8x64/mixed", "cache/f32/1x2x2x1x8x64/paged",
        "projection/f32/1x2x2x8x8x64"})
    EXPECT_THROW(Case::parse(name), Error) << name;
}

TEST(Cases, count_the_bytes_that_their_cache_keeps) {
  std::int64_t cached = 0;
  for (Case c : cases_of(Suite::decode, Size::full)) {
    if (!c.is_cached()) continue;
    ++cached;
    std::int64_t tokens = 0;
    for (std::int64_t b = 0; b < c.batch; ++b) tokens += c.length_of(b);
    EXPECT_EQ(tokens, c.batch * c.keys) << c.name();
    KvCacheConfig config = c.cache_config();
    config.batch = 0;
    config.pages = 1;
    config.capacity = 16;
    EXPECT_EQ(c.kv_bytes_per_token(), KvCache(config).bytes_per_token()) << c.name();
  }
  EXPECT_EQ(cached, 19);
}

TEST(VerifyWritten, elements_that_are_not_finite_are_counted) {
  Buffer buffer({1, 1, 3, 5}, DType::bf16);
  buffer.fill(1);
  EXPECT_TRUE(verify_written(buffer).all_right());
  buffer.set(4, std::nanf(""));
  buffer.set(14, -INFINITY);
  EXPECT_EQ(verify_written(buffer).misses, 2);
}

// A workload whose runs are told what to do.
class Scripted : public Workload {
 public:
  explicit Scripted(std::function<void(Scripted&)> work) : work_(std::move(work)) {}
  void run() override {
    ++runs;
    work_(*this);
  }
  std::string kernel() override { return "scripted"; }
  Buffer& result() override { return out; }
  double seconds_besides() override {
    return besides.empty() ? 0 : besides[static_cast<std::size_t>(asked++) % besides.size()];
  }
  Findings verify() const override {
    const bool is_right = out.to_floats()[0] == 1;
    return {.compared = 1, .misses = is_right ? 0 : 1, .first_miss = is_right ? "" : "not 1"};
  }
  Buffer out{{1, 1, 1, 4}};
  int runs = 0, asked = 0;
  std::vector<double> besides{};

 private:
  std::function<void(Scripted&)> work_;
};

TEST(Measure, a_right_workload_gets_times) {
  Scripted workload([](Scripted& self) { self.out.fill(1); });
  const Measured measured = measure(workload, 1e-6);
  EXPECT_TRUE(measured.findings.all_right());
  EXPECT_EQ(measured.runs, workload.runs - 1);  // the first run is checked, not timed
  EXPECT_EQ(measured.kernel, "scripted");
}

TEST(Measure, bursts_of_the_limit_come_between_the_runs_and_are_as_long) {
  Scripted workload([](Scripted& self) { self.out.fill(1); });
  double bursts_total = 0;
  int runs_before_last = 0;
  const Measured measured = measure(workload, 50e-3, [&](double seconds) {
    EXPECT_GT(workload.runs, runs_before_last);
    runs_before_last = workload.runs;
    bursts_total += seconds;
    return 1e9;
  });
  EXPECT_GE(measured.turns.size(), 2u);        // 50 ms are more than one turn, unless a run takes as long
  EXPECT_EQ(runs_before_last, workload.runs);  // the last runs have a burst too
  EXPECT_GE(bursts_total, 50e-3);
  for (const Turn& turn : measured.turns) EXPECT_GE(turn.seconds, measured.min_seconds);
}

TEST(Measure, what_runs_do_besides_is_taken_off_as_the_least_it_took) {
  Scripted workload([](Scripted& self) { self.out.fill(1); });
  workload.besides = {-1000, 300};  // no run takes anything like it
  const Measured measured = measure(workload, 1e-3, [](double) { return 1e9; });
  EXPECT_EQ(workload.asked, measured.runs);
  for (const double seconds :
       {measured.min_seconds, measured.median_seconds, measured.turns.back().seconds}) {
    EXPECT_GE(seconds, 1000);
    EXPECT_LT(seconds, 1200);
  }
}

TEST(ShareOfLimit, is_that_of_turns_with_the_machine_and_of_the_best_of_both) {
  const Binding binding{.amount = 100, .limit = "fp32", .per_second = 1000};
  // 50, 20 and 40 a second where the machine had 80, 25 and 100
  const Measured measured{.median_seconds = 2.5, .turns = {{2, 80}, {5, 25}, {2.5, 100}}};
  const std::optional<ShareOfLimit> share = share_of_limit(binding, measured);
  ASSERT_TRUE(share);
  EXPECT_DOUBLE_EQ(share->median, 50.0 / 80);
  EXPECT_DOUBLE_EQ(share->best, 50.0 / 100);
  EXPECT_DOUBLE_EQ(share->before, 40.0 / 1000);  // of a machine that did ten times as much before
}

TEST(ShareOfLimit, without_turns_is_that_of_the_limit_before_if_there_was_one) {
  const Measured measured{.median_seconds = 4, .min_seconds = 2};
  const std::optional<ShareOfLimit> share =
      share_of_limit({.amount = 100, .limit = "dram", .per_second = 200}, measured);
  ASSERT_TRUE(share);
  EXPECT_DOUBLE_EQ(share->median, 0.125);
  EXPECT_DOUBLE_EQ(share->best, 0.25);
  EXPECT_DOUBLE_EQ(share->before, 0.125);
  EXPECT_FALSE(share_of_limit({.amount = 100, .limit = "dram"}, measured));
}

TEST(Measure, a_wrong_result_is_never_timed) {
  Scripted workload([](Scripted& self) { self.out.fill(2); });
  const Measured measured = measure(workload, 1e-6);
  EXPECT_EQ(measured.findings.misses, 1);
  EXPECT_EQ(measured.findings.first_miss, "not 1");
  EXPECT_EQ(workload.runs, 1);
}

TEST(Measure, an_element_that_was_never_written_is_found) {
  Scripted workload([](Scripted& self) {
    for (const std::size_t element : {0u, 1u, 3u}) self.out.set(element, 1);
  });
  EXPECT_EQ(measure(workload, 1e-6).findings.misses, 1);
}

TEST(Measure, a_result_that_changes_between_runs_is_found) {
  Scripted workload([](Scripted& self) {
    self.out.fill(1);
    self.out.set(3, static_cast<float>(self.runs));
  });
  const Measured measured = measure(workload, 1e-6);
  EXPECT_EQ(measured.findings.misses, 1);
  EXPECT_FALSE(measured.findings.all_right());
}

}  // namespace
}  // namespace heed::tool
