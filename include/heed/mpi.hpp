// SPDX-License-Identifier: Apache-2.0
// A group over MPI: opt-in, by this header and the CMake target heed::mpi. It is compiled with the caller's
// own mpi.h, because those of different MPIs do not agree on anything but names.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "heed/group.hpp"
#include "heed/shared_memory.hpp"

namespace heed::inline v0_2 {

// What a rank does whose group is broken. The whole job ends, by MPI_Abort. Or the call throws, and the other
// ranks learn of it by their own deadlines; since MPI cannot call back a message that is under way, all of
// them then go through memory of heed's own, which costs a copy on either side, and what is under way at a
// fault is never freed.
enum class OnFault : std::uint8_t { ends_the_job, throws };

namespace mpi {

inline std::string sentence_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return {text, static_cast<std::size_t>(length)};
}

inline void check(int code) {
  if (code != MPI_SUCCESS) throw Error(Error::rank, "MPI says: " + sentence_of(code));
}

// A message in pieces: an int can count their bytes, and the others have moved while one is under way. Open
// MPI sends what is shorter than 4 KiB at once. For more it asks the receiver first, and unless it may read
// the other process's memory then sends three fragments of 32 KiB, and the next ones when both ranks have
// looked again, which one that computes does seldom: pieces of 64 KiB all move at once. The last piece is
// shorter than the others, and empty where they are all there is: a message of another length has a piece
// that is not what is expected in its place.
class PieceMessage final : public Messages::Message {
 public:
  static std::size_t piece_of(std::size_t bytes) {
    if (bytes <= std::size_t{32} << 10) return 4000;
    return std::clamp(bytes / 64, std::size_t{64} << 10, std::size_t{64} << 20);
  }
  enum class Memory : std::uint8_t { of_caller, own };

  static std::unique_ptr<Message> send(MPI_Comm comm, int to, std::span<const std::byte> bytes, int tag,
                                       Memory memory) {
    auto made = std::make_unique<PieceMessage>();
    const std::byte* from = bytes.data();
    if (memory == Memory::own) {
      made->own_.reset(new std::byte[bytes.size()]);
      std::copy(bytes.begin(), bytes.end(), made->own_.get());
      from = made->own_.get();
    }
    const std::size_t piece = piece_of(bytes.size());
    for (std::size_t at = 0; at <= bytes.size(); at += piece) {
      const int count = static_cast<int>(std::min(piece, bytes.size() - at));
      check(MPI_Isend(from + at, count, MPI_BYTE, to, tag, comm,
                      &made->requests_.emplace_back(MPI_REQUEST_NULL)));
    }
    return made;
  }
  static std::unique_ptr<Message> receive(MPI_Comm comm, int from, std::span<std::byte> bytes, int tag,
                                          Memory memory) {
    auto made = std::make_unique<PieceMessage>();
    std::byte* to = bytes.data();
    if (memory == Memory::own) {
      made->own_.reset(new std::byte[bytes.size()]);
      made->into_ = bytes;
      to = made->own_.get();
    }
    const std::size_t most = piece_of(bytes.size());
    for (std::size_t at = 0; at <= bytes.size(); at += most) {
      const int count = static_cast<int>(std::min(most, bytes.size() - at));
      made->expected_.push_back(count);
      check(MPI_Irecv(to + at, count, MPI_BYTE, from, tag, comm,
                      &made->requests_.emplace_back(MPI_REQUEST_NULL)));
    }
    return made;
  }

  // MPI may go on with what is under way whatever is done here: its memory, where it is our own, is left to
  // it.
  ~PieceMessage() override {
    bool is_under_way = false;
    for (MPI_Request& request : requests_) {
      if (request == MPI_REQUEST_NULL) continue;
      is_under_way = true;
      if (!expected_.empty()) MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    if (is_under_way) static_cast<void>(own_.release());
  }

  std::uint64_t moved() const override { return done_; }

  bool is_done() override {
    if (done_ < requests_.size()) look();
    if (done_ < requests_.size()) return false;
    if (!into_.empty()) std::copy_n(own_.get(), into_.size(), into_.data());
    into_ = {};
    return true;
  }

 private:
  void look() {
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                  indices_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) check(code);
    for (int n = 0; n < count; ++n) {
      const auto at = static_cast<std::size_t>(n);
      if (code == MPI_ERR_IN_STATUS) check_piece(statuses_[at].MPI_ERROR);
      if (!expected_.empty()) check_length(statuses_[at], indices_[at]);
      ++done_;
    }
  }

