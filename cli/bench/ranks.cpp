// SPDX-License-Identifier: Apache-2.0
// See ranks.hpp. What a row predicts is the cost model of docs/scale.md with this machine's numbers: the time
// of one process, and what the processors spend on messages.
#include "bench/ranks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/rank_work.hpp"
#include "stopwatch.hpp"
#include "table.hpp"

namespace heed::tool {
namespace {

using Json = nlohmann::ordered_json;
using Work = std::function<std::vector<RankTime>(Group&, const Traffic&)>;

// The ranks as threads of this process. Throws what one of them threw.
std::vector<RankTime> on_threads(int ranks, const Work& work) {
  std::vector<RankTime> times;
  std::vector<std::exception_ptr> faults(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Messages>> ends = messages_of_threads(ranks);
  for (std::size_t r = 0; r < faults.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        Traffic received;
        Group group(counted(std::move(ends[r]), received));
        std::vector<RankTime> all = work(group, received);
        if (r == 0) times = std::move(all);
      } catch (...) {
        faults[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& fault : faults)
    if (fault) std::rethrow_exception(fault);
  return times;
}

struct Row {
  int ranks;
  RankTime most{.has_the_bits = true};  // of each number, that any rank had
  double waiting = 0;                   // likewise
  double alone = 0, predicted = 0;

  Row(int count, const std::vector<RankTime>& times) : ranks(count) {
    for (const RankTime& time : times) {
      most.seconds = std::max(most.seconds, time.seconds);
      most.computing = std::max(most.computing, time.computing);
      most.received.bytes = std::max(most.received.bytes, time.received.bytes);
      most.received.messages = std::max(most.received.messages, time.received.messages);
      most.has_the_bits = most.has_the_bits && time.has_the_bits;
      waiting = std::max(waiting, time.seconds - time.computing);
    }
  }
};

// What this machine does with messages between threads.
struct Network {
  double bytes_per_second, latency;
  int processors;

  Network() : processors(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {
    std::vector<std::byte> from(std::size_t{32} << 20, std::byte{1}), to(from.size());
    bytes_per_second = static_cast<double>(from.size()) /
                       median_seconds([&] { std::memcpy(to.data(), from.data(), from.size()); });
    latency =
        on_threads(2, [](Group& group,
                         const Traffic&) { return std::vector<RankTime>{{.seconds = latency_of(group)}}; })[0]
            .seconds;
  }
  int used_by(int ranks) const { return std::min(ranks, processors); }
  // Each byte is copied twice, when it is packed and when it is received, by a processor that several ranks
  // may share.
  double seconds_of(const Traffic& t, int ranks) const {
    const double sharing = static_cast<double>(ranks) / used_by(ranks);
    return sharing * (2 * static_cast<double>(t.bytes) / bytes_per_second) +
           sharing * static_cast<double>(t.messages) * latency;
  }
};

Json json_of(const Row& row) {
  return {{"ranks", row.ranks},
          {"seconds", row.most.seconds},
          {"computing_seconds", row.most.computing},
          {"waiting_seconds", row.waiting},
          {"received_bytes", row.most.received.bytes},
          {"received_messages", row.most.received.messages},
          {"one_process_seconds", row.alone},
          {"efficiency", row.alone / row.most.seconds},
          {"predicted_seconds", row.predicted},
          {"has_the_bits", row.most.has_the_bits}};
}

std::string text_of(const std::vector<Row>& rows, const Console& console) {
  Table table({{"ranks"},
               {"time"},
               {"computing"},
               {"waiting"},
               {"received"},
               {"one process"},
               {"efficiency"},
               {"predicted"}});
  for (const Row& row : rows)
    table.add({std::to_string(row.ranks), readable_seconds(row.most.seconds),
               readable_seconds(row.most.computing), readable_seconds(row.waiting),
               fmt::format("{:.2f} MiB", static_cast<double>(row.most.received.bytes) / 1048576),
               readable_seconds(row.alone), fmt::format("{:.3f}", row.alone / row.most.seconds),
               readable_seconds(row.predicted)});
  return table.text(console);
}

}  // namespace

Status bench_ranks(bool is_quick, const Console& console) {
  console.progress("the machine");
  const Network network;
  std::vector<Row> prefill, decode;
  std::map<int, double> alone;  // by threads
  Prefill whole(is_quick ? 2048 : 16384);
  const Decode step(is_quick ? 8192 : 32768);
  for (const int ranks : {1, 2, 4, 8}) {
    console.progress(fmt::format("{} ranks", ranks));
    const int threads = network.used_by(ranks);
    if (!alone.contains(threads)) alone[threads] = whole.of_one_process(threads);
    Row& row = prefill.emplace_back(ranks, on_threads(ranks, [&](Group& group, const Traffic& received) {
                                      return prefill_over(group, received, whole);
                                    }));
    row.alone = alone[threads];
    row.predicted = row.alone + network.seconds_of(row.most.received, ranks);
    Row& one = decode.emplace_back(ranks, on_threads(ranks, [&](Group& group, const Traffic& received) {
                                     return decode_over(group, received, step);
                                   }));
    one.alone = decode.front().most.seconds / threads;
    one.predicted = one.alone + network.seconds_of(one.most.received, ranks);
  }
  console.progress("");
  console.print(
      fmt::format("Ranks are threads of this process, on {} processors; 8 heads of 64 dimensions, f32.\n",
                  network.processors));
  console.print(fmt::format("Causal attention of {} tokens, against one process with as many threads:\n",
                            whole.q.shape().length));
  console.print(text_of(prefill, console) + "\n");
  console.print(
      fmt::format("One query over {} tokens, against a part of one rank's time:\n", step.k.shape().length));
  console.print(text_of(decode, console));
  Json answer{{"processors", network.processors},
              {"copied_bytes_per_second", network.bytes_per_second},
              {"latency_seconds", network.latency},
              {"tokens", whole.q.shape().length},
              {"kept_tokens", step.k.shape().length},
              {"prefill", Json::array()},
              {"decode", Json::array()}};
  Status status = done;
  for (const auto& [name, rows] : {std::pair("prefill", &prefill), std::pair("decode", &decode)})
    for (const Row& row : *rows) {
      answer[name].push_back(json_of(row));
      if (row.most.has_the_bits) continue;
      status = failed_check;
      console.error(fmt::format("{} over {} ranks: other bits than one process", name, row.ranks));
    }
  console.result(answer);
  return status;
}

}  // namespace heed::tool
