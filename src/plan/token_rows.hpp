// SPDX-License-Identifier: Apache-2.0
// The keys, or the values, of one head of a sequence, wherever they lie: one by one, and how large many of
// them are.
#pragma once
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cache/store.hpp"
#include "problem/problem.hpp"

namespace heed::planning {

class TokenRows {
 public:
  // Side::keys or Side::values of a problem that a CPU reads.
  TokenRows(const Problem&, cache::Side, std::int64_t b, std::int64_t kv_head);

  std::int64_t count() const { return count_; }
  std::vector<double> operator()(std::int64_t j) const;

  // The largest magnitude of each dimension in rows [begin, end), where `begin` is a multiple of 16: NaN
  // where one is. At most once through memory, and nothing but integers are compared. In pages tokens of the
  // same tile may take part that are not in the sequence, or no longer.
  std::vector<float> largest(std::int64_t begin, std::int64_t end) const;

 private:
  // Elements are floats, or halves as whole numbers, compared as integers of the same size.
  template <class Element>
  using Magnitudes = std::vector<std::conditional_t<sizeof(Element) == 4, std::int32_t, std::int16_t>>;

  template <class Element>
  std::vector<float> largest_of_type(DType, std::int64_t begin, std::int64_t end) const;
  template <class Element>
  void take_rows(std::int64_t begin, std::int64_t end, Magnitudes<Element>& largest) const;
  template <class Element>
  void take_tile(std::int64_t first, Magnitudes<Element>& largest) const;

  const unsigned char* part_of_page(std::int64_t j) const;

  const Problem& p_;
  const cache::Side side_;
  const std::int64_t b_, kv_head_, dim_, count_;
};

}  // namespace heed::planning
