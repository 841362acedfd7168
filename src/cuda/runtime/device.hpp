// SPDX-License-Identifier: Apache-2.0
// On which CUDA device the memory of a call lies: CUDA knows it of every address, so views do not carry it.
// And memory of the current one.
#pragma once
#include <cstddef>

#include "backend/backend.hpp"
#include "problem/problem.hpp"

namespace heed::cuda {

// That of q. Throws Error::device where anything else of the call lies elsewhere, or in no device's memory.
int ordinal_of(const Problem&);
int ordinal_of(const GradientProblem&);
// The same of one view.
int ordinal_of(const char* name, const View&);

// Makes a device the current one while this lives.
class Current {
 public:
  explicit Current(int ordinal);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
};

// Memory for what is launched on the legacy stream. Given back, it is reused in the order of launches,
// without waiting. Throws std::bad_alloc where there is no room.
Memory take_memory(std::size_t bytes);

}  // namespace heed::cuda
