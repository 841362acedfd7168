// SPDX-License-Identifier: Apache-2.0
// The checks of a call of the layer, in the words of the layer.
#include "layer/call.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <variant>

#include "cache/append.hpp"
#include "cache/state.hpp"
#include "call/make_problem.hpp"
#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace heed::layer {
namespace {

Floats heads_of(const Backend& backend, const char* name, const View& sequence, std::int64_t heads,
                std::int64_t dim, DType dtype) {
  const Shape shape{sequence.shape.batch, heads, sequence.shape.length, dim};
  return make_floats(backend, name, shape, bshd(shape), dtype);
}

Floats widen(const Backend& backend, const char* name, std::optional<View>& view) {
  if (!view) return {};
  check_argument({name, *view});
  check_device({name, *view}, "config.device", backend.device);
  if (view->dtype == DType::f32) return {};
  Floats copy = copy_as_floats(backend, name, *view);
  view = copy.view;
  return copy;
}

}  // namespace

Heads make_heads(const LayerConfig& c, const Backend& backend, const LayerInputs& in, DType dtype) {
  return {.q = heads_of(backend, "q", in.x, c.heads, *c.head_dim, dtype),
          .k = heads_of(backend, "k", in.context, *c.kv_heads, *c.head_dim, dtype),
          .v = heads_of(backend, "v", in.value, *c.kv_heads, *c.value_head_dim, dtype),
          .attended = heads_of(backend, "attended", in.x, c.heads, *c.value_head_dim, dtype)};
}

Floats make_log_sum_exp(const LayerConfig& c, const Backend& backend, const LayerInputs& in) {
  return heads_of(backend, "log_sum_exp", in.x, c.heads, 1, DType::f32);
}

FloatOptions::FloatOptions(const Backend& backend, const Options& given) : options(given) {
  bias_ = widen(backend, "options.bias", options.bias);
  sink_ = widen(backend, "options.sink", options.sink);
}

namespace {

// Another call may have come in since.
void check_unchanged(const cache::State& state, const GrowingSequences& sequences) {
  for (std::size_t b = 0; b < sequences.numbers.size(); ++b) {
    const std::int64_t length = state.sequences[sequences.numbers[b]].length;
    if (length != sequences.lengths[b])
      throw refusal(Error::busy, "cache: sequence ", sequences.numbers[b], " had ", sequences.lengths[b],
                    " tokens when the call began and has ", length, " now; another call changed it");
  }
}

}  // namespace

AppendedTokens::AppendedTokens(KvCache& cache, const GrowingSequences& sequences, const View& k,
                               const View& v)
    : state_(cache::Access::state(cache)),
      sequences_(sequences),
      tokens_{k, v, {sequences.numbers, std::ssize(sequences.numbers)}, "x.batch", sequences.counts},
      changing_(state_, tokens_, "layer") {
  check_unchanged(state_, sequences);
  cache::check_tokens(state_, tokens_);
  cache::append_tokens(state_, tokens_);
  changing_.let_readers_in();
}

AppendedTokens::~AppendedTokens() {
  if (is_kept_) return;
  changing_.wait_for_readers();
  const std::lock_guard guard(state_.lock);
  for (std::size_t b = 0; b < sequences_.numbers.size(); ++b)
    state_.shorten(state_.sequences[sequences_.numbers[b]], sequences_.lengths[b]);
}

namespace {

void check_equal(const char* name, std::int64_t found, const char* rule, std::int64_t wanted) {
  if (found != wanted)
    throw refusal(Error::shape, "cache.", name, ": ", found, " is not ", rule, ": ", wanted);
}

const char* scaling_of(const Rotary& rotary) {
  return rotary.scaling ? rotary::name_of(*rotary.scaling) : "none";
}

// Keys are rotated once, and as the queries are.
void check_rotary(const LayerConfig& c, const AttentionLayer::Call& call) {
  if (!call.cache->config().rotary) return;
  if (!c.rotary) throw refusal(Error::value, "cache.rotary: given, but config.rotary is not");
  const Rotary &of_cache = call.cache->config().rotary->rotary, &own = *c.rotary;
  if (of_cache.base != own.base)
    throw refusal(Error::value, "cache.rotary.base: ", of_cache.base,
                  " is not config.rotary.base: ", own.base);
  check_equal("rotary.dims", of_cache.dims.value_or(*c.head_dim), "config.rotary.dims",
              own.dims.value_or(*c.head_dim));
  if (of_cache.pairs != own.pairs)
    throw refusal(Error::value,
                  "cache.rotary.pairs: ", of_cache.pairs == RotaryPairs::halves ? "halves" : "adjacent",
                  " are not config.rotary's");
  if (of_cache.scaling != own.scaling) {
    const char *kind = scaling_of(of_cache), *own_kind = scaling_of(own);
    throw refusal(Error::value, "cache.rotary.scaling: ", kind, " is not config.rotary.scaling: ", own_kind,
                  kind == own_kind ? " with other numbers" : "");
  }
  if (!call.positions.empty() || !call.key_positions.empty())
    throw refusal(Error::value, call.positions.empty() ? "key_positions" : "positions",
                  ": given, but the cache turns its keys by their places in the sequence");
}

void check_numbers(std::span<const std::int64_t> numbers) {
  for (std::size_t b = 1; b < numbers.size(); ++b) {
    const auto earlier = std::ranges::find(numbers.first(b), numbers[b]) - numbers.begin();
    if (earlier != static_cast<std::ptrdiff_t>(b))
      throw refusal(Error::value, "sequences[", static_cast<std::int64_t>(b), "]: ", numbers[b],
                    " is sequences[", static_cast<std::int64_t>(earlier),
                    "] too; a sequence grows in one place");
  }
}

void check_counts(const AttentionLayer::Call& call) {
  const std::int64_t entries = std::ssize(call.counts), tokens = call.x.shape.length;
  if (entries != 0 && entries != call.x.shape.batch)
    throw refusal(Error::shape, "counts: ", entries, " entries for x.batch: ", call.x.shape.batch);
  for (std::size_t b = 0; b < call.counts.size(); ++b)
    if (call.counts[b] < 0 || call.counts[b] > tokens)
      throw refusal(Error::value, "counts[", static_cast<std::int64_t>(b), "]: ", call.counts[b],
                    " is not in [0, ", tokens, "], the tokens of x");
}

}  // namespace

