// SPDX-License-Identifier: Apache-2.0
// A row, one key at a time, as the CPU's kernels compute it: elements of tensors and pages, 2^x and tanh,
// which keys a query sees, a score from the product to the softmax, which weights drop, and the end of the
// row. Then the same row in double precision, for what f32 cannot hold and for what NaN and infinities do
// (S13).
#pragma once
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"
#include "softmax/philox.hpp"

namespace heed::cuda {

// Elements of the caller's tensors and of a cache's pages, one by one, as f32.

// Where a row begins and how to walk it: sixteen elements a step apart, the next sixteen a block further, as
// cached values lie. Everywhere else a block is sixteen steps.
struct Row {
  const void* data;
  std::int64_t first, step;
  Type type;
  std::int64_t block;
};

HEED_DEVICE Row row_of(const Tensor& t, std::int64_t b, std::int64_t h, std::int64_t i) {
  return {t.data, b * t.stride.batch + h * t.stride.heads + i * t.stride.length, t.stride.dim, t.type,
          16 * t.stride.dim};
}

HEED_DEVICE const unsigned char* head_in_page(const Call& c, std::int64_t b, std::int64_t kv_head,
                                              std::int64_t j) {
  return c.cached[b].table[j / c.layout.page_size] + kv_head * c.layout.head_bytes();
}

// Of a page's elements: prefill has an int8 cache's keys as rows of another type.
HEED_DEVICE Type page_type(const Call& c) { return c.layout.is_quantized ? Type::int8 : c.k.type; }

// Key j of a sequence, and its value, wherever they lie.
HEED_DEVICE Row key_row(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  constexpr std::int64_t tile = cache::PageLayout::tile;
  if (!c.cached) return row_of(c.k, b, kv_head, c.sequence(b).first_key + j);
  return {head_in_page(c, b, kv_head, j), c.layout.key_element(j % c.layout.page_size, 0), tile, page_type(c),
          16 * tile};
}
HEED_DEVICE Row value_row(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  constexpr std::int64_t tile = cache::PageLayout::tile;
  if (!c.cached) return row_of(c.v, b, kv_head, c.sequence(b).first_key + j);
  return {head_in_page(c, b, kv_head, j) + c.layout.values_at(),
          c.layout.value_element(j % c.layout.page_size, 0), 1, page_type(c), tile * tile};
}

// What the integers of a quantised key, or value, are multiplied with.
HEED_DEVICE float key_scale(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  const void* scales = head_in_page(c, b, kv_head, j) + c.layout.key_scales_at();
  return static_cast<const float*>(scales)[j % c.layout.page_size];
}
HEED_DEVICE float value_scale(const Call& c, std::int64_t b, std::int64_t kv_head, std::int64_t j) {
  const void* scales = head_in_page(c, b, kv_head, j) + c.layout.value_scales_at();
  return static_cast<const float*>(scales)[j % c.layout.page_size];
}

HEED_DEVICE float read(const Row& row, std::int64_t d) {
  const std::int64_t e = row.first + d / 16 * row.block + d % 16 * row.step;
  if (row.type == Type::f32) return static_cast<const float*>(row.data)[e];
  if (row.type == Type::int8) return static_cast<float>(static_cast<const std::int8_t*>(row.data)[e]);
  const std::uint16_t bits = static_cast<const std::uint16_t*>(row.data)[e];
  return row.type == Type::bf16 ? from_bf16(bits) : from_f16(bits);
}

// Rounds once, to nearest even.
HEED_DEVICE void write(const Row& row, std::int64_t d, float x) {
  const std::int64_t e = row.first + d * row.step;
  void* data = const_cast<void*>(row.data);
  if (row.type == Type::f32)
    static_cast<float*>(data)[e] = x;
  else
    static_cast<std::uint16_t*>(data)[e] = row.type == Type::bf16 ? to_bf16(x) : to_f16(x);
}

// As many of four neighbouring elements as there are.
inline __device__ __noinline__ void write_four(const Row& row, std::int64_t d, std::int64_t end, float4 x) {
  const float four[4] = {x.x, x.y, x.z, x.w};
  for (int n = 0; n < 4 && d + n < end; ++n) write(row, d + n, four[n]);
}

// 2^x and tanh x by the operations of src/cpu/tile/arithmetic.hpp in the same order, so that a GPU computes
// the same bits (O2). Compiled with -fmad=false: an operator is one rounding.

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.693147180559945309417f;
constexpr float minus_infinity = -__builtin_inff();
constexpr float max_finite = 3.40282347e+38f;

HEED_DEVICE bool is_finite(float x) { return x * 0.0f == 0.0f; }

// 2^(scale * x) for x <= 0: exactly 1 at 0, exactly 0 where scale * x is -126.5 or less, NaN at NaN.
struct Exponential {
  float scale = 1, min = -127;  // scale * min is -127, to the nearest whole number

