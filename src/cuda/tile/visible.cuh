// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees, a score from the product to the softmax (softcap, bias, masks), and which weights
// drop. One query and one key at a time, by the operations of the CPU's kernels.
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/element.cuh"
#include "cuda/tile/exp2.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda {

HEED_DEVICE std::int64_t min(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
HEED_DEVICE std::int64_t max(std::int64_t a, std::int64_t b) { return a > b ? a : b; }

struct KeyRange {
  std::int64_t begin, end;
};

// Query i of sequence b, row `row` of q, out and every mask.
struct Query {
  std::int64_t b, h, i, row;
};
HEED_DEVICE Row row_of(const Tensor& t, const Query& q) { return row_of(t, q.b, q.h, q.row); }

// The keys that Causal, Window and KeyLengths let query i of batch entry b see, besides the front.
HEED_DEVICE KeyRange visible_keys(const Sequence& s, std::int64_t i) {
  return {max(0, i + s.first_offset), min(s.key_count, i + s.end_offset)};
}
HEED_DEVICE KeyRange visible_keys(const Call& c, std::int64_t b, std::int64_t i) {
  return visible_keys(c.sequence(b), i);
}

// What a range of queries may see: keys [0, front) and [begin, end).
struct Seen {
  std::int64_t front, begin, end;

  // The part of `keys` that is worth scoring; empty when its end is not beyond its begin.
  HEED_DEVICE KeyRange within(KeyRange keys) const {
    KeyRange part{keys.begin < front ? keys.begin : max(keys.begin, begin), min(keys.end, end)};
    if (part.end <= begin) part.end = min(part.end, front);
    return part;
  }
};
HEED_DEVICE Seen seen_by(const Call& c, std::int64_t b, std::int64_t first_query, std::int64_t last_query) {
  const std::int64_t end = visible_keys(c, b, last_query).end;
  return {min(c.front, end), visible_keys(c, b, first_query).begin, end};
}

// Whether ranges let the query see key j.
HEED_DEVICE bool in_range(const Call& c, const Query& q, std::int64_t j) {
  const KeyRange range = visible_keys(c, q.b, q.i);
  if (j >= range.end || (j >= c.front && j < range.begin)) return false;
  for (std::int64_t n = 0; n < c.gap_count; ++n) {
    const Gap& gap = c.gaps[n * c.batch + q.b];
    if (j >= gap.front && j < q.i + gap.first_offset) return false;
  }
  return true;
}

// S20: a query is of the document that is named for it, or of that of the key it stands beside.
// Documents that are runs of keys have no numbers here: none begins between two keys of one.
HEED_DEVICE bool is_of_document(const Call& c, const DocumentIds& d, const Query& q, std::int64_t j) {
  const Sequence& s = c.sequence(q.b);
  const std::int32_t* of_keys = d.keys + q.b * d.keys_step;
  if (d.queries) return of_keys[j] == d.queries[q.b * d.queries_step + q.i];
  const std::int64_t own = q.i + (d.queries_are_last ? s.keys - s.queries : 0);
  if (own < 0 || own >= s.keys) return false;
  if (!c.run_starts) return of_keys[j] == of_keys[own];
  for (int n = c.run_offsets[2 * q.b]; n < c.run_offsets[2 * q.b + 1]; ++n)
    if (c.run_starts[n] > min(own, j) && c.run_starts[n] <= max(own, j)) return false;
  return true;
}

HEED_DEVICE bool masks_allow(const Call& c, const Query& q, std::int64_t j) {
  const Sequence& s = c.sequence(q.b);
  for (std::int64_t n = 0; n < c.document_count; ++n)
    if (!is_of_document(c, c.documents[n], q, j)) return false;
  for (std::int64_t n = 0; n < c.mask_count; ++n) {
    const BoolTensor& m = c.masks[n];
    const std::int64_t column = j - (m.is_tree ? s.keys - s.queries : 0);  // S18
    if (column < 0 || j >= s.keys) continue;
    const bool value = read(row_of(m.where, q), column) != 0;
    if (value != m.visible_when) return false;
  }
  return true;
}

// Called where it is needed rarely.
inline __device__ __noinline__ bool sees(const Call& c, const Query& q, std::int64_t j) {
  if (!in_range(c, q, j) || !masks_allow(c, q, j)) return false;
  return !c.bias.data || read(row_of(c.bias, q), j) != minus_infinity;
}

// A score that is not finite becomes NaN: an infinity would pass for a key that is not seen. x + 0 * x is x
// for every finite x, and NaN for the others.
HEED_DEVICE float infinity_to_nan(float x) { return fmaf(x, 0.0f, x); }

// A product of query and key, in units of the scores.
HEED_DEVICE float raw_score(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j,
                            float product) {
  if (c.layout.is_quantized) product = product * key_scale(c, b, kv_head, j);
  return infinity_to_nan(product);
}

// Of a product, in units of the scores.
inline __device__ __noinline__ float softcapped_score(const softmax::Softcap& softcap, float product) {
  return softcap.cap == 0 ? product : softcap.cap * tanh(product * softcap.argument);
}
// Of a score in the unit of the cap.
inline __device__ __noinline__ float softcapped_score(float cap, float s) {
  if (cap == 0) return s;
  const float reciprocal = 1.0f / cap;
  return cap * tanh(s * (reciprocal > max_finite ? max_finite : reciprocal));
}

// ALiBi (S21): what the score of key j loses with its distance. Whole numbers up to 2^24 are exact in f32.
HEED_DEVICE float alibi_at(const Call& c, const Query& q, std::int64_t j) {
  const Sequence& s = c.sequence(q.b);
  const auto place = static_cast<float>(q.i + (c.alibi.queries_are_last ? s.keys - s.queries : 0));
  return -c.alibi.of_heads[q.b * c.alibi.step + q.h] * fabsf(place - static_cast<float>(j));
}

// The score of a key that is seen, with ALiBi and the bias, of which -inf hides. All scores of a row may be
// the lowest number, where a bias or what ALiBi takes lies below -2^126 (open_lowest in finish.cuh): products
// beyond 2^73 count beside it even so, as doubles are 2^74 apart there, and become NaN.
HEED_DEVICE float with_bias(const Call& c, const Query& q, std::int64_t j, float s) {
  if ((c.alibi.of_heads || c.bias.data) && fabsf(s) > 0x1p73f) s = __builtin_nanf("");
  if (c.alibi.of_heads) {  // NaN where a bias might bring it back
    const float lost = fmaf(alibi_at(c, q, j), c.scaling.unit, s),
                below = c.bias.data ? __builtin_nanf("") : -max_finite;
    s = lost < -max_finite ? below : lost;
  }
  if (!c.bias.data) return s;
  const float bias = read(row_of(c.bias, q), j);
  return bias < -max_finite ? minus_infinity : max_or_nan(-max_finite, fmaf(bias, c.scaling.unit, s));
}

// What enters the softmax: -inf for a key that is not seen.
inline __device__ __noinline__ float biased_score(const Call& c, const Query& q, std::int64_t j, float s) {
  return in_range(c, q, j) && masks_allow(c, q, j) ? with_bias(c, q, j, s) : minus_infinity;
}

// Dropout: whether the weight of key j drops for this query.
inline __device__ __noinline__ bool drops(const Call& c, const Query& q, std::int64_t j) {
  const auto [x] = softmax::dropout_words(c.seed, q.b * c.heads + q.h, q.i, j / 4);
  const int n = static_cast<int>(j % 4);
  const std::uint32_t word = n == 0 ? x[0] : n == 1 ? x[1] : n == 2 ? x[2] : x[3];
  return word < c.drop_below;
}

HEED_DEVICE float after_dropout(const Call& c, const Query& q, std::int64_t j, float weight) {
  if (c.drop_below == 0) return weight;
  return drops(c, q, j) ? 0.0f : weight * c.keep_scale;
}

}  // namespace heed::cuda
