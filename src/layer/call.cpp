// SPDX-License-Identifier: Apache-2.0
// The checks of a call of the layer, in the words of the layer.
#include "layer/call.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <variant>

#include "cache/state.hpp"
#include "call/make_problem.hpp"
#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace heed::layer {
namespace {

struct Width {
  const char* name;
  std::int64_t value;
};

void check_equal(const char* name, const char* axis, std::int64_t found, const Width& wanted) {
  if (found != wanted.value)
    throw refusal(Error::shape, name, ".", axis, ": ", found, " is not ", wanted.name, ": ", wanted.value);
}

// One of the three sequences the layer reads: (batch, 1, length, width).
void check_sequence(const LayerConfig& c, const char* name, const View& x, const Width& width) {
  check_argument({name, x});
  check_device({name, x}, "config.device", c.device);
  if (x.shape.heads != 1)
    throw refusal(Error::shape, name, ".heads: ", x.shape.heads,
                  " is not 1; the layer splits the heads itself");
  check_equal(name, "dim", x.shape.dim, width);
}

void check_inputs(const LayerConfig& c, const AttentionLayer::Call& call, const LayerInputs& in) {
  check_sequence(c, "x", call.x, {"model_dim", c.model_dim});
  if (call.context)
    check_sequence(c, "context", *call.context, {"key_dim", *c.key_dim});
  else if (c.model_dim != *c.key_dim)
    throw refusal(Error::shape, "context: none is given, and x.dim: ", c.model_dim,
                  " is not key_dim: ", *c.key_dim);
  if (call.value)
    check_sequence(c, "value", *call.value, {"value_dim", *c.value_dim});
  else if (*c.key_dim != *c.value_dim)
    throw refusal(Error::shape, "value: none is given, and context.dim: ", *c.key_dim,
                  " is not value_dim: ", *c.value_dim);
  check_equal("context", "batch", in.context.shape.batch, {"x.batch", call.x.shape.batch});
  check_equal("value", "batch", in.value.shape.batch, {"x.batch", call.x.shape.batch});
  check_equal("value", "length", in.value.shape.length,
              {call.context ? "context.length" : "x.length", in.context.shape.length});
}

// Those of attention(), but that the heads are put together in `out` and may be averaged in `weights`.
void add_outputs(const LayerConfig& c, const Outputs& outputs, Arguments& arguments) {
  const bool is_averaged = outputs.weights && outputs.weights->shape.heads == 1 && c.heads > 1;
  call::add_outputs(outputs, arguments,
                    {.out_heads = Extent::one,
                     .out_dim = Extent::model_dim,
                     .weights_heads = is_averaged ? Extent::one : Extent::heads});
}

void check_outputs(const LayerConfig& c, const LayerInputs& in, const LayerViews* weights,
                   const Outputs& outputs) {
  const Extents extents = extents_of(c, in);
  Arguments arguments;
  add_outputs(c, outputs, arguments);
  for (const Argument& output : arguments.all()) {
    check_argument(output);
    check_device(output, "config.device", c.device);
    check_extents(output, extents);
  }
  arguments.add("x", in.x);
  arguments.add("context", in.context);
  arguments.add("value", in.value);
  if (weights) {
    arguments.add("weights.w_q", weights->w_q);
    arguments.add("weights.w_k", weights->w_k);
    arguments.add("weights.w_v", weights->w_v);
    arguments.add("weights.w_o", weights->w_o);
  }
  check_overlap(arguments.all());
}

bool is_same_memory(const View& a, const View& b) {
  return a.data == b.data && a.shape == b.shape && a.stride == b.stride && a.dtype == b.dtype;
}

void check_positions(const char* name, std::span<const std::int64_t> positions, const View& sequence) {
  const std::int64_t count = std::ssize(positions), length = sequence.shape.length,
                     batch = sequence.shape.batch;
  if (count != 0 && count != length && count != batch * length)
    throw refusal(Error::shape, name, ": ", count, " entries are neither one per token: ", length,
                  " nor one per batch entry and token: ", batch * length);
}

// Where x is not the context, the keys count from 0 whatever the positions of the queries are.
void place_tokens_of(const AttentionLayer::Call& call, LayerInputs& in) {
  const std::int64_t queries = in.x.shape.length, keys = in.context.shape.length;
  in.counted.resize(static_cast<std::size_t>(std::max(queries, keys)));
  std::iota(in.counted.begin(), in.counted.end(), 0);
  const std::span<const std::int64_t> counted = in.counted;
  in.positions = call.positions.empty() ? counted.first(static_cast<std::size_t>(queries)) : call.positions;
  if (!call.key_positions.empty())
    in.key_positions = call.key_positions;
  else if (is_same_memory(in.x, in.context))
    in.key_positions = in.positions;
  else
    in.key_positions = counted.first(static_cast<std::size_t>(keys));
}

// On from where each sequence ends; a cache that rotates its keys does so itself.
void place_tokens_after(const GrowingSequences& cached, const AttentionLayer::Call& call, LayerInputs& in) {
  in.counted = cached.next_positions(in.x.shape.length);
  in.positions = call.positions.empty() ? std::span<const std::int64_t>(in.counted) : call.positions;
  if (!call.cache->config().rotary)
    in.key_positions = call.key_positions.empty() ? in.positions : call.key_positions;
}

std::span<const std::int64_t> positions_of(std::span<const std::int64_t> positions, std::int64_t tokens,
                                           std::int64_t entry) {
  const bool is_shared = std::ssize(positions) <= tokens;
  return is_shared
             ? positions
             : positions.subspan(static_cast<std::size_t>(entry * tokens), static_cast<std::size_t>(tokens));
}

// Queries and keys rotate by one length, that of whichever reaches further. Over a cache only tokens that
// enter it count, not a batch's padding.
std::vector<std::int64_t> lengths_reached(const LayerInputs& in) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < in.x.shape.batch; ++b) {
    std::int64_t last = -1;
    const auto reach = [&](std::span<const std::int64_t> positions, std::int64_t tokens) {
      const std::span<const std::int64_t> own = positions_of(positions, tokens, b);
      const std::size_t real = in.cached.counts.empty()
                                   ? own.size()
                                   : static_cast<std::size_t>(in.cached.counts[static_cast<std::size_t>(b)]);
      for (const std::int64_t p : own.first(std::min(real, own.size()))) last = std::max(last, p);
    };
    reach(in.positions, in.x.shape.length);
    reach(in.key_positions, in.context.shape.length);
    lengths.push_back(last == std::numeric_limits<std::int64_t>::max() ? last : last + 1);
  }
  return lengths;
}

}  // namespace

