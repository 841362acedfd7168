// SPDX-License-Identifier: Apache-2.0
// Joins two attention results over disjoint sets of keys, weighing each by the exponential of its
// log-sum-exp.
#include <cmath>

#include "heed/attention.hpp"
#include "problem/checks.hpp"
#include "reference/row.hpp"
#include "refusal/refusal.hpp"

namespace heed {
namespace {

void check_side(const char* name, const Outputs& side) {
  const std::string out = std::string(name) + ".out", lse = std::string(name) + ".log_sum_exp";
  check_view(out.c_str(), View(side.out));
  if (!side.log_sum_exp)
    throw refusal(Error::shape, lse.c_str(), ": not given; merge needs it to weigh the two results");
  check_view(lse.c_str(), View(*side.log_sum_exp));
  if (side.log_sum_exp->dtype != DType::f32)
    throw refusal(Error::dtype, lse.c_str(), ": ", name_of(side.log_sum_exp->dtype), " is not f32");
  Shape rows = side.out.shape;
  rows.dim = 1;
  if (!(side.log_sum_exp->shape == rows))
    throw refusal(Error::shape, lse.c_str(), ": ", in_words(side.log_sum_exp->shape).c_str(), " is not ",
                  in_words(rows).c_str(), ", one number per row of ", out.c_str());
  if (side.weights || side.scores.into)
    throw refusal(Error::unsupported, name,
                  ": weights and scores are over different keys and cannot be merged");
}

}  // namespace

void merge(const Outputs& into, const Outputs& other) {
  check_side("into", into);
  check_side("other", other);
  if (!(into.out.shape == other.out.shape))
    throw refusal(Error::shape, "other.out: ", in_words(other.out.shape).c_str(),
                  " is not the shape of into.out: ", in_words(into.out.shape).c_str());
  const Argument written[] = {{"into.out", View(into.out)}, {"into.log_sum_exp", View(*into.log_sum_exp)}};
  const Argument read_only[] = {{"other.out", View(other.out)},
                                {"other.log_sum_exp", View(*other.log_sum_exp)}};
  for (const Argument& output : written) {
    check_own_places(output);
    for (const Argument& input : read_only) check_apart(output, input);
  }
  check_apart(written[0], written[1]);
  const Shape n = into.out.shape;
  using reference::read, reference::write;
  for (std::int64_t b = 0; b < n.batch; ++b)
    for (std::int64_t h = 0; h < n.heads; ++h)
      for (std::int64_t i = 0; i < n.length; ++i) {
        const double ours = read(*into.log_sum_exp, b, h, i, 0),
                     theirs = read(*other.log_sum_exp, b, h, i, 0);
        if (theirs == -INFINITY) continue;  // it saw no key: nothing to add, and ours keeps its bits
        const double max = std::fmax(ours, theirs);
        const double a = std::exp(ours - max), z = std::exp(theirs - max), sum = a + z;
        for (std::int64_t d = 0; d < n.dim; ++d) {
          const double mine = a == 0 ? 0 : a * read(into.out, b, h, i, d);
          write(into.out, b, h, i, d, (mine + z * read(other.out, b, h, i, d)) / sum);
        }
        write(*into.log_sum_exp, b, h, i, 0, max + std::log(sum));
      }
}

}  // namespace heed
