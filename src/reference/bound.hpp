// SPDX-License-Identifier: Apache-2.0
// How far a kernel that computes in f32 may stray from the reference, row by row: computed from the inputs,
// never tuned. docs/numerics.md derives it. This is the only tolerance in the project.
#pragma once
#include <cstdint>
#include <vector>

#include "problem/problem.hpp"
#include "reference/row.hpp"

namespace heed::reference {

class RowBound {
 public:
  RowBound(const Problem&, const Numbers&, const Row&, std::int64_t b, std::int64_t h, std::int64_t i);

  double out(std::int64_t d) const;     // of out(b, h, i, d)
  double weight(std::int64_t j) const;  // of weights(b, h, i, j)
  double log_sum_exp() const;

 private:
  const Problem& p_;
  const Row& row_;
  std::vector<double> magnitude_;      // of the values under their weights, for each d
  std::vector<double> largest_value_;  // among those the row sees, for each d
  double score_error_;                 // absolute, of a score in natural units
  double relative_error_;              // of a weight, score errors included
  double largest_score_;
};

}  // namespace heed::reference
