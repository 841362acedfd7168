// SPDX-License-Identifier: Apache-2.0
#include "api/gathered_cache.hpp"

#include "cache/layout.hpp"
#include "heed/cache.hpp"
#include "refusal/refusal.hpp"

namespace heed::api {
namespace {

MutableView make_view(Memory& memory, const Backend& backend, const Shape& shape, DType dtype) {
  memory = backend.allocate(static_cast<std::size_t>(shape.elements()) * bytes_of(dtype));
  return {memory.get(), shape, dtype, backend.device};
}

// The first `tokens` of batch entry b.
MutableView part_of(const MutableView& x, std::int64_t b, std::int64_t tokens) {
  MutableView part = x;
  const auto bytes = static_cast<std::int64_t>(bytes_of(x.dtype));
  part.data = static_cast<std::byte*>(x.data) + b * x.stride.batch * bytes;
  part.shape.batch = 1;
  part.shape.length = tokens;
  return part;
}

}  // namespace

GatheredCache::GatheredCache(const Problem& given, const Backend& backend) : problem(given) {
  if (!given.reading) return;
  if (given.options.stream && backend.device != Device::cpu)
    throw refusal(
        Error::unsupported,
        "options.stream: a cache that turns its keys as they are read does so on its device's legacy stream");
  const DType dtype = problem::dtype_of(given.cache_type);
  const Shape of_keys{given.batch, given.kv_heads, given.keys, given.dim},
      of_values{given.batch, given.kv_heads, given.keys, given.value_dim};
  const MutableView k = make_view(keys_, backend, of_keys, dtype),
                    v = make_view(values_, backend, of_values, dtype);
  for (std::int64_t b = 0; b < given.batch; ++b) {
    const Sequence& s = given.sequences[static_cast<std::size_t>(b)];
    if (s.keys > 0) given.reading->read(s.in_cache, part_of(k, b, s.keys), part_of(v, b, s.keys));
  }
  problem.inputs.k = k;
  problem.inputs.v = v;
  problem.cached = {};
  problem.reading.reset();
}

}  // namespace heed::api
