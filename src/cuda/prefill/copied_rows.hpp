// SPDX-License-Identifier: Apache-2.0
// Tensors whose rows the copy engine cannot read or write, as rows of the workspace that it can, and keys and
// values that it reads faster from there. Heads whose size is no multiple of 8 are filled up with zeros
// there.
#pragma once
#include <cstdint>
#include <vector>

#include "cuda/call.hpp"
#include "cuda/runtime/kernels.hpp"
#include "cuda/runtime/launch.hpp"

namespace heed::cuda {

// Of a call whose rows are copied, and of a launch that copies them.
constexpr std::int64_t min_copied_queries = 128, max_copied_batch = 65535, max_copied_rows = 1 << 21;

class CopiedRows {
 public:
  CopiedRows() = default;
  // Of this call: such a tensor of it becomes one of the workspace, which has no memory yet.
  CopiedRows(Call&, const Extents&);

  bool empty() const { return copies_.empty(); }
  std::int64_t bytes() const { return bytes_; }

  // Copies the call's inputs into this memory; returns the call over it.
  Call bring(const Call&, std::byte* memory, Stream) const;
  // Copies what such a call has written to where the caller wants it.
  void fetch(const Call&, Stream) const;

 private:
  struct Copy {
    Tensor Call::* tensor;
    Tensor callers;
    ArrayShape shape;  // of the caller's
    std::int64_t at;   // in the workspace
  };
  // is_worth_it: even if the copy engine can read it.
  void add(Call&, Tensor Call::*, const ArrayShape&, bool is_worth_it);

  std::vector<Copy> copies_{};
  std::int64_t bytes_ = 0;
};

}  // namespace heed::cuda
