// SPDX-License-Identifier: Apache-2.0
#include "reference/gathered_cache.hpp"

#include "heed/cache.hpp"

namespace heed::reference {
namespace {

DType dtype_of(CacheType type) {
  return type == CacheType::f16 ? DType::f16 : type == CacheType::bf16 ? DType::bf16 : DType::f32;
}

MutableView make_view(std::vector<std::byte>& memory, const Shape& shape, DType dtype) {
  memory.resize(static_cast<std::size_t>(shape.elements()) * bytes_of(dtype));
  return {memory.data(), shape, dtype};
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

GatheredCache::GatheredCache(const Problem& given) : problem(given) {
  if (!given.reading) return;
  const DType dtype = dtype_of(given.cache_type);
  const MutableView k = make_view(keys_, {given.batch, given.kv_heads, given.keys, given.dim}, dtype);
  const MutableView v = make_view(values_, {given.batch, given.kv_heads, given.keys, given.value_dim}, dtype);
  for (std::int64_t b = 0; b < given.batch; ++b) {
    const Sequence& s = given.sequences[static_cast<std::size_t>(b)];
    if (s.keys > 0) given.inputs.cache->read(s.in_cache, part_of(k, b, s.keys), part_of(v, b, s.keys));
  }
  problem.inputs.k = k;
  problem.inputs.v = v;
  problem.reading = nullptr;
}

}  // namespace heed::reference
