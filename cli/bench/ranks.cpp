// SPDX-License-Identifier: Apache-2.0
// See ranks.hpp. A row for each number of ranks; what a row predicts is the cost model of docs/scale.md with
// this machine's numbers: the time of one process, and what the processors spend on messages.
#include "bench/ranks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/rank_work.hpp"
#include "heed/error.hpp"
#include "heed/threads.hpp"
#include "rank_processes.hpp"
#include "stopwatch.hpp"
#include "system.hpp"
#include "table.hpp"

namespace heed::tool {
namespace {

using Json = nlohmann::ordered_json;

std::int64_t tokens_of(Size size) { return size == Size::quick ? 2048 : 16384; }
std::int64_t kept_tokens_of(Size size) { return size == Size::quick ? 8192 : 32768; }

struct RankRow {
  int ranks;
  RankTime most{.has_the_bits = true};  // of each number, that any rank had
  double waiting = 0;                   // likewise
  double alone = 0, predicted = 0;

  RankRow(int count, const std::vector<RankTime>&);
  double efficiency() const { return alone / most.seconds; }
  // Decode: what telling the others adds to the rank that its own tokens take longest.
  double added() const { return most.seconds - most.alone; }
};

nlohmann::ordered_json json_of(const RankRow&);
std::string text_of(const std::vector<RankRow>&, const Console&);

// What this machine does with messages.
struct Network {
  double bytes_per_second = 0;  // of a copy
  double latency = 0;
  int processors = 1;

  Network();  // measures the first; nobody has said how long a message takes
  int used_by(std::int64_t threads) const;
  // Each byte is copied twice, when it is packed and when it is received, by a processor that several ranks
  // may share.
  double seconds_of(const Traffic&, int ranks) const;
};

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

constexpr const char* folder_variable = "HEED_BENCH_FOLDER";  // where the processes find and leave files
constexpr int rounds_of_processes = 5;

// A folder for as long as the bench runs.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "heed-bench-XXXXXX").string();
    if (!mkdtemp(name.data())) throw Error(Error::file, name + ": cannot be made: " + std::strerror(errno));
    path_ = name;
    set_environment(folder_variable, name);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// What all ranks say of one round, as the first of them leaves it for this process.
struct Round {
  std::vector<RankTime> prefill{}, decode{};
  double latency = 0;
};

void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw Error(Error::file, path.string() + ": cannot be written");
}

void read_bytes(const std::filesystem::path& path, std::span<std::byte> bytes) {
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    throw Error(Error::file, path.string() + ": cannot be read, or is too short");
}

template <class T>
std::span<std::byte> bytes_of_all(std::vector<T>& all) {
  return std::as_writable_bytes(std::span(all));
}

// One of the processes.
Status be_a_rank(const ProcessRanks& asked) {
  set_num_threads(asked.threads);  // and no pool of more
  const char* named = std::getenv(folder_variable);
  const std::filesystem::path folder = named ? named : "";
  Traffic received;
  Group group(counted(messages_of_processes(asked.ranks), received));
  try {
    Prefill whole(tokens_of(asked.size));
    read_bytes(folder / "out",
               {static_cast<std::byte*>(whole.out.writable().data), whole.out.bytes().size()});
    std::vector<RankTime> times = prefill_over(group, received, whole, asked.threads);
    const Decode step(kept_tokens_of(asked.size));
    for (const RankTime& time : decode_over(group, received, step, asked.threads)) times.push_back(time);
    times.push_back({.seconds = latency_of(group)});
    if (group.rank() == 0) write_bytes(folder / "times", bytes_of_all(times));
  } catch (const std::exception& problem) {
    group.abort(problem.what());
    throw;
  }
  return done;
}

Round run_ranks(const ProcessRanks& asked, const Folder& folder) {
  start_ranks(asked.ranks, asked.oversubscribes);
  const auto ranks = static_cast<std::size_t>(asked.ranks);
  std::vector<RankTime> times(2 * ranks + 1);
  read_bytes(folder.path() / "times", bytes_of_all(times));
  const auto middle = times.begin() + asked.ranks;
  return {{times.begin(), middle}, {middle, times.end() - 1}, times.back().seconds};
}

// The rounds of prefill and decode, and whether all of them had the bits of one process.
struct Rounds {
  std::vector<RankRow> prefill{}, decode{};

