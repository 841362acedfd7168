// SPDX-License-Identifier: Apache-2.0
// A call to attention() becomes a Problem: every check, then plain data. lower() has the steps; they follow
// in its order: the table of arguments, sequences, extents, choices, masks.
#include "call/make_problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <variant>

#include "cache/layout.hpp"
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
  if (*number > 0 && rounded == 0) throw refusal(Error::value, text.name, ": ", *number, " is 0 in f32");
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

// The arguments of attention(), written down once: whatever walks over all of them walks over this.

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

// Who attends to what: one sequence per batch entry, from plain views, packed rows or a cache.
namespace {

void check_one_batch(const char* name, const View& x) {
  if (x.shape.batch != 1)
    throw refusal(Error::shape, name, ".batch: ", x.shape.batch, " is not 1, which packed sequences need");
}

void check_counts(std::span<const std::int64_t> counts, const Shape& q) {
  if (std::ssize(counts) != q.batch)
    throw refusal(Error::shape, "query_counts: ", std::ssize(counts), " entries for q.batch: ", q.batch);
  for (std::size_t b = 0; b < counts.size(); ++b)
    if (counts[b] < 0 || counts[b] > q.length)
      throw refusal(Error::value, "query_counts[", static_cast<std::int64_t>(b), "]: ", counts[b],
                    " is not in [0, ", q.length, "], the queries of q");
}

void place_queries(const Inputs& in, Problem& p, bool one_for_all) {
  if (in.query_starts.empty()) {
    p.batch = in.q.shape.batch;
    p.sequences.resize(static_cast<std::size_t>(one_for_all ? std::min<std::int64_t>(p.batch, 1) : p.batch));
    for (Sequence& s : p.sequences) s.queries = in.q.shape.length;
    if (in.query_counts.empty()) return;
    check_counts(in.query_counts, in.q.shape);
    for (std::size_t b = 0; b < p.sequences.size(); ++b) p.sequences[b].queries = in.query_counts[b];
    return;
  }
  if (!in.query_counts.empty())
    throw refusal(Error::value,
                  "query_counts: given, but so are query_starts; packed queries have no padding");
  check_one_batch("q", in.q);
  check_starts("query_starts", in.query_starts, "q.length", in.q.shape.length);
  p.batch = std::ssize(in.query_starts) - 1;
  p.sequences.resize(static_cast<std::size_t>(p.batch));
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    p.sequences[n].first_query = in.query_starts[n];
    p.sequences[n].queries = in.query_starts[n + 1] - in.query_starts[n];
  }
}

void place_keys(const Inputs& in, Problem& p) {
  if (!in.sequences.empty())
    throw refusal(Error::value, "inputs.sequences: given, but no cache whose sequences they are");
  if (in.query_starts.empty() != in.key_starts.empty())
    throw refusal(Error::shape, in.key_starts.empty() ? "key_starts" : "query_starts",
                  ": not given, but the other is; queries and keys are packed together");
  if (in.key_starts.empty()) {
    for (Sequence& s : p.sequences) s.keys = in.k.shape.length;
    return;
  }
  check_one_batch("k", in.k);
  check_one_batch("v", in.v);
  check_starts("key_starts", in.key_starts, "k.length", in.k.shape.length);
  if (std::ssize(in.key_starts) != std::ssize(in.query_starts))
    throw refusal(Error::shape, "key_starts: ", std::ssize(in.key_starts),
                  " entries are not as many as query_starts: ", std::ssize(in.query_starts));
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    p.sequences[n].first_key = in.key_starts[n];
    p.sequences[n].keys = in.key_starts[n + 1] - in.key_starts[n];
  }
}

// All lengths are of one moment: this one, or that of the call to come.
void place_keys_in_cache(const Inputs& in, Problem& p, const std::optional<LengthsToCome>& to_come) {
  if (in.k.data || in.v.data)
    throw refusal(Error::value, in.k.data ? "k" : "v", ": given, but so is the cache, which stands for it");
  if (!in.key_starts.empty())
    throw refusal(Error::value, "key_starts: given, but the cache knows its lengths");
  const std::int64_t wanted = std::ssize(in.sequences);
  if (!in.sequences.empty() && wanted != p.batch)
    throw refusal(Error::shape, "inputs.sequences: ", wanted, " numbers for a batch of ", p.batch);
  const bool reads_all = in.sequences.empty() && p.batch > 0 && !to_come;
  if (const std::int64_t held = reads_all ? in.cache->sequences() : p.batch; held != p.batch)
    throw refusal(Error::shape, "cache.sequences: ", held, " are not the batch: ", p.batch,
                  "; say which by inputs.sequences");
  for (std::size_t n = 0; n < p.sequences.size(); ++n)
    p.sequences[n].in_cache = in.sequences.empty() ? static_cast<std::int64_t>(n) : in.sequences[n];
  p.layout = cache::layout_of(*in.cache);
  // Without its pages as long as tokens are to come: which kernels take the call does not depend on them.
  if (!to_come) hold_cache(p);
  for (std::size_t n = 0; to_come && n < p.sequences.size(); ++n)
    p.cached.push_back({nullptr, (*to_come)[n]});
  for (std::size_t n = 0; n < p.sequences.size(); ++n) {
    Sequence& s = p.sequences[n];
    s.keys = p.cached[n].length;
    if (s.queries > s.keys)
      throw refusal(Error::shape, "q.length: ", s.queries, " queries for batch entry ",
                    static_cast<std::int64_t>(n), " are more than the ", s.keys,
                    " tokens of its sequence; append their keys and values first");
  }
}

}  // namespace

