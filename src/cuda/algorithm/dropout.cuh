// SPDX-License-Identifier: Apache-2.0
// Which weights drop: Philox4x32-10, ten rounds in plain words (softmax/philox.hpp is the definition).
#pragma once
#include <cstdint>

#include "cuda/algorithm/visible.cuh"
#include "cuda/call.hpp"

namespace heed::cuda {

// Whether the weight of key j drops for this query.
inline __device__ __noinline__ bool drops(const Call& c, const Query& q, std::int64_t j) {
  std::uint32_t x[4] = {static_cast<std::uint32_t>(j / 4), static_cast<std::uint32_t>(q.i),
                        static_cast<std::uint32_t>(q.b * c.heads + q.h), 0};
  std::uint32_t k0 = static_cast<std::uint32_t>(c.seed), k1 = static_cast<std::uint32_t>(c.seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * x[0], odd = std::uint64_t{0xCD9E8D57u} * x[2];
    x[0] = static_cast<std::uint32_t>(odd >> 32) ^ x[1] ^ k0;
    x[1] = static_cast<std::uint32_t>(odd);
    x[2] = static_cast<std::uint32_t>(even >> 32) ^ x[3] ^ k1;
    x[3] = static_cast<std::uint32_t>(even);
  }
  const int n = static_cast<int>(j % 4);
  const std::uint32_t word = n == 0 ? x[0] : n == 1 ? x[1] : n == 2 ? x[2] : x[3];
  return word < c.drop_below;
}

HEED_DEVICE float after_dropout(const Call& c, const Query& q, std::int64_t j, float weight) {
  if (c.drop_below == 0) return weight;
  return drops(c, q, j) ? 0.0f : weight * c.keep_scale;
}

}  // namespace heed::cuda