  HEED_DEVICE float operator()(float x) const {
    constexpr float magic = 12582912.0f + 127.0f;  // leaves the biased exponent in the low bits of a sum
    x = max_or_nan(min, x);
    const float z = fmaf(x, scale, magic);
    x = fmaf(x, scale, magic - z);
    float p = fmaf(x, 1.326472731e-03f, 9.671512991e-03f);
    p = fmaf(p, x, 5.550733581e-02f);
    p = fmaf(p, x, 2.402224243e-01f);
    p = fmaf(p, x, 6.931470037e-01f);
    p = fmaf(p, x, 1.0f);
    return p * __int_as_float(__float_as_int(z) << 23);
  }
};

HEED_DEVICE float exp2(float x) { return Exponential{}(x); }

// The maximum to subtract: 0 where nothing was seen yet, so that -inf - max stays -inf.
HEED_DEVICE float finite_max(float x) { return x == minus_infinity ? 0.0f : x; }

constexpr float min_far_from_zero = 0.625f;

HEED_DEVICE float tanh_near_zero(float x) {
  const float z = x * x;
  float p = fmaf(-5.704933777e-03f, z, 2.063904144e-02f);
  p = fmaf(p, z, -5.373970047e-02f);
  p = fmaf(p, z, 1.333144158e-01f);
  p = fmaf(p, z, -3.333328068e-01f);
  return fmaf(p * z, x, x);
}

// tanh x and its slope 1 - tanh^2 x.
struct Tanh {
  float value, slope;
};
HEED_DEVICE Tanh tanh_with_slope(float x) {
  const float size = fabsf(x), near = tanh_near_zero(x);
  const float e = Exponential{2 * log2_e, -127.0f / (2 * log2_e)}(-size);
  const float rest = (e + e) / (1.0f + e);
  if (size < min_far_from_zero) return {near, fmaf(-near, near, 1.0f)};
  return {copysignf(1.0f - rest, x), rest * (2.0f - rest)};
}

HEED_DEVICE float tanh(float x) { return tanh_with_slope(x).value; }

// For the scores of matrix units, which are no more exact: in their unrolled loops tanh() takes too many
// registers, and ptxas lets wgmma wait (C7511).
HEED_DEVICE float tanh_of_few_registers(float x) {
  const float size = fabsf(x), near = tanh_near_zero(x);
  const float e = exp2(size * (-2 * log2_e));
  return size < min_far_from_zero ? near : copysignf((1.0f - e) / (1.0f + e), x);
}

// The same in a third of the instructions: away from zero to within 2^-22 of 1, for gradients of 16 bits.
HEED_DEVICE float fast_tanh(float x) {
  const float size = fabsf(x), near = tanh_near_zero(x);
  const float e = fast_exp2(size * (-2 * log2_e));
  return size < min_far_from_zero ? near : copysignf((1.0f - e) * fast_reciprocal(1.0f + e), x);
}

// Which keys a query sees, its scores, and which of its weights drop.

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

HEED_DEVICE bool gaps_allow(const Call& c, const Query& q, std::int64_t j) {
  for (std::int64_t n = 0; n < c.gap_count; ++n) {
    const Gap& gap = c.gaps[n * c.batch + q.b];
    if (j >= gap.front && j < q.i + gap.first_offset) return false;
  }
  return true;
}

// Whether ranges let the query see key j.
HEED_DEVICE bool in_range(const Call& c, const Query& q, std::int64_t j) {
  const KeyRange range = visible_keys(c, q.b, q.i);
  return j < range.end && (j < c.front || j >= range.begin) && gaps_allow(c, q, j);
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
// the lowest number, where a bias or what ALiBi takes lies below -2^126 (open_lowest): products
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

// The end of a row: the sink, the log-sum-exp and the factor of its outputs.

// What a row's scores are measured against once all its keys are in.
struct RowEnd {
  float max, sum;
};

// The largest score has weight 1, so only a row without keys sums to 0.
HEED_DEVICE bool sees_no_key(const RowEnd& end) { return end.sum == 0; }

// The state of a row that sees keys whose weights all became 0. Where scores are so large that their last
// place is too, f32 has lost the row. Where all of them are below f32 it has no maximum, and other keys may
// outweigh them.
HEED_DEVICE RowEnd without_sum(float max) {
  return max > minus_infinity ? RowEnd{max, __builtin_nanf("")} : RowEnd{-max_finite, 0};
}

HEED_DEVICE float sink_of(const Call& c, const Query& q) {
  return c.sink.data ? read(row_of(c.sink, q.b, q.h, 0), 0) : minus_infinity;
}

// Brings the sink into {max, sum} of base 2 (S5); returns what the accumulated values must be multiplied with
// because of it. One beyond the range of base 2 makes the sum NaN, unless it is far below every score and so
// nothing.
HEED_DEVICE float add_sink(const Call& c, const Query& q, RowEnd& end) {
  if (!c.sink.data) return 1.0f;
  const float natural = sink_of(c, q), sink = natural * log2_e;
  if (natural == minus_infinity || sees_no_key(end)) return 1.0f;
  if (sink == minus_infinity && end.max > -0x1p126f) return 1.0f;
  const float max = sink > end.max ? sink : end.max;
  const float factor = exp2(end.max - max);
  end.sum = fmaf(end.sum, factor, exp2(sink - max));
  end.max = max;
  return factor;
}

// Where every score of a row is as low as base 2 goes, biases that differ may have become one: the sum is
// then NaN. They are one in truth where somebody masks with the lowest number there is. Returns that bias.
inline __device__ __noinline__ double open_lowest(const Call& c, const Query& q, RowEnd& end) {
  const Row bias = row_of(c.bias, q);
  constexpr double none = -__builtin_inf();
  double shared = none;
  for (std::int64_t j = 0; j < c.sequence(q.b).keys; ++j) {
    if (!sees(c, q, j)) continue;
    const double from_alibi = c.alibi.of_heads ? static_cast<double>(alibi_at(c, q, j)) : 0.0;
    const double x = c.bias.data ? static_cast<double>(read(bias, j)) + from_alibi : from_alibi;
    if (shared != none && x != shared) end.sum = __builtin_nanf("");
    if (!(x < -0x1p126)) end.sum = __builtin_nanf("");  // no mask: products may count beside it
    shared = x;
  }
  if (sink_of(c, q) != minus_infinity) end.sum = __builtin_nanf("");
  return shared;
}

// A row when all its keys and the sink are in. Weights against the row's maximum and the values accumulated
// under them are to be multiplied with out(): 0 for a row that saw no key (S6), and NaN for one that f32
// cannot hold.
struct ClosedRow {
  float sum, rescale;
  double highest;  // the maximum, or the sink, in natural units

  HEED_DEVICE float out() const { return rescale / sum; }
  HEED_DEVICE double log_sum_exp() const { return highest + log(static_cast<double>(sum)); }
};

// Of a row whose scores are in this unit, or else in base 2.
HEED_DEVICE ClosedRow closed(const Call& c, const Query& q, RowEnd end, const softmax::Scaling& unit = {}) {
  if (sees_no_key(end)) return {1.0f, 0.0f, static_cast<double>(sink_of(c, q))};
  // A sink that is no such number outweighs them all.
  const bool is_lowest =
      (c.bias.data || c.alibi.of_heads) && end.max == -max_finite && !(sink_of(c, q) * unit.unit > -0x1p126f);
  const double lowest = is_lowest ? open_lowest(c, q, end) : 0.0;
  const double of_scores = static_cast<double>(end.max) * unit.natural;
  const float before = end.max = unit.in_base_2(end.max), rescale = add_sink(c, q, end);
  const double highest = end.max == before ? of_scores : static_cast<double>(end.max) * softmax::ln_2;
  return {end.sum, rescale, is_lowest ? lowest : highest};
}

// In double precision, by a team of threads, as src/reference/row.cpp does it: the largest score, sink
// included, and the sum against it.
struct DoubleEnd {
  double max, sum;
  bool saw_a_key;
};

struct DoubleScore {
  double raw, softcapped, biased;
};

// Keys of a quantised cache are what its read() gives: one product, rounded to f32.
inline __device__ __noinline__ DoubleScore double_score(const Call& c, const Query& q, std::int64_t j) {
  const std::int64_t kv_head = c.kv_head(q.h);
  const Row query = row_of(c.q, q), key = key_row(c, q.b, kv_head, j);
  const float scale = c.layout.is_quantized ? key_scale(c, q.b, kv_head, j) : 1.0f;
  double dot = 0;
  for (std::int64_t d = 0; d < c.dim; ++d)
    dot += static_cast<double>(read(query, d)) * static_cast<double>(read(key, d) * scale);
  DoubleScore s{dot * c.scale, 0, minus_infinity};
  const double cap = static_cast<double>(c.cap);
  s.softcapped = c.cap != 0 ? cap * ::tanh(s.raw / cap) : s.raw;
  if (!sees(c, q, j)) return s;
  const double from_alibi = c.alibi.of_heads ? static_cast<double>(alibi_at(c, q, j)) : 0.0;
  s.biased =
      s.softcapped + from_alibi + (c.bias.data ? static_cast<double>(read(row_of(c.bias, q), j)) : 0.0);
  return s;
}

HEED_DEVICE double double_weight(const Call& c, const Query& q, const DoubleEnd& end, std::int64_t j,
                                 double biased) {
  if (biased == -__builtin_inf()) return 0;  // S6: where all are, none is more than another
  const double weight = ::exp(biased - end.max) / end.sum;
  if (c.drop_below == 0) return weight;
  return drops(c, q, j) ? 0.0 : weight / (1.0 - c.drop_probability);
}

// `scratch` is shared, one number for each thread of the team.
template <class Team>
__device__ __noinline__ DoubleEnd double_end(Team team, const Call& c, const Query& q, double* scratch) {
  constexpr int threads = Team::threads;
  const int t = team.thread();
  const std::int64_t keys = c.sequence(q.b).keys;
  const double sink = static_cast<double>(sink_of(c, q));
  double max = sink;
  bool saw = false;
  for (std::int64_t j = t; j < keys; j += threads) {
    const double s = double_score(c, q, j).biased;
    saw = saw || s != -__builtin_inf();
    if (s > max) max = s;
  }
  team.sync();
  scratch[t] = max;
  saw = team.any(saw);
  for (int n = 0; n < threads; ++n) max = scratch[n] > max ? scratch[n] : max;
  double sum = 0;
  for (std::int64_t j = t; j < keys; j += threads) sum += ::exp(double_score(c, q, j).biased - max);
  team.sync();
  scratch[t] = sum;
  team.sync();
  sum = sink == -__builtin_inf() ? 0.0 : ::exp(sink - max);
  for (int n = 0; n < threads; ++n) sum += scratch[n];
  return {max, sum, saw};
}

// Dimension d of the row's output, each thread its own; one that has none takes part in the weights.
template <class Team>
__device__ __noinline__ double double_out(Team team, const Call& c, const Query& q, const DoubleEnd& end,
                                          std::int64_t d, double* scratch) {
  constexpr double unseen = -1;
  constexpr int threads = Team::threads;
  const int t = team.thread();
  const std::int64_t keys = c.sequence(q.b).keys, kv_head = c.kv_head(q.h);
  double out = 0;
  for (std::int64_t first = 0; first < keys && end.saw_a_key; first += threads) {
    const double s = first + t < keys ? double_score(c, q, first + t).biased : -__builtin_inf();
    team.sync();
    scratch[t] = s == -__builtin_inf() ? unseen : double_weight(c, q, end, first + t, s);
    team.sync();
    for (std::int64_t n = 0; n < threads && d < c.value_dim; ++n) {
      if (scratch[n] == unseen) continue;
      const float scale = c.layout.is_quantized ? value_scale(c, q.b, kv_head, first + n) : 1.0f;
      out += scratch[n] * static_cast<double>(read(value_row(c, q.b, kv_head, first + n), d) * scale);
    }
  }
  team.sync();
  return out;
}

// Writes what the row's results in f32 left as NaN or an infinity: these dimensions of out and, with the
// first of them, the log-sum-exp. Returns the softmax.
template <class Team>
__device__ __noinline__ DoubleEnd complete_row(Team team, const Call& c, const Query& q, KeyRange dims,
                                               double* scratch) {
  const DoubleEnd end = double_end(team, c, q, scratch);
  const int t = team.thread();
  const Row out = row_of(c.out, q);
  for (std::int64_t first = dims.begin; first < dims.end; first += Team::threads) {
    const std::int64_t d = first + t;
    const double x = double_out(team, c, q, end, d, scratch);
    if (d < dims.end && !is_finite(read(out, d))) write(out, d, static_cast<float>(x));
  }
  if (t == 0 && dims.begin == 0 && c.log_sum_exp.data) {
    const Row lse = row_of(c.log_sum_exp, q);
    const float found = read(lse, 0);
    const double natural = end.saw_a_key ? end.max + ::log(end.sum) : static_cast<double>(sink_of(c, q));
    if (found != found) write(lse, 0, static_cast<float>(natural));
  }
  return end;
}

}  // namespace heed::cuda