std::int64_t offset_of(const char* name, std::optional<Align> align, const Problem& p, const Sequence& s) {
  if (!align && s.queries != s.keys && !p.inputs.cache)
    throw refusal(Error::ambiguous, name, ": ", s.queries, " queries, ", s.keys,
                  " keys; say Align::ends (decode) or Align::starts");
  if (align && *align > Align::ends)
    throw refusal(Error::value, name, ": align ", static_cast<std::int64_t>(*align),
                  " is none of starts, ends");
  return align == Align::starts ? 0 : s.keys - s.queries;
}

void hold_cache(Problem& p) {
  cache::SequenceNumbers numbers;
  for (const Sequence& s : p.sequences) numbers.push_back(s.in_cache);
  p.reading.emplace(*p.inputs.cache, std::move(numbers));
  p.cached.clear();
  for (const Sequence& s : p.sequences) p.cached.push_back(p.reading->sequence(s.in_cache));
}

bool writes_nothing(const Inputs& in, std::span<const Argument> arguments) {
  if (in.cache || !in.query_starts.empty() || !in.query_counts.empty()) return false;
  if (in.q.shape.heads > 0 && in.q.shape.length > 0) return false;
  const auto is_written = [](const Argument& a) { return a.rule.use == Rule::written && !a.empty(); };
  return std::none_of(arguments.begin(), arguments.end(), is_written);
}

