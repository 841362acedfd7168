// SPDX-License-Identifier: Apache-2.0
// A call to attention_backward() becomes a GradientProblem: the checks of attention(), and those of
// gradients.
#include "call/make_problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {
namespace {

// The extents and types of results, and no memory.
MutableView described(const View& x) {
  return {static_cast<void*>(nullptr), x.shape, x.stride, x.dtype, x.device};
}
Optional<MutableView> described(const std::optional<View>& x) {
  return x ? Optional<MutableView>(described(*x)) : Optional<MutableView>();
}

}  // namespace

Problem make_problem_of(const Inputs& inputs, const Results& results, const Options& options) {
  Arguments arguments;
  add_arguments(inputs, results, options, arguments);
  const Outputs outputs{described(results.out), described(results.weights), described(results.log_sum_exp)};
  Problem p(inputs, outputs, options);
  lower(p, arguments);
  return p;
}

// Gradients.

namespace {

// The arguments of attention_backward(), written down once, as those of attention() are. A gradient has the
// extents of what it is the gradient of, which check_shapes() compares.
void add_all(const Inputs& inputs, const Saved& saved, const Gradients& gradients, const Options& options,
             Arguments& arguments) {
  using enum Extent;
  constexpr Rule out{Rule::read, Rule::exactly, {batch, heads, queries, value_dim}, Rule::of_q_or_f32},
      log_sum_exp{Rule::read, Rule::exactly, {batch, heads, queries, one}, Rule::f32_or_f64_of_q},
      written{.use = Rule::written, .types = Rule::of_q_or_f32};
  add_tensors(inputs, arguments);
  arguments.add("saved.out", saved.out, out);
  arguments.add("saved.log_sum_exp", saved.log_sum_exp, log_sum_exp);
  arguments.add("gradients.out", gradients.out, out);
  arguments.add_given("gradients.log_sum_exp", gradients.log_sum_exp, log_sum_exp);
  arguments.add_given("gradients.q", gradients.q, written);
  arguments.add_given("gradients.k", gradients.k, written);
  arguments.add_given("gradients.v", gradients.v, written);
  arguments.add_given("gradients.bias", gradients.bias, written);
  arguments.add_given("gradients.sink", gradients.sink, written);
  add_options(inputs, options, arguments);
}

struct Of {
  const char* name;
  std::optional<View> argument;
};

void check_shape(const char* name, const std::optional<MutableView>& gradient, const Of& of) {
  if (!gradient) return;
  if (!of.argument) throw refusal(Error::value, name, ": given, but ", of.name, " is not");
  if (gradient->shape != of.argument->shape)
    throw refusal(Error::shape, name, ".shape: ", gradient->shape, " is not ", of.name,
                  ".shape: ", of.argument->shape);
}

void check_shapes(const Inputs& inputs, const Gradients& gradients, const Options& options) {
  check_shape("gradients.q", gradients.q, {"q", inputs.q});
  check_shape("gradients.k", gradients.k, {"k", inputs.k});
  check_shape("gradients.v", gradients.v, {"v", inputs.v});
  check_shape("gradients.bias", gradients.bias, {"options.bias", options.bias});
  check_shape("gradients.sink", gradients.sink, {"options.sink", options.sink});
}

// The forward problem's outputs are what was saved; nothing writes to them.
MutableView as_output(const View& x) {
  return {const_cast<void*>(x.data), x.shape, x.stride, x.dtype, x.device};
}

std::optional<MutableView> broadcast(const std::optional<MutableView>& view, const Shape& target) {
  if (!view) return std::nullopt;
  return MutableView{view->data, target, broadcast_stride(view->shape, view->stride), view->dtype,
                     view->device};
}

// In a packed call every entry of the batch reads and writes the same rows, from its own first one on.
void share_rows(GradientProblem& g) {
  if (!g.forward.inputs.key_starts.empty()) {
    if (g.k) g.k->stride.batch = 0;
    if (g.v) g.v->stride.batch = 0;
  }
  if (g.forward.inputs.query_starts.empty()) return;
  g.out.stride.batch = g.log_sum_exp.stride.batch = g.out_gradient.stride.batch = 0;
  if (g.log_sum_exp_gradient) g.log_sum_exp_gradient->stride.batch = 0;
  if (g.q) g.q->stride.batch = 0;
}

}  // namespace

GradientProblem make_gradient_problem(const Inputs& inputs, const Saved& saved, const Gradients& gradients,
                                      const Options& options) {
  if (inputs.cache)
    throw refusal(Error::unsupported, "inputs.cache: given, but there is no gradient by what a cache holds");
  Arguments arguments;
  add_all(inputs, saved, gradients, options, arguments);
  const Outputs outputs{as_output(saved.out), {}, as_output(saved.log_sum_exp)};
  GradientProblem g{.forward = Problem(inputs, outputs, options),
                    .out = saved.out,
                    .log_sum_exp = saved.log_sum_exp,
                    .out_gradient = gradients.out,
                    .log_sum_exp_gradient = gradients.log_sum_exp,
                    .given = gradients,
                    .q = gradients.q,
                    .k = gradients.k,
                    .v = gradients.v};
  lower(g.forward, arguments);
  check_shapes(inputs, gradients, options);
  const Problem& p = g.forward;
  g.bias = broadcast(gradients.bias, {inputs.q.shape.batch, p.heads, inputs.q.shape.length, p.keys});
  g.sink = broadcast(gradients.sink, {p.batch, p.heads, 1, 1});
  share_rows(g);
  if (p.has_no_dimensions) g.q = g.k = {};  // which are empty
  return g;
}

}  // namespace heed::call
