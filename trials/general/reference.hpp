// SPDX-License-Identifier: Apache-2.0
// What the checks compare with: docs/spec.md in double precision on the host, for one small case at a time.
// It shares nothing with the kernels but the layout of pages.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cuda/call.hpp"
#include "softmax/philox.hpp"

namespace trial {
using namespace heed;
using heed::cuda::Type;

inline float to_float(Type t, const void* data, std::int64_t n) {
  if (t == Type::f32) return static_cast<const float*>(data)[n];
  if (t == Type::int8) return static_cast<const std::int8_t*>(data)[n];
  const std::uint16_t x = static_cast<const std::uint16_t*>(data)[n];
  if (t == Type::bf16) {
    const std::uint32_t bits = std::uint32_t{x} << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
  }
  return __half2float(__ushort_as_half(x));
}
inline void from_float(Type t, void* data, std::int64_t n, float x) {
  if (t == Type::f32)
    static_cast<float*>(data)[n] = x;
  else if (t == Type::int8)
    static_cast<std::int8_t*>(data)[n] = static_cast<std::int8_t>(x);
  else if (t == Type::bf16)
    static_cast<std::uint16_t*>(data)[n] = __bfloat16_as_ushort(__float2bfloat16(x));
  else
    static_cast<std::uint16_t*>(data)[n] = __half_as_ushort(__float2half(x));
}
inline int bytes_of(Type t) { return t == Type::f32 ? 4 : t == Type::int8 ? 1 : 2; }

// A row's results.
struct RowResult {
  std::vector<double> out, magnitude;  // magnitude: of the products that an output is the sum of
  std::vector<double> weights, raw, softcapped, biased;
  double lse;
};

// `c` holds host pointers; keys and values by accessors, since they may come out of a cache.
template <class KeyAt, class ValueAt>
RowResult reference_row(const heed::cuda::Call& c, std::int64_t b, std::int64_t h, std::int64_t i,
                        const KeyAt& key, const ValueAt& value) {
  const auto& s = c.sequence(b);
  const double inf = std::numeric_limits<double>::infinity();
  const std::int64_t row = s.first_query + i, kv = c.kv_head(h);
  const auto at = [&](const heed::cuda::Tensor& t, std::int64_t r, std::int64_t x) {
    return t.data == nullptr
               ? 0.0
               : double(to_float(t.type, t.data, b * t.stride.batch + h * t.stride.heads + r * t.stride.length + x * t.stride.dim));
  };
  RowResult result;
  result.out.assign(c.value_dim, 0), result.magnitude.assign(c.value_dim, 0);
  result.weights.assign(s.keys, 0);
  const double sink =
      c.sink.data ? double(to_float(c.sink.type, c.sink.data, b * c.sink.stride.batch + h * c.sink.stride.heads)) : -inf;
  double top = -inf;
  for (std::int64_t j = 0; j < s.keys; ++j) {
    double dot = 0;
    for (std::int64_t d = 0; d < c.dim; ++d) dot += at(c.q, row, d) * double(key(b, kv, j, d));
    double x = dot * c.scale;
    result.raw.push_back(x);
    if (c.cap != 0) x = c.cap * std::tanh(x / c.cap);
    result.softcapped.push_back(x);
    bool seen = j < s.key_count && j < i + s.end_offset && (j < c.front || j >= i + s.first_offset);
    for (std::int64_t g = 0; g < c.gap_count; ++g) {
      const Gap& gap = c.gaps[g * c.batch + b];
      if (j >= gap.front && j < i + gap.first_offset) seen = false;
    }
    for (std::int64_t n = 0; n < c.document_count; ++n) {
      const DocumentIds& d = c.documents[n];
      const std::int32_t* keys = d.keys + b * d.keys_step;
      if (d.queries) {
        if (keys[j] != d.queries[b * d.queries_step + i]) seen = false;
      } else {
        const std::int64_t own = i + (d.queries_are_last ? s.keys - s.queries : 0);
        if (own < 0 || own >= s.keys || keys[j] != keys[own]) seen = false;
      }
    }
    for (std::int64_t n = 0; n < c.mask_count; ++n) {
      const auto& m = c.masks[n];
      const std::int64_t column = j - (m.is_tree ? s.keys - s.queries : 0);
      if (column < 0) continue;
      if ((at(m.where, row, column) != 0) != m.visible_when) seen = false;
    }
    if (seen && c.alibi.of_heads) {
      const float place = float(i + (c.alibi.queries_are_last ? s.keys - s.queries : 0));
      x += double(-c.alibi.of_heads[h] * std::fabs(place - float(j)));
    }
    if (seen && c.bias.data) x += at(c.bias, row, j);
    if (!seen) x = -inf;
    result.biased.push_back(x);
    if (x > top) top = x;
  }
  bool saw = false;
  for (double x : result.biased) saw = saw || x != -inf;
  const double max = std::max(top, sink);
  double sum = sink == -inf ? 0 : std::exp(sink - max);
  if (!saw) {
    result.lse = sink;
    return result;
  }
  for (double x : result.biased) sum += x == -inf ? 0 : std::exp(x - max);
  result.lse = max + std::log(sum);
  for (std::int64_t j = 0; j < s.keys; ++j) {
    if (result.biased[j] == -inf) continue;
    double w = std::exp(result.biased[j] - max) / sum;
    if (c.drop_below > 0) {
      const auto words = softmax::dropout_words(c.seed, b * c.heads + h, i, j / 4);
      w = words.word[j % 4] < c.drop_below ? 0 : w / (1 - double(c.drop_probability));
    }
    result.weights[j] = w;
    for (std::int64_t d = 0; d < c.value_dim; ++d) {
      const double x = w * double(value(b, kv, j, d));
      result.out[d] += x, result.magnitude[d] += std::fabs(x);
    }
  }
  return result;
}

}  // namespace trial
