// SPDX-License-Identifier: Apache-2.0
// See ranks.hpp. A rank's processor time is what it computes, and the rest of its time it waits; the messages
// are counted on their way.
#include "bench/ranks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <thread>

#include "buffer.hpp"
#include "heed/distributed.hpp"
#include "random_values.hpp"
#include "stopwatch.hpp"
#include "table.hpp"

namespace heed::tool {
namespace {

constexpr std::int64_t head_count = 8, head_dim = 64;
const Options causal_on_one_thread{.masks = {Causal{}}, .threads = 1};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Messages that are counted.
class CountedMessages final : public Messages {
 public:
  CountedMessages(std::unique_ptr<Messages> under, std::size_t& received)
      : under_(std::move(under)), received_(received) {}
  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    return under_->send(to, bytes, step);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    received_ += bytes.size();
    return under_->receive(from, bytes, step);
  }
  void pause() override { under_->pause(); }
  void abort(const std::string& why) noexcept override { under_->abort(why); }

 private:
  std::unique_ptr<Messages> under_;
  std::size_t& received_;
};

// The whole call, and its rows by one process.
struct Whole {
  explicit Whole(std::int64_t tokens)
      : q(random_buffer({1, head_count, tokens, head_dim}, DType::f32, {1, Stream::q})),
        k(random_buffer({1, head_count, tokens, head_dim}, DType::f32, {1, Stream::k})),
        v(random_buffer({1, head_count, tokens, head_dim}, DType::f32, {1, Stream::v})),
        out({1, head_count, tokens, head_dim}) {}

  Buffer q, k, v, out;
};

// Rows of a share, between the whole and a buffer of their own.
template <class Copy>
void for_each_row(const std::vector<Stretch>& stretches, std::int64_t tokens, const Copy& copy) {
  std::int64_t rows = 0;
  for (const Stretch& s : stretches) rows += s.length;
  for (std::int64_t h = 0; h < head_count; ++h) {
    std::int64_t row = 0;
    for (const auto& [first, length] : stretches)
      for (std::int64_t i = 0; i < length; ++i, ++row)
        copy((h * tokens + first + i) * head_dim, (h * rows + row) * head_dim);
  }
}

Buffer share_of(const Buffer& whole, const std::vector<Stretch>& stretches) {
  std::int64_t rows = 0;
  for (const Stretch& s : stretches) rows += s.length;
  Buffer made({1, head_count, rows, head_dim});
  auto* to = static_cast<float*>(made.writable().data);
  const auto* from = static_cast<const float*>(whole.view().data);
  for_each_row(stretches, whole.shape().length, [&](std::int64_t of_whole, std::int64_t of_share) {
    std::memcpy(to + of_share, from + of_whole, static_cast<std::size_t>(head_dim) * sizeof(float));
  });
  return made;
}

struct RankTime {
  double computing = 0, waiting = 0;
  std::size_t received = 0;
  bool has_the_bits = false;
  std::string fault{};
};

void run_rank(Group& group, const Split& split, const Whole& whole, RankTime& time) {
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  const Buffer q = share_of(whole.q, share.queries), k = share_of(whole.k, share.keys),
               v = share_of(whole.v, share.keys);
  const Buffer expected = share_of(whole.out, share.queries);
  Buffer out(q.shape());
  std::byte word{};
  std::vector<std::byte> words(static_cast<std::size_t>(group.size()));
  std::vector<std::span<std::byte>> all;
  for (std::byte& one : words) all.emplace_back(&one, 1);
  group.gather("ready", {&word, 1}, all).wait();
  const double before = processor_seconds();
  const double took = seconds_of([&] {
    attention(group, split, {.q = q.view(), .k = k.view(), .v = v.view()}, {.out = out.writable()},
              causal_on_one_thread);
  });
  time.computing = processor_seconds() - before;
  time.waiting = std::max(0.0, took - time.computing);
  time.has_the_bits = std::memcmp(out.bytes().data(), expected.bytes().data(), out.bytes().size()) == 0;
}

std::vector<RankTime> run_ranks(int ranks, const Whole& whole) {
  const std::int64_t tokens = whole.q.shape().length;
  const Split split = split_sequence({tokens, tokens, head_count, head_count}, ranks);
  std::vector<RankTime> times(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Messages>> ends = messages_of_threads(ranks);
  for (std::size_t r = 0; r < times.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        Group group(std::make_unique<CountedMessages>(std::move(ends[r]), times[r].received));
        run_rank(group, split, whole, times[r]);
      } catch (const std::exception& e) {
        times[r].fault = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return times;
}

// Bytes per second that one thread copies: what a message between threads costs.
double copied_per_second() {
  std::vector<std::byte> from(std::size_t{32} << 20, std::byte{1}), to(from.size());
  return static_cast<double>(from.size()) /
         median_seconds([&] { std::memcpy(to.data(), from.data(), from.size()); });
}

}  // namespace

Status bench_ranks(bool is_quick, const Console& console) {
  Whole whole(is_quick ? 2048 : 16384);
  console.progress("one process");
  const double before = processor_seconds();
  attention({.q = whole.q.view(), .k = whole.k.view(), .v = whole.v.view()}, {.out = whole.out.writable()},
            causal_on_one_thread);
  const double alone = processor_seconds() - before, bandwidth = copied_per_second();
  Table table({{"ranks"}, {"computing"}, {"waiting"}, {"received"}, {"efficiency"}, {"predicted"}});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  Status status = done;
  for (const int ranks : {1, 2, 4, 8}) {
    console.progress(fmt::format("{} ranks", ranks));
    const std::vector<RankTime> times = run_ranks(ranks, whole);
    RankTime slowest;
    for (const RankTime& time : times) {
      slowest.computing = std::max(slowest.computing, time.computing);
      slowest.waiting = std::max(slowest.waiting, time.waiting);
      slowest.received = std::max(slowest.received, time.received);
      if (time.has_the_bits) continue;
      status = failed_check;
      console.error(fmt::format("{} ranks: {}", ranks,
                                time.fault.empty() ? "other bits than one process" : time.fault));
    }
    const double share = alone / ranks,
                 predicted = share / (share + static_cast<double>(slowest.received) / bandwidth),
                 efficiency = share / slowest.computing;
    table.add({std::to_string(ranks), readable_seconds(slowest.computing), readable_seconds(slowest.waiting),
               fmt::format("{:.1f} MiB", static_cast<double>(slowest.received) / 1048576),
               fmt::format("{:.3f}", efficiency), fmt::format("{:.3f}", predicted)});
    rows.push_back({{"ranks", ranks},
                    {"computing_seconds", slowest.computing},
                    {"waiting_seconds", slowest.waiting},
                    {"received_bytes", slowest.received},
                    {"efficiency", efficiency},
                    {"predicted_efficiency", predicted}});
  }
  console.progress("");
  console.print(fmt::format(
      "{} tokens, {} heads of {}, causal, f32; ranks are threads, and one process takes {} of a processor\n",
      whole.q.shape().length, head_count, head_dim, readable_seconds(alone)));
  console.print(table.text(console));
  console.result({{"tokens", whole.q.shape().length},
                  {"one_process_seconds", alone},
                  {"copied_bytes_per_second", bandwidth},
                  {"ranks", rows}});
  return status;
}

}  // namespace heed::tool
