// SPDX-License-Identifier: Apache-2.0
#include "cpu/merge.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cpu/element.hpp"

namespace heed::cpu {
namespace {

// How the two sides of a row weigh, by their log-sum-exps (S12). NaN and +inf need no case of their own: +inf
// outweighs every number, two of them are NaN apart and so are their weights, and NaN in an output that
// weighs 0 is NaN.
struct Sides {
  double ours, theirs;

  double apart() const { return theirs - ours; }
  double our_weight() const { return 1 / (1 + std::exp(apart())); }
  double their_weight() const { return 1 / (1 + std::exp(-apart())); }
  double log_sum_exp() const {
    if (ours == theirs) return ours + std::log(2.0);
    return std::max(ours, theirs) + std::log1p(std::exp(-std::abs(apart())));
  }
};

}  // namespace

// A side that saw no key adds nothing and is not read: the other keeps its bits.
void merge(const Outputs& into, const Results& other) {
  auto* const our_lse = static_cast<float*>(into.log_sum_exp->data);
  const auto* const their_lse = static_cast<const float*>(other.log_sum_exp->data);
  Shape rows = into.out.shape;
  const std::int64_t dim = std::exchange(rows.dim, 1);
  with_elements(into.out, [&]<class T>(T* ours) {
    with_elements(other.out, [&](const auto* theirs) {
      for_each_index(rows, [&](const Shape& at) {
        float& lse = our_lse[offset(into.log_sum_exp->stride, at)];
        const Sides sides{lse, their_lse[offset(other.log_sum_exp->stride, at)]};
        if (sides.theirs == -INFINITY) return;
        const bool alone = sides.ours == -INFINITY;
        const double our_weight = sides.our_weight(), their_weight = sides.their_weight();
        T* x = ours + offset(into.out.stride, at);
        const auto* z = theirs + offset(other.out.stride, at);
        for (std::int64_t d = 0; d < dim; ++d, x += into.out.stride.dim, z += other.out.stride.dim) {
          const double added = to_float(*z);
          const double sum = alone ? added : our_weight * to_float(*x) + their_weight * added;
          *x = from_float<T>(static_cast<float>(sum));
        }
        lse = static_cast<float>(alone ? sides.theirs : sides.log_sum_exp());
      });
    });
  });
}

}  // namespace heed::cpu
