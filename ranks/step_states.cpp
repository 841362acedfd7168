// SPDX-License-Identifier: Apache-2.0
#include "ranks/step_states.hpp"

#include <utility>

#include "threads/memory.hpp"

namespace heed::ranks {
namespace {

constexpr const char *states_step = "the states of chunks", *merged_step = "merged states";

// Whole lines: one that two ranks write would travel between them.
std::int64_t in_lines(std::int64_t floats) {
  constexpr std::int64_t line = 16;
  return (floats + line - 1) / line * line;
}

}  // namespace

StepStates::OfRanks::OfRanks(int ranks)
    : first(static_cast<std::size_t>(ranks)), count(first.size()), floats(first.size()) {}

void StepStates::OfRanks::put(int rank, std::int64_t at, std::int64_t how_many) {
  first[static_cast<std::size_t>(rank)] = at, count[static_cast<std::size_t>(rank)] = how_many;
}

void StepStates::OfRanks::lie_from(float* begin) {
  for (std::size_t r = 0; r < first.size(); ++r) floats[r] = begin + first[r];
}

std::vector<std::span<std::byte>> StepStates::OfRanks::bytes() const {
  std::vector<std::span<std::byte>> all;
  for (std::size_t r = 0; r < first.size(); ++r)
    all.push_back(std::as_writable_bytes(std::span(floats[r], static_cast<std::size_t>(count[r]))));
  return all;
}

StepStates::StepStates(const GroupCall& call, const SpreadDecode& decode)
    : call_(call),
      for_ranks_(call.group().size()),
      from_ranks_(call.group().size()),
      merged_(call.group().size()) {
  place_all(decode);
  const std::span<std::byte> room = call.board().room();
  is_on_board_ = call.board().is_there() && room.size() >= static_cast<std::size_t>(floats_) * sizeof(float);
  if (!is_on_board_) memory_ = threads::take_memory(static_cast<std::size_t>(place_own()));
  float* const begin = is_on_board_ ? reinterpret_cast<float*>(room.data()) : memory_.get();
  for (OfRanks* some : {&for_ranks_, &from_ranks_, &merged_}) some->lie_from(begin);
}

// As they lie on the board. What a rank merges lies together: it reads that while all wait, and writes its
// own while it computes.
void StepStates::place_all(const SpreadDecode& decode) {
  const int rank = call_.group().rank(), ranks = call_.group().size();
  for (int by = 0; by < ranks; ++by)
    for (int of = 0; of < ranks; ++of) {
      const std::int64_t count = decode.floats(of, by);
      if (of == rank) for_ranks_.put(by, floats_, count);
      if (by == rank) from_ranks_.put(of, floats_, count);
      floats_ += in_lines(count);
    }
  for (int by = 0; by < ranks; ++by) {
    const std::int64_t count = decode.floats_merged_by(by);
    merged_.put(by, floats_, count);
    floats_ += in_lines(count);
  }
}

// As they lie in this rank's memory, which has nothing of what others send each other. Returns how much that
// is.
std::int64_t StepStates::place_own() {
  std::int64_t all = 0;
  for (OfRanks* some : {&for_ranks_, &from_ranks_, &merged_})
    for (std::size_t r = 0; r < some->first.size(); ++r)
      some->first[r] = std::exchange(all, all + some->count[r]);
  from_ranks_.first[own()] = for_ranks_.first[own()];
  return all;
}

void StepStates::exchange() {
  if (is_on_board_) {
    call_.board().come();
    return call_.wait_for_all(states_step);
  }
  if (call_.share_memory())  // for the next step
    call_.board().make_room(call_.group(), static_cast<std::size_t>(floats_) * sizeof(float));
  const std::vector<std::span<std::byte>> own = for_ranks_.bytes(), from = from_ranks_.bytes();
  const std::vector<std::span<const std::byte>> to(own.begin(), own.end());
  call_.group().all_to_all(states_step, to, from).wait();
}

void StepStates::gather_merged() {
  if (!is_on_board_) {
    const std::vector<std::span<std::byte>> all = merged_.bytes();
    return call_.group().gather(merged_step, all[own()], all).wait();
  }
  call_.board().come();
  call_.wait_for_all(merged_step);
  call_.board().end_of_use();
}

}  // namespace heed::ranks
