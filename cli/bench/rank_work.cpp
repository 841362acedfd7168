// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_work.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <ctime>
#include <functional>

#include "heed/cache.hpp"
#include "heed/distributed.hpp"
#include "random_values.hpp"
#include "stopwatch.hpp"

namespace heed::tool {
namespace {

Options causal_on(int threads) { return {.masks = {Causal{}}, .threads = threads}; }

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class CountedMessages final : public Messages {
 public:
  CountedMessages(std::unique_ptr<Messages> under, Traffic& received)
      : under_(std::move(under)), received_(received) {}
  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return under_->send(to, bytes, step);
  }
  std::vector<std::unique_ptr<Message>> send_to_all(std::span<const int> to, std::span<const std::byte> bytes,
                                                    std::uint32_t step) override {
    return under_->send_to_all(to, bytes, step);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    received_.bytes += bytes.size();
    ++received_.messages;
    return under_->receive(from, bytes, step);
  }
  bool share_memory() const override { return under_->share_memory(); }
  // Looks that follow each other are one wait: whoever has computed in between took longer.
  void pause() override {
    constexpr double of_a_look = 50e-6;
    const double now = processor_seconds();
    if (now - last_look_ < of_a_look) received_.polling += now - last_look_;
    last_look_ = now;
    under_->pause();
  }
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  std::unique_ptr<Messages> under_;
  Traffic& received_;
  double last_look_ = 0;
};

// What a call was on this rank's thread.
class CallClock {
 public:
  explicit CallClock(const Traffic& received) : received_(received), before_(received) {}
  template <class Call>
  RankTime operator()(const Call& call) {
    before_ = received_;
    const double processor = processor_seconds();
    RankTime time;
    time.seconds = seconds_of(call);
    time.computing = processor_seconds() - processor - (received_.polling - before_.polling);
    time.received = {received_.bytes - before_.bytes, received_.messages - before_.messages,
                     received_.polling - before_.polling};
    return time;
  }

 private:
  const Traffic& received_;
  Traffic before_;
};

template <class Of>
double median_of(std::vector<RankTime> times, Of of) {
  std::ranges::sort(times, {}, of);
  return std::invoke(of, times[times.size() / 2]);
}

template <class T>
std::vector<T> gathered(Group& group, const char* what, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  std::vector<std::span<std::byte>> into;
  for (T& one : all) into.push_back(std::as_writable_bytes(std::span(&one, 1)));
  group.gather(what, std::as_bytes(std::span(&own, 1)), into).wait();
  return all;
}

// Of decode, on one rank.
constexpr int timed_steps = 101;
using StepSeconds = std::array<double, timed_steps>;

// No step ends before its slowest rank, and that is now this one and now that.
double median_of_slowest(const std::vector<StepSeconds>& of_ranks) {
  StepSeconds slowest{};
  for (const StepSeconds& own : of_ranks)
    for (std::size_t n = 0; n < timed_steps; ++n) slowest[n] = std::max(slowest[n], own[n]);
  std::ranges::nth_element(slowest, slowest.begin() + timed_steps / 2);
  return slowest[timed_steps / 2];
}

Buffer random_rows(std::int64_t tokens, Stream stream) {
  return random_buffer({1, bench_heads, tokens, bench_dim}, DType::f32, {1, stream});
}

// Rows of a share, one stretch after another.
Buffer share_of(const Buffer& whole, const std::vector<Stretch>& stretches) {
  std::int64_t rows = 0;
  for (const Stretch& s : stretches) rows += s.length;
  Buffer made({1, bench_heads, rows, bench_dim});
  auto* to = static_cast<float*>(made.writable().data);
  const auto* from = static_cast<const float*>(whole.view().data);
  for (std::int64_t h = 0; h < bench_heads; ++h)
    for (const auto& [first, length] : stretches) {
      const float* begin = from + (h * whole.shape().length + first) * bench_dim;
      to = std::copy_n(begin, length * bench_dim, to);
    }
  return made;
}

bool same_bytes(const Buffer& a, const Buffer& b) {
  return std::memcmp(a.bytes().data(), b.bytes().data(), a.bytes().size()) == 0;
}

KvCacheConfig config_for(std::int64_t tokens) {
  return {.kv_heads = bench_heads, .capacity = tokens, .dim = bench_dim, .page_size = 256};
}

}  // namespace

