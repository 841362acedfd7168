// SPDX-License-Identifier: Apache-2.0
// No exception leaves a function of c.h: it becomes a status, and its sentence this thread's last error.
#pragma once
#include "heed/c.h"

namespace heed::c {

heed_status succeeded() noexcept;
heed_status failed() noexcept;  // with the exception that is being handled

// The body of every function that can fail.
template <class Body>
heed_status status_of(const Body& body) noexcept {
  try {
    body();
    return succeeded();
  } catch (...) {
    return failed();
  }
}

}  // namespace heed::c
