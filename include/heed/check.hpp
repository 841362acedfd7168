// SPDX-License-Identifier: Apache-2.0
// Is a result right? Compares what a kernel wrote with the reference, element by element, under a bound that
// is computed from the inputs and never tuned (docs/numerics.md).
#pragma once
#include <cstdint>
#include <string>

#include "heed/attention.hpp"

namespace heed {

struct Check {
  std::int64_t compared = 0;  // elements of out, weights and log-sum-exp
  std::int64_t beyond_bound =
      0;  // how many of them miss the reference by more than their bound; NaN for NaN is a hit
  double worst_error = 0;            // largest |computed - reference| among finite pairs
  double worst_error_in_bounds = 0;  // largest |computed - reference| / bound; at most 1 when all is well
  std::string
      first_miss{};  // "out(0, 3, 17, 5) is 0.25, the reference says 0.5, the bound is 1e-7"; empty if none
};

// `computed` is what attention() wrote for these inputs and options, with any kernel. Costs queries * keys *
// dim time in double precision, and memory for one row.
Check check(const Inputs&, const Outputs& computed, const Options& = {});

}  // namespace heed
