// SPDX-License-Identifier: Apache-2.0
// The sequences of a cache, which stay where they are while others are added, and who is at each of them.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace heed::cache {

struct CachedSequence {
  // One entry per page of tokens; those of [front pages, held_from) are the page of zeros.
  std::vector<const unsigned char*> table{};
  std::int64_t length = 0;
  std::int64_t held_from = 0;
  // The page that this one's last page is a copy of; null but from the claim of an append to the copying.
  const unsigned char* copied_from = nullptr;
  mutable std::int32_t readers = 0;  // calls that read it right now
  bool is_changed = false;  // by a call that is at it right now, or that waits until readers have left
  bool is_released = false;
};

// A list that grows in segments of 16, 32, 64 ... sequences. None is ever moved: a call that is at a sequence
// finds it without the cache's lock while another one adds a sequence.
class SequenceList {
 public:
  std::int64_t size() const { return size_; }
  CachedSequence& operator[](std::int64_t n) { return at(n); }
  const CachedSequence& operator[](std::int64_t n) const { return at(n); }

  CachedSequence& add() {
    const Place place(size_);
    auto& segment = segments_[place.segment];
    if (!segment) segment = std::make_unique<CachedSequence[]>(first_segment << place.segment);
    ++size_;
    return segment[place.index];
  }

 private:
  static constexpr std::size_t first_segment = 16;

  struct Place {
    std::size_t segment, index;
    explicit Place(std::int64_t n) {
      const std::size_t from_one = static_cast<std::size_t>(n) + first_segment;
      segment = static_cast<std::size_t>(std::bit_width(from_one / first_segment)) - 1;
      index = from_one - (first_segment << segment);
    }
  };
  CachedSequence& at(std::int64_t n) const {
    const Place place(n);
    return segments_[place.segment][place.index];
  }

  std::array<std::unique_ptr<CachedSequence[]>, 40> segments_{};
  std::int64_t size_ = 0;
};

// The sequences of a call, by batch entry: those listed, or 0, 1, 2 ...
struct Numbers {
  std::span<const std::int64_t> listed;
  std::int64_t count;

  std::int64_t operator[](std::int64_t b) const {
    return listed.empty() ? b : listed[static_cast<std::size_t>(b)];
  }
};

}  // namespace heed::cache
