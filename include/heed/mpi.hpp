// SPDX-License-Identifier: Apache-2.0
// A group over MPI: opt-in, by this header and the CMake target heed::mpi. It is compiled with the caller's
// own mpi.h, because those of different MPIs do not agree on anything but names.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "heed/group.hpp"

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

class MpiMessages final : public Messages {
 public:
  MpiMessages(MPI_Comm of_caller, OnFault on_fault)
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
    begins_ = true;
    return PieceMessage::send(comm_, to, bytes, static_cast<int>(step % tags_), memory_);
  }
  std::unique_ptr<Message> receive(int from, std::span<std::byte> bytes, std::uint32_t step) override {
    begins_ = true;
    return PieceMessage::receive(comm_, from, bytes, static_cast<int>(step % tags_), memory_);
  }
  // What is late by more than a message takes is left to others on the same core for a while. A rank that has
  // begun another operation since it last looked has not waited for it yet: a decode step waits twice.
  void pause() override {
    using namespace std::chrono_literals;
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(begins_, false) || now - paused_ > 1ms) waiting_since_ = now;
    paused_ = now;
    if (now - waiting_since_ < 20us) return;
    if (now - waiting_since_ < 2ms)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(50us);
  }
  void abort(const std::string& why) noexcept override {
    is_broken_ = true;
    if (on_fault_ != OnFault::ends_the_job) return;
    std::fprintf(stderr, "heed: %s\n", why.c_str());
    std::fflush(stderr);
    MPI_Abort(comm_, 75);
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  OnFault on_fault_;
  PieceMessage::Memory memory_;
  int rank_ = 0, size_ = 1;
  std::uint32_t tags_ = 32768;  // as many as every MPI has
  bool is_broken_ = false;
  bool begins_ = false;  // something since the last pause
  std::chrono::steady_clock::time_point paused_{}, waiting_since_{};
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
