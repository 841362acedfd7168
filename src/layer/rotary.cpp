// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: pair d of a token at position p turns by p * base^(-2d/dims) (S15).
#include "heed/rotary.hpp"

#include <cmath>
#include <vector>

#include "layer/config.hpp"
#include "layer/element.hpp"
#include "problem/checks.hpp"
#include "refusal/refusal.hpp"

namespace heed {

namespace {

struct Turn {
  float cosine, sine;
};

// Angles are computed in double: at position 100000 a float angle would be off by a hundredth of a radian.
std::vector<double> frequencies(double base, std::int64_t dims) {
  std::vector<double> per_pair;
  for (std::int64_t d = 0; d < dims; d += 2)
    per_pair.push_back(std::pow(base, -static_cast<double>(d) / static_cast<double>(dims)));
  return per_pair;
}

template <class T>
void turn_pairs(T* x, const std::vector<Turn>& turns, std::int64_t next, std::int64_t apart) {
  for (const Turn& turn : turns) {
    const float x0 = to_float(x[0]), x1 = to_float(x[apart]);
    x[0] = from_float<T>(x0 * turn.cosine - x1 * turn.sine);
    x[apart] = from_float<T>(x0 * turn.sine + x1 * turn.cosine);
    x += next;
  }
}

}  // namespace

void rotate(const MutableView& x, std::span<const std::int64_t> positions, const Rotary& rotary) {
  check_view("x", x);
  check_own_places({"x", x});
  check_rotary(rotary, x.shape.dim, "rotary");
  const auto count = static_cast<std::int64_t>(positions.size());
  if (count != x.shape.length && count != x.shape.batch * x.shape.length)
    throw refusal(Error::shape, "positions: ", count, " entries are neither x.length: ", x.shape.length,
                  " nor x.batch * x.length: ", x.shape.batch * x.shape.length);

  const std::int64_t dims = rotary.dims.value_or(x.shape.dim);
  const bool in_halves = rotary.pairs == RotaryPairs::halves;
  const std::int64_t next = in_halves ? x.stride.dim : 2 * x.stride.dim;
  const std::int64_t apart = in_halves ? dims / 2 * x.stride.dim : x.stride.dim;
  const std::vector<double> per_pair = frequencies(rotary.base, dims);
  std::vector<Turn> turns(per_pair.size());
  const bool is_shared = count == x.shape.length;  // every batch entry has these positions
  for (std::int64_t n = 0; n < count; ++n) {
    for (std::size_t d = 0; d < turns.size(); ++d) {
      const double angle = static_cast<double>(positions[static_cast<std::size_t>(n)]) * per_pair[d];
      turns[d] = {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
    }
    const std::int64_t first = is_shared ? 0 : n / x.shape.length,
                       end = is_shared ? x.shape.batch : first + 1;
    with_elements(x, [&](auto* data) {
      for (std::int64_t b = first; b < end; ++b)
        for (std::int64_t h = 0; h < x.shape.heads; ++h)
          turn_pairs(data + offset(x.stride, {b, h, n % x.shape.length, 0}), turns, next, apart);
    });
  }
}

}  // namespace heed
