// SPDX-License-Identifier: Apache-2.0
// A message by MPI: in pieces, each of which moves by itself. Part of heed/mpi.hpp.
#pragma once
#include <mpi.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "heed/group.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE::mpi {

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

}  // namespace HEED_NAMESPACE::mpi
