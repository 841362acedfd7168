// SPDX-License-Identifier: Apache-2.0
#include "bench/ranks.hpp"

#include <fmt/core.h>

#include <functional>
#include <map>
#include <thread>

#include "bench/rank_rows.hpp"

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

}  // namespace

Status bench_ranks(bool is_quick, const Console& console) {
  console.progress("the machine");
  Network network;
  network.latency =
      on_threads(2, [](Group& group,
                       const Traffic&) { return std::vector<RankTime>{{.seconds = latency_of(group)}}; })[0]
          .seconds;
  std::vector<RankRow> prefill, decode;
  std::map<int, double> alone;  // by threads
  Prefill whole(is_quick ? 2048 : 16384);
  const Decode step(is_quick ? 8192 : 32768);
  for (const int ranks : {1, 2, 4, 8}) {
    console.progress(fmt::format("{} ranks", ranks));
    const int threads = network.used_by(ranks);
    if (!alone.contains(threads)) alone[threads] = whole.of_one_process(threads);
    RankRow& row = prefill.emplace_back(ranks, on_threads(ranks, [&](Group& group, const Traffic& received) {
                                          return prefill_over(group, received, whole, 1);
                                        }));
    row.alone = alone[threads];
    row.predicted = row.alone + network.seconds_of(row.most.received, ranks);
    RankRow& one = decode.emplace_back(ranks, on_threads(ranks, [&](Group& group, const Traffic& received) {
                                         return decode_over(group, received, step, 1);
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
    for (const RankRow& row : *rows) {
      answer[name].push_back(json_of(row));
      if (row.most.has_the_bits) continue;
      status = failed_check;
      console.error(fmt::format("{} over {} ranks: other bits than one process", name, row.ranks));
    }
  console.result(answer);
  return status;
}

}  // namespace heed::tool
