// SPDX-License-Identifier: Apache-2.0
// The gradients that a kernel could not finish in f32 (S13, G9).
#include <algorithm>

#include "reference/gradient.hpp"

namespace heed::reference {
namespace {

bool any(const std::vector<unsigned char>& left) {
  return std::any_of(left.begin(), left.end(), [](unsigned char x) { return x != 0; });
}

bool any(const std::vector<unsigned char>& left, std::int64_t first, std::int64_t count) {
  const auto from = left.begin() + first;
  return !left.empty() && std::any_of(from, from + count, [](unsigned char x) { return x != 0; });
}

void write_row(const GradientProblem& g, const MutableView& to, SumTensor& from, double factor, const Shape& at) {
  for (std::int64_t d = 0; d < to.shape.dim; ++d) {
    const double before = g.given.accumulate ? read(to, at.batch, at.heads, at.length, d) : 0;  // G8
    write(to, at.batch, at.heads, at.length, d,
          before + factor * from.at(at.batch, at.heads, at.length, d).value);
  }
}

void write_elements(const GradientProblem& g, const std::vector<unsigned char>& left, const MutableView& to,
                    SumTensor& from) {
  std::size_t n = 0;
  for (std::int64_t b = 0; b < to.shape.batch; ++b)
    for (std::int64_t h = 0; h < to.shape.heads; ++h)
      for (std::int64_t i = 0; i < to.shape.length; ++i)
        for (std::int64_t d = 0; d < to.shape.dim; ++d) {
          if (!left[n++]) continue;
          const double before = g.given.accumulate ? read(to, b, h, i, d) : 0;  // G8
          write(to, b, h, i, d, before + from.at(b, h, i, d).value);
        }
}

// Whether a KV head of a sequence has keys that were left, so that all its rows are wanted; and those of a query
// head otherwise.
struct Wanted {
  const GradientProblem& g;
  const LeftGradients& left;

  bool all_rows(std::int64_t b, std::int64_t kv_head) const {
    if (any(left.bias) || any(left.sink)) return true;
    const std::int64_t keys = g.forward.sequences[static_cast<std::size_t>(b)].keys,
                       first = left.first_key[static_cast<std::size_t>(b)] + kv_head * keys;
    return any(left.k, first, keys) || any(left.v, first, keys);
  }
  bool row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const std::int64_t queries = g.forward.sequences[static_cast<std::size_t>(b)].queries;
    return any(left.q, left.first_row[static_cast<std::size_t>(b)] + h * queries + i, 1);
  }
};

void write_keys(const GradientProblem& g, const LeftGradients& left, std::int64_t b, GradientSums& sums) {
  const Problem& p = g.forward;
  const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
  for (std::int64_t h = 0; h < p.kv_heads; ++h)
    for (std::int64_t j = 0; j < s.keys; ++j) {
      const std::int64_t at = left.first_key[static_cast<std::size_t>(b)] + h * s.keys + j;
      const Shape place{b, h, s.first_key + j, 0};
      if (any(left.k, at, 1)) write_row(g, *g.k, *sums.k, scale_of(p), place);
      if (any(left.v, at, 1)) write_row(g, *g.v, *sums.v, 1, place);
    }
}

}  // namespace

void complete(const GradientProblem& g, const LeftGradients& left) {
  if (!any(left.q) && !any(left.k) && !any(left.v) && !any(left.bias) && !any(left.sink)) return;
  const Problem& p = g.forward;
  const GradientNumbers numbers(g);
  GradientSums sums(g);
  const Wanted wanted{g, left};
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence& s = p.sequences[static_cast<std::size_t>(b)];
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const bool all = wanted.all_rows(b, p.kv_head(h));
      for (std::int64_t i = 0; i < s.queries; ++i) {
        const bool is_left = wanted.row(b, h, i);
        if (all || is_left) add(g, numbers, gradient_row(g, numbers, b, h, i), b, h, i, sums);
        if (is_left) write_row(g, *g.q, *sums.q, scale_of(p), {b, h, s.first_query + i, 0});
      }
    }
    write_keys(g, left, b, sums);
  }
  if (any(left.bias)) write_elements(g, left.bias, *g.given.bias, *sums.bias);
  if (any(left.sink)) write_elements(g, left.sink, *g.given.sink, *sums.sink);
}

}  // namespace heed::reference
