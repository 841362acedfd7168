// SPDX-License-Identifier: Apache-2.0
// What enters the softmax, made of products of queries and keys: all that rule S1 on add to them, as
// reference::score has it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "api/wide_rows.hpp"
#include "problem/problem.hpp"
#include "reference/row.hpp"

namespace heed::api {

// exp(x) is 0 below it.
constexpr double no_weight = -746;

struct WideQuery {
  std::int64_t b, h, i;
};

class WideScores {
 public:
  explicit WideScores(const Problem&);

  // In place of the products of a query with keys of this range, which has all that it sees; -inf where a key
  // is not seen. With a softcap also the scores before the bias, of keys that masks may show.
  void finish(const WideQuery&, const KeyRange&, double* products, double* softcapped = nullptr) const;

  // Whether a score is NaN or +inf because the product is, so that the sum of the row's weights is NaN. Not
  // looked for where finish() costs no more.
  bool are_known_to_have_no_sum(const WideQuery&, const double* products) const;

  // None of the queries sees a key outside.
  template <class Queries>
  KeyRange keys_of(const Queries& queries) const {
    KeyRange all = keys_of(WideQuery{queries.front().b, queries.front().h, queries.front().i});
    for (const auto& at : queries) {
      const KeyRange own = keys_of(WideQuery{at.b, at.h, at.i});
      all = {std::min(all.begin, own.begin), std::max(all.end, own.end)};
    }
    return all;
  }
  KeyRange keys_of(const WideQuery&) const;

  // Of one key.
  reference::KeyScore score(const WideQuery&, double product, std::int64_t j) const;

 private:
  void finish_seen(const WideQuery&, const KeyRange&, double* products, double* softcapped) const;
  void add_bias(const WideQuery&, const KeyRange&, double* scores) const;
  void hide(const BoolMask&, const WideQuery&, const KeyRange&, double* scores) const;
  const Sequence& sequence(const WideQuery& at) const { return p_.sequences[static_cast<std::size_t>(at.b)]; }

  const Problem p_;  // over heads of one dimension: a product is the query, and the key is 1
  const double scale_;
  const bool is_scaled_only_, has_plain_masks_;
};

}  // namespace heed::api
