// SPDX-License-Identifier: Apache-2.0
#include "cache/new_keys.hpp"

#include <numeric>

#include "rotary/frequencies.hpp"

namespace heed::cache {
namespace {

std::int64_t length_of(const State& state, const NewTokens& tokens, std::int64_t b) {
  return state.sequences[static_cast<std::size_t>(tokens.first + b)].length;
}

}  // namespace

RotatedKeys::RotatedKeys(const State& state, const NewTokens& tokens) {
  if (const DevicePages* device = state.pool.on_device())
    rotate_on(*device, state, tokens);
  else
    rotate_counted(state, tokens);
}

void RotatedKeys::rotate_counted(const State& state, const NewTokens& tokens) {
  std::int64_t all = 0;
  for_each_entry(tokens, [&](std::int64_t, std::int64_t count, std::int64_t) { all += count; });
  const Shape shape{1, tokens.k.shape.heads, all, tokens.k.shape.dim};
  floats_.resize(static_cast<std::size_t>(shape.elements()));
  std::vector<std::int64_t> positions(static_cast<std::size_t>(all));
  for_each_entry(tokens, [&](std::int64_t b, std::int64_t count, std::int64_t before) {
    const auto at = positions.begin() + before;
    std::iota(at, at + count, length_of(state, tokens, b));
    for (std::int64_t h = 0; h < shape.heads; ++h)
      widen(rows_of(tokens.k, b, h, 0), {count, shape.dim}, floats_.data() + (h * all + before) * shape.dim);
  });
  const MutableView keys(floats_.data(), shape);
  source_ = {keys, true};
  const Rotary& rotary = state.config.rotary->rotary;
  if (!rotary::depends_on_length(rotary)) return rotate(keys, positions, rotary);
  for_each_entry(tokens, [&](std::int64_t, std::int64_t count, std::int64_t before) {
    MutableView own = keys;
    own.data = floats_.data() + before * keys.stride.length;
    own.shape.length = count;
    rotate(own,
           std::span(positions).subspan(static_cast<std::size_t>(before), static_cast<std::size_t>(count)),
           rotary);
  });
}

// All tokens that were given: those that are not counted go no further.
void RotatedKeys::rotate_on(const DevicePages& device, const State& state, const NewTokens& tokens) {
  const Shape& shape = tokens.k.shape;
  source_ = {tokens.k};
  if (shape.elements() == 0) return;
  there_ = device.make(shape, DType::f32);
  device.convert(tokens.k, there_.view);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(shape.batch * shape.length)), lengths;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const auto at = positions.begin() + b * shape.length;
    std::iota(at, at + shape.length, length_of(state, tokens, b));
    lengths.push_back(length_of(state, tokens, b) + tokens.count(b));
  }
  rotate(there_.view, positions, state.config.rotary->rotary, lengths);
  source_ = {there_.view};
}

}  // namespace heed::cache
