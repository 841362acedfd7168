// SPDX-License-Identifier: Apache-2.0
// From a call to a Problem, or to a GradientProblem; and the checks on the way.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "heed/attention.hpp"
#include "heed/mask.hpp"
#include "problem/problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {

// Checks every argument and lowers the call, or throws Error; writes nothing either way.
// With lengths to come: a call over a cache whose sequences will have these, one per batch entry, when it is
// run. Until then nothing reads the cache, and the problem lacks its `reading`.
using LengthsToCome = std::span<const std::int64_t>;
Problem make_problem(const Inputs&, const Outputs&, const Options&, const std::optional<LengthsToCome>& = {});

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

// lower() and the checks that it runs, in this order. Each throws Error or changes nothing.

namespace heed::call {

// Every check, in the order in which faults are reported, and all of a problem but its inputs, outputs and
// options, which must be set.
void lower(Problem&, Arguments&, const std::optional<LengthsToCome>& = {});

// Whether there is nothing to compute (S14) and batch entries are alike, so that one sequence stands for all.
bool writes_nothing(const Inputs&, std::span<const Argument>);
// Finds every sequence of the call and fills the extents of the problem.
void place_sequences(const Inputs&, Problem&, const std::optional<LengthsToCome>&, bool one_for_all);
// That q, k, v or the cache fit together, which the extents of everything else are taken from. The problem's
// extents must be set.
void check_inputs(const Problem&);
// Those of the problem, by the names that rules ask for them by.
Extents extents_of(const Problem&);
// Scale, softcap, dropout and the enumerations.
void check_choices(const Outputs&, const Options&);
// The key at the position of query 0 of a sequence, for a mask or an option of that name.
std::int64_t offset_of(const char* name, std::optional<Align>, const Problem&, const Sequence&);
// Checks the slopes and where their distances begin. The problem's sequences must be set.
void lower_alibi(Problem&);
// Checks the masks, fills the fields of the problem that hold them, and adds what they read to the arguments.
// Its sequences must be set.
void lower_masks(Problem&, const Extents&, Arguments&);

// Keys or queries without dimensions, which have scores of 0 (S1), as ones with a single dimension, which is
// 0 throughout: no kernel has to know. Any other view as it is.
View with_dimensions(const View&);

// The strides that repeat the one entry of every axis of extent 1.
Strides broadcast_stride(const Shape& shape, const Strides& stride);

// The arguments of attention(), written down once: whatever walks over all of them walks over this.

constexpr std::array<Extent, 4> axes_of_scores{Extent::batch, Extent::heads, Extent::queries, Extent::keys};
constexpr std::array<Extent, 4> axes_of_sinks{Extent::sequences, Extent::heads, Extent::one, Extent::one};

// The outputs that are given. A layer's are those of attention(), but for these axes.
struct OutputAxes {
  Extent out_heads = Extent::heads, out_dim = Extent::value_dim, weights_heads = Extent::heads;
};
void add_outputs(const Outputs&, Arguments&, const OutputAxes& = {});

// Those of attention(), all but the masks; and what attention_backward() has of them: q, k and v, and
// whatever else is read.
void add_arguments(const Inputs&, const Outputs&, const Options&, Arguments&);
void add_arguments(const Inputs&, const Results&, const Options&, Arguments&);
void add_tensors(const Inputs&, Arguments&);
void add_options(const Inputs&, const Options&, Arguments&);
// What a mask reads.
void add_arguments(const Mask&, Arguments&);

}  // namespace heed::call