  void check_piece(int code) const {
    if (code == MPI_SUCCESS) return;
    int kind = 0;
    MPI_Error_class(code, &kind);
    if (kind == MPI_ERR_TRUNCATE && !expected_.empty()) throw unlike("longer");
    check(code);
  }

  void check_length(const MPI_Status& status, int index) const {
    int count = 0;
    check(MPI_Get_count(&status, MPI_BYTE, &count));
    if (count != expected_[static_cast<std::size_t>(index)]) throw unlike("shorter");
  }

  Error unlike(const char* how) const {
    const std::uint64_t agreed = std::accumulate(expected_.begin(), expected_.end(), std::uint64_t{0});
    return {Error::rank, std::string("it is ") + how + " than the " + std::to_string(agreed) +
                             " bytes that were agreed on"};
  }

  std::vector<MPI_Request> requests_{};  // of the pieces; null where one is done
  std::vector<int> expected_{};          // bytes of each, where they are received
  std::vector<int> indices_{};           // of those that a look finds done
  std::vector<MPI_Status> statuses_{};   // likewise
  std::size_t done_ = 0;
  std::unique_ptr<std::byte[]> own_{};
  std::span<std::byte> into_{};
};

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

// The ranks that share this one's machine: those that MPI says, or that say the same number.
class Machine {
 public:
  Machine(MPI_Comm comm, std::optional<int> number) {
    check(number ? MPI_Comm_split(comm, *number, 0, &comm_)
                 : MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm_));
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~Machine() { MPI_Comm_free(&comm_); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  int size() const { return size_; }

  // The rank here of every rank of a communicator, or -1.
  std::vector<int> ranks_here(MPI_Comm comm) const {
    MPI_Group all = MPI_GROUP_NULL, here = MPI_GROUP_NULL;
    MPI_Comm_group(comm, &all);
    MPI_Comm_group(comm_, &here);
    int count = 0;
    MPI_Comm_size(comm, &count);
    std::vector<int> of_all(static_cast<std::size_t>(count)), of_here(of_all.size());
    std::iota(of_all.begin(), of_all.end(), 0);
    check(MPI_Group_translate_ranks(all, count, of_all.data(), here, of_here.data()));
    for (int& rank : of_here)
      if (rank == MPI_UNDEFINED) rank = -1;
    MPI_Group_free(&all);
    MPI_Group_free(&here);
    return of_here;
  }

  // Null on all of them where one has not the memory, or uses it in another way.
  std::unique_ptr<Messages> messages() const {
    struct Word {
      int layout = layout_of_shared_messages();
      char name[124] = {};
    } first{};
    const std::size_t bytes = bytes_of_shared_messages(size_);
    std::optional<SharedMemory> memory;
    if (rank_ == 0) try_to([&] { memory.emplace(bytes); });
    if (memory) memory->name().copy(first.name, sizeof first.name - 1);
    check(MPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm_));
    if (rank_ != 0 && first.layout == layout_of_shared_messages())
      try_to([&] { memory.emplace(first.name, bytes); });
    int is_there = memory.has_value(), are_all = 0;
    check(MPI_Allreduce(&is_there, &are_all, 1, MPI_INT, MPI_MIN, comm_));
    if (!are_all) return nullptr;
    memory->forget_name();
    return messages_in(std::move(*memory), rank_, size_);
  }

 private:
  template <class Make>
  static void try_to(const Make& make) {
    try {
      make();
    } catch (const Error&) {  // MPI will do
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
};

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
  // Each way moves what is under way only when somebody looks, whichever of the two is waited for.
  void pause() override {
    if (int is_there = 0; near_ && has_far_)
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &is_there, MPI_STATUS_IGNORE);
    near_ ? near_->pause() : patience_.wait();
  }
  void abort(const std::string& why) noexcept override {
    is_broken_ = true;
    if (on_fault_ != OnFault::ends_the_job) return;
    std::fprintf(stderr, "heed: %s\n", why.c_str());
    std::fflush(stderr);
    MPI_Abort(comm_, 75);
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

}  // namespace mpi

// All ranks of a communicator, which is duplicated: heed's messages never meet the caller's. Called by all of
// them.
inline Group mpi_group(MPI_Comm comm, const GroupOptions& options = {},
                       OnFault on_fault = OnFault::ends_the_job) {
  return Group(std::make_unique<mpi::MpiMessages>(comm, on_fault), options);
}
// All ranks of the job. Initialises MPI where nobody has.
inline Group mpi_group(const GroupOptions& options = {}, OnFault on_fault = OnFault::ends_the_job) {
  mpi::initialise_if_nobody_did();
  return mpi_group(MPI_COMM_WORLD, options, on_fault);
}

}  // namespace heed::inline v0_2
