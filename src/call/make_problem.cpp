// SPDX-License-Identifier: Apache-2.0
// A call to attention() becomes a Problem: every check, then plain data. lower() has the steps, each in a
// file of its own beside this one: the table of arguments, sequences, extents, masks.
#include "call/make_problem.hpp"

#include <cmath>
#include <cstdint>

#include "heed/cache.hpp"
#include "heed/option_list.hpp"
#include "refusal/refusal.hpp"
#include "threads/allowed.hpp"

namespace heed::call {
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
  p.outputs.out.stride.batch = 0;
  for (Optional<MutableView>* x : {&p.outputs.weights, &p.outputs.log_sum_exp, &p.outputs.scores.into})
    if (*x) (*x)->stride.batch = 0;
}

// S1: where there are no dimensions a scale has nothing to scale.
double default_scale(std::int64_t dim) { return dim == 0 ? 1 : 1 / std::sqrt(static_cast<double>(dim)); }

// What kernels in 32 bits multiply with is what the call means, to the reference as well.
void round_to_f32(const OptionText& text, std::optional<double>& number) {
  if (!number) return;
  const auto rounded = static_cast<float>(*number);
  if (std::isfinite(*number) && !std::isfinite(rounded))
    throw refusal(Error::value, text.name, ": ", *number, " is beyond the range of f32");
  if (*number != 0 && rounded == 0) throw refusal(Error::value, text.name, ": ", *number, " is 0 in f32");
  number = rounded;
}

void round_to_f32(Options& options) {
  visit_numbers(options,
                [](const OptionText& text, std::optional<double>& number) { round_to_f32(text, number); });
  if (!options.dropout) return;
  double& drop_probability = options.dropout->drop_probability;
  const auto rounded = static_cast<float>(drop_probability);
  if (rounded == 1)
    throw refusal(Error::value, "options.dropout.drop_probability: ", drop_probability, " is 1 in f32");
  drop_probability = rounded;
}

void check_f64(const Problem& p) {
  if (p.inputs.q.dtype != DType::f64) return;
  if (p.device() != Device::cpu)
    throw refusal(Error::dtype, "q.dtype: f64, which is computed on the CPU alone, and q.device is ",
                  p.device());
  if (p.inputs.cache)
    throw refusal(Error::dtype, "q.dtype: f64, but the keys of a cache are ",
                  name_of(p.inputs.cache->config().type), "; f64 needs k and v as views");
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

}  // namespace

void lower(Problem& p, Arguments& arguments, const std::optional<LengthsToCome>& to_come) {
  const Inputs& inputs = p.inputs;
  const Options& options = p.options;
  check_alone(arguments.all());
  check_devices(arguments.all(), "q.device", p.device());
  if (inputs.cache && p.device() != inputs.cache->config().device)
    throw refusal(Error::device, "q.device: ", p.device(),
                  " is not the cache's: ", inputs.cache->config().device);
  check_f64(p);
  if (options.stream && p.device() == Device::cpu)
    throw refusal(Error::device, "options.stream: given, but q.device is cpu");
  const bool is_empty = writes_nothing(inputs, arguments.all());
  place_sequences(inputs, p, to_come, is_empty);
  check_inputs(p);
  const Extents extents = extents_of(p);
  check_extents(arguments.all(), extents);
  check_dtypes(arguments.all(), inputs.q.dtype);
  check_choices(p.outputs, options);
  if (inputs.q.dtype != DType::f64) round_to_f32(p.options);

  if (!options.scale) p.options.scale = default_scale(p.dim);
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

Problem make_problem(const Inputs& inputs, const Outputs& outputs, const Options& options,
                     const std::optional<LengthsToCome>& to_come) {
  Arguments arguments;
  add_arguments(inputs, outputs, options, arguments);
  Problem p(inputs, outputs, options);
  lower(p, arguments, to_come);
  return p;
}

// The domains of the numbers and enumerations a caller chooses.

void check_choices(const Outputs& outputs, const Options& options) {
  visit_numbers(options, [](const OptionText& text, const std::optional<double>& number) {
    const bool is_positive = text.domain == Domain::positive;
    if (number && !(std::isfinite(*number) && (*number > 0 || !is_positive)))
      throw refusal(Error::value, text.name, ": ", *number, " is not a finite number",
                    is_positive ? " above 0" : "");
  });
  if (options.dropout) {
    const double p = options.dropout->drop_probability;
    if (!(p >= 0 && p < 1))
      throw refusal(Error::value, "options.dropout.drop_probability: ", p, " is outside [0, 1)");
  }
  if (options.threads < 0 || options.threads > threads::max_threads)
    throw refusal(Error::value, "options.threads: ", std::int64_t{options.threads}, " is outside [0, ",
                  std::int64_t{threads::max_threads}, "]");
  if (options.head_map > HeadMap::tiled)
    throw refusal(Error::value, "options.head_map: ", static_cast<std::int64_t>(options.head_map),
                  " is none of interleaved, tiled");
  if (outputs.scores.stage > Stage::biased)
    throw refusal(Error::value, "scores.stage: ", static_cast<std::int64_t>(outputs.scores.stage),
                  " is none of raw, softcapped, biased");
}

}  // namespace heed::call
