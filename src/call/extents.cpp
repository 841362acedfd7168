// SPDX-License-Identifier: Apache-2.0
// How q, k, v or the cache must fit together: everything else takes its extents from them.
#include "call/make_problem.hpp"
#include "heed/cache.hpp"
#include "refusal/refusal.hpp"

namespace heed::call {
namespace {

struct Found {
  const char* name;
  std::int64_t value;
};

void check_equal(Found found, Found wanted) {
  if (found.value != wanted.value)
    throw refusal(Error::shape, found.name, ": ", found.value, " is not ", wanted.name, ": ", wanted.value);
}

void check_views_fit(const Inputs& inputs) {
  const Shape &q = inputs.q.shape, &k = inputs.k.shape, &v = inputs.v.shape;
  check_equal({"k.dim", k.dim}, {"q.dim", q.dim});
  check_equal({"k.batch", k.batch}, {"q.batch", q.batch});
  check_equal({"v.batch", v.batch}, {"q.batch", q.batch});
  check_equal({"v.heads", v.heads}, {"k.heads", k.heads});
  check_equal({"v.length", v.length}, {"k.length", k.length});
}

void check_heads_divide(const char* name, std::int64_t kv_heads, std::int64_t heads) {
  if (heads > 0 && (kv_heads == 0 || heads % kv_heads != 0))
    throw refusal(Error::shape, name, ": ", kv_heads, " does not divide q.heads: ", heads);
}

void check_scores_can_be_counted(const Shape& q, std::int64_t keys) {
  std::int64_t rows = 0, cells = 0;
  if (__builtin_mul_overflow(q.batch * q.heads, q.length, &rows) ||
      __builtin_mul_overflow(rows, keys, &cells) || cells > longest_reach)
    throw refusal(Error::shape, "k.length: ", keys, " keys for q.shape: ", q,
                  " are more scores than can be counted");
}

}  // namespace

Strides broadcast_stride(const Shape& shape, const Strides& stride) {
  return {shape.batch == 1 ? 0 : stride.batch, shape.heads == 1 ? 0 : stride.heads,
          shape.length == 1 ? 0 : stride.length, shape.dim == 1 ? 0 : stride.dim};
}

View with_dimensions(const View& x) {
  static constexpr double zero = 0;  // in any dtype
  if (x.shape.dim > 0) return x;
  Shape shape = x.shape;
  shape.dim = 1;
  return {static_cast<const void*>(&zero), shape, Strides{0, 0, 0, 0}, x.dtype, x.device};
}

void check_inputs(const Problem& p) {
  const Shape& q = p.inputs.q.shape;
  if (q.dim == 0 && p.device() != Device::cpu)
    throw refusal(Error::unsupported, "q.dim: 0; on ", p.device(), " a head needs at least one dimension");
  if (p.inputs.cache)
    check_equal({"cache.dim", p.inputs.cache->config().dim}, {"q.dim", q.dim});
  else
    check_views_fit(p.inputs);
  check_heads_divide(p.inputs.cache ? "cache.kv_heads" : "k.heads", p.kv_heads, q.heads);
  check_scores_can_be_counted(q, p.keys);
}

// Arrays have rows as q has, packed or not.
Extents extents_of(const Problem& p) {
  const Shape& q = p.inputs.q.shape;
  Extents extents;
  extents[Extent::batch] = q.batch;
  extents[Extent::sequences] = p.batch;
  extents[Extent::heads] = q.heads;
  extents[Extent::queries] = q.length;
  extents[Extent::drafted] = p.inputs.query_starts.empty() ? q.length : p.queries;
  extents[Extent::keys] = p.keys;
  extents[Extent::value_dim] = p.value_dim;
  return extents;
}

}  // namespace heed::call
