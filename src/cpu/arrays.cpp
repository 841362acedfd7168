// SPDX-License-Identifier: Apache-2.0
// Work on arrays besides attention: copies, sums, merged results, the rotary embedding.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "cpu/drivers.hpp"
#include "cpu/schedule/tasks.hpp"
#include "heed/half.hpp"
#include "rotary/rotary.hpp"
#include "softmax/state.hpp"

namespace heed::cpu {
namespace {

// Calls body(data) with a pointer of the dtype's C++ type, so that a loop is written once for all three that
// are computed with in f32.
template <class Body>
void with_elements(const View& x, Body&& body) {
  switch (x.dtype) {
    case DType::f32:
      return body(static_cast<const float*>(x.data));
    case DType::f16:
      return body(static_cast<const f16*>(x.data));
    case DType::bf16:
      return body(static_cast<const bf16*>(x.data));
    case DType::f64:
      return;  // refused wherever this is used
  }
}

template <class Body>
void with_elements(const MutableView& x, Body&& body) {
  with_elements(static_cast<View>(x), [&]<class T>(const T*) { body(static_cast<T*>(x.data)); });
}

constexpr std::int64_t offset(const Strides& stride, const Shape& at) {
  return at.batch * stride.batch + at.heads * stride.heads + at.length * stride.length + at.dim * stride.dim;
}

// Calls body(at) for every index, the last axis fastest.
template <class Body>
void for_each_index(const Shape& shape, Body&& body) {
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 0; h < shape.heads; ++h)
      for (std::int64_t i = 0; i < shape.length; ++i)
        for (std::int64_t d = 0; d < shape.dim; ++d) body(Shape{b, h, i, d});
}

}  // namespace

void copy(const View& from, const MutableView& into) {
  with_elements(from, [&](const auto* source) {
    with_elements(into, [&]<class T>(T* to) {
      for_each_index(into.shape, [&](const Shape& at) {
        to[offset(into.stride, at)] = from_float<T>(to_float(source[offset(from.stride, at)]));
      });
    });
  });
}

void add(const View& from, const MutableView& into) {
  with_elements(from, [&](const auto* source) {
    with_elements(into, [&]<class T>(T* to) {
      for_each_index(into.shape, [&](const Shape& at) {
        T& sum = to[offset(into.stride, at)];
        sum = from_float<T>(to_float(sum) + to_float(source[offset(from.stride, at)]));
      });
    });
  });
}

void average_heads(const View& from, const MutableView& into) {
  const std::int64_t heads = from.shape.heads;
  with_elements(from, [&](const auto* source) {
    with_elements(into, [&]<class T>(T* to) {
      for_each_index(into.shape, [&](const Shape& at) {
        const auto* first = source + offset(from.stride, at);
        float sum = to_float(*first);
        for (std::int64_t h = 1; h < heads; ++h) sum += to_float(first[h * from.stride.heads]);
        to[offset(into.stride, at)] = from_float<T>(sum / static_cast<float>(heads));
      });
    });
  });
}

void fill(const MutableView& x, float value) {
  with_elements(x, [&]<class T>(T* to) {
    for_each_index(x.shape, [&](const Shape& at) { to[offset(x.stride, at)] = from_float<T>(value); });
  });
}

namespace {

// The numbers of a merge, f64 among them; rounded once, to their type.
template <class Body>
void with_numbers(const View& x, Body&& body) {
  x.dtype == DType::f64 ? body(static_cast<const double*>(x.data)) : with_elements(x, body);
}
constexpr double to_double(double x) { return x; }
template <class T>
constexpr double to_double(T x) {
  return to_float(x);
}
template <class T>
constexpr void set(T& number, double x) {
  if constexpr (std::is_same_v<T, double>)
    number = x;
  else
    number = from_float<T>(static_cast<float>(x));
}

double log_sum_exp_at(const View& x, const Shape& at) {
  const std::int64_t e = offset(x.stride, at);
  return x.dtype == DType::f64 ? static_cast<const double*>(x.data)[e] : static_cast<const float*>(x.data)[e];
}
void set_log_sum_exp(const MutableView& x, const Shape& at, double value) {
  const std::int64_t e = offset(x.stride, at);
  x.dtype == DType::f64 ? set(static_cast<double*>(x.data)[e], value)
                        : set(static_cast<float*>(x.data)[e], value);
}

}  // namespace

