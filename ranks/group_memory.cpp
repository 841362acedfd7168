// SPDX-License-Identifier: Apache-2.0
#include "ranks/group_memory.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "ranks/gathered.hpp"

namespace heed::ranks {
namespace {

constexpr const char* step_name = "memory to share";
// Bytes. To make 128 MiB anew takes some 40 ms, where 16384 tokens take 180 (Xeon, November 2026); of four
// times as many tokens it is a twentieth.
constexpr std::size_t kept_for_a_rank = std::size_t{256} << 20;
// Room may come back, but to look for some takes as long as to make it.
constexpr int calls_between_tries = 32;

template <class... Arguments>
void try_to_map(std::optional<SharedMemory>& memory, const Arguments&... arguments) {
  try {
    memory.emplace(arguments...);
  } catch (const std::exception&) {  // messages will do
  }
}

bool all_say(Group& group, bool own) {
  const std::vector<std::byte> said = gathered(group, step_name, std::byte{own});
  return std::count(said.begin(), said.end(), std::byte{1}) == group.size();
}

}  // namespace

std::span<std::byte> GroupMemory::of(Group& group, std::size_t bytes) {
  if (bytes >= too_much_ && ++calls_without_ % calls_between_tries != 0) return {};
  if (!memory_ || memory_->bytes().size() < bytes) make(group, bytes);
  return memory_ ? memory_->bytes().first(bytes) : std::span<std::byte>();
}

void GroupMemory::make(Group& group, std::size_t bytes) {
  memory_.reset();
  kept_at_most_ = kept_for_a_rank * static_cast<std::size_t>(group.size());
  std::array<char, 128> name{};
  if (group.rank() == 0) try_to_map(memory_, bytes);
  if (memory_) memory_->name().copy(name.data(), name.size() - 1);
  group.broadcast(step_name, 0, std::as_writable_bytes(std::span(name))).wait();
  name.back() = 0;
  if (group.rank() != 0 && name[0]) try_to_map(memory_, std::string(name.data()), bytes);
  if (!all_say(group, memory_.has_value())) {
    memory_.reset();
    too_much_ = bytes;
  } else {
    memory_->forget_name();
    if (bytes >= too_much_) too_much_ = nothing_is;
  }
}

void GroupMemory::end_call() {
  if (memory_ && memory_->bytes().size() > kept_at_most_) memory_.reset();
}

}  // namespace heed::ranks
