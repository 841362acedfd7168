// SPDX-License-Identifier: Apache-2.0
// Is a result right? Compares what a kernel wrote with the reference, element by element, under a bound that
// is computed from the inputs and never tuned (docs/bounds.md).
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "heed/attention.hpp"
#include "heed/export.hpp"
#include "heed/gradient.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

struct Check {
  std::int64_t compared = 0;  // elements of out, weights and log-sum-exp
  std::int64_t beyond_bound =
      0;  // how many of them miss the reference by more than their bound; NaN for NaN is a hit
  double worst_error = 0;            // largest |computed - reference| among finite pairs
  double worst_error_in_bounds = 0;  // largest |computed - reference| / bound; at most 1 when all is well
  std::string
      first_miss{};  // "out(0, 3, 17, 5) is 0.25, the reference says 0.5, the bound is 1e-07"; empty if none
};

// `computed` is what attention() wrote for these inputs and options, with any kernel. Costs what Expected
// does.
HEED_API Check check(const Inputs&, const Results& computed, const Options& = {});

// `computed` is what attention_backward() wrote for them, with any kernel; it must not have accumulated.
// Takes the time of the reference, on all threads where no bias or sink has a gradient.
HEED_API Check check(const Inputs&, const Saved&, const Gradients& computed, const Options& = {});

// How far the reference has come, told to the calling thread about a hundred times.
using Progress = std::function<void(std::int64_t rows, std::int64_t of)>;

// What the reference says to one problem, and the bound of every element: computed once, for any number of
// results.
class HEED_API Expected {
 public:
  // Of `results` only the extents and dtypes matter, and whether weights and log_sum_exp are there. Takes
  // queries * keys * dim time in double precision, on all threads; keeps 16 bytes for each element and
  // nothing of the inputs.
  Expected(const Inputs&, const Results& results, const Options& = {}, const Progress& = {});

  // Throws Error if `computed` has other results, extents or dtypes.
  Check check(const Results& computed) const;

 private:
  struct Numbers;
  std::shared_ptr<const Numbers> numbers_;
};

}  // namespace HEED_NAMESPACE
