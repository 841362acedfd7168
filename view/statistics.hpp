// SPDX-License-Identifier: Apache-2.0
// What a head does, in a few numbers, each from the weights themselves.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "heed/version.hpp"

namespace HEED_NAMESPACE::view {

// Masses are means over the queries that see a key. Distances are from a query's own position: bin 0 is the
// position itself, bin 1 its neighbour, bin n distances from 2^(n-1) up to 2^n.
struct Statistics {
  static constexpr std::size_t bins = 32;
  double entropy_bits = 0, first = 0, distance = 0;
  double previous = 0;  // of the key one before: mean over the queries that see it
  std::array<double, bins> back{}, ahead{};
  float largest = 0;
  double min_sum = 0, greatest_sum = 0;                      // of the rows
  std::int64_t rows_that_see = 0, not_finite = 0, seen = 0;  // queries; weights; weights
  std::vector<double> received{};                            // by each key, mean over the queries that see it
};

class StatisticsRecord {
 public:
  // `first_position` is the key at the first query's own place, if there is such a thing.
  StatisticsRecord(std::int64_t keys, std::optional<std::int64_t> first_position);
  void add_row(std::span<const float> weights, const bool* hidden);
  Statistics statistics() const;

 private:
  void add_distances(std::span<const float> weights);
  void add_previous(std::span<const float> weights, const bool* hidden);

  std::optional<std::int64_t> position_;
  Statistics sums_{};
  std::int64_t rows_that_see_previous_ = 0;
  std::vector<std::int64_t> seen_by_{};  // of each key
};

}  // namespace HEED_NAMESPACE::view
