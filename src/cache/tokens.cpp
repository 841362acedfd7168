// SPDX-License-Identifier: Apache-2.0
#include "cache/tokens.hpp"

#include <array>

#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"

namespace heed::cache {
namespace {

struct Expected {
  std::int64_t extent;
  const char* what;
};

void check_extents(const State& state, const char* name, const View& view,
                   const std::array<Expected, 4>& expected) {
  const Axes extent = axes(view.shape);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] != expected[i].extent)
      throw refusal(Error::shape, name, ".", axis_names[i], ": ", extent[i], " is not ", expected[i].what,
                    ": ", expected[i].extent);
  check_argument({name, view});
  check_device({name, view}, "the cache's", state.config.device);
  if (state.pool.on_device()) state.pool.on_device()->check_place(name, view);
}

void check_counts(const State& state, const NewTokens& tokens) {
  const auto entries = static_cast<std::int64_t>(tokens.counts.size());
  if (entries != 0 && entries != tokens.k.shape.batch)
    throw refusal(Error::shape, "counts: ", entries, " entries for ", tokens.k.shape.batch, " sequences");
  for (std::int64_t b = 0; b < tokens.k.shape.batch; ++b) {
    const std::int64_t number = tokens.first + b, count = tokens.count(b);
    if (count < 0 || count > tokens.k.shape.length)
      throw refusal(Error::value, "counts[", b, "]: ", count, " is not in [0, ", tokens.k.shape.length,
                    "], the tokens of k");
    const CachedSequence& sequence = state.sequences[static_cast<std::size_t>(number)];
    if (sequence.is_released && count > 0)
      throw refusal(Error::value, "sequence: ", number, " is released, but gets ", count,
                    count == 1 ? " token" : " tokens");
    if (count > state.config.capacity - sequence.length)
      throw refusal(Error::capacity, "sequence ", number, " holds ", sequence.length, " of ",
                    state.config.capacity, " tokens; ", count, " more do not fit");
  }
}

}  // namespace

void check_tokens(const State& state, const NewTokens& tokens) {
  const View &k = tokens.k, &v = tokens.v;
  check_extents(state, "k", k,
                {{{tokens.sequences, tokens.whose},
                  {state.config.kv_heads, "the cache's kv_heads"},
                  {k.shape.length, ""},
                  {state.config.dim, "the cache's dim"}}});
  check_extents(state, "v", v,
                {{{k.shape.batch, "k.batch"},
                  {state.config.kv_heads, "the cache's kv_heads"},
                  {k.shape.length, "k.length"},
                  {*state.config.value_dim, "the cache's value_dim"}}});
  check_counts(state, tokens);
}

void check_results(const State& state, std::int64_t length, const MutableView& k, const MutableView& v) {
  const auto check = [&](const char* name, const View& view, const Expected& dim) {
    check_extents(state, name, view,
                  {{{1, "the one sequence"},
                    {state.config.kv_heads, "the cache's kv_heads"},
                    {length, "the sequence's length"},
                    dim}});
    check_own_places({name, view});
  };
  check("k", k, {state.config.dim, "the cache's dim"});
  check("v", v, {*state.config.value_dim, "the cache's value_dim"});
  check_apart({"v", v}, {"k", k});
}

Rows rows_of(const View& view, std::int64_t b, std::int64_t h, std::int64_t t) {
  const std::int64_t elements = b * view.stride.batch + h * view.stride.heads + t * view.stride.length;
  const auto bytes = static_cast<std::int64_t>(bytes_of(view.dtype));
  const Shape& n = view.shape;  // the stride of an axis of one entry may be any number: no row is that far on
  return {static_cast<const unsigned char*>(view.data) + elements * bytes, view.dtype,
          n.length > 1 ? view.stride.length : 0, n.dim > 1 ? view.stride.dim : 1};
}

}  // namespace heed::cache