void place_sequences(const Inputs& inputs, Problem& p, const std::optional<LengthsToCome>& to_come,
                     bool one_for_all) {
  place_queries(inputs, p, one_for_all);
  if (inputs.cache) {
    place_keys_in_cache(inputs, p, to_come);
    p.kv_heads = inputs.cache->config().kv_heads;
    p.value_dim = *inputs.cache->config().value_dim;
    p.cache_type = inputs.cache->config().type;
    const std::optional<CacheRotary>& rotary = inputs.cache->config().rotary;
    p.rotates_keys = rotary && rotary->when == CacheRotary::When::read;
    // fault: turned-cache-of-another-type
    p.kv_type =
        p.rotates_keys ? problem::type_of(problem::dtype_of(p.cache_type)) : problem::type_of(p.cache_type);
  } else {
    place_keys(inputs, p);
    p.kv_heads = inputs.k.shape.heads;
    p.value_dim = inputs.v.shape.dim;
    p.kv_type = problem::type_of(inputs.k.dtype);
  }
  p.heads = inputs.q.shape.heads;
  p.dim = inputs.q.shape.dim;
  if (p.sequences.empty() && inputs.query_starts.empty()) {  // an empty batch still has extents to fit
    p.queries = inputs.q.shape.length;
    p.keys = inputs.cache ? 0 : inputs.k.shape.length;
  }
  if (p.place)  // only whole views are a part of something larger (make_stream_problem.cpp)
    for (Sequence& s : p.sequences) s.queries = p.place->queries, s.first_query = -p.place->first_query;
  for (Sequence& s : p.sequences) {
    s.key_count = s.keys;
    p.queries = std::max(p.queries, s.queries);
    p.keys = std::max(p.keys, s.keys);
  }
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

// Lowers the list of masks to one band of keys per query, one count of keys per sequence, and boolean masks.

namespace {

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

// Bands start as wide as the clamp and stay inside: first never exceeds the keys, and end never falls below
// 1 - queries.
void lower(Problem& p, const Causal& causal) {
  for (Sequence& s : p.sequences)
    s.end_offset = std::min(s.end_offset, offset_of("causal mask", causal.align, p, s) + 1);
}

bool has_window_already(const Problem& p) {
  return std::any_of(p.sequences.begin(), p.sequences.end(),
                     [](const Sequence& s) { return s.first_offset > -(s.queries + s.keys); });
}

void lower(Problem& p, const Window& window) {
  if (window.left < 0) throw refusal(Error::value, "window mask: left ", window.left, " is negative");
  if (window.right < 0) throw refusal(Error::value, "window mask: right ", window.right, " is negative");
  if (window.front < 0) throw refusal(Error::value, "window mask: front ", window.front, " is negative");
  const bool is_another_gap = window.front != p.front && has_window_already(p);
  if (!is_another_gap) p.front = window.front;
  for (Sequence& s : p.sequences) {
    const std::int64_t offset = offset_of("window mask", window.align, p, s);
    const std::int64_t first = std::max(saturating_add(offset, -window.left), -(s.queries + s.keys));
    if (is_another_gap)
      p.gaps.push_back({window.front, first});
    else
      s.first_offset = std::max(s.first_offset, first);
    s.end_offset = std::min(s.end_offset, saturating_add(offset + 1, window.right));
  }
}

void lower(Problem& p, const KeyLengths& lengths) {
  const auto entries = static_cast<std::int64_t>(lengths.valid.size());
  if (entries != p.batch)
    throw refusal(Error::shape, "key lengths: ", entries, " counts for q.batch: ", p.batch);
  for (std::size_t b = 0; b < lengths.valid.size(); ++b) {
    const std::int64_t count = lengths.valid[b];
    Sequence& s = p.sequences[std::min(b, p.sequences.size() - 1)];  // one may stand for all
    if (count < 0 || count > s.keys)
      throw refusal(Error::value, "key lengths: ", count, " for batch entry ", static_cast<std::int64_t>(b),
                    " is outside [0, ", s.keys, "], the keys there are");
    s.key_count = std::min(s.key_count, count);
  }
}

struct PerToken {
  const char *name, *token;
  std::int64_t tokens;
};

// How much further the numbers of the next sequence begin.
std::int64_t step_of(std::span<const std::int32_t> ids, const PerToken& rule, std::int64_t batch) {
  const std::int64_t found = std::ssize(ids), all = elements::product(batch, rule.tokens);
  if (found != rule.tokens && found != all)
    throw refusal(Error::shape, "document mask: ", found, " ", rule.name, " are neither one per ", rule.token,
                  ": ", rule.tokens, " nor one per batch entry and ", rule.token, ": ", all);
  return found == rule.tokens ? 0 : rule.tokens;
}

void lower(Problem& p, const Document& document) {
  DocumentIds ids{.keys = document.ids.data(),
                  .keys_step = step_of(document.ids, {"ids", "key", p.keys}, p.batch)};
  if (!document.query_ids.empty()) {
    const bool is_whole = p.inputs.query_starts.empty() && !p.place;
    const std::int64_t queries = is_whole ? p.inputs.q.shape.length : p.queries;
    ids.queries = document.query_ids.data();
    ids.queries_step = step_of(document.query_ids, {"query_ids", "query", queries}, p.batch);
  } else {
    for (const Sequence& s : p.sequences) offset_of("document mask", document.align, p, s);
    ids.queries_are_last = document.align != Align::starts;
  }
  p.documents.push_back(ids);
}

void lower_bools(Problem& p, const BoolView& view, BoolMask mask) {
  mask.data = view.data;
  mask.stride = broadcast_stride(view.shape, view.stride);
  mask.device = view.device;
  p.bool_masks.push_back(mask);
}

void lower(Problem& p, const Keep& keep) { lower_bools(p, keep.where, {}); }
void lower(Problem& p, const Hide& hide) { lower_bools(p, hide.where, {.visible_when = false}); }
void lower(Problem& p, const Tree& tree) {
  for (const Sequence& s : p.sequences)
    if (s.queries > s.keys)
      throw refusal(Error::shape, "tree mask: ", s.queries, " queries, ", s.keys,
                    " keys; every query is one of the last keys");
  lower_bools(p, tree.where, {.is_tree = true});
}

}  // namespace

void lower_masks(Problem& p, const Extents& extents, Arguments& arguments) {
  for (Sequence& s : p.sequences) {
    s.first_offset = -(s.queries + s.keys);
    s.end_offset = s.queries + s.keys;
  }
  for (const Mask& mask : p.options.masks) {
    const std::size_t first = arguments.size();
    add_arguments(mask, arguments);
    check_alone(arguments.from(first));
    check_devices(arguments.from(first), "q.device", p.device());
    check_extents(arguments.from(first), extents);
    std::visit([&p](const auto& m) { lower(p, m); }, mask);
  }
}

// ALiBi (S21): one finite slope per query head, or per batch entry and head, and queries that stand somewhere
// among the keys.

void lower_alibi(Problem& p) {
  if (!p.options.alibi) return;
  const auto& [slopes, align] = *p.options.alibi;
  check_slopes(slopes, p.batch, p.heads);
  for (const Sequence& s : p.sequences) offset_of("options.alibi", align, p, s);
  p.alibi = {slopes.data(), std::ssize(slopes) == p.heads ? 0 : p.heads, align != Align::starts};
}

}  // namespace heed::call
