// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_rows.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "stopwatch.hpp"
#include "table.hpp"

namespace heed::tool {

RankRow::RankRow(int count, const std::vector<RankTime>& times) : ranks(count) {
  for (const RankTime& time : times) {
    most.seconds = std::max(most.seconds, time.seconds);
    most.computing = std::max(most.computing, time.computing);
    most.alone = std::max(most.alone, time.alone);
    most.received.bytes = std::max(most.received.bytes, time.received.bytes);
    most.received.messages = std::max(most.received.messages, time.received.messages);
    most.has_the_bits = most.has_the_bits && time.has_the_bits;
    waiting = std::max(waiting, time.seconds - time.computing);
  }
}

nlohmann::ordered_json json_of(const RankRow& row) {
  return {{"ranks", row.ranks},
          {"seconds", row.most.seconds},
          {"computing_seconds", row.most.computing},
          {"waiting_seconds", row.waiting},
          {"received_bytes", row.most.received.bytes},
          {"received_messages", row.most.received.messages},
          {"one_process_seconds", row.alone},
          {"efficiency", row.efficiency()},
          {"predicted_seconds", row.predicted},
          {"has_the_bits", row.most.has_the_bits}};
}

std::string text_of(const std::vector<RankRow>& rows, const Console& console) {
  Table table({{"ranks"},
               {"time"},
               {"computing"},
               {"waiting"},
               {"received"},
               {"one process"},
               {"efficiency"},
               {"predicted"}});
  for (const RankRow& row : rows)
    table.add({std::to_string(row.ranks), readable_seconds(row.most.seconds),
               readable_seconds(row.most.computing), readable_seconds(row.waiting),
               fmt::format("{:.2f} MiB", static_cast<double>(row.most.received.bytes) / 1048576),
               readable_seconds(row.alone), fmt::format("{:.3f}", row.efficiency()),
               readable_seconds(row.predicted)});
  return table.text(console);
}

Network::Network() : processors(static_cast<int>(std::max(1u, std::thread::hardware_concurrency()))) {
  std::vector<std::byte> from(std::size_t{32} << 20, std::byte{1}), to(from.size());
  bytes_per_second = static_cast<double>(from.size()) /
                     median_seconds([&] { std::memcpy(to.data(), from.data(), from.size()); });
}

int Network::used_by(std::int64_t threads) const {
  return static_cast<int>(std::min<std::int64_t>(threads, processors));
}

double Network::seconds_of(const Traffic& t, int ranks) const {
  const double sharing = static_cast<double>(ranks) / used_by(ranks);
  return sharing * (2 * static_cast<double>(t.bytes) / bytes_per_second) +
         sharing * static_cast<double>(t.messages) * latency;
}

}  // namespace heed::tool
