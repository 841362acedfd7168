// SPDX-License-Identifier: Apache-2.0
#include "layer/gradient_call.hpp"

#include "refusal/arguments.hpp"
#include "refusal/refusal.hpp"

namespace heed::layer {
namespace {

struct Of {
  const char* name;
  std::optional<View> argument;
};

void add_written(const char* name, const std::optional<MutableView>& gradient, const Of& of,
                 Arguments& arguments) {
  if (!gradient) return;
  if (!of.argument) throw refusal(Error::value, name, ": given, but ", of.name, " is not");
  check_argument({name, *gradient});
  if (gradient->shape != of.argument->shape)
    throw refusal(Error::shape, name, ".shape: ", gradient->shape, " is not ", of.name,
                  ".shape: ", of.argument->shape);
  arguments.add(name, *gradient, {.use = Rule::written});
}

void check_gradients(const LayerConfig& c, const AttentionLayer::Call& call, const LayerInputs& in,
                     const LayerGradients& g, const Options& options) {
  using enum Extent;
  Arguments arguments;
  arguments.add("gradients.out", g.out, {Rule::read, Rule::exactly, {batch, one, queries, model_dim}});
  arguments.add_given("gradients.log_sum_exp", g.log_sum_exp,
                      {Rule::read, Rule::exactly, {batch, heads, queries, one}});
  check_alone(arguments.all());
  check_extents(arguments.all(), extents_of(c, in));
  add_written("gradients.x", g.x, {"x", call.x}, arguments);
  add_written("gradients.context", g.context, {"context", call.context}, arguments);
  add_written("gradients.value", g.value, {"value", call.value}, arguments);
  add_written("gradients.bias", g.bias, {"options.bias", options.bias}, arguments);
  add_written("gradients.sink", g.sink, {"options.sink", options.sink}, arguments);
  check_devices(arguments.all(), "config.device", c.device);
  arguments.add("x", in.x);
  arguments.add("context", in.context);
  arguments.add("value", in.value);
  check_overlap(arguments.all());
}

void check_same(const char* name, const Floats& kept, const Shape& wanted) {
  if (kept.view.shape != wanted)
    throw refusal(Error::shape, "activations.", name, ": ", kept.view.shape, " is not this call's: ", wanted);
}

}  // namespace

LayerInputs check_backward(const LayerConfig& c, const AttentionLayer::Call& call, const LayerGradients& g,
                           const Options& options) {
  if (call.cache)
    throw refusal(Error::unsupported, "cache: given, but there is no gradient by what a cache holds");
  LayerInputs in = check_read(c, call, options);
  check_gradients(c, call, in, g, options);
  place_tokens(c, call, options, in);
  return in;
}

void check_heads(const LayerConfig& c, const LayerInputs& in, const Heads& kept) {
  const std::int64_t batch = in.x.shape.batch, queries = in.x.shape.length, keys = in.keys;
  check_same("q", kept.q, {batch, c.heads, queries, *c.head_dim});
  check_same("k", kept.k, {batch, *c.kv_heads, keys, *c.head_dim});
  check_same("v", kept.v, {batch, *c.kv_heads, keys, *c.value_head_dim});
  check_same("attended", kept.attended, {batch, c.heads, queries, *c.value_head_dim});
}

}  // namespace heed::layer
