// SPDX-License-Identifier: Apache-2.0
// A call to attention() becomes a Problem: every check, then plain data.
#include <cmath>

#include "problem/checks.hpp"

namespace heed {
namespace {

std::optional<View> broadcast(const std::optional<View>& view, const Shape& target) {
  if (!view) return std::nullopt;
  return View{view->data, target, broadcast_stride(view->shape, view->stride), view->dtype, view->device};
}

}  // namespace

Problem make_problem(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  check_views(inputs, outputs, options);
  check_shapes(inputs, outputs, options);
  check_dtypes(inputs, outputs, options);
  check_choices(outputs, options);

  const Shape &q = inputs.q.shape, &k = inputs.k.shape, &v = inputs.v.shape;
  Problem p{.inputs = inputs, .outputs = outputs, .options = options};
  p.batch = q.batch;
  p.heads = q.heads;
  p.kv_heads = k.heads;
  p.queries = q.length;
  p.keys = k.length;
  p.dim = q.dim;
  p.value_dim = v.dim;
  p.scale = options.scale.value_or(static_cast<float>(1.0 / std::sqrt(static_cast<double>(q.dim))));
  lower_masks(p);
  p.bias = broadcast(options.bias, {q.batch, q.heads, q.length, k.length});
  p.sink = broadcast(options.sink, {q.batch, q.heads, 1, 1});

  check_overlap(inputs, outputs, options);
  return p;
}

}  // namespace heed
