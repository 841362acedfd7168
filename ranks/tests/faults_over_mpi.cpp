// SPDX-License-Identifier: Apache-2.0
// One rank of three does what ranks should not, as the first argument says; the others print what they are
// told of it. The job must end by itself. A second argument: by MPI alone, as between machines.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <optional>
#include <string>

#include "cases/tensor.hpp"
#include "heed/distributed.hpp"
#include "heed/mpi.hpp"
#include "heed/threads.hpp"

namespace {

using namespace heed;

// Where ranks compute together, one of them never ends what it began.
struct Stopping final : Executor {
  int concurrency() const override { return 2; }
  void run(std::size_t, void (*)(void*, std::size_t), void*) override { raise(SIGSTOP); }
};

void attend(Group& group, std::int64_t keys, const Options& options = {}) {
  const Split split = split_sequence({600, keys, 1, 1}, group.size());
  const Share& share = split.of_rank[static_cast<std::size_t>(group.rank())];
  const auto rows = [](const std::vector<Stretch>& stretches) {
    return stretches[0].length + stretches[1].length;
  };
  const cases::Tensor q({1, 1, rows(share.queries), 8}), k({1, 1, rows(share.keys), 8});
  cases::Tensor out(q.shape());
  attention(group, split, {q.view(), k.view(), k.view()}, {.out = out.mutable_view()}, options);
}

void send_another_length(Group& group, std::size_t sent, std::size_t agreed) {
  std::vector<std::byte> data(group.rank() == 1 ? sent : agreed);
  group.broadcast("what", 1, data).wait();
  if (group.rank() == 1) sleep(5);
}

// Once all are in the middle of a call.
void misbehave(const std::string& how) {
  if (how == "stopped") raise(SIGSTOP);
  if (how == "sleeping") sleep(20);
  if (how == "killed") raise(SIGKILL);
  if (how == "exiting") _exit(3);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string how = arguments[1];
  mpi::initialise_if_nobody_did();
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (how == "absent") {
    if (rank == 1) sleep(20);
    mpi_group({.deadline = std::chrono::milliseconds(2000)});
  }
  // Of two ranks the first has given up, and lives: the second must not wait for it for ever. Of three, MPI
  // would let nobody pass without the help of all.
  if (how == "late") {
    MPI_Comm two = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank == 2, 0, &two);
    sleep(rank == 1 ? 2 : 0);
    try {
      mpi_group(two, {.deadline = std::chrono::milliseconds(500)}, OnFault::throws);
    } catch (const Error& e) {
      std::printf("%s\n", e.what());
    }
    std::fflush(stdout);
    sleep(rank == 1 ? 1 : 6);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  const std::optional<int> machine = count > 2 ? std::optional(rank) : std::nullopt;
  Group group(std::make_unique<mpi::MpiMessages>(MPI_COMM_WORLD, OnFault::ends_the_job, machine),
              {.deadline = std::chrono::milliseconds(2000)});
  try {
    if (how == "cut_short") {
      send_another_length(group, 4, 8);
    } else if (how == "cut_between_pieces") {
      send_another_length(group, 4000, 8000);
    } else if (how == "with_a_piece_too_many") {
      send_another_length(group, 8000, 4000);
    } else if (how == "stopped_in_a_task") {
      Stopping stopping;
      attend(group, 6000, {.executor = group.rank() == 1 ? &stopping : nullptr});
    } else if (how == "another_shape") {
      attend(group, group.rank() == 1 ? 9 : 6000);
    } else {
      std::vector<std::byte> word(1), words(3);
      std::vector<std::span<std::byte>> all;
      for (std::byte& one : words) all.emplace_back(&one, 1);
      group.gather("begin", word, all).wait();
      if (group.rank() == 1) misbehave(how);
      std::byte one{};
      group.broadcast("keys and values", 1, {&one, 1}).wait();
    }
  } catch (const Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
