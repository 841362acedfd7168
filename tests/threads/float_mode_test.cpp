// SPDX-License-Identifier: Apache-2.0
// The caller's rounding and flush-to-zero modes hold on every thread that works for the call, and nowhere
// afterwards (S13).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cases/selection.hpp"
#include "heed/heed.hpp"
#include "threads/pool.hpp"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace heed::float_mode_tests {
namespace {

// The register that holds the modes of a thread, without the flags of what has happened.
std::uint64_t modes() {
#if defined(__x86_64__)
  return _mm_getcsr() & 0xffc0u;
#else
  std::uint64_t bits;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
#endif
}

void flush_to_zero() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);  // results and operands
#else
  asm volatile("msr fpcr, %0" ::"r"(modes() | std::uint64_t{1} << 24));
#endif
}

struct Mode {
  const char* name;
  void (*enter)();
};

const Mode as_found{"as it was found", [] {}};
const Mode all_modes[] = {as_found,
                          {"upward", [] { std::fesetround(FE_UPWARD); }},
                          {"downward", [] { std::fesetround(FE_DOWNWARD); }},
                          {"toward zero", [] { std::fesetround(FE_TOWARDZERO); }},
                          {"flush to zero", flush_to_zero}};

// Runs body in a thread that has entered a mode.
template <class Body>
void in_mode(const Mode& mode, const Body& body) {
  std::thread([&] {
    mode.enter();
    const std::uint64_t before = modes();
    body();
    EXPECT_EQ(modes(), before) << mode.name << " was changed";
  }).join();
}

// 4 heads over 2 KV heads of 16 dimensions. Half of the values are so small that an answer of theirs is
// subnormal.
std::vector<float> attend(std::int64_t queries, std::int64_t keys) {
  const Shape many{1, 4, queries, 16}, few{1, 2, keys, 16};
  std::vector<float> q(static_cast<std::size_t>(many.elements())),
      k(static_cast<std::size_t>(few.elements())), v = k;
  std::vector<float> out = q;
  std::uint32_t state = 1;
  for (std::vector<float>* x : {&q, &k, &v})
    for (float& y : *x)
      y = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
  for (std::size_t i = 0; i < v.size(); i += 2) v[i] *= 0x1p-126f;
  attention({{q, many}, {k, few}, {v, few}}, {.out = {out, many}}, {.masks = {Causal{Align::ends}}});
  return out;
}

std::vector<float> prefill() { return cases::small_selection() ? attend(64, 96) : attend(96, 300); }
std::vector<float> decode() { return attend(2, cases::small_selection() ? 1100 : 3000); }

// A layer's projections, of subnormal numbers.
std::vector<float> project() {
  static const LayerConfig config = multi_head(64, 4);
  static const AttentionLayer layer(config, random_weights(config, 1));
  const Shape shape{1, 1, 120, 64};
  std::vector<float> x(static_cast<std::size_t>(shape.elements())), y = x;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) * 0x1.1p-129f;
  layer({.x = {x, shape}}, {.out = {y, shape}});
  return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct Work {
  const char* name;
  std::vector<float> (*run)();
};
const Work works[] = {{"prefill", prefill}, {"decode", decode}, {"projection", project}};

// Its threads were here before the caller's mode was, and look at their own before and after every task.
struct Watched : Executor {
  int concurrency() const override { return 3; }
  void run(std::size_t tasks, void (*task)(void*, std::size_t), void* context) override {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < tasks; ++i)
      threads.emplace_back([=, this] {
        std::fesetround(FE_TONEAREST);
        const std::uint64_t before = modes();
        task(context, i);
        changed += modes() != before;
      });
    for (std::thread& thread : threads) thread.join();
  }
  std::atomic<int> changed{0};
};

class FloatMode : public testing::Test {
 protected:
  void TearDown() override { set_executor(nullptr); }
};

// What is subnormal in 16 bits is not in 32, wherever in a row it lies.
TEST_F(FloatMode, that_flushes_leaves_subnormal_halves_alone) {
  in_mode({"flush to zero", flush_to_zero}, [] {
    const Shape shape{1, 1, 1, 21};
    const f16 subnormal{0x0123};
    const std::vector<f16> q(21), k(21), v(21, subnormal);
    for (const std::string& kernel : kernel_names()) {
      const Inputs in{{q, shape}, {k, shape}, {v, shape}};
      std::vector<float> out(21);
      const auto verdicts = plan(in, {.out = {out, shape}}, {.kernel = kernel});
      if (std::none_of(verdicts.begin(), verdicts.end(),
                       [](const Verdict& of) { return of.choice == Verdict::taken; }))
        continue;
      attention(in, {.out = {out, shape}}, {.kernel = kernel});
      EXPECT_EQ(out, std::vector<float>(21, to_float(subnormal))) << kernel;
    }
  });
}

TEST_F(FloatMode, of_the_caller_gives_one_answer_whatever_the_number_of_threads) {
  for (const int threads : {2, 4}) {
    set_num_threads(threads);
    const Mode& first = all_modes[threads == 2 ? 0 : 1];
    in_mode(first, [] { prefill(); });  // the pool's threads copy it
    for (const Mode& mode : all_modes)
      in_mode(mode, [&] {
        for (const Work& work : works) {
          set_num_threads(1);
          const std::vector<float> alone = work.run();
          set_num_threads(threads);
          int different = 0;
          for (int repeat = 0; repeat < (cases::small_selection() ? 1 : 20); ++repeat)
            different += !same_bits(work.run(), alone);
          EXPECT_EQ(different, 0) << work.name << ", " << mode.name << ", " << threads << " threads";
        }
      });
  }
}

