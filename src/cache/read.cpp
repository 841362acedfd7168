// SPDX-License-Identifier: Apache-2.0
// Copies a sequence out of its pages, as attention sees it.
#include <algorithm>
#include <numeric>
#include <vector>

#include "cache/append.hpp"
#include "cache/layout.hpp"
#include "cache/reading.hpp"
#include "cache/state.hpp"
#include "cache/store.hpp"
#include "heed/half.hpp"
#include "problem/call.hpp"

namespace heed::cache {
namespace {

// One element of the caller's memory.
void put(const MutableView& view, std::int64_t at, float x) {
  switch (view.dtype) {
    case DType::f32:
      static_cast<float*>(view.data)[at] = x;
      return;
    case DType::f16:
      static_cast<f16*>(view.data)[at] = from_float<f16>(x);
      return;
    case DType::bf16:
      static_cast<bf16*>(view.data)[at] = from_float<bf16>(x);
      return;
    case DType::f64:
      return;  // refused
  }
}

float rounded_to(CacheType type, float x) {
  if (type == CacheType::f16) return to_float(from_float<f16>(x));
  if (type == CacheType::bf16) return to_float(from_float<bf16>(x));
  return x;
}

void fetch(const State& state, const CachedSequence& sequence, Side side, Shape at, float* row) {
  const std::int64_t page_size = state.layout.page_size;
  const unsigned char* page = sequence.table[static_cast<std::size_t>(at.length / page_size)];
  const unsigned char* part = page + at.heads * state.layout.head_bytes();
  fetch_token({&state.layout, state.config.type, part, at.length % page_size, 1}, side, row);
}

void put_row(const MutableView& view, Shape at, const float* row) {
  const std::int64_t begin = at.heads * view.stride.heads + at.length * view.stride.length;
  for (std::int64_t d = 0; d < view.shape.dim; ++d) put(view, begin + d * view.stride.dim, row[d]);
}

void read_side(const State& state, const CachedSequence& sequence, Side side, const MutableView& into,
               float* row) {
  for (std::int64_t h = 0; h < into.shape.heads; ++h)
    for (std::int64_t t = 0; t < sequence.length; ++t) {
      fetch(state, sequence, side, {0, h, t, 0}, row);
      put_row(into, {0, h, t, 0}, row);
    }
}

// Keys that the cache rotates when they are read: in f32, then rounded to its type, as append would have.
std::vector<float> rotated_keys(const State& state, const CachedSequence& sequence) {
  const Shape shape{1, state.config.kv_heads, sequence.length, state.config.dim};
  std::vector<float> keys(static_cast<std::size_t>(shape.elements()));
  float* row = keys.data();
  for (std::int64_t h = 0; h < shape.heads; ++h)
    for (std::int64_t t = 0; t < shape.length; ++t, row += shape.dim)
      fetch(state, sequence, Side::keys, {0, h, t, 0}, row);
  std::vector<std::int64_t> positions(static_cast<std::size_t>(shape.length));
  std::iota(positions.begin(), positions.end(), 0);
  state.pool.backend().rotate({{MutableView(keys, shape)}}, positions, state.config.rotary->rotary, {});
  for (float& x : keys) x = rounded_to(state.config.type, x);
  // A rotated zero may be -0.
  const std::int64_t page_size = state.layout.page_size;
  for (std::int64_t h = 0; h < shape.heads; ++h)
    for (std::int64_t t = state.front_pages() * page_size; t < sequence.held_from * page_size; ++t)
      std::fill_n(keys.data() + (h * shape.length + t) * shape.dim, shape.dim, 0.0f);
  return keys;
}

bool rotates_keys(const State& state) {
  return state.config.rotary && state.config.rotary->when == CacheRotary::When::read;
}

// What rotated_keys() does, on the device: floats are what was fetched.
void put_rotated_keys(const State& state, const DevicePages& device, const CachedSequence& sequence,
                      const DeviceArray& floats, const MutableView& into) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(sequence.length));
  std::iota(positions.begin(), positions.end(), 0);
  state.pool.backend().rotate({{floats.view}}, positions, state.config.rotary->rotary, {});
  const DType own = problem::dtype_of(state.config.type);
  if (own != into.dtype && own != DType::f32) {  // rounded to its type first
    const DeviceArray rounded = device.make(into.shape, own);
    state.pool.backend().copy(floats.view, rounded.view);
    state.pool.backend().copy(rounded.view, into);
  } else {
    state.pool.backend().copy(floats.view, into);
  }
  MutableView released = into;  // a rotated zero may be -0
  const std::int64_t begin = state.front_pages() * state.layout.page_size,
                     end = sequence.held_from * state.layout.page_size;
  released.data = static_cast<std::byte*>(into.data) +
                  begin * into.stride.length * static_cast<std::int64_t>(bytes_of(into.dtype));
  released.shape.length = std::max<std::int64_t>(end - begin, 0);
  if (released.shape.elements() > 0) state.pool.backend().fill(released, 0);
}

void read_on_device(const State& state, const DevicePages& device, const CachedSequence& sequence,
                    const MutableView& k, const MutableView& v) {
  const std::int64_t page_size = state.layout.page_size;
  std::vector<TokenRun> runs;
  for (std::int64_t t = 0; t < sequence.length; t += page_size)
    runs.push_back({sequence.table[static_cast<std::size_t>(t / page_size)], 0,
                    std::min(page_size, sequence.length - t), 0, t});
  const DeviceSide keys{state.layout, state.config.type, Side::keys};
  if (rotates_keys(state) && k.shape.elements() > 0) {
    const DeviceArray floats = device.make(k.shape, DType::f32);
    device.fetch(keys, floats.view, runs);
    put_rotated_keys(state, device, sequence, floats, k);
  } else {
    device.fetch(keys, k, runs);
  }
  device.fetch({state.layout, state.config.type, Side::values}, v, runs);
}

}  // namespace

void CacheReading::read(std::int64_t n, const MutableView& k, const MutableView& v) const {
  const CachedSequence& sequence = state_.sequences[n];
  check_results(state_, sequence.length, k, v);
  if (const DevicePages* device = state_.pool.on_device())
    return read_on_device(state_, *device, sequence, k, v);
  std::vector<float> row(static_cast<std::size_t>(std::max(state_.layout.dim, state_.layout.value_dim)));
  if (rotates_keys(state_)) {
    const std::vector<float> keys = rotated_keys(state_, sequence);
    const float* from = keys.data();
    for (std::int64_t h = 0; h < k.shape.heads; ++h)
      for (std::int64_t t = 0; t < sequence.length; ++t, from += k.shape.dim) put_row(k, {0, h, t, 0}, from);
  } else {
    read_side(state_, sequence, Side::keys, k, row.data());
  }
  read_side(state_, sequence, Side::values, v, row.data());
}

}  // namespace heed::cache

namespace HEED_NAMESPACE {

void KvCache::read(std::int64_t sequence, const MutableView& k, const MutableView& v) const {
  cache::CacheReading(*this, {sequence}, "read").read(sequence, k, v);
}

}  // namespace HEED_NAMESPACE