std::int64_t GrowingSequences::longest_after() const {
  return lengths_after.empty() ? 0 : *std::ranges::max_element(lengths_after);
}

std::vector<std::int64_t> GrowingSequences::next_positions(std::int64_t tokens) const {
  std::vector<std::int64_t> positions(lengths.size() * static_cast<std::size_t>(tokens));
  auto at = positions.begin();
  for (const std::int64_t length : lengths) {
    std::iota(at, at + tokens, length);
    at += tokens;
  }
  return positions;
}

void check_companions(const AttentionLayer::Call& call, const Options& options) {
  if (!call.cache && !call.sequences.empty())
    throw refusal(Error::value, "sequences: given, but the cache they are numbers of is not");
  if (!call.cache && !call.counts.empty())
    throw refusal(Error::value, "counts: given, but the cache that gets so many tokens is not");
  if (call.cache && (call.context || call.value))
    throw refusal(Error::value, call.context ? "context" : "value",
                  ": given, but so is a cache, which holds the tokens of x itself");
  for (const Mask& mask : options.masks)
    if (call.cache && std::holds_alternative<KeyLengths>(mask))
      throw refusal(Error::value,
                    "key lengths: given, but so is a cache, which would keep the padding they hide; say by "
                    "counts how many tokens of x there are");
}

GrowingSequences check_cache(const LayerConfig& c, const AttentionLayer::Call& call) {
  const KvCacheConfig& config = call.cache->config();
  if (c.device != config.device)
    throw refusal(Error::device, "config.device: ", c.device, " is not the cache's: ", config.device);
  check_equal("kv_heads", config.kv_heads, "kv_heads", *c.kv_heads);
  check_equal("dim", config.dim, "head_dim", *c.head_dim);
  check_equal("value_dim", *config.value_dim, "value_head_dim", *c.value_head_dim);
  check_rotary(c, call);

  const std::int64_t held = call.cache->sequences(), batch = call.x.shape.batch;
  if (call.sequences.empty() && batch > 0 && held != batch)
    throw refusal(Error::shape, "cache.sequences: ", held, " are not x.batch: ", batch,
                  "; say which by call.sequences");
  if (!call.sequences.empty() && std::ssize(call.sequences) != batch)
    throw refusal(Error::shape, "sequences: ", std::ssize(call.sequences), " numbers for x.batch: ", batch);
  GrowingSequences found;
  found.numbers.assign(call.sequences.begin(), call.sequences.end());
  if (call.sequences.empty()) {
    found.numbers.resize(static_cast<std::size_t>(batch));
    std::iota(found.numbers.begin(), found.numbers.end(), 0);
  }
  check_numbers(call.sequences);
  found.lengths.resize(found.numbers.size());
  {
    const cache::State& state = cache::Access::state(*call.cache);
    const std::lock_guard guard(state.lock);  // all lengths are of one moment
    for (std::size_t b = 0; b < found.numbers.size(); ++b)
      found.lengths[b] = state.at(found.numbers[b]).length;
  }
  check_counts(call);
  found.counts.assign(call.counts.begin(), call.counts.end());
  if (call.counts.empty()) found.counts.resize(static_cast<std::size_t>(batch), call.x.shape.length);
  for (std::size_t b = 0; b < found.counts.size(); ++b)
    found.lengths_after.push_back(found.lengths[b] + found.counts[b]);
  return found;
}

// The checks of a call of the layer, in the words of the layer.

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
