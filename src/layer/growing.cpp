// SPDX-License-Identifier: Apache-2.0
// A call of the layer over a cache: which sequences grow, what is refused of it, and how its tokens enter.
#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <variant>

#include "cache/append.hpp"
#include "cache/state.hpp"
#include "layer/call.hpp"
#include "refusal/refusal.hpp"
#include "rotary/rotary.hpp"

namespace heed::layer {
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

}  // namespace heed::layer
