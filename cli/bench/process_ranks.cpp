// SPDX-License-Identifier: Apache-2.0
#include "bench/process_ranks.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include "bench/rank_rows.hpp"
#include "heed/error.hpp"
#include "heed/threads.hpp"
#include "rank_processes.hpp"

namespace heed::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* folder_variable = "HEED_BENCH_FOLDER";  // where the processes find and leave files
constexpr int rounds_of_processes = 5;

std::int64_t tokens_of(const ProcessRanks& asked) { return asked.is_quick ? 2048 : 16384; }
std::int64_t kept_tokens_of(const ProcessRanks& asked) { return asked.is_quick ? 8192 : 32768; }

// A folder for as long as the bench runs.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "heed-bench-XXXXXX").string();
    if (!mkdtemp(name.data())) throw Error(Error::file, name + ": cannot be made: " + std::strerror(errno));
    path_ = name;
    setenv(folder_variable, name.c_str(), 1);
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
    Prefill whole(tokens_of(asked));
    read_bytes(folder / "out",
               {static_cast<std::byte*>(whole.out.writable().data), whole.out.bytes().size()});
    std::vector<RankTime> times = prefill_over(group, received, whole, asked.threads);
    const Decode step(kept_tokens_of(asked));
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
  Prefill whole(tokens_of(asked));
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
  console.print(
      fmt::format("Causal attention of {} tokens, against one process with {}; the median of {} "
                  "rounds, efficiency {:.3f} to {:.3f}:\n",
                  tokens_of(asked), threads_in_words(threads_of_one(asked, network)), rounds_of_processes,
                  rounds.prefill.front().efficiency(), rounds.prefill.back().efficiency()));
  console.print(text_of({median}, console));
  console.print(fmt::format(
      "One query over {} tokens: {:.0f} us, {:.0f} us more than the slowest rank's own tokens take: "
      "{:.0f} us.",
      kept_tokens_of(asked), 1e6 * step.most.seconds, 1e6 * step.added(), 1e6 * step.most.alone));
  Json answer = json_of(median);
  answer["least_efficiency"] = rounds.prefill.front().efficiency();
  answer["largest_efficiency"] = rounds.prefill.back().efficiency();
  answer["threads"] = asked.threads;
  answer["tokens"] = tokens_of(asked);
  answer["kept_tokens"] = kept_tokens_of(asked);
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
