// SPDX-License-Identifier: Apache-2.0
// Queries, keys and values in double precision, each read once: plain rows for the loops of the reference and
// of its bound.
#pragma once
#include <cstdint>
#include <vector>

#include "problem/problem.hpp"

namespace heed::reference {

class Rows {
 public:
  explicit Rows(const View&);

  // The `dim` numbers at (b, h, i). A batch of one is every entry's: packed sequences share their rows (S19).
  const double* operator()(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return numbers_.data() + b * stride_.batch + h * stride_.heads + i * stride_.length;
  }

 private:
  Strides stride_;
  std::vector<double> numbers_;
};

struct Numbers {
  explicit Numbers(const Problem& p) : q(p.inputs.q), k(p.inputs.k), v(p.inputs.v) {}

  Rows q, k, v;
};

}  // namespace heed::reference
