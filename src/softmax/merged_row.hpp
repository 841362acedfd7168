// SPDX-License-Identifier: Apache-2.0
// Two finished results for one row, over disjoint keys, as one (S12). A finished row is a state whose sum is
// 1 and whose maximum is the log-sum-exp.
#pragma once
#include <algorithm>
#include <cmath>

#include "softmax/state.hpp"

namespace heed::softmax {

struct Double {
  using F = double;
  static F fill(float x) { return static_cast<double>(x); }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F fma(F a, F b, F c) { return a * b + c; }  // rounded twice: the same in either order
  static F max(F a, F b) { return a > b || std::isnan(a) ? a : b; }
  static F less(F a, F b, F then, F otherwise) { return a < b ? then : otherwise; }
};

class MergedRow {
 public:
  MergedRow(double our_log_sum_exp, double their_log_sum_exp)
      : ours_(our_log_sum_exp),
        theirs_(their_log_sum_exp),
        merging_(merging<Double>(ours_ * log2_e, theirs_ * log2_e, [](double x) { return std::exp2(x); })) {}

  // A side that saw no key adds nothing, whatever its output: the other keeps its bits.
  bool is_ours() const { return theirs_ == -INFINITY; }
  bool is_theirs() const { return ours_ == -INFINITY; }

  // NaN and two log-sum-exps of +inf cannot be weighed; one of +inf outweighs every number, but NaN in an
  // output that weighs 0 is NaN.
  double out(double our, double their) const {
    if (is_ours() || is_theirs()) return is_ours() ? our : their;
    const bool can_be_weighed = !std::isnan(theirs_ - ours_);
    return merging_(our, their) / (can_be_weighed ? merging_(1, 1) : NAN);
  }
  double log_sum_exp() const {
    if (is_ours() || is_theirs()) return is_ours() ? ours_ : theirs_;
    return Double::max(ours_, theirs_) + std::log1p(std::min(merging_.ours, merging_.theirs));
  }

 private:
  double ours_, theirs_;
  Merging<Double> merging_;
};

}  // namespace heed::softmax
