// SPDX-License-Identifier: Apache-2.0
// Random inputs that are the same on every machine: element i is a function of (seed, stream, i) alone.
#pragma once
#include <cstdint>

#include "buffer.hpp"

namespace heed::tool {

// Tensors of one run draw from different streams, so that none repeats another.
enum class Stream : std::uint64_t { x = 1, context, q, k, v, bias, mask };

struct RandomSource {
  std::uint64_t seed = 0;
  Stream stream = Stream::x;
};

// Uniform in [-1, 1): splitmix64, of which the top 24 bits become a float exactly; then rounded to the
// buffer's dtype.
void fill_random(Buffer&, RandomSource);
Buffer random_buffer(const Shape&, DType, RandomSource);

}  // namespace heed::tool
