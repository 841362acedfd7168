// SPDX-License-Identifier: Apache-2.0
// One call over ranks at a time, and what becomes of the others where one of them cannot go on.
#pragma once
#include <cstddef>
#include <exception>
#include <span>

#include "heed/group.hpp"
#include "ranks/board.hpp"

namespace heed::ranks {

// While this lives no other thread may begin a call: operations of two would meet in another order on every
// rank. Throws Error::busy, and Error::rank where the group is broken.
class GroupCall {
 public:
  explicit GroupCall(Group&);
  ~GroupCall();
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;

  // Whether the ranks may have memory that all of them read.
  bool share_memory() const;
  // So many bytes of it, called by all ranks with the same number once they have agreed on the call: nobody
  // then reads what the last one left there. Empty on all of them where one cannot have it.
  std::span<std::byte> shared(std::size_t bytes) const;
  // Of ranks that may share memory.
  Board& board() const;
  // Until all ranks have come to the board as often as this one. With the group's deadline.
  void wait_for_all(const char* what) const;

  Group& group() const { return group_; }

 private:
  Group& group_;
};

// body(), whose exceptions the other ranks are told of: they would wait for what does not come.
template <class Body>
void or_abort(Group& group, const Body& body) {
  try {
    body();
  } catch (const std::exception& e) {
    group.abort(e.what());
    throw;
  } catch (...) {
    group.abort("an exception that is no std::exception");
    throw;
  }
}

}  // namespace heed::ranks
