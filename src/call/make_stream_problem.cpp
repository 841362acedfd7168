// SPDX-License-Identifier: Apache-2.0
// A stream becomes a Problem before its keys come: their extents are known, or at least said, and nothing
// else.
#include "call/make_problem.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {
namespace {

Error needs_keys(const char* name, const char* what) {
  return refusal(Error::ambiguous, name, ": ", what, " needs the number of keys; say it by inputs.keys");
}

void check_align(const char* name, std::optional<Align> align) {
  if (align != Align::starts) throw needs_keys(name, "an alignment other than Align::starts");
}

// What a mask says without the number of keys.
struct CheckUnsaid {
  void operator()(const Causal& m) const { check_align("causal mask", m.align); }
  void operator()(const Window& m) const { check_align("window mask", m.align); }
  void operator()(const KeyLengths&) const { throw needs_keys("key lengths", "a count of keys"); }
  void operator()(const Document&) const { throw needs_keys("document mask", "a number for every key"); }
  void operator()(const Keep& m) const { columns("keep mask", m.where.shape); }
  void operator()(const Hide& m) const { columns("hide mask", m.where.shape); }
  void operator()(const Tree&) const { throw needs_keys("tree mask", "a mask of the last keys"); }

  static void columns(const char* name, const Shape& shape) {
    if (shape.dim != 1) throw needs_keys(name, "a column for every key");
  }
};

void check_unsaid(const Options& options) {
  if (options.alibi) throw needs_keys("options.alibi", "what grows with the distance of a key");
  if (options.bias) CheckUnsaid::columns("options.bias", options.bias->shape);
  for (const Mask& mask : options.masks) std::visit(CheckUnsaid(), mask);
}

void check_within(const char* name, const char* larger, std::int64_t first, std::int64_t count,
                  std::int64_t all) {
  if (first < 0 || count > all || first > all - count)
    throw refusal(Error::value, "inputs.place: ", name, " [", first, ", ", first, " + ", count,
                  ") are not among the ", all, " of ", larger);
}

void check_place(const StreamInputs& in, const Options& options) {
  if (!in.place) return;
  check_within("queries", "place.queries", in.place->first_query, in.q.shape.length, in.place->queries);
  check_within("heads", "place.heads", in.place->first_head, in.q.shape.heads, in.place->heads);
  if (!in.query_counts.empty())
    throw refusal(Error::value,
                  "query_counts: given, but so is inputs.place; a part of the queries has no padding");
  for (const Mask& mask : options.masks)
    if (std::holds_alternative<Tree>(mask))
      throw refusal(Error::unsupported,
                    "tree mask: given, but so is inputs.place; it is about all queries at once");
}

void check_extent(const char* name, std::int64_t extent) {
  if (extent < 0) throw refusal(Error::shape, name, ": ", extent, " is negative");
}

View described(const Shape& shape, const View& q) {
  return {static_cast<const void*>(nullptr), shape, q.dtype, q.device};
}

Inputs inputs_of(const StreamInputs& in) {
  const Shape& q = in.q.shape;
  Shape k{q.batch, in.kv_heads.value_or(q.heads), in.keys.value_or(unknown_keys), q.dim}, v = k;
  v.dim = in.value_dim.value_or(q.dim);
  return {.q = in.q, .k = described(k, in.q), .v = described(v, in.q), .query_counts = in.query_counts};
}

}  // namespace

Problem make_stream_problem(const StreamInputs& in, const Outputs& outputs, const Options& options) {
  if (outputs.weights)
    throw refusal(Error::unsupported, "weights: asked for, but a stream keeps no keys to compute them");
  if (outputs.scores.into)
    throw refusal(Error::unsupported, "scores.into: asked for, but a stream keeps no keys to compute them");
  check_extent("inputs.kv_heads", in.kv_heads.value_or(0));
  check_extent("inputs.value_dim", in.value_dim.value_or(0));
  check_extent("inputs.keys", in.keys.value_or(0));
  if (in.keys.value_or(0) >= unknown_keys)
    throw refusal(Error::shape, "inputs.keys: ", *in.keys,
                  " are more than a stream counts: ", unknown_keys - 1);
  const Inputs inputs = inputs_of(in);
  Arguments arguments;
  arguments.add("q", in.q);
  add_outputs(outputs, arguments);
  add_options(inputs, options, arguments);
  check_alone(arguments.all());
  check_place(in, options);
  if (!in.keys) check_unsaid(options);
  Problem p(inputs, outputs, options);
  p.place = in.place;
  lower(p, arguments);
  return p;
}

void check_stretch(const Problem& p, const View& k, const View& v, std::int64_t so_far) {
  Arguments arguments;
  arguments.add("k", k, {.types = Rule::of_q});
  arguments.add("v", v, {.types = Rule::of_q});
  check_alone(arguments.all());
  check_devices(arguments.all(), "q.device", p.device());
  const auto check_shape = [&p](const char* name, const View& x, Shape wanted) {
    wanted.length = x.shape.length;
    if (name[0] == 'k' && p.has_no_dimensions) wanted.dim = 0;
    if (!(x.shape == wanted))
      throw refusal(Error::shape, name, ".shape: ", x.shape, " is not (batch, kv_heads, any, ",
                    name[0] == 'k' ? "dim" : "value_dim", "), as the stream was told: ", wanted);
  };
  check_shape("k", k, p.inputs.k.shape);
  check_shape("v", v, p.inputs.v.shape);
  if (v.shape.length != k.shape.length)
    throw refusal(Error::shape, "v.length: ", v.shape.length, " is not k.length: ", k.shape.length);
  check_dtypes(arguments.all(), p.inputs.q.dtype);
  const std::int64_t most = p.keys == unknown_keys ? unknown_keys - 1 : p.keys;
  if (k.shape.length > most - so_far)
    throw refusal(Error::shape, "k.length: ", k.shape.length, " keys after ", so_far, " are more than the ",
                  most, p.keys == unknown_keys ? " a stream counts" : " that were to come");
}

}  // namespace heed::call
