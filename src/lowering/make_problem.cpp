// SPDX-License-Identifier: Apache-2.0
// A call to attention() becomes a Problem: every check, then plain data.
#include "lowering/make_problem.hpp"

#include <cmath>

#include "heed/cache.hpp"
#include "lowering/arguments.hpp"
#include "lowering/checks.hpp"
#include "refusal/refusal.hpp"

namespace heed::lowering {
namespace {

std::optional<View> broadcast(const std::optional<View>& view, const Shape& target) {
  if (!view) return std::nullopt;
  return View{view->data, target, broadcast_stride(view->shape, view->stride), view->dtype, view->device};
}

// In a packed call every entry of the batch reads and writes the same rows, from its own first one on.
void share_rows(Problem& p) {
  if (!p.inputs.key_starts.empty()) p.inputs.k.stride.batch = p.inputs.v.stride.batch = 0;
  if (p.inputs.query_starts.empty()) return;
  p.inputs.q.stride.batch = 0;
  for_each_output(p.outputs, [](const char*, MutableView& view, const Rule&) { view.stride.batch = 0; });
}

// S1: where there are no dimensions a scale has nothing to scale.
float default_scale(std::int64_t dim) {
  return dim == 0 ? 1.0f : static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)));
}

void add_dimension(Problem& p) {
  p.inputs.q = with_dimensions(p.inputs.q);
  p.inputs.k = with_dimensions(p.inputs.k);
  p.dim = 1;
  p.has_no_dimensions = true;
}

// What the window of a cache released is not there to be seen.
void apply_cache_window(Problem& p) {
  const std::optional<CacheWindow>& window = p.inputs.cache->config().window;
  if (!window) return;
  p.options.masks.push_back(Window{window->length - 1, p.keys, Align::ends, window->front});
}

// The extents and types of results, and no memory.
MutableView described(const View& x) {
  return {static_cast<void*>(nullptr), x.shape, x.stride, x.dtype, x.device};
}
Optional<MutableView> described(const std::optional<View>& x) {
  return x ? Optional<MutableView>(described(*x)) : Optional<MutableView>();
}

}  // namespace

void lower(Problem& p, Arguments& arguments, const std::optional<LengthsToCome>& to_come) {
  const Inputs& inputs = p.inputs;
  const Options& options = p.options;
  check_alone(arguments.all());
  check_devices(arguments.all(), "q.device", p.device());
  if (inputs.cache && p.device() != inputs.cache->config().device)
    throw refusal(Error::device, "q.device: ", p.device(),
                  " is not the cache's: ", inputs.cache->config().device);
  if (options.stream && p.device() == Device::cpu)
    throw refusal(Error::device, "options.stream: given, but q.device is cpu");
  const bool is_empty = writes_nothing(inputs, arguments.all());
  place_sequences(inputs, p, to_come, is_empty);
  check_inputs(p);
  const Extents extents = extents_of(p);
  check_extents(arguments.all(), extents);
  check_dtypes(arguments.all(), inputs.q.dtype);
  check_choices(p.outputs, options);

  p.scale = options.scale.value_or(default_scale(p.dim));
  if (inputs.cache) apply_cache_window(p);
  lower_alibi(p);
  lower_masks(p, extents, arguments);
  p.bias = broadcast(options.bias, extents.shape(axes_of_scores));
  p.sink = broadcast(options.sink, extents.shape(axes_of_sinks));

  check_overlap(arguments.all());
  share_rows(p);
  if (p.dim == 0) add_dimension(p);
  if (is_empty) p.batch = 0, p.sequences.clear(), p.gaps.clear();
}

Problem make_problem(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  Arguments arguments;
  add_arguments(inputs, outputs, options, arguments);
  Problem p(inputs, outputs, options);
  lower(p, arguments);
  return p;
}

Problem make_problem(const Inputs& inputs, const Outputs& outputs, const Options& options,
                     LengthsToCome lengths) {
  Arguments arguments;
  add_arguments(inputs, outputs, options, arguments);
  Problem p(inputs, outputs, options);
  lower(p, arguments, lengths);
  return p;
}

Problem make_problem_of(const Inputs& inputs, const Results& results, const Options& options) {
  Arguments arguments;
  add_arguments(inputs, results, options, arguments);
  const Outputs outputs{described(results.out), described(results.weights), described(results.log_sum_exp)};
  Problem p(inputs, outputs, options);
  lower(p, arguments);
  return p;
}

}  // namespace heed::lowering
