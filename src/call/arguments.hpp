// SPDX-License-Identifier: Apache-2.0
// The arguments of attention(), written down once: whatever walks over all of them walks over this.
#pragma once
#include <type_traits>

#include "heed/attention.hpp"
#include "refusal/argument.hpp"

namespace heed::call {

constexpr std::array<Extent, 4> axes_of_scores{Extent::batch, Extent::heads, Extent::queries, Extent::keys};
constexpr std::array<Extent, 4> axes_of_sinks{Extent::sequences, Extent::heads, Extent::one, Extent::one};

// visit(name, view, rule) for every output that is given; or for every result, which is only read.
template <class AnyOutputs, class Visit>
void for_each_output(AnyOutputs& outputs, Visit&& visit) {
  using enum Extent;
  constexpr bool is_read = std::is_same_v<std::remove_const_t<AnyOutputs>, Results>;
  constexpr Rule::Use use = is_read ? Rule::read : Rule::written;
  constexpr Rule scores{use, Rule::exactly, axes_of_scores, Rule::of_q_or_f32};
  visit("out", outputs.out, Rule{use, Rule::exactly, {batch, heads, queries, value_dim}, Rule::of_q_or_f32});
  if (outputs.weights) visit("weights", *outputs.weights, scores);
  if (outputs.log_sum_exp)
    visit("log_sum_exp", *outputs.log_sum_exp,
          Rule{use, Rule::exactly, {batch, heads, queries, one}, Rule::f32});
  if constexpr (!is_read)
    if (outputs.scores.into) visit("scores.into", *outputs.scores.into, scores);
}

// Those of attention(), all but the masks; and what attention_backward() has of them: q, k and v, and
// whatever else is read.
void add_arguments(const Inputs&, const Outputs&, const Options&, Arguments&);
void add_arguments(const Inputs&, const Results&, const Options&, Arguments&);
void add_tensors(const Inputs&, Arguments&);
void add_options(const Inputs&, const Options&, Arguments&);
// What a mask reads.
void add_arguments(const Mask&, Arguments&);

}  // namespace heed::call
