// SPDX-License-Identifier: Apache-2.0
// Where the states of a decode step lie, and how they come to the ranks that merge them and back: on the
// board, where the ranks have one with the room, or in this rank's memory, from where they are sent.
#pragma once
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "ranks/group_call.hpp"
#include "threads/memory.hpp"

namespace heed::ranks {

class StepStates {
 public:
  StepStates(const GroupCall&, const SpreadDecode&);

  std::int64_t floats() const { return floats_; }  // of all ranks: on each the same
  // This rank's, by who merges them; what it merges itself, by whose they are; what each rank has merged.
  std::span<float* const> for_ranks() const { return for_ranks_.floats; }
  std::span<float* const> from_ranks() const { return from_ranks_.floats; }
  std::span<float* const> merged() const { return merged_.floats; }
  float* own_merged() const { return merged_.floats[own()]; }

  // Once the ranks have agreed: from_ranks() are there when this returns.
  void exchange();
  // And then merged().
  void gather_merged();

 private:
  // Some floats of every rank: where they begin among all, how many, and where that is.
  struct OfRanks {
    std::vector<std::int64_t> first, count;
    std::vector<float*> floats;
    explicit OfRanks(int ranks);
    void put(int rank, std::int64_t at, std::int64_t how_many);
    void lie_from(float* begin);
    std::vector<std::span<std::byte>> bytes() const;
  };

  std::size_t own() const { return static_cast<std::size_t>(call_.group().rank()); }
  void place_all(const SpreadDecode&);
  std::int64_t place_own();

  const GroupCall& call_;
  OfRanks for_ranks_, from_ranks_, merged_;
  std::int64_t floats_ = 0;
  bool is_on_board_ = false;
  threads::ReusedMemory memory_{};  // unless it is
};

}  // namespace heed::ranks
