// SPDX-License-Identifier: Apache-2.0
// A group over MPI: opt-in, by this header and the CMake target heed::mpi. It is compiled with the caller's
// own mpi.h, because those of different MPIs do not agree on anything but names.
#pragma once
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "heed/group.hpp"
#include "heed/mpi_machine.hpp"
#include "heed/mpi_pieces.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// What a rank does whose group is broken. The whole job ends, by MPI_Abort. Or the call throws, and the other
// ranks learn of it by their own deadlines; since MPI cannot call back a message that is under way, those
// that go by MPI then go through memory of heed's own, which costs a copy on either side, and what is under
// way at a fault is never freed.
enum class OnFault : std::uint8_t { ends_the_job, throws };

namespace mpi {

// MPI_Init where nobody has called it, and then MPI_Finalize at the end of the program where nobody has.
inline void initialise_if_nobody_did() {
  int is_initialised = 0;
  MPI_Initialized(&is_initialised);
  if (is_initialised) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided));
  std::atexit([] {
    int is_finalised = 0;
    MPI_Finalized(&is_finalised);
    if (!is_finalised) MPI_Finalize();
  });
}

inline void end_the_job(MPI_Comm comm, const std::string& why) noexcept {
  std::fprintf(stderr, "heed: %s\n", why.c_str());
  std::fflush(stderr);
  MPI_Abort(comm, 75);
}

// Ranks of one machine exchange their messages through memory they share, where there is some, and all others
// by MPI.
class MpiMessages final : public Messages {
 public:
  // Who says no number for its machine believes MPI.
  MpiMessages(MPI_Comm of_caller, OnFault on_fault, std::optional<int> machine_number = {})
      : on_fault_(on_fault),
        memory_(on_fault == OnFault::throws ? PieceMessage::Memory::own : PieceMessage::Memory::of_caller) {
    check(MPI_Comm_dup(of_caller, &comm_));
    check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    int is_known = 0;
    void* most = nullptr;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, &most, &is_known);
    if (is_known) tags_ = static_cast<std::uint32_t>(*static_cast<int*>(most)) + 1u;
    const Machine machine(comm_, machine_number);
    patience_ = Patience(machine.size());
    if (machine.size() > 1) near_ = machine.messages();
    rank_here_ = near_ ? machine.ranks_here(comm_) : std::vector<int>(static_cast<std::size_t>(size_), -1);
    has_far_ = machine.size() < size_;
  }
  // A broken group's communicator is left to the end of the process: to free it would wait for ranks that are
  // gone.
  ~MpiMessages() override {
    int is_finalised = 0;
    MPI_Finalized(&is_finalised);
    if (!is_finalised && !is_broken_) MPI_Comm_free(&comm_);
  }
  MpiMessages(const MpiMessages&) = delete;
  MpiMessages& operator=(const MpiMessages&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Message> send(int to, std::span<const std::byte> bytes, std::uint32_t step) override {
    patience_.begin();
    if (const int here = rank_here(to); here >= 0) return near_->send(here, bytes, step);
    return PieceMessage::send(comm_, to, bytes, static_cast<int>(step % tags_), memory_);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    patience_.begin();
    if (const int here = rank_here(from); here >= 0) return near_->receive(here, bytes, step);
    return PieceMessage::receive(comm_, from, bytes, static_cast<int>(step % tags_), memory_);
  }
  std::vector<std::unique_ptr<Message>> send_to_all(std::span<const int> to, std::span<const std::byte> bytes,
                                                    std::uint32_t step) override {
    patience_.begin();
    std::vector<int> here;
    for (const int rank : to)
      if (rank_here(rank) >= 0) here.push_back(rank_here(rank));
    std::vector<std::unique_ptr<Message>> sent, near;
    if (!here.empty()) near = near_->send_to_all(here, bytes, step);
    auto next = near.begin();
    for (const int rank : to)
      sent.push_back(rank_here(rank) >= 0 ? std::move(*next++) : send(rank, bytes, step));
    return sent;
  }
  bool share_memory() const override { return near_ && !has_far_; }
  // Each way moves what is under way only when somebody looks, whichever of the two is waited for.
  void pause() override {
    if (int is_there = 0; near_ && has_far_)
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &is_there, MPI_STATUS_IGNORE);
    near_ ? near_->pause() : patience_.wait();
  }
  void abort(const std::string& why) noexcept override {
    is_broken_ = true;
    if (on_fault_ == OnFault::ends_the_job) end_the_job(comm_, why);
  }

 private:
  int rank_here(int rank) const { return rank_here_[static_cast<std::size_t>(rank)]; }

  MPI_Comm comm_ = MPI_COMM_NULL;
  OnFault on_fault_;
  PieceMessage::Memory memory_;
  int rank_ = 0, size_ = 1;
  std::uint32_t tags_ = 32768;  // as many as every MPI has
  bool is_broken_ = false;
  Patience patience_{1};
  std::unique_ptr<Messages> near_{};  // null: MPI has all messages
  std::vector<int> rank_here_{};      // of every rank, among those of near_; -1: not one of them
  bool has_far_ = false;
};

// Until all ranks of a communicator are here: what MPI does to make a group would wait for one for ever.
inline void wait_for_all(MPI_Comm comm, std::chrono::milliseconds deadline, OnFault on_fault) {
  int rank = 0, size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  MPI_Request all = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(comm, &all));
  Patience patience(size);
  const auto begun = std::chrono::steady_clock::now();
  for (int is_done = 0;; patience.wait()) {
    check(MPI_Test(&all, &is_done, MPI_STATUS_IGNORE));
    if (is_done) return;
    if (std::chrono::floor<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun) < deadline)
      continue;
    const std::string sentence = "rank " + std::to_string(rank) + ": not all of " + std::to_string(size) +
                                 " ranks have come to make a group for " + std::to_string(deadline.count()) +
                                 " ms";
    if (on_fault == OnFault::ends_the_job) end_the_job(comm, sentence);
    throw Error(Error::rank, sentence);
  }
}

}  // namespace mpi

// All ranks of a communicator, which is duplicated: heed's messages never meet the caller's. Called by all of
// them, none later than the first by more than the deadline; where this throws for want of one, that
// communicator makes no group any more.
inline Group mpi_group(MPI_Comm comm, const GroupOptions& options = {},
                       OnFault on_fault = OnFault::ends_the_job) {
  // Twice: who comes when another has given up finds that it had come, and waits for it the second time. A
  // deadline that is none the group refuses.
  for (int n = 0; n < 2 && options.deadline.count() > 0; ++n)
    mpi::wait_for_all(comm, options.deadline, on_fault);
  return Group(std::make_unique<mpi::MpiMessages>(comm, on_fault), options);
}
// All ranks of the job. Initialises MPI where nobody has.
inline Group mpi_group(const GroupOptions& options = {}, OnFault on_fault = OnFault::ends_the_job) {
  mpi::initialise_if_nobody_did();
  return mpi_group(MPI_COMM_WORLD, options, on_fault);
}

}  // namespace HEED_NAMESPACE
