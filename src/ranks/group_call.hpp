// SPDX-License-Identifier: Apache-2.0
// One call over ranks at a time, and what becomes of the others where one of them cannot go on.
#pragma once
#include <exception>

#include "heed/group.hpp"

namespace heed::ranks {

// While this lives no other thread may begin a call: operations of two would meet in another order on every
// rank. Throws Error::busy.
class GroupCall {
 public:
  explicit GroupCall(Group&);
  ~GroupCall();
  GroupCall(const GroupCall&) = delete;
  GroupCall& operator=(const GroupCall&) = delete;

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
