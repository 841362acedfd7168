// SPDX-License-Identifier: Apache-2.0
#include "api/wide_scores.hpp"

#include <algorithm>
#include <cmath>

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

// Far from 0 it is 1 or -1, to the last bit.
double tanh_of(double x) { return x > 25 ? 1 : x < -25 ? -1 : std::tanh(x); }

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
      is_scaled_only_(is_banded(p) && !p.options.softcap && !p.options.alibi && !p.bias),
      has_plain_masks_(p.gaps.empty() && p.documents.empty()) {}

reference::KeyScore WideScores::score(const WideQuery& at, double product, std::int64_t j) const {
  constexpr double one = 1;
  reference::KeyScore found = reference::score(p_, &product, &one, at.b, at.h, at.i, j);
  if (!Band(p_, sequence(at), at.i).has(j)) found.biased = -INFINITY;
  return found;
}

KeyRange WideScores::keys_of(const WideQuery& at) const {
  const Band band(p_, sequence(at), at.i);
  return {band.front > 0 ? 0 : band.begin, band.end};
}

void WideScores::finish(const WideQuery& at, const KeyRange& keys, double* products,
                        double* softcapped) const {
  const Band band(p_, sequence(at), at.i);
  std::fill(products + std::max(band.front, keys.begin), products + std::max(band.begin, keys.begin),
            -INFINITY);
  std::fill(products + std::max(band.end, keys.begin), products + keys.end, -INFINITY);
  finish_seen(at, {0, band.front}, products, softcapped);
  finish_seen(at, {band.begin, band.end}, products, softcapped);
}

void WideScores::finish_seen(const WideQuery& at, const KeyRange& keys, double* products,
                             double* softcapped) const {
  if (!has_plain_masks_) {
    for (std::int64_t j = keys.begin; j < keys.end; ++j) {
      const reference::KeyScore found = score(at, products[j], j);
      products[j] = found.biased;
      if (softcapped) softcapped[j] = found.softcapped;
    }
    return;
  }
  const double scale = scale_, cap = p_.options.softcap.value_or(0);
  for (std::int64_t j = keys.begin; j < keys.end; ++j) products[j] *= scale;
  for (std::int64_t j = keys.begin; p_.options.softcap && j < keys.end; ++j) {
    products[j] = cap * tanh_of(products[j] / cap);
    if (softcapped) softcapped[j] = products[j];
  }
  for (std::int64_t j = keys.begin; p_.options.alibi && j < keys.end; ++j)
    products[j] += reference::alibi(p_, at.b, at.h, at.i, j);
  if (p_.bias) add_bias(at, keys, products);
  for (const BoolMask& mask : p_.bool_masks) hide(mask, at, keys, products);
}

void WideScores::add_bias(const WideQuery& at, const KeyRange& keys, double* scores) const {
  for (std::int64_t j = keys.begin; j < keys.end; ++j) {
    const double bias = reference::read(*p_.bias, at.b, at.h, sequence(at).first_query + at.i, j);
    scores[j] = bias == -INFINITY ? bias : scores[j] + bias;
  }
}

void WideScores::hide(const BoolMask& mask, const WideQuery& at, const KeyRange& keys, double* scores) const {
  const Sequence& s = sequence(at);
  const auto* const row = reinterpret_cast<const unsigned char*>(mask.data) + at.b * mask.stride.batch +
                          at.h * mask.stride.heads + (s.first_query + at.i) * mask.stride.length;
  const std::int64_t first = mask.is_tree ? s.keys - s.queries : 0;
  for (std::int64_t j = std::max(keys.begin, first); j < keys.end; ++j)
    if ((row[(j - first) * mask.stride.dim] != 0) != mask.visible_when) scores[j] = -INFINITY;
}

bool WideScores::are_known_to_have_no_sum(const WideQuery& at, const double* products) const {
  const Band band(p_, sequence(at), at.i);
  for (std::int64_t j = keys_of(at).begin; !is_scaled_only_ && j < band.end; ++j)
    if (!(products[j] * scale_ < INFINITY) && band.has(j) && !(score(at, products[j], j).biased < INFINITY))
      return true;
  return false;
}

}  // namespace heed::api
