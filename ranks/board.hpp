// SPDX-License-Identifier: Apache-2.0
// A board that all ranks of a machine see: each writes there what all read, and then that it has come. A
// message has a copy for every reader and another when it is taken; a step of decode has no time for that.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

#include "ranks/group_memory.hpp"

namespace heed::ranks {

// There is none until make_room() has been called. All ranks call all of this in the same order but for
// first_missing() and note_of().
class Board {
 public:
  using Note = std::array<std::int64_t, 2>;

  bool is_there() const { return !memory_.empty(); }
  // For so many bytes of a call, unless that is much or some rank cannot have them. Once all have agreed on
  // the call: the board may be another from then on.
  void make_room(Group&, std::size_t bytes);
  // This call's. What others write in the next one lies elsewhere, so that it can still be read.
  std::span<std::byte> room() const;
  void end_of_use() { ++uses_; }

  // Whoever sees that this rank has come sees what it wrote before.
  void come();
  void come_with(const Note&);
  // A rank that has not come as often as this one. Nobody believes a board to be right: it may be any, or
  // none.
  std::optional<int> first_missing() const;
  // What a rank came with last time that this one did.
  Note note_of(int rank) const;

 private:
  static constexpr std::size_t line_bytes = 64;
  // Of two notes: a rank may have begun the next call while others read what it said in this one.
  struct alignas(line_bytes) Mark {
    std::atomic<std::uint64_t> came;
    Note notes[2];
  };
  static_assert(sizeof(Mark) == line_bytes && std::atomic<std::uint64_t>::is_always_lock_free);

  Mark& mark_of(int rank) const { return reinterpret_cast<Mark*>(memory_.data())[rank]; }

  GroupMemory store_{};
  std::span<std::byte> memory_{};  // a mark of each rank, and two rooms
  int rank_ = 0, ranks_ = 0;
  std::uint64_t came_ = 0, notes_ = 0, uses_ = 0;
};

}  // namespace heed::ranks
