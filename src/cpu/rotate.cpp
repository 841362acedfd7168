// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: a pair of a token at position p turns by p times the pair's frequency (S15).
#include "cpu/rotate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/element.hpp"
#include "cpu/tasks.hpp"
#include "rotary/rotary.hpp"
#include "threads/scratch.hpp"

namespace heed::cpu {
namespace {

using rotary::Frequencies;

// How every pair of a token turns.
struct Turns {
  float *cosines, *sines;

  void set(std::int64_t position, const Frequencies& frequencies) const {
    const double factor = frequencies.attention_factor;
    for (std::size_t d = 0; d < frequencies.per_pair.size(); ++d) {
      const double angle = static_cast<double>(position) * frequencies.per_pair[d];
      cosines[d] = static_cast<float>(factor * std::cos(angle));
      sines[d] = static_cast<float>(factor * std::sin(angle));
    }
  }
};

// Where the pairs of a row lie: the next one, and the second of one.
struct Pairs {
  std::int64_t count, next, apart;

  Pairs(const MutableView& x, const Rotary& rotary) : count(rotary.dims.value_or(x.shape.dim) / 2) {
    const bool in_halves = rotary.pairs == RotaryPairs::halves;
    next = in_halves ? x.stride.dim : 2 * x.stride.dim;
    apart = in_halves ? count * x.stride.dim : x.stride.dim;
  }

  template <class T>
  void turn(T* x, const Turns& turns) const {
    for (std::int64_t d = 0; d < count; ++d, x += next) {
      const float x0 = to_float(x[0]), x1 = to_float(x[apart]);
      x[0] = from_float<T>(x0 * turns.cosines[d] - x1 * turns.sines[d]);
      x[apart] = from_float<T>(x0 * turns.sines[d] + x1 * turns.cosines[d]);
    }
  }
};

// One past the last position; a position that has no successor is as long as lengths get.
std::int64_t length_of(std::span<const std::int64_t> positions) {
  const std::int64_t last = positions.empty() ? 0 : *std::ranges::max_element(positions);
  return last == std::numeric_limits<std::int64_t>::max() ? last : last + 1;
}

// Where each token is, and how fast its pairs turn. Batch entries that have their positions and their length
// in common are one.
class Places {
 public:
  Places(const Shape& x, std::span<const std::int64_t> positions, const Rotary& rotary,
         std::span<const std::int64_t> lengths)
      : length_(x.length), positions_(positions), shares_positions_(std::ssize(positions) == x.length) {
    together = shares_positions_ && lengths.size() <= 1 ? x.batch : 1;
    tokens = x.batch / together * length_;
    const std::int64_t apart = rotary::depends_on_length(rotary) ? x.batch / together : 1;
    for (std::int64_t entry = 0; entry < apart; ++entry)
      frequencies_.push_back(rotary::frequencies(
          rotary, rotary.dims.value_or(x.dim),
          lengths.empty() ? length_of(positions_of(entry)) : lengths[lengths.size() == 1 ? 0 : at(entry)]));
  }

  std::int64_t entry(std::int64_t token) const { return token / length_; }
  std::int64_t within(std::int64_t token) const { return token % length_; }
  void set(const Turns& turns, std::int64_t token) const {
    turns.set(positions_of(entry(token))[at(within(token))],
              frequencies_[frequencies_.size() == 1 ? 0 : at(entry(token))]);
  }

  std::int64_t together, tokens;  // so many batch entries are one; tokens of all that are not

 private:
  static std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::span<const std::int64_t> positions_of(std::int64_t entry) const {
    return positions_.subspan(at(shares_positions_ ? 0 : entry * length_), at(length_));
  }

  std::int64_t length_;
  std::span<const std::int64_t> positions_;
  bool shares_positions_;
  std::vector<Frequencies> frequencies_{};
};

void turn(const MutableView& x, const Pairs& pairs, const Turns& turns, const Shape& first,
          std::int64_t entries) {
  with_elements(x, [&](auto* data) {
    for (std::int64_t b = 0; b < entries; ++b)
      for (std::int64_t h = 0; h < x.shape.heads; ++h)
        pairs.turn(data + offset(x.stride, {first.batch + b, h, first.length, 0}), turns);
  });
}

// A sine and a cosine, in multiplications.
constexpr std::int64_t cost_of_turn = 40;

}  // namespace

void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions, const Rotary& rotary,
            std::span<const std::int64_t> lengths) {
  const Shape& shape = alike.front().shape;
  if (shape.batch == 0 || shape.length == 0) return;
  const Places places(shape, positions, rotary, lengths);
  const std::int64_t pairs = rotary.dims.value_or(shape.dim) / 2, tokens = places.tokens;
  std::int64_t cost_of_pair = cost_of_turn;
  for (const MutableView& x : alike) cost_of_pair += 4 * x.shape.heads * places.together;
  const auto cost = static_cast<double>(tokens * pairs * cost_of_pair);
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  const std::int64_t tasks = cost < worth_sharing ? 1 : std::min(tokens, threads * tasks_per_thread);
  threads::Scratch scratch(static_cast<std::size_t>(std::min(tasks, threads)), 2 * pairs);
  share_out(tasks, cost, [&](std::int64_t n) {
    const threads::Scratch::Lease lease(scratch);
    const Turns turns{lease.floats(), lease.floats() + pairs};
    // fault: token-turned-twice
    for (std::int64_t token = n * tokens / tasks; token < (n + 1) * tokens / tasks; ++token) {
      places.set(turns, token);
      const Shape first{places.entry(token) * places.together, 0, places.within(token), 0};
      for (const MutableView& x : alike) turn(x, Pairs(x, rotary), turns, first, places.together);
    }
  });
}

}  // namespace heed::cpu
