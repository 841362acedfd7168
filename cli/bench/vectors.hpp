// SPDX-License-Identifier: Apache-2.0
// The few operations of double precision that the references of layers are written in.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace heed::tool {

using Vector = std::vector<double>;

// rows [first, first + count) of a (rows, in) matrix times x
inline Vector times(const std::vector<float>& matrix, std::int64_t first, std::int64_t count,
                    const Vector& x) {
  Vector y(static_cast<std::size_t>(count));
  const float* w = matrix.data() + static_cast<std::size_t>(first) * x.size();
  for (double& sum : y)
    for (const double element : x) sum += static_cast<double>(*w++) * element;
  return y;
}

inline double largest_magnitude(const Vector& row) {
  double largest = 0;
  for (const double element : row) largest = std::max(largest, std::abs(element));
  return largest;
}

}  // namespace heed::tool
