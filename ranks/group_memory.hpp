// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of a group map, where they are processes of one machine: what all of them read lies
// there once. Each call over ranks may have it, one after another.
#pragma once
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

#include "heed/shared_memory.hpp"

namespace heed::ranks {

class GroupMemory {
 public:
  // So many bytes. All ranks ask for as many, when none of them reads any more what it had before, and all
  // have them, or none.
  std::span<std::byte> of(Group&, std::size_t bytes);
  // It is kept for the next call, unless that is much: each rank lets go of it when it needs it no more.
  void end_call();

 private:
  void make(Group&, std::size_t bytes);

  std::optional<SharedMemory> memory_{};
  static constexpr std::size_t nothing_is = std::numeric_limits<std::size_t>::max();
  std::size_t kept_at_most_ = 0;       // bytes
  std::size_t too_much_ = nothing_is;  // what could not be had
  int calls_without_ = 0;              // since, and on all ranks as many
};

}  // namespace heed::ranks
