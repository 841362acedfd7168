// SPDX-License-Identifier: Apache-2.0
// A call to attention() becomes a Problem: every check, then plain data.
#include "call/make_problem.hpp"

#include <cmath>
#include <variant>

#include "heed/cache.hpp"
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
  for_each_output(p.outputs, [](const char*, MutableView& view, const Rule&) { view.stride.batch = 0; });
}

// S1: where there are no dimensions a scale has nothing to scale.
double default_scale(std::int64_t dim) { return dim == 0 ? 1 : 1 / std::sqrt(static_cast<double>(dim)); }

// What kernels in 32 bits multiply with is what the call means, to the reference as well.
void round_to_f32(const char* name, std::optional<double>& number) {
  if (!number) return;
  const auto rounded = static_cast<float>(*number);
  if (std::isfinite(*number) && !std::isfinite(rounded))
    throw refusal(Error::value, name, ": ", *number, " is beyond the range of f32");
  if (*number > 0 && rounded == 0) throw refusal(Error::value, name, ": ", *number, " is 0 in f32");
  number = rounded;
}

void round_choices(Options& options) {
  round_to_f32("options.scale", options.scale);
  round_to_f32("options.softcap", options.softcap);
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
  check_f64(p);
  if (options.stream && p.device() == Device::cpu)
    throw refusal(Error::device, "options.stream: given, but q.device is cpu");
  const bool is_empty = writes_nothing(inputs, arguments.all());
  place_sequences(inputs, p, to_come, is_empty);
  check_inputs(p);
  const Extents extents = extents_of(p);
  check_extents(arguments.all(), extents);
  check_dtypes(arguments.all(), inputs.q.dtype);
  if (inputs.q.dtype != DType::f64) round_choices(p.options);
  check_choices(p.outputs, options);

  p.scale = static_cast<float>(options.scale.value_or(default_scale(p.dim)));
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

// How q, k, v or the cache must fit together: everything else takes its extents from them.

namespace {

struct Found {
  const char* name;
  std::int64_t value;
};

void check_equal(Found found, Found wanted) {
  if (found.value != wanted.value)
    throw refusal(Error::shape, found.name, ": ", found.value, " is not ", wanted.name, ": ", wanted.value);
}

void check_views_fit(const Inputs& inputs) {
  const Shape &q = inputs.q.shape, &k = inputs.k.shape, &v = inputs.v.shape;
  check_equal({"k.dim", k.dim}, {"q.dim", q.dim});
  check_equal({"k.batch", k.batch}, {"q.batch", q.batch});
  check_equal({"v.batch", v.batch}, {"q.batch", q.batch});
  check_equal({"v.heads", v.heads}, {"k.heads", k.heads});
  check_equal({"v.length", v.length}, {"k.length", k.length});
}

void check_heads_divide(const char* name, std::int64_t kv_heads, std::int64_t heads) {
  if (heads > 0 && (kv_heads == 0 || heads % kv_heads != 0))
    throw refusal(Error::shape, name, ": ", kv_heads, " does not divide q.heads: ", heads);
}

void check_scores_can_be_counted(const Shape& q, std::int64_t keys) {
  std::int64_t rows = 0, cells = 0;
  if (__builtin_mul_overflow(q.batch * q.heads, q.length, &rows) ||
      __builtin_mul_overflow(rows, keys, &cells) || cells > longest_reach)
    throw refusal(Error::shape, "k.length: ", keys, " keys for q.shape: ", q,
                  " are more scores than can be counted");
}

}  // namespace

Strides broadcast_stride(const Shape& shape, const Strides& stride) {
  return {shape.batch == 1 ? 0 : stride.batch, shape.heads == 1 ? 0 : stride.heads,
          shape.length == 1 ? 0 : stride.length, shape.dim == 1 ? 0 : stride.dim};
}

View with_dimensions(const View& x) {
  static constexpr double zero = 0;  // in any dtype
  if (x.shape.dim > 0) return x;
  Shape shape = x.shape;
  shape.dim = 1;
  return {static_cast<const void*>(&zero), shape, Strides{0, 0, 0, 0}, x.dtype, x.device};
}

void check_inputs(const Problem& p) {
  const Shape& q = p.inputs.q.shape;
  if (q.dim == 0 && p.device() != Device::cpu)
    throw refusal(Error::unsupported, "q.dim: 0; on ", p.device(), " a head needs at least one dimension");
  if (p.inputs.cache)
    check_equal({"cache.dim", p.inputs.cache->config().dim}, {"q.dim", q.dim});
  else
    check_views_fit(p.inputs);
  check_heads_divide(p.inputs.cache ? "cache.kv_heads" : "k.heads", p.kv_heads, q.heads);
  check_scores_can_be_counted(q, p.keys);
}

// Arrays have rows as q has, packed or not.
Extents extents_of(const Problem& p) {
  const Shape& q = p.inputs.q.shape;
  Extents extents;
  extents[Extent::batch] = q.batch;
  extents[Extent::sequences] = p.batch;
  extents[Extent::heads] = q.heads;
  extents[Extent::queries] = q.length;
  extents[Extent::drafted] = p.inputs.query_starts.empty() ? q.length : p.queries;
  extents[Extent::keys] = p.keys;
  extents[Extent::value_dim] = p.value_dim;
  return extents;
}

// The domains of the numbers and enumerations a caller chooses.

void check_choices(const Outputs& outputs, const Options& options) {
  if (options.scale && !std::isfinite(*options.scale))
    throw refusal(Error::value, "options.scale: ", *options.scale, " is not a finite number");
  if (options.softcap && !(std::isfinite(*options.softcap) && *options.softcap > 0))
    throw refusal(Error::value, "options.softcap: ", *options.softcap, " is not a finite number above 0");
  if (options.dropout) {
    const float p = options.dropout->drop_probability;
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

namespace {

struct NumberOfMask {
  std::int64_t hash;

  std::int64_t operator()(const Causal& m) const { return mix(hash, number_of(m.align)); }
  std::int64_t operator()(const Window& m) const {
    return mix(mix(mix(mix(hash, m.left), m.right), m.front), number_of(m.align));
  }
  std::int64_t operator()(const KeyLengths& m) const { return mix_list<std::int32_t>(hash, m.valid); }
  std::int64_t operator()(const Document& m) const {
    const std::int64_t of_ids = mix_list<std::int32_t>(mix(hash, number_of(m.align)), m.ids);
    return mix_list<std::int32_t>(of_ids, m.query_ids);
  }
  // Of a matrix, that there is one. No template: a new mask has to say what it is.
  std::int64_t operator()(const Keep&) const { return hash; }
  std::int64_t operator()(const Hide&) const { return hash; }
  std::int64_t operator()(const Tree&) const { return hash; }
};

}  // namespace

std::int64_t number_of(std::optional<Align> align) {
  return align ? 1 + static_cast<std::int64_t>(*align) : 0;
}

std::int64_t number_of(const Masks& masks) {
  std::int64_t hash = 2;
  for (const Mask& mask : masks)
    hash = std::visit(NumberOfMask{mix(hash, static_cast<std::int64_t>(mask.index()))}, mask);
  return hash;
}

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

// Outputs or results.
template <class AnyOutputs>
void add_all(const Inputs& inputs, const AnyOutputs& outputs, const Options& options, Arguments& arguments) {
  add_tensors(inputs, arguments);
  for_each_output(outputs, [&](const char* name, const auto& view, const Rule& rule) {
    arguments.add(name, view, rule);
  });
  add_options(inputs, options, arguments);
}

}  // namespace

void add_arguments(const Inputs& inputs, const Outputs& outputs, const Options& options,
                   Arguments& arguments) {
  add_all(inputs, outputs, options, arguments);
}

void add_arguments(const Inputs& inputs, const Results& results, const Options& options,
                   Arguments& arguments) {
  add_all(inputs, results, options, arguments);
}

void add_arguments(const Mask& mask, Arguments& arguments) {
  std::visit([&](const auto& m) { add(m, arguments); }, mask);
}

// The gradients of a call.

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
