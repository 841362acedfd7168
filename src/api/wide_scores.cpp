// SPDX-License-Identifier: Apache-2.0
#include "api/wide_scores.hpp"

#include <algorithm>

#include "reference/gradient.hpp"

namespace heed::api {
namespace {

// Causal, Window and KeyLengths alone are a band of keys.
bool is_banded(const Problem& p) { return p.gaps.empty() && p.bool_masks.empty() && p.documents.empty(); }

// Keys that a query may see: [0, front) and [begin, end), which lie in this order.
struct Band {
  Band(const Problem& p, const Sequence& s, std::int64_t i)
      : end(std::clamp<std::int64_t>(i + s.end_offset, 0, s.key_count)),
        front(std::min(p.front, end)),
        begin(std::clamp(i + s.first_offset, front, end)) {}

  bool has(std::int64_t j) const { return j < front || (j >= begin && j < end); }

  std::int64_t end, front, begin;
};

Problem of_one_dimension(const Problem& p) {
  Problem made = p;
  made.dim = 1;
  made.options.scale = reference::scale_of(p);
  if (is_banded(p)) made.options.masks = {};
  return made;
}

}  // namespace

WideScores::WideScores(const Problem& p)
    : p_(of_one_dimension(p)),
      scale_(reference::scale_of(p)),
      is_scaled_only_(is_banded(p) && !p.options.softcap && !p.options.alibi && !p.bias) {}

reference::KeyScore WideScores::score(const WideQuery& at, double product, std::int64_t j) const {
  constexpr double one = 1;
  reference::KeyScore found = reference::score(p_, &product, &one, at.b, at.h, at.i, j);
  if (!Band(p_, sequence(at), at.i).has(j)) found.biased = -INFINITY;
  return found;
}

std::int64_t WideScores::first_key(const WideQuery& at) const { return Band(p_, sequence(at), at.i).begin; }

void WideScores::finish(const WideQuery& at, double* products, double* softcapped) const {
  const Band band(p_, sequence(at), at.i);
  std::fill(products + band.front, products + band.begin, -INFINITY);
  std::fill(products + band.end, products + sequence(at).keys, -INFINITY);
  finish(at, {0, band.front}, products, softcapped);
  finish(at, {band.begin, band.end}, products, softcapped);
}

void WideScores::finish(const WideQuery& at, const Keys& keys, double* products, double* softcapped) const {
  const double scale = scale_;
  if (is_scaled_only_)
    for (std::int64_t j = keys.begin; j < keys.end; ++j) products[j] *= scale;
  else
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const reference::KeyScore found = score(at, products[j], j);
      products[j] = found.biased;
      if (softcapped) softcapped[j] = found.softcapped;
    }
}

bool WideScores::are_known_to_have_no_sum(const WideQuery& at, const double* products) const {
  const Sequence& s = sequence(at);
  const Band band(p_, s, at.i);
  for (std::int64_t j = 0; !is_scaled_only_ && j < s.keys; ++j)
    if (!(products[j] * scale_ < INFINITY) && band.has(j) && !(score(at, products[j], j).biased < INFINITY))
      return true;
  return false;
}

}  // namespace heed::api
