// SPDX-License-Identifier: Apache-2.0
#include "reference/complete_gradient.hpp"

#include <algorithm>

namespace heed::reference {
namespace {

bool any(const std::vector<unsigned char>& left, std::int64_t first, std::int64_t count) {
  if (left.empty()) return false;
  const auto from = left.begin() + first;
  return std::any_of(from, from + count, [](unsigned char x) { return x != 0; });
}

bool any(const std::vector<unsigned char>& left) { return any(left, 0, std::ssize(left)); }

}  // namespace

GradientCompletion::GradientCompletion(const GradientProblem& problem, const UnfinishedGradients& what)
    : g_(problem), left_(what) {
  has_shared_ = any(left_.bias) || any(left_.sink);
  if (!has_shared_ && !any(left_.q) && !any(left_.k) && !any(left_.v)) return;
  const Problem& p = g_.forward;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.kv_heads; ++h)
      if (has_left(b, h)) entries_.push_back({b, h});
  numbers_.emplace(g_);
  sums_.emplace(g_);
  sums_->bias.reset(), sums_->sink.reset();
}

std::size_t GradientCompletion::parts() const { return entries_.size() + (has_shared_ ? 1 : 0); }

void GradientCompletion::run(std::size_t part) {
  if (part < entries_.size())
    complete(entries_[part]);
  else
    complete_shared();
}

bool GradientCompletion::is_unfinished_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
  const std::int64_t queries = g_.forward.sequences[static_cast<std::size_t>(b)].queries;
  return any(left_.q, left_.first_row[static_cast<std::size_t>(b)] + h * queries + i, 1);
}

bool GradientCompletion::has_left_keys(std::int64_t b, std::int64_t kv_head) const {
  const std::int64_t keys = g_.forward.sequences[static_cast<std::size_t>(b)].keys,
                     first = left_.first_key[static_cast<std::size_t>(b)] + kv_head * keys;
  return any(left_.k, first, keys) || any(left_.v, first, keys);
}

bool GradientCompletion::has_left(std::int64_t b, std::int64_t kv_head) const {
  const Problem& p = g_.forward;
  for (std::int64_t h = 0; h < p.heads; ++h)
    for (std::int64_t i = 0; p.kv_head(h) == kv_head && i < p.sequences[static_cast<std::size_t>(b)].queries;
         ++i)
      if (is_unfinished_row(b, h, i)) return true;
  return has_left_keys(b, kv_head);
}

// A key's gradients are sums over all rows, a query's over one.
void GradientCompletion::complete(const Entry& at) {
  const Problem& p = g_.forward;
  const Sequence& s = p.sequences[static_cast<std::size_t>(at.b)];
  const bool all_rows = has_left_keys(at.b, at.kv_head);
  for (std::int64_t h = 0; h < p.heads; ++h)
    for (std::int64_t i = 0; p.kv_head(h) == at.kv_head && i < s.queries; ++i) {
      const bool is_left = is_unfinished_row(at.b, h, i);
      if (all_rows || is_left)
        add(g_, *numbers_, gradient_row(g_, *numbers_, at.b, h, i), at.b, h, i, *sums_);
      if (is_left) write_row(*g_.q, *sums_->q, scale_of(p), {at.b, h, s.first_query + i, 0});
    }
  for (std::int64_t j = 0; j < s.keys; ++j) {
    const std::int64_t key = left_.first_key[static_cast<std::size_t>(at.b)] + at.kv_head * s.keys + j;
    const Shape place{at.b, at.kv_head, s.first_key + j, 0};
    if (any(left_.k, key, 1)) write_row(*g_.k, *sums_->k, scale_of(p), place);
    if (any(left_.v, key, 1)) write_row(*g_.v, *sums_->v, 1, place);
  }
}

void GradientCompletion::complete_shared() {
  const Problem& p = g_.forward;
  GradientSums sums(g_);
  sums.q.reset(), sums.k.reset(), sums.v.reset();
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h)
      for (std::int64_t i = 0; i < p.sequences[static_cast<std::size_t>(b)].queries; ++i)
        add(g_, *numbers_, gradient_row(g_, *numbers_, b, h, i), b, h, i, sums);
  if (any(left_.bias)) write_elements(left_.bias, *g_.given.bias, *sums.bias);
  if (any(left_.sink)) write_elements(left_.sink, *g_.given.sink, *sums.sink);
}

void GradientCompletion::write_element(const MutableView& to, const Shape& at, double value) const {
  const double before = g_.given.accumulate ? read(to, at.batch, at.heads, at.length, at.dim) : 0;  // G8
  write(to, at.batch, at.heads, at.length, at.dim, before + value);
}

void GradientCompletion::write_row(const MutableView& to, SumTensor& from, double factor, Shape at) const {
  for (at.dim = 0; at.dim < to.shape.dim; ++at.dim)
    write_element(to, at, factor * from.at(at.batch, at.heads, at.length, at.dim).value);
}

void GradientCompletion::write_elements(const std::vector<unsigned char>& left, const MutableView& to,
                                        SumTensor& from) const {
  std::size_t n = 0;
  for (std::int64_t b = 0; b < to.shape.batch; ++b)
    for (std::int64_t h = 0; h < to.shape.heads; ++h)
      for (std::int64_t i = 0; i < to.shape.length; ++i)
        for (std::int64_t d = 0; d < to.shape.dim; ++d)
          if (left[n++]) write_element(to, {b, h, i, d}, from.at(b, h, i, d).value);
}

}  // namespace heed::reference
