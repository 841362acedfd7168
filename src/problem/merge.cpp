// SPDX-License-Identifier: Apache-2.0
// Joins two attention results over disjoint sets of keys, weighing each by the exponential of its
// log-sum-exp.
#include <algorithm>
#include <cmath>

#include "heed/attention.hpp"
#include "problem/checks.hpp"
#include "reference/row.hpp"
#include "refusal/refusal.hpp"

namespace heed::inline v0_2 {
namespace {

Error cannot_merge(const char* name) {
  return refusal(Error::unsupported, name,
                 ": weights and scores are over different keys and cannot be merged");
}

void check_side(const char* name, const Results& side) {
  const std::string out = std::string(name) + ".out", lse = std::string(name) + ".log_sum_exp";
  check_argument({out.c_str(), side.out});
  if (!side.log_sum_exp)
    throw refusal(Error::shape, lse.c_str(), ": not given; merge needs it to weigh the two results");
  check_argument({lse.c_str(), *side.log_sum_exp});
  if (side.log_sum_exp->dtype != DType::f32)
    throw refusal(Error::dtype, lse.c_str(), ": ", name_of(side.log_sum_exp->dtype), " is not f32");
  Shape rows = side.out.shape;
  rows.dim = 1;
  if (!(side.log_sum_exp->shape == rows))
    throw refusal(Error::shape, lse.c_str(), ": ", in_words(side.log_sum_exp->shape).c_str(), " is not ",
                  in_words(rows).c_str(), ", one number per row of ", out.c_str());
  if (side.weights) throw cannot_merge(name);
}

// S12. A side that saw no key adds nothing and is not read: the other keeps its bits. NaN and +inf need no
// case of their own: +inf outweighs every number, two of them are NaN apart and so are their weights, and NaN
// in an output that weighs 0 is NaN.
void merge_row(const Outputs& into, const Results& other, std::int64_t b, std::int64_t h, std::int64_t i) {
  using reference::read, reference::write;
  const double ours = read(*into.log_sum_exp, b, h, i, 0), theirs = read(*other.log_sum_exp, b, h, i, 0);
  if (theirs == -INFINITY) return;
  const bool alone = ours == -INFINITY;
  const double apart = theirs - ours, ours_weigh = 1 / (1 + std::exp(apart)),
               theirs_weigh = 1 / (1 + std::exp(-apart));
  for (std::int64_t d = 0; d < into.out.shape.dim; ++d) {
    const double z = read(other.out, b, h, i, d);
    write(into.out, b, h, i, d, alone ? z : ours_weigh * read(into.out, b, h, i, d) + theirs_weigh * z);
  }
  const double both =
      ours == theirs ? ours + std::log(2.0) : std::max(ours, theirs) + std::log1p(std::exp(-std::abs(apart)));
  write(*into.log_sum_exp, b, h, i, 0, alone ? theirs : both);
}

}  // namespace

void merge(const Outputs& into, const Results& other) {
  check_side("into", into);
  if (into.scores.into) throw cannot_merge("into");
  check_side("other", other);
  if (!(into.out.shape == other.out.shape))
    throw refusal(Error::shape, "other.out: ", in_words(other.out.shape).c_str(),
                  " is not the shape of into.out: ", in_words(into.out.shape).c_str());
  Arguments arguments;
  arguments.add("into.log_sum_exp", *into.log_sum_exp, {.use = Rule::written});
  arguments.add("into.out", into.out, {.use = Rule::written});
  arguments.add("other.out", other.out);
  arguments.add("other.log_sum_exp", *other.log_sum_exp);
  check_overlap(arguments.all());
  const Shape n = into.out.shape;
  for (std::int64_t b = 0; b < n.batch; ++b)
    for (std::int64_t h = 0; h < n.heads; ++h)
      for (std::int64_t i = 0; i < n.length; ++i) merge_row(into, other, b, h, i);
}

}  // namespace heed::inline v0_2
