// SPDX-License-Identifier: Apache-2.0
#include "api/wide_scores.hpp"

#include <algorithm>

#include "reference/gradient.hpp"

namespace heed::api {
namespace {

// Causal, Window and KeyLengths alone are a band of keys, which a sequence has as two offsets.
bool is_banded(const Problem& p) { return p.gaps.empty() && p.bool_masks.empty() && p.documents.empty(); }

struct Band {
  Band(const Problem& p, const Sequence& s, std::int64_t i)
      : front(p.front), begin(i + s.first_offset), end(std::min(s.key_count, i + s.end_offset)) {}

  bool has(std::int64_t j) const { return j < end && (j >= begin || j < front); }

  std::int64_t front, begin, end;
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

void WideScores::finish(const WideQuery& at, double* products, double* softcapped) const {
  const Sequence& s = sequence(at);
  const Band band(p_, s, at.i);
  for (std::int64_t j = 0; j < s.keys; ++j) {
    if (!band.has(j)) {
      products[j] = -INFINITY;
    } else if (is_scaled_only_) {
      products[j] *= scale_;
    } else {
      const reference::KeyScore found = score(at, products[j], j);
      products[j] = found.biased;
      if (softcapped) softcapped[j] = found.softcapped;
    }
  }
}

bool WideScores::have_no_sum(const WideQuery& at, const double* products) const {
  const Sequence& s = sequence(at);
  const Band band(p_, s, at.i);
  for (std::int64_t j = 0; j < s.keys; ++j)
    if (!(products[j] * scale_ < INFINITY) && band.has(j) && !(score(at, products[j], j).biased < INFINITY))
      return true;
  return false;
}

}  // namespace heed::api
