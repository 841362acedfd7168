// SPDX-License-Identifier: Apache-2.0
// The exact largest weights of every row, and at which keys they are.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace HEED_NAMESPACE::view {

struct LargestWeights {
  static constexpr std::uint32_t no_key = 0xFFFFFFFF;
  std::size_t count = 0;              // kept of each row, the largest first; equal ones by key
  std::vector<std::uint32_t> keys{};  // no_key where a row has fewer that are above 0
  std::vector<float> weights{};

  void add_row(std::span<const float> row, const bool* hidden);
};

}  // namespace HEED_NAMESPACE::view
