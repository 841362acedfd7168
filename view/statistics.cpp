// SPDX-License-Identifier: Apache-2.0
// See statistics.hpp.
#include "view/statistics.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace HEED_NAMESPACE::view {

StatisticsRecord::StatisticsRecord(std::int64_t keys, std::optional<std::int64_t> first_position)
    : position_(first_position), seen_by_(static_cast<std::size_t>(keys)) {
  sums_.received.resize(static_cast<std::size_t>(keys));
}

void StatisticsRecord::add_row(std::span<const float> weights, const bool* hidden) {
  double sum = 0, entropy = 0;
  std::int64_t seen = 0, not_finite = 0;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (hidden && hidden[j]) continue;
    const float w = weights[j];
    ++seen;
    ++seen_by_[j];
    if (!std::isfinite(w)) {
      ++not_finite;
      continue;
    }
    if (w <= 0) continue;
    sum += w;
    entropy -= static_cast<double>(w * std::log2(w));
    sums_.received[j] += w;
    sums_.largest = std::max(sums_.largest, w);
  }
  sums_.seen += seen;
  sums_.not_finite += not_finite;
  if (seen > 0 && not_finite == 0) {
    sums_.min_sum = sums_.rows_that_see ? std::min(sums_.min_sum, sum) : sum;
    sums_.greatest_sum = sums_.rows_that_see ? std::max(sums_.greatest_sum, sum) : sum;
    ++sums_.rows_that_see;
    sums_.entropy_bits += entropy;
    if (!(hidden && hidden[0])) sums_.first += weights[0];
    if (position_) {
      add_distances(weights);
      add_previous(weights, hidden);
    }
  }
  if (position_) ++*position_;
}

// A mask's weights are zero, so they need no leaving out.
void StatisticsRecord::add_distances(std::span<const float> weights) {
  const std::int64_t here = *position_;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    const float w = weights[j];
    if (w <= 0) continue;
    const std::int64_t ahead = static_cast<std::int64_t>(j) - here;
    const auto distance = static_cast<std::uint64_t>(std::abs(ahead));
    (ahead > 0 ? sums_.ahead : sums_.back)[static_cast<std::size_t>(std::bit_width(distance))] += w;
    sums_.distance += static_cast<double>(w) * static_cast<double>(distance);
  }
}

// The first token has none before it, and a mask may hide it.
void StatisticsRecord::add_previous(std::span<const float> weights, const bool* hidden) {
  const std::int64_t before = *position_ - 1;
  if (before < 0 || before >= std::ssize(weights) || (hidden && hidden[before])) return;
  sums_.previous += weights[static_cast<std::size_t>(before)];
  ++rows_that_see_previous_;
}

Statistics StatisticsRecord::statistics() const {
  Statistics means = sums_;
  const double rows = std::max<double>(1, static_cast<double>(sums_.rows_that_see));
  means.entropy_bits /= rows;
  means.first /= rows;
  means.previous /= std::max<double>(1, static_cast<double>(rows_that_see_previous_));
  means.distance /= rows;
  for (auto* profile : {&means.back, &means.ahead})
    for (double& mass : *profile) mass /= rows;
  for (std::size_t j = 0; j < seen_by_.size(); ++j)
    means.received[j] /= static_cast<double>(std::max<std::int64_t>(1, seen_by_[j]));
  return means;
}

}  // namespace HEED_NAMESPACE::view