TEST_F(FloatMode, matters_to_every_answer_here) {
  for (const Work& work : works) {
    const std::vector<float> usual = work.run();
    for (const Mode& mode : all_modes) {
      if (&mode == &all_modes[0]) continue;
      in_mode(mode, [&] { EXPECT_FALSE(same_bits(work.run(), usual)) << work.name << ", " << mode.name; });
    }
  }
}

TEST_F(FloatMode, of_the_caller_holds_in_every_task_of_the_pool) {
  set_num_threads(4);
  in_mode(as_found, [] { threads::parallel_for(8, [](std::size_t) {}); });
  for (const Mode& mode : all_modes)
    in_mode(mode, [&] {
      const std::uint64_t wanted = modes();
      std::atomic<int> other{0};
      for (int repeat = 0; repeat < 50; ++repeat)
        threads::parallel_for(64, [&](std::size_t) { other += modes() != wanted; });
      EXPECT_EQ(other, 0) << mode.name;
    });
}

TEST_F(FloatMode, of_the_caller_holds_in_an_executors_tasks_and_is_gone_after_each) {
  Watched executor;
  for (const Mode& mode : all_modes)
    in_mode(mode, [&] {
      set_executor(nullptr);
      set_num_threads(1);
      const std::vector<float> alone = prefill();
      set_executor(&executor);
      EXPECT_TRUE(same_bits(prefill(), alone)) << mode.name;
      EXPECT_EQ(executor.changed, 0) << mode.name;
    });
}

#if defined(__x86_64__) && defined(__GLIBC__)  // elsewhere few processors have traps
void trap() { feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW); }

// Results of every function that computes, over rows and keys that fill no vector.
void compute_everything(const std::vector<float>& numbers) {
  std::vector<float> written(4096), sums(80), more = written;
  std::vector<std::vector<float>> gradients(3, written);
  for (const std::int64_t queries : {1, 5, 40})
    for (const std::int64_t keys : {0, 1, 7, 300}) {
      const Shape of_q{1, 2, queries, 5}, of_k{1, 1, keys, 5};
      const Inputs in{{numbers, of_q}, {numbers, of_k}, {numbers, of_k}};
      const Outputs out{.out = {written, of_q}, .log_sum_exp = {{sums, {1, 2, queries, 1}}}};
      const Options causal{.masks = {Causal{Align::ends}}};
      for (const std::string& kernel : kernel_names()) {
        Options forced = causal;
        forced.kernel = kernel;
        const auto verdicts = plan(in, out, forced);
        if (std::ranges::any_of(verdicts, [](const Verdict& of) { return of.choice == Verdict::taken; }))
          attention(in, out, forced);
      }
      attention(in, out, causal);
      attention_backward(in, {out.out, *out.log_sum_exp},
                         {.out = {numbers, of_q},
                          .q = {{gradients[0], of_q}},
                          .k = {{gradients[1], of_k}},
                          .v = {{gradients[2], of_k}}},
                         causal);
      KeyStream stream({.q = in.q, .kv_heads = 1, .keys = keys}, out, causal);
      stream.add(in.k, in.v);
      stream.finish();
      merge(out, {.out = {numbers, of_q}, .log_sum_exp = {{numbers, {1, 2, queries, 1}}}});
      rotate({more, {1, 2, queries, 4}}, std::vector<std::int64_t>(static_cast<std::size_t>(queries), 3));
      for (const CacheType type : {CacheType::f32, CacheType::f16, CacheType::bf16, CacheType::int8}) {
        KvCache cache({.kv_heads = 1, .capacity = 512, .dim = 5, .type = type});
        cache.append(in.k, in.v);
        if (keys >= queries) attention({.q = in.q, .cache = &cache}, out, causal);
        cache.read(0, {gradients[1], of_k}, {gradients[2], of_k});
      }
    }
  project();
}

TEST_F(FloatMode, that_traps_is_not_disturbed_by_lanes_that_hold_no_row) {
  std::vector<float> numbers(4096);
  for (std::size_t n = 0; n < numbers.size(); ++n) numbers[n] = static_cast<float>(n % 23) - 11;
  for (const int threads : {1, 4}) {
    set_num_threads(threads);
    in_mode({"traps", trap}, [&] { compute_everything(numbers); });
  }
}
#endif

// What a thread has seen happen stays its own: the flags are no mode.
TEST_F(FloatMode, leaves_the_flags_of_what_happened_alone) {
  in_mode({"upward", [] { std::fesetround(FE_UPWARD); }}, [] {
    std::feclearexcept(FE_ALL_EXCEPT);
    std::feraiseexcept(FE_OVERFLOW);
    set_num_threads(4);
    threads::parallel_for(64, [](std::size_t) {});
    EXPECT_TRUE(std::fetestexcept(FE_OVERFLOW));
    EXPECT_FALSE(std::fetestexcept(FE_DIVBYZERO));
  });
}

}  // namespace
}  // namespace heed::float_mode_tests
