// SPDX-License-Identifier: Apache-2.0
// A call to attention_backward() becomes a GradientProblem: every check, then plain data.
#include "problem/checks.hpp"
#include "problem/gradient_problem.hpp"
#include "refusal/refusal.hpp"

namespace heed {
namespace {

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
  if (inputs.cache) throw refusal(Error::unsupported, "inputs.cache: given, but a cache has no gradient");
  GradientProblem g{
      .forward = make_problem(inputs, {as_output(saved.out), {}, as_output(saved.log_sum_exp)}, options),
      .out = saved.out,
      .log_sum_exp = saved.log_sum_exp,
      .out_gradient = gradients.out,
      .log_sum_exp_gradient = gradients.log_sum_exp,
      .given = gradients,
      .q = gradients.q,
      .k = gradients.k,
      .v = gradients.v};
  const Problem& p = g.forward;
  g.bias = broadcast(gradients.bias, {inputs.q.shape.batch, p.heads, inputs.q.shape.length, p.keys});
  g.sink = broadcast(gradients.sink, {p.batch, p.heads, 1, 1});
  share_rows(g);
  return g;
}

LeftGradients::LeftGradients(const GradientProblem& g) {
  const Problem& p = g.forward;
  std::int64_t rows = 0, keys = 0;
  for (const Sequence& s : p.sequences) {
    first_row.push_back(rows), first_key.push_back(keys);
    rows += p.heads * s.queries, keys += p.kv_heads * s.keys;
  }
  const auto resize = [](std::vector<unsigned char>& x, const std::optional<MutableView>& of, std::int64_t n) {
    if (of) x.resize(static_cast<std::size_t>(n));
  };
  resize(q, g.q, rows);
  resize(k, g.k, keys);
  resize(v, g.v, keys);
  resize(bias, g.bias, g.bias ? g.given.bias->shape.elements() : 0);
  resize(sink, g.sink, g.sink ? g.given.sink->shape.elements() : 0);
}

}  // namespace heed
