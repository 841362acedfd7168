// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (S15). Sines and cosines are the host's, in double precision, as for the CPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cuda/arrays.hpp"
#include "cuda/launch/arrays.hpp"
#include "cuda/lower.hpp"
#include "cuda/memory.hpp"
#include "cuda/places.hpp"
#include "rotary/rotary.hpp"

namespace heed::cuda {
namespace {

// One past the last position; a position that has no successor is as long as lengths get.
std::int64_t length_of(std::span<const std::int64_t> positions) {
  const std::int64_t last = positions.empty() ? 0 : *std::ranges::max_element(positions);
  return last == std::numeric_limits<std::int64_t>::max() ? last : last + 1;
}

void add_turns(std::span<const std::int64_t> positions, const rotary::Frequencies& f,
               std::vector<Rotation>& turns) {
  for (const std::int64_t position : positions)
    for (const double frequency : f.per_pair) {
      const double angle = static_cast<double>(position) * frequency;
      turns.push_back({static_cast<float>(f.attention_factor * std::cos(angle)),
                       static_cast<float>(f.attention_factor * std::sin(angle))});
    }
}

}  // namespace

void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary& rotary,
            std::span<const std::int64_t> lengths) {
  if (x.shape.elements() == 0) return;
  const std::int64_t dims = rotary.dims.value_or(x.shape.dim);
  const bool shares_positions = std::ssize(positions) == x.shape.length;
  const bool is_one = shares_positions && lengths.size() <= 1;
  std::vector<Rotation> turns;
  for (std::int64_t b = 0; b < (is_one ? 1 : x.shape.batch); ++b) {
    const auto own = positions.subspan(static_cast<std::size_t>(shares_positions ? 0 : b * x.shape.length),
                                       static_cast<std::size_t>(x.shape.length));
    const std::int64_t length = lengths.empty()       ? length_of(own)
                                : lengths.size() == 1 ? lengths[0]
                                                      : lengths[static_cast<std::size_t>(b)];
    add_turns(own, rotary::frequencies(rotary, dims, length), turns);
  }
  const Current device(ordinal_of("x", x));
  const std::size_t bytes = turns.size() * sizeof(Rotation);
  const Memory there = take_memory(bytes);
  check(cudaMemcpyAsync(there.get(), turns.data(), bytes, cudaMemcpyHostToDevice, nullptr),
        "cudaMemcpyAsync");
  const bool in_halves = rotary.pairs == RotaryPairs::halves;
  launch_rotate(lower(View(x)), {x.shape.batch, x.shape.heads, x.shape.length, x.shape.dim},
                {static_cast<const Rotation*>(there.get()), is_one, dims / 2, in_halves ? 1 : 2,
                 in_halves ? dims / 2 : 1},
                nullptr);
}

}  // namespace heed::cuda
