// SPDX-License-Identifier: Apache-2.0
#include "ranks/board.hpp"

#include <algorithm>
#include <bit>

#include "heed/group.hpp"

namespace heed::ranks {
namespace {

constexpr std::size_t min_room = std::size_t{64} << 10, max_room = std::size_t{16} << 20;

}  // namespace

std::span<std::byte> Board::room() const {
  if (memory_.empty()) return {};
  const std::span<std::byte> both = memory_.subspan(static_cast<std::size_t>(ranks_) * line_bytes);
  return both.subspan(uses_ % 2 * (both.size() / 2), both.size() / 2);
}

void Board::make_room(Group& group, std::size_t bytes) {
  if (bytes > max_room || (is_there() && room().size() >= bytes)) return;
  rank_ = group.rank(), ranks_ = group.size();
  const std::size_t marks = static_cast<std::size_t>(ranks_) * line_bytes;
  memory_ = {};  // the store lets go of it, and may then fail
  memory_ = store_.of(group, marks + 2 * std::max(min_room, std::bit_ceil(bytes)));
  if (is_there()) came_ = mark_of(rank_).came.load(std::memory_order_relaxed);  // as often as all others
}

void Board::come() { mark_of(rank_).came.store(++came_, std::memory_order_release); }

void Board::come_with(const Note& note) {
  mark_of(rank_).notes[++notes_ % 2] = note;
  come();
}

std::optional<int> Board::first_missing() const {
  for (int r = 0; r < ranks_; ++r)
    if (mark_of(r).came.load(std::memory_order_acquire) < came_) return r;
  return {};
}

Board::Note Board::note_of(int rank) const { return mark_of(rank).notes[notes_ % 2]; }

}  // namespace heed::ranks
