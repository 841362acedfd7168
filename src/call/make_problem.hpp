// SPDX-License-Identifier: Apache-2.0
// From a call to a Problem, or to a GradientProblem.
#pragma once
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>

#include "heed/mask.hpp"
#include "problem/problem.hpp"

namespace heed::call {

// Checks every argument and lowers the call, or throws Error; writes nothing either way.
Problem make_problem(const Inputs&, const Outputs&, const Options&);

// The same for a call over a cache whose sequences will have these lengths, one per batch entry, when it is
// run. Until then nothing reads the cache, and the problem lacks its `reading`.
using LengthsToCome = std::span<const std::int64_t>;
Problem make_problem(const Inputs&, const Outputs&, const Options&, LengthsToCome);

// Holds the pages of such a problem's cache in place for as long as the problem lives.
void hold_cache(Problem&);

// The same for results that were computed before: the problem's outputs have extents and no memory.
Problem make_problem_of(const Inputs&, const Results&, const Options&);

// The same for a stream: k and v have extents and no memory.
Problem make_stream_problem(const StreamInputs&, const Outputs&, const Options&);
// That a stretch of keys and values fits what the stream was told, after `so_far` keys.
void check_stretch(const Problem&, const View& k, const View& v, std::int64_t so_far);

// The same for a call to attention_backward().
GradientProblem make_gradient_problem(const Inputs&, const Saved&, const Gradients&, const Options&);

}  // namespace heed::call

namespace heed {
using call::make_gradient_problem, call::make_problem, call::make_problem_of, call::make_stream_problem;
}

// What a call says, as numbers that differ where it does: for ranks that must be called alike, and for a
// backward pass that must be told what its forward pass was.

namespace heed::call {

constexpr std::int64_t mix(std::int64_t hash, std::int64_t value) {
  const auto x = (static_cast<std::uint64_t>(hash) ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
  return static_cast<std::int64_t>(x ^ (x >> 29));
}

// A list begins with its length: no number of it then stands for its end.
template <class Number>
std::int64_t mix_list(std::int64_t hash, std::span<const Number> list) {
  hash = mix(hash, std::ssize(list));
  for (const Number number : list) hash = mix(hash, number);
  return hash;
}

std::int64_t number_of(std::optional<Align>);
// What the masks say of the whole call; of a matrix, that there is one.
std::int64_t number_of(const Masks&);

}  // namespace heed::call