std::unique_ptr<Messages> counted(std::unique_ptr<Messages> under, Traffic& received) {
  return std::make_unique<CountedMessages>(std::move(under), received);
}

Prefill::Prefill(std::int64_t tokens)
    : q(random_rows(tokens, Stream::q)),
      k(random_rows(tokens, Stream::k)),
      v(random_rows(tokens, Stream::v)),
      out(q.shape()) {}

double Prefill::of_one_process(int threads) {
  return seconds_of([&] {
    attention({.q = q.view(), .k = k.view(), .v = v.view()}, {.out = out.writable()}, causal_on(threads));
  });
}

std::vector<RankTime> prefill_over(Group& group, const Traffic& received, const Prefill& whole, int threads) {
  const std::int64_t tokens = whole.q.shape().length;
  const Split split = split_sequence({tokens, tokens, bench_heads, bench_heads}, group.size());
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  const Buffer q = share_of(whole.q, share.queries), k = share_of(whole.k, share.keys),
               v = share_of(whole.v, share.keys);
  Buffer out(q.shape());
  const auto call = [&] {
    attention(group, split, {.q = q.view(), .k = k.view(), .v = v.view()}, {.out = out.writable()},
              causal_on(threads));
  };
  call();  // as the one process has done: memory that is new to a process takes time by itself
  gathered(group, "ready", std::byte{});
  RankTime time = CallClock(received)(call);
  time.has_the_bits = same_bytes(out, share_of(whole.out, share.queries));
  return gathered(group, "times", time);
}

Decode::Decode(std::int64_t tokens)
    : q(random_rows(1, Stream::q)),
      k(random_rows(tokens, Stream::k)),
      v(random_rows(tokens, Stream::v)),
      out(q.shape()) {
  KvCache cache(config_for(tokens));
  cache.append_to(0, k.view(), v.view());
  attention({.q = q.view(), .cache = &cache}, {.out = out.writable()}, causal_on(1));
}

std::vector<RankTime> decode_over(Group& group, const Traffic& received, const Decode& whole, int threads) {
  const std::int64_t tokens = whole.k.shape().length;
  KvCache cache(config_for(tokens));
  append_own(cache, 0, 0, whole.k.view(), whole.v.view(), group.rank(), group.size());
  Buffer out(whole.q.shape()), of_own(whole.q.shape());
  const Options options = causal_on(threads);
  const auto alone = [&] {
    attention({.q = whole.q.view(), .cache = &cache}, {.out = of_own.writable()}, options);
  };
  const auto step = [&] {
    attention(group, whole.q.view(), {.cache = &cache, .lengths = {&tokens, 1}}, {.out = out.writable()},
              options);
  };
  StepSeconds own{};
  alone();
  for (double& seconds : own) {
    gathered(group, "ready", std::byte{});  // all begin at once, as they do in a step
    seconds = seconds_of(alone);
  }
  std::vector<RankTime> all;
  step();
  gathered(group, "ready", std::byte{});
  for (int n = 0; n < timed_steps; ++n) all.push_back(CallClock(received)(step));
  RankTime time = all.back();  // every step receives the same
  time.seconds = median_of(all, &RankTime::seconds), time.computing = median_of(all, &RankTime::computing);
  time.alone = median_of_slowest(gathered(group, "times alone", own));
  time.has_the_bits = same_bytes(out, whole.out);
  return gathered(group, "times", time);
}

double latency_of(Group& group) {
  gathered(group, "ready", std::byte{});
  constexpr int rounds = 200;
  const double took = seconds_of([&] {
    for (int n = 0; n < rounds; ++n) gathered(group, "latency", std::byte{});
  });
  return group.size() > 1 ? took / rounds / (group.size() - 1) : 0;
}

}  // namespace heed::tool
