// SPDX-License-Identifier: Apache-2.0
// The arguments of attention(), written down once: whatever walks over all of them walks over this.
#include "call/make_problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {
namespace {

void add_bools(const char* name, const BoolView& where, Extent columns, Arguments& arguments) {
  using enum Extent;
  arguments.add(name, where, {.fit = Rule::by_broadcasting, .axes = {batch, heads, queries, columns}},
                "the ");
}

// Every mask says what it reads. There is no overload for any other, so that a new one must.
void add(const Causal&, Arguments&) {}
void add(const Window&, Arguments&) {}
void add(const KeyLengths& lengths, Arguments& a) { a.add("key lengths", lengths.valid, {}, "the "); }
void add(const Document& document, Arguments& a) {
  a.add("document mask", document.ids, {}, "the ");
  a.add("query_ids", document.query_ids, {}, "the document mask's ");
}
void add(const Keep& keep, Arguments& a) { add_bools("keep mask", keep.where, Extent::keys, a); }
void add(const Hide& hide, Arguments& a) { add_bools("hide mask", hide.where, Extent::keys, a); }
void add(const Tree& tree, Arguments& a) { add_bools("tree mask", tree.where, Extent::drafted, a); }

}  // namespace

void add_tensors(const Inputs& inputs, Arguments& arguments) {
  arguments.add("q", inputs.q, {.types = Rule::any_or_f64});
  if (!inputs.cache) arguments.add("k", inputs.k, {.types = Rule::of_q});
  if (!inputs.cache) arguments.add("v", inputs.v, {.types = Rule::of_q});
}

void add_options(const Inputs& inputs, const Options& options, Arguments& arguments) {
  arguments.add_given("options.bias", options.bias,
                      {Rule::read, Rule::by_broadcasting, axes_of_scores, Rule::of_q_or_f32});
  if (options.alibi) arguments.add_given<float>("options.alibi", options.alibi->slopes);
  arguments.add_given("options.sink", options.sink,
                      {Rule::read, Rule::by_broadcasting, axes_of_sinks, Rule::of_q_or_f32});
  arguments.add_given("inputs.sequences", inputs.sequences);
  arguments.add_given("query_starts", inputs.query_starts);
  arguments.add_given("key_starts", inputs.key_starts);
  arguments.add_given("query_counts", inputs.query_counts);
}

namespace {

// Outputs that are written, or results, which are only read.
template <class AnyOutputs>
void add_any_outputs(const AnyOutputs& outputs, Arguments& arguments, const OutputAxes& axes) {
  using enum Extent;
  constexpr bool is_read = std::is_same_v<AnyOutputs, Results>;
  constexpr Rule::Use use = is_read ? Rule::read : Rule::written;
  const Rule out{use, Rule::exactly, {batch, axes.out_heads, queries, axes.out_dim}, Rule::of_q_or_f32},
      weights{use, Rule::exactly, {batch, axes.weights_heads, queries, keys}, Rule::of_q_or_f32},
      log_sum_exp{use, Rule::exactly, {batch, heads, queries, one}, Rule::f32_or_f64_of_q},
      scores{use, Rule::exactly, axes_of_scores, Rule::of_q_or_f32};
  arguments.add("out", outputs.out, out);
  arguments.add_given("weights", outputs.weights, weights);
  arguments.add_given("log_sum_exp", outputs.log_sum_exp, log_sum_exp);
  if constexpr (!is_read) arguments.add_given("scores.into", outputs.scores.into, scores);
}

}  // namespace

void add_outputs(const Outputs& outputs, Arguments& arguments, const OutputAxes& axes) {
  add_any_outputs(outputs, arguments, axes);
}

void add_arguments(const Inputs& inputs, const Outputs& outputs, const Options& options,
                   Arguments& arguments) {
  add_tensors(inputs, arguments);
  add_any_outputs(outputs, arguments, {});
  add_options(inputs, options, arguments);
}

void add_arguments(const Inputs& inputs, const Results& results, const Options& options,
                   Arguments& arguments) {
  add_tensors(inputs, arguments);
  add_any_outputs(results, arguments, {});
  add_options(inputs, options, arguments);
}

void add_arguments(const Mask& mask, Arguments& arguments) {
  std::visit([&](const auto& m) { add(m, arguments); }, mask);
}

}  // namespace heed::call