Extents extents_of(const LayerConfig& c, const LayerInputs& in) {
  Extents extents;
  extents[Extent::batch] = in.x.shape.batch;
  extents[Extent::heads] = c.heads;
  extents[Extent::queries] = in.x.shape.length;
  extents[Extent::keys] = in.keys;
  extents[Extent::model_dim] = c.model_dim;
  return extents;
}

void place_tokens(const LayerConfig& c, const AttentionLayer::Call& call, const Options& options,
                  LayerInputs& in) {
  if (options.dropout)
    throw refusal(Error::value,
                  "options.dropout: the layer owns it; set config.drop_probability and Mode::train");
  if (!c.rotary) {
    if (!call.positions.empty() || !call.key_positions.empty())
      throw refusal(Error::value, call.positions.empty() ? "key_positions" : "positions",
                    ": given, but config.rotary is not");
    return;
  }
  check_positions("positions", call.positions, in.x);
  check_positions("key_positions", call.key_positions, in.context);
  if (call.cache)
    place_tokens_after(in.cached, call, in);
  else
    place_tokens_of(call, in);
  if (rotary::depends_on_length(*c.rotary)) in.lengths = lengths_reached(in);
}

LayerInputs check_read(const LayerConfig& c, const AttentionLayer::Call& call, const Options& options) {
  const View context = call.context.value_or(call.x);
  LayerInputs in{.x = call.x, .context = context, .value = call.value.value_or(context)};
  check_companions(call, options);
  check_inputs(c, call, in);
  in.keys = in.context.shape.length;
  if (call.cache) {
    in.cached = check_cache(c, call);
    in.keys = in.cached.longest_after();
  }
  return in;
}

LayerInputs check_call(const LayerConfig& c, const AttentionLayer::Call& call, const Outputs& outputs,
                       const Options& options) {
  if (call.cache && call.activations)
    throw refusal(Error::value, "activations: given beside a cache, by which there is no gradient");
  if (options.stream && c.device != Device::cpu)
    throw refusal(Error::unsupported, "options.stream: a layer computes on its device's legacy stream");
  LayerInputs in = check_read(c, call, options);
  check_outputs(c, in, call.weights, outputs);
  place_tokens(c, call, options, in);
  return in;
}

}  // namespace heed::layer