  bool have_the_bits() const {
    const auto has = [](const RankRow& row) { return row.most.has_the_bits; };
    return std::ranges::all_of(prefill, has) && std::ranges::all_of(decode, has);
  }
  // The middle row is then the median.
  void sort() {
    std::ranges::sort(prefill, {}, &RankRow::efficiency);
    std::ranges::sort(decode, {}, &RankRow::added);
  }
};

// As many as all ranks have, or as there are processors.
int threads_of_one(const ProcessRanks& asked, const Network& network) {
  return network.used_by(std::int64_t{asked.ranks} * asked.threads);
}

Rounds run_rounds(const ProcessRanks& asked, const Console& console, Network& network) {
  const int threads = threads_of_one(asked, network);
  const Folder folder;
  Prefill whole(tokens_of(asked.size));
  whole.of_one_process(threads);
  write_bytes(folder.path() / "out", whole.out.bytes());
  Rounds rounds;
  for (int n = 0; n < rounds_of_processes; ++n) {
    console.progress(fmt::format("{} ranks, round {} of {}", asked.ranks, n + 1, rounds_of_processes));
    const double before = whole.of_one_process(threads);
    const Round round = run_ranks(asked, folder);
    network.latency = round.latency;
    RankRow& row = rounds.prefill.emplace_back(asked.ranks, round.prefill);
    row.alone = (before + whole.of_one_process(threads)) / 2;
    row.predicted = row.alone + network.seconds_of(row.most.received, asked.ranks);
    rounds.decode.emplace_back(asked.ranks, round.decode);
  }
  console.progress("");
  rounds.sort();
  return rounds;
}

std::string threads_in_words(int threads) {
  return threads == 1 ? "one thread" : fmt::format("{} threads", threads);
}

void print(const ProcessRanks& asked, const Rounds& rounds, const Network& network, const Console& console) {
  const RankRow &median = rounds.prefill[rounds_of_processes / 2],
                &step = rounds.decode[rounds_of_processes / 2];
  console.print(
      fmt::format("{} processes by mpirun, with {} each, on {} processors; 8 heads of 64 dimensions, f32.\n",
                  asked.ranks, threads_in_words(asked.threads), network.processors));
  console.print(fmt::format(
      "Causal attention of {} tokens, against one process with {}; the median of {} "
      "rounds, efficiency {:.3f} to {:.3f}:\n",
      tokens_of(asked.size), threads_in_words(threads_of_one(asked, network)), rounds_of_processes,
      rounds.prefill.front().efficiency(), rounds.prefill.back().efficiency()));
  console.print(text_of({median}, console));
  console.print(fmt::format(
      "One query over {} tokens: {:.0f} us, {:.0f} us more than the slowest rank's own tokens take: "
      "{:.0f} us.",
      kept_tokens_of(asked.size), 1e6 * step.most.seconds, 1e6 * step.added(), 1e6 * step.most.alone));
  Json answer = json_of(median);
  answer["least_efficiency"] = rounds.prefill.front().efficiency();
  answer["largest_efficiency"] = rounds.prefill.back().efficiency();
  answer["threads"] = asked.threads;
  answer["tokens"] = tokens_of(asked.size);
  answer["kept_tokens"] = kept_tokens_of(asked.size);
  answer["decode_seconds"] = step.most.seconds;
  answer["decode_alone_seconds"] = step.most.alone;
  answer["decode_added_seconds"] = step.added();
  answer["decode_received_bytes"] = step.most.received.bytes;
  answer["decode_received_messages"] = step.most.received.messages;
  answer["latency_seconds"] = network.latency;
  answer["has_the_bits"] = rounds.have_the_bits();
  console.result(answer);
}

}  // namespace

Status bench_ranks(Size size, const Console& console) {
  console.progress("the machine");
  Network network;
  network.latency =
      on_threads(2, [](Group& group,
                       const Traffic&) { return std::vector<RankTime>{{.seconds = latency_of(group)}}; })[0]
          .seconds;
  std::vector<RankRow> prefill, decode;
  std::map<int, double> alone;  // by threads
  Prefill whole(tokens_of(size));
  const Decode step(kept_tokens_of(size));
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

Status bench_rank_processes(const ProcessRanks& asked, const Console& console) {
  if (is_rank_process()) return be_a_rank(asked);
  check_ranks(asked.ranks, asked.oversubscribes, asked.threads);  // before anything takes seconds
  console.progress("the machine");
  Network network;
  const Rounds rounds = run_rounds(asked, console, network);
  print(asked, rounds, network, console);
  if (rounds.have_the_bits()) return done;
  console.error(fmt::format("{} processes: other bits than one", asked.ranks));
  return failed_check;
}

}  // namespace heed::tool
