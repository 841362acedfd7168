// SPDX-License-Identifier: Apache-2.0
#include "cache/tokens.hpp"

#include <algorithm>
#include <array>

#include "refusal/refusal.hpp"

namespace heed {
namespace {

constexpr std::array<const char*, 4> axis_names{"batch", "heads", "length", "dim"};
constexpr std::array<std::int64_t, 4> axes(const Shape& s) { return {s.batch, s.heads, s.length, s.dim}; }

std::int64_t bytes_per_element(const View& view) { return static_cast<std::int64_t>(bytes_of(view.dtype)); }

bool is_empty(const View& view) { return std::ranges::count(axes(view.shape), 0) > 0; }

// Bytes from the first element to the end of the last one, or -1 beyond any memory.
std::int64_t reach_bytes(const View& view) {
  constexpr std::int64_t longest = std::int64_t{1} << 60;
  const auto extent = axes(view.shape), stride = axes(view.stride);
  std::int64_t reach = 1;
  for (std::size_t i = 0; i < extent.size(); ++i) {
    std::int64_t steps = 0;
    if (extent[i] > 1 && (__builtin_mul_overflow(extent[i] - 1, stride[i], &steps) ||
                          __builtin_add_overflow(reach, steps, &reach)))
      return -1;
  }
  return reach > longest / 4 ? -1 : reach * bytes_per_element(view);
}

void check_memory(const char* name, const View& view) {
  if (view.dtype > DType::bf16)
    throw refusal(Error::dtype, name, ".dtype: ", static_cast<std::int64_t>(view.dtype),
                  " is none of f32, f16, bf16");
  if (view.device != Device::cpu)
    throw refusal(Error::device, name, ".device: a cache takes arrays in the memory of the cpu");
  const auto stride = axes(view.stride);
  for (std::size_t i = 0; i < stride.size(); ++i)
    if (stride[i] < 0)
      throw refusal(Error::shape, name, ".stride.", axis_names[i], ": ", stride[i], " is negative");
  if (reach_bytes(view) < 0)
    throw refusal(Error::shape, name, ": shape ", view.shape, " with strides ", view.stride,
                  " reaches beyond any memory");
  if (is_empty(view)) return;
  if (view.data == nullptr) throw refusal(Error::value, name, ".data: null, but the shape is ", view.shape);
  if (reinterpret_cast<std::uintptr_t>(view.data) % bytes_of(view.dtype) != 0)
    throw refusal(Error::value, name, ".data: the address is not a multiple of the element's ",
                  bytes_per_element(view), " bytes");
}

struct Expected {
  const char* name;
  std::int64_t extent;
  const char* what;
};

void check_extents(const char* name, const View& view, const std::array<Expected, 4>& expected) {
  const auto extent = axes(view.shape);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] != expected[i].extent)
      throw refusal(Error::shape, name, ".", expected[i].name, ": ", extent[i], " is not ", expected[i].what,
                    ": ", expected[i].extent);
  check_memory(name, view);
}

// Sorted by stride, every axis must step over all that the smaller ones span.
void check_own_places(const char* name, const View& view) {
  if (is_empty(view)) return;
  const auto extent = axes(view.shape), stride = axes(view.stride);
  std::array<std::size_t, 4> order{3, 2, 1, 0};
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return stride[i] < stride[j]; });
  std::int64_t span = 1;
  for (const std::size_t i : order) {
    if (extent[i] <= 1) continue;
    if (stride[i] < span)
      throw refusal(Error::overlap, name, ".stride.", axis_names[i], ": ", stride[i],
                    " does not step over the ", span, " elements that the axes inside it span");
    span += (extent[i] - 1) * stride[i];
  }
}

void check_counts(const KvCache::State& state, const NewTokens& tokens) {
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

void check_tokens(const KvCache::State& state, const NewTokens& tokens) {
  const View &k = tokens.k, &v = tokens.v;
  if (k.shape.length < 0) throw refusal(Error::shape, "k.length: ", k.shape.length, " is negative");
  check_extents("k", k,
                {{{"batch", tokens.sequences, tokens.whose},
                  {"heads", state.config.kv_heads, "the cache's kv_heads"},
                  {"length", k.shape.length, ""},
                  {"dim", state.config.dim, "the cache's dim"}}});
  check_extents("v", v,
                {{{"batch", k.shape.batch, "k.batch"},
                  {"heads", state.config.kv_heads, "the cache's kv_heads"},
                  {"length", k.shape.length, "k.length"},
                  {"dim", *state.config.value_dim, "the cache's value_dim"}}});
  check_counts(state, tokens);
}

void check_results(const KvCache::State& state, std::int64_t length, const MutableView& k,
                   const MutableView& v) {
  const auto check = [&](const char* name, const View& view, const Expected& dim) {
    check_extents(name, view,
                  {{{"batch", 1, "the one sequence"},
                    {"heads", state.config.kv_heads, "the cache's kv_heads"},
                    {"length", length, "the sequence's length"},
                    dim}});
    check_own_places(name, view);
  };
  check("k", k, {"dim", state.config.dim, "the cache's dim"});
  check("v", v, {"dim", *state.config.value_dim, "the cache's value_dim"});
  if (is_empty(k)) return;
  const auto a = reinterpret_cast<std::uintptr_t>(k.data), b = reinterpret_cast<std::uintptr_t>(v.data);
  if (a < b + static_cast<std::uintptr_t>(reach_bytes(v)) &&
      b < a + static_cast<std::uintptr_t>(reach_bytes(k)))
    throw refusal(Error::overlap, "v: its memory begins or ends inside that of k");
}

Rows rows_of(const View& view, std::int64_t b, std::int64_t h, std::int64_t t) {
  const std::int64_t elements = b * view.stride.batch + h * view.stride.heads + t * view.stride.length;
  return {static_cast<const unsigned char*>(view.data) + elements * bytes_per_element(view), view.dtype,
          view.stride.length, view.stride.dim};
}

}  // namespace heed
