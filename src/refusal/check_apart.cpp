// SPDX-License-Identifier: Apache-2.0
// Whether two arrays share a byte, and whether every element of one has a place of its own.
//
// Most pairs are told apart by their byte ranges. Ranges also meet where two views interleave without sharing
// anything: Q and the output as slices of one packed buffer. Then the question is exact: is there an element
// a of one and an element b of the other with -bytes(b) < address(b) - address(a) < bytes(a)? The difference
// of two addresses is a sum of strides times bounded integers, so this is a search over those integers,
// largest stride first, cut off wherever the remaining strides cannot reach the interval or their greatest
// common divisor skips it. Strides of real tensors nest, which leaves one or two candidates per axis; a
// search that exceeds its budget ends in a refusal, never in a guess.
#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>

#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"

namespace heed::refusing {
namespace {

// Multiples of a stride by an integer in [low, high], all in bytes, and what the strides after this one can
// add.
struct Term {
  std::int64_t stride = 0, low = 0, high = 0;
  std::int64_t rest_low = 0, rest_high = 0, divisor = 0;
};

constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

enum class Answer : std::uint8_t { apart, meet, unknown };

class Search {
 public:
  Search(const Argument& a, const Argument& b) {
    add_axes(a, -1);
    add_axes(b, +1);
    std::sort(terms_.begin(), terms_.begin() + count_,
              [](const Term& x, const Term& y) { return x.stride > y.stride; });
    std::int64_t low = 0, high = 0, divisor = 0;
    for (auto i = static_cast<std::size_t>(count_); i-- > 0;) {
      Term& term = terms_[i];
      term.rest_low = low;
      term.rest_high = high;
      low += term.low * term.stride;
      high += term.high * term.stride;
      term.divisor = divisor = std::gcd(divisor, term.stride);
    }
  }

  // Can the terms add up to something in [first, last]?
  Answer reaches(std::int64_t first, std::int64_t last) {
    return from({terms_.data(), static_cast<std::size_t>(count_)}, first, last);
  }

 private:
  void add_axes(const Argument& a, std::int64_t sign) {
    const Axes extent = axes(a.shape), stride = axes(a.stride);
    for (std::size_t i = 0; i < extent.size(); ++i) {
      const std::int64_t bytes = stride[i] * a.element_bytes, steps = extent[i] - 1;
      if (bytes == 0 || steps == 0) continue;
      const auto end = terms_.begin() + count_;
      const auto term =
          std::find_if(terms_.begin(), end, [bytes](const Term& t) { return t.stride == bytes; });
      if (term == end) ++count_;
      term->stride = bytes;
      (sign < 0 ? term->low : term->high) += sign * steps;
    }
  }

  Answer from(std::span<const Term> terms, std::int64_t first, std::int64_t last) {
    if (terms.empty()) return first <= 0 && last >= 0 ? Answer::meet : Answer::apart;
    if (budget_-- <= 0) return Answer::unknown;
    const Term& term = terms.front();
    if (floor_div(last, term.divisor) * term.divisor < first) return Answer::apart;
    const std::int64_t low = std::max(term.low, ceil_div(first - term.rest_high, term.stride));
    const std::int64_t high = std::min(term.high, floor_div(last - term.rest_low, term.stride));
    for (std::int64_t times = low; times <= high; ++times) {
      const std::int64_t step = times * term.stride;
      if (const Answer answer = from(terms.subspan(1), first - step, last - step); answer != Answer::apart)
        return answer;
    }
    return Answer::apart;
  }

  std::array<Term, 8> terms_{};
  std::ptrdiff_t count_ = 0;
  int budget_ = 10000;
};

}  // namespace

void check_apart(const Argument& output, const Argument& other) {
  if (output.empty() || other.empty()) return;
  const auto a = reinterpret_cast<std::uintptr_t>(output.data),
             b = reinterpret_cast<std::uintptr_t>(other.data);
  if (a + static_cast<std::uintptr_t>(reach_bytes(output)) <= b) return;
  if (b + static_cast<std::uintptr_t>(reach_bytes(other)) <= a) return;
  const auto distance = static_cast<std::int64_t>(std::uint64_t{b} - std::uint64_t{a});
  switch (Search(output, other)
              .reaches(1 - other.element_bytes - distance, output.element_bytes - 1 - distance)) {
    case Answer::apart:
      return;
    case Answer::meet:
      throw refusal(Error::overlap, output.name, ": shares memory with ", other.article, other.name);
    case Answer::unknown:
      throw refusal(Error::overlap, output.name, ": interleaves with ", other.article, other.name,
                    " in a way that cannot be shown to share no memory");
  }
}

// Sorted by stride, every axis must step over all that the smaller ones span; an axis of one entry never
// steps.
void check_own_places(const Argument& a) {
  if (a.empty()) return;
  const Axes extent = axes(a.shape), stride = axes(a.stride);
  std::array<std::size_t, 4> order{3, 2, 1, 0};
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return stride[i] < stride[j]; });
  std::int64_t span = 1;
  for (const std::size_t i : order) {
    if (extent[i] == 1) continue;
    if (stride[i] == 0)
      throw refusal(Error::overlap, a.name, ".stride.", axis_names[i], ": 0 puts ", extent[i],
                    " results in one place");
    if (stride[i] < span)
      throw refusal(Error::overlap, a.name, ".stride.", axis_names[i], ": ", stride[i],
                    " does not step over the ", span, " elements that the axes inside it span");
    span += (extent[i] - 1) * stride[i];
  }
}

}  // namespace heed::refusing