void merge(const Outputs& into, const Results& other) {
  Shape rows = into.out.shape;
  const std::int64_t dim = std::exchange(rows.dim, 1);
  with_numbers(into.out, [&]<class T>(const T*) {
    with_numbers(other.out, [&](const auto* theirs) {
      for_each_index(rows, [&](const Shape& at) {
        const softmax::MergedRow merged(log_sum_exp_at(*into.log_sum_exp, at),
                                        log_sum_exp_at(*other.log_sum_exp, at));
        if (merged.is_ours()) return;
        T* const x = static_cast<T*>(into.out.data) + offset(into.out.stride, at);
        const auto* const z = theirs + offset(other.out.stride, at);
        for (std::int64_t d = 0; d < dim; ++d) {
          T& sum = x[d * into.out.stride.dim];
          set(sum, merged.out(to_double(sum), to_double(z[d * other.out.stride.dim])));
        }
        set_log_sum_exp(*into.log_sum_exp, at, merged.log_sum_exp());
      });
    });
  });
}

// The rotary embedding: a pair of a token at position p is rotated by p times the frequency of the pair
// (S15).
namespace {

using rotary::Frequencies;

// By how much every pair of a token is rotated.
struct Rotations {
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

// Where the pairs of a row lie: the next one, and the second number of one.
struct PairLayout {
  std::int64_t count, next, apart;

  PairLayout(const MutableView& x, const Rotary& rotary) : count(rotary.dims.value_or(x.shape.dim) / 2) {
    const bool in_halves = rotary.pairs == RotaryPairs::halves;
    next = in_halves ? x.stride.dim : 2 * x.stride.dim;
    apart = in_halves ? count * x.stride.dim : x.stride.dim;
  }

  template <class T>
  void rotate(T* x, const Rotations& by) const {
    for (std::int64_t d = 0; d < count; ++d, x += next) {
      const float x0 = to_float(x[0]), x1 = to_float(x[apart]);
      x[0] = from_float<T>(x0 * by.cosines[d] - x1 * by.sines[d]);
      x[apart] = from_float<T>(x0 * by.sines[d] + x1 * by.cosines[d]);
    }
  }
};

// One past the last position; a position that has no successor is as long as lengths get.
std::int64_t length_of(std::span<const std::int64_t> positions) {
  const std::int64_t last = positions.empty() ? 0 : *std::ranges::max_element(positions);
  return last == std::numeric_limits<std::int64_t>::max() ? last : last + 1;
}

// Where each token is, and the frequencies of its pairs. Batch entries that have their positions and their
// length in common are one.
class Positions {
 public:
  Positions(const Shape& x, std::span<const std::int64_t> positions, const Rotary& rotary,
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
  void set(const Rotations& to, std::int64_t token) const {
    to.set(positions_of(entry(token))[at(within(token))],
           frequencies_[frequencies_.size() == 1 ? 0 : at(entry(token))]);
  }

  std::int64_t together;  // batch entries that are one
  std::int64_t tokens;    // of all that are not

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

// The token at `first`, in `entries` batch entries.
void rotate_token(const MutableView& x, const PairLayout& pairs, const Rotations& by, const Shape& first,
                  std::int64_t entries) {
  with_elements(x, [&](auto* data) {
    for (std::int64_t b = 0; b < entries; ++b)
      for (std::int64_t h = 0; h < x.shape.heads; ++h)
        pairs.rotate(data + offset(x.stride, {first.batch + b, h, first.length, 0}), by);
  });
}

// A sine and a cosine, in multiplications.
constexpr std::int64_t cost_of_angle = 40;

}  // namespace

void rotate(std::span<const MutableView> alike, std::span<const std::int64_t> positions, const Rotary& rotary,
            std::span<const std::int64_t> lengths) {
  const Shape& shape = alike.front().shape;
  if (shape.batch == 0 || shape.length == 0) return;
  const Positions at(shape, positions, rotary, lengths);
  const std::int64_t pairs = rotary.dims.value_or(shape.dim) / 2, tokens = at.tokens;
  std::int64_t cost_of_pair = cost_of_angle;
  for (const MutableView& x : alike) cost_of_pair += 4 * x.shape.heads * at.together;
  const auto cost = static_cast<double>(tokens * pairs * cost_of_pair);
  const auto threads = static_cast<std::int64_t>(threads::concurrency());
  const std::int64_t tasks = cost < worth_sharing ? 1 : std::min(tokens, threads * tasks_per_thread);
  Layout layout;
  const auto cosines = layout.give_each_slot<float>(pairs), sines = layout.give_each_slot<float>(pairs);
  TaskMemory memory(static_cast<std::size_t>(std::min(tasks, threads)), layout);
  share_out(tasks, cost, [&](std::int64_t n) {
    const TaskMemory::Slot slot(memory);
    const Rotations by{slot[cosines], slot[sines]};
    // fault: token-rotated-twice
    for (std::int64_t token = n * tokens / tasks; token < (n + 1) * tokens / tasks; ++token) {
      at.set(by, token);
      const Shape first{at.entry(token) * at.together, 0, at.within(token), 0};
      for (const MutableView& x : alike) rotate_token(x, PairLayout(x, rotary), by, first, at.together);
    }
  });
}

}  // namespace heed::cpu
