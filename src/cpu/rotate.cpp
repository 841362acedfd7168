// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: a pair of a token at position p turns by p times the pair's frequency (S15).
#include "cpu/rotate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/element.hpp"
#include "rotary/frequencies.hpp"

namespace heed::cpu {
namespace {

struct Turn {
  float cosine, sine;
};

template <class T>
void turn_pairs(T* x, const std::vector<Turn>& turns, std::int64_t next, std::int64_t apart) {
  for (const Turn& turn : turns) {
    const float x0 = to_float(x[0]), x1 = to_float(x[apart]);
    x[0] = from_float<T>(x0 * turn.cosine - x1 * turn.sine);
    x[apart] = from_float<T>(x0 * turn.sine + x1 * turn.cosine);
    x += next;
  }
}

// Where a batch entry's pairs lie, and how its tokens turn.
class Turner {
 public:
  Turner(const MutableView& x, const Rotary& rotary) : x_(x), rotary_(rotary) {
    dims_ = rotary.dims.value_or(x.shape.dim);
    const bool in_halves = rotary.pairs == RotaryPairs::halves;
    next_ = in_halves ? x.stride.dim : 2 * x.stride.dim;
    apart_ = in_halves ? dims_ / 2 * x.stride.dim : x.stride.dim;
    set_length(0);
  }

  void set_length(std::int64_t length) {
    if (!frequencies_.per_pair.empty() && (length == length_ || !rotary::depends_on_length(rotary_))) return;
    length_ = length;
    frequencies_ = rotary::frequencies(rotary_, dims_, length);
    turns_.resize(frequencies_.per_pair.size());
  }

  // Token `at` of the batch entries [first, end).
  void turn(std::int64_t at, std::int64_t position, std::int64_t first, std::int64_t end) {
    const double factor = frequencies_.attention_factor;
    for (std::size_t d = 0; d < turns_.size(); ++d) {
      const double angle = static_cast<double>(position) * frequencies_.per_pair[d];
      turns_[d] = {static_cast<float>(factor * std::cos(angle)),
                   static_cast<float>(factor * std::sin(angle))};
    }
    with_elements(x_, [&](auto* data) {
      for (std::int64_t b = first; b < end; ++b)
        for (std::int64_t h = 0; h < x_.shape.heads; ++h)
          turn_pairs(data + offset(x_.stride, {b, h, at, 0}), turns_, next_, apart_);
    });
  }

 private:
  const MutableView& x_;
  const Rotary& rotary_;
  std::int64_t dims_ = 0, next_ = 0, apart_ = 0, length_ = 0;
  rotary::Frequencies frequencies_{};
  std::vector<Turn> turns_{};
};

// One past the last position; a position that has no successor is as long as lengths get.
std::int64_t length_of(std::span<const std::int64_t> positions) {
  const std::int64_t last = positions.empty() ? 0 : *std::ranges::max_element(positions);
  return last == std::numeric_limits<std::int64_t>::max() ? last : last + 1;
}

}  // namespace

void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary& rotary,
            std::span<const std::int64_t> lengths) {
  // A step turns every batch entry that has these positions and this length.
  const bool shares_positions = std::ssize(positions) == x.shape.length;
  const bool is_one = shares_positions && lengths.size() <= 1;
  Turner turner(x, rotary);
  for (std::int64_t first = 0; first < x.shape.batch; first += is_one ? x.shape.batch : 1) {
    const std::int64_t end = is_one ? x.shape.batch : first + 1;
    const auto own =
        positions.subspan(static_cast<std::size_t>(shares_positions ? 0 : first * x.shape.length),
                          static_cast<std::size_t>(x.shape.length));
    turner.set_length(lengths.empty() ? length_of(own)
                                      : lengths[lengths.size() == 1 ? 0 : static_cast<std::size_t>(first)]);
    for (std::int64_t t = 0; t < x.shape.length; ++t)
      turner.turn(t, own[static_cast<std::size_t>(t)], first, end);
  }
}

}  // namespace heed::cpu
