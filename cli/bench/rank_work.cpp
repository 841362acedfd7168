// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_work.hpp"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "heed/cache.hpp"
#include "heed/distributed.hpp"
#include "random_values.hpp"
#include "stopwatch.hpp"

namespace heed::tool {
namespace {

const Options causal_on_one_thread{.masks = {Causal{}}, .threads = 1};

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
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    received_.bytes += bytes.size();
    ++received_.messages;
    return under_->receive(from, bytes, step);
  }
  void pause() override { under_->pause(); }
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  std::unique_ptr<Messages> under_;
  Traffic& received_;
};

template <class T>
std::vector<T> gathered(Group& group, const char* what, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  std::vector<std::span<std::byte>> into;
  for (T& one : all) into.push_back(std::as_writable_bytes(std::span(&one, 1)));
  group.gather(what, std::as_bytes(std::span(&own, 1)), into).wait();
  return all;
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
  Options options = causal_on_one_thread;
  options.threads = threads;
  return seconds_of(
      [&] { attention({.q = q.view(), .k = k.view(), .v = v.view()}, {.out = out.writable()}, options); });
}

std::vector<RankTime> prefill_over(Group& group, const Traffic& received, const Prefill& whole) {
  const std::int64_t tokens = whole.q.shape().length;
  const Split split = split_sequence({tokens, tokens, bench_heads, bench_heads}, group.size());
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  const Buffer q = share_of(whole.q, share.queries), k = share_of(whole.k, share.keys),
               v = share_of(whole.v, share.keys);
  Buffer out(q.shape());
  gathered(group, "ready", std::byte{});
  const Traffic traffic = received;
  const double before = processor_seconds();
  RankTime time;
  time.seconds = seconds_of([&] {
    attention(group, split, {.q = q.view(), .k = k.view(), .v = v.view()}, {.out = out.writable()},
              causal_on_one_thread);
  });
  time.computing = processor_seconds() - before;
  time.received = {received.bytes - traffic.bytes, received.messages - traffic.messages};
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
  attention({.q = q.view(), .cache = &cache}, {.out = out.writable()}, causal_on_one_thread);
}

std::vector<RankTime> decode_over(Group& group, const Traffic& received, const Decode& whole) {
  const std::int64_t tokens = whole.k.shape().length;
  KvCache cache(config_for(tokens));
  append_own(cache, 0, 0, whole.k.view(), whole.v.view(), group.rank(), group.size());
  Buffer out(whole.q.shape());
  const auto step = [&] {
    attention(group, whole.q.view(), {.cache = &cache, .lengths = {&tokens, 1}}, {.out = out.writable()},
              causal_on_one_thread);
  };
  step();
  constexpr int steps = 41;
  std::vector<double> seconds, computing;
  const Traffic traffic = received;
  for (int n = 0; n < steps; ++n) {
    const double before = processor_seconds();
    seconds.push_back(seconds_of(step));
    computing.push_back(processor_seconds() - before);
  }
  RankTime time;
  for (auto* times : {&seconds, &computing}) std::ranges::sort(*times);
  time.seconds = seconds[steps / 2], time.computing = computing[steps / 2];
  time.received = {(received.bytes - traffic.bytes) / steps, (received.messages - traffic.messages) / steps};
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
