// SPDX-License-Identifier: Apache-2.0
// Sequences of random tokens that are fed to a cache in pieces, and what plain attention says of them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "heed/cache.hpp"

namespace heed::cases {

struct TokenShape {
  std::int64_t heads, kv_heads, dim, value_dim;
  DType dtype;
};

// The queries, keys and values of one sequence. Two of one seed agree as far as both go.
struct Tokens {
  Tensor q, k, v;
  Tokens(const TokenShape& s, std::int64_t length, std::uint64_t seed)
      : q(tokens({1, s.heads, length, s.dim}, seed, s.dtype)),
        k(tokens({1, s.kv_heads, length, s.dim}, seed + 1, s.dtype)),
        v(tokens({1, s.kv_heads, length, s.value_dim}, seed + 2, s.dtype)) {}

  // Element (h, i, d) depends on nothing but the seed and its place.
  static Tensor tokens(Shape shape, std::uint64_t seed, DType dtype) {
    Tensor made(shape, dtype);
    for_each(shape, [&](auto, auto h, auto i, auto d) {
      made.set(0, h, i, d, 2 * uniform(seed, static_cast<std::uint64_t>((i * 64 + h) * 1024 + d)));
    });
    return made;
  }
};

inline CacheType cache_type(DType dtype) {
  return dtype == DType::f32 ? CacheType::f32 : dtype == DType::f16 ? CacheType::f16 : CacheType::bf16;
}

// The last `count` queries of the first `length` tokens, over all of those: out and log-sum-exp.
struct Attended {
  Tensor out, log_sum_exp;
};

inline Attended make_attended(const TokenShape& s, std::int64_t batch, std::int64_t count) {
  return {Tensor({batch, s.heads, count, s.value_dim}, s.dtype), Tensor({batch, s.heads, count, 1})};
}

inline Attended attend_plainly(const Tokens& t, const TokenShape& s, std::int64_t length, std::int64_t count,
                               const Options& options) {
  Attended made = make_attended(s, 1, count);
  const Tensor q = t.q.rows(length - count, count), k = t.k.rows(0, length), v = t.v.rows(0, length);
  attention({.q = q.view(), .k = k.view(), .v = v.view()},
            {.out = made.out.mutable_view(), .log_sum_exp = made.log_sum_exp.mutable_view()}, options);
  return made;
}

inline testing::AssertionResult same_bits(const Attended& a, const Attended& b) {
  const auto result = same_bits(a.out, b.out);
  return result ? same_bits(a.log_sum_exp, b.log_sum_exp) << " in log_sum_exp" : result;
}

}  // namespace heed::cases
