// SPDX-License-Identifier: Apache-2.0
// How the arrays of a call must fit together: extents, dtypes, broadcasting.
#include "heed/cache.hpp"
#include "problem/checks.hpp"
#include "refusal/refusal.hpp"

namespace heed::problem {
namespace {

struct Extent {
  const char* name;
  std::int64_t value;
};

void check_equal(Extent found, Extent wanted) {
  if (found.value != wanted.value)
    throw refusal(Error::shape, found.name, ": ", found.value, " is not ", wanted.name, ": ", wanted.value);
}

void check_output_shape(const Argument& a, const char* axes_in_words, const Shape& wanted) {
  if (a.shape != wanted)
    throw refusal(Error::shape, a.name, ".shape: ", a.shape, " is not ", axes_in_words, ": ", wanted);
}

// Options and outputs other than log_sum_exp keep the dtype of q or carry f32.
void check_dtype(const char* name, DType found, DType of_q) {
  if (found == of_q || found == DType::f32) return;
  throw refusal(Error::dtype, name, ".dtype: ", name_of(found), " is neither q.dtype: ", name_of(of_q),
                " nor f32");
}

constexpr const char* scores_in_words = "(batch, heads, queries, keys)";

}  // namespace

void check_broadcasts(const Argument& a, const char* axes_in_words, const Shape& target) {
  const Axes extent = axes(a.shape), wanted = axes(target);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] != wanted[i] && extent[i] != 1)
      throw refusal(Error::shape, a.name, ".shape: ", a.shape, " does not broadcast to ", axes_in_words, ": ",
                    target);
}

Strides broadcast_stride(const Shape& shape, const Strides& stride) {
  return {shape.batch == 1 ? 0 : stride.batch, shape.heads == 1 ? 0 : stride.heads,
          shape.length == 1 ? 0 : stride.length, shape.dim == 1 ? 0 : stride.dim};
}

namespace {

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

}  // namespace

void check_shapes(const Problem& p) {
  const Shape& q = p.inputs.q.shape;
  const Outputs& outputs = p.outputs;
  if (q.dim == 0) throw refusal(Error::shape, "q.dim: 0; a head needs at least one dimension");
  if (p.inputs.cache)
    check_equal({"cache.dim", p.inputs.cache->config().dim}, {"q.dim", q.dim});
  else
    check_views_fit(p.inputs);
  check_heads_divide(p.inputs.cache ? "cache.kv_heads" : "k.heads", p.kv_heads, q.heads);

  const Shape out{q.batch, q.heads, q.length, p.value_dim}, scores{q.batch, q.heads, q.length, p.keys};
  std::int64_t rows = 0, cells = 0;
  if (__builtin_mul_overflow(q.batch * q.heads, q.length, &rows) ||
      __builtin_mul_overflow(rows, p.keys, &cells) || cells > longest_reach)
    throw refusal(Error::shape, "k.length: ", p.keys, " keys for q.shape: ", q,
                  " are more scores than can be counted");

  check_output_shape({"out", outputs.out}, "(batch, heads, queries, value_dim)", out);
  if (outputs.weights) check_output_shape({"weights", *outputs.weights}, scores_in_words, scores);
  if (outputs.log_sum_exp)
    check_output_shape({"log_sum_exp", *outputs.log_sum_exp}, "(batch, heads, queries, 1)",
                       {q.batch, q.heads, q.length, 1});
  if (outputs.scores.into) check_output_shape({"scores.into", *outputs.scores.into}, scores_in_words, scores);
  if (p.options.bias) check_broadcasts({"options.bias", *p.options.bias}, scores_in_words, scores);
  if (p.options.sink)
    check_broadcasts({"options.sink", *p.options.sink}, "(batch, heads, 1, 1)", {p.batch, q.heads, 1, 1});
}

void check_dtypes(const Inputs& inputs, const Outputs& outputs, const Options& options) {
  const DType of_q = inputs.q.dtype;
  if (!inputs.cache && inputs.k.dtype != of_q)
    throw refusal(Error::dtype, "k.dtype: ", name_of(inputs.k.dtype), " is not q.dtype: ", name_of(of_q));
  if (!inputs.cache && inputs.v.dtype != of_q)
    throw refusal(Error::dtype, "v.dtype: ", name_of(inputs.v.dtype), " is not q.dtype: ", name_of(of_q));
  check_dtype("out", outputs.out.dtype, of_q);
  if (outputs.weights) check_dtype("weights", outputs.weights->dtype, of_q);
  if (outputs.log_sum_exp && outputs.log_sum_exp->dtype != DType::f32)
    throw refusal(Error::dtype, "log_sum_exp.dtype: ", name_of(outputs.log_sum_exp->dtype), " is not f32");
  if (outputs.scores.into) check_dtype("scores.into", outputs.scores.into->dtype, of_q);
  if (options.bias) check_dtype("options.bias", options.bias->dtype, of_q);
  if (options.sink) check_dtype("options.sink", options.sink->dtype, of_q);
}

}  // namespace heed::problem
