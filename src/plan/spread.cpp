// SPDX-License-Identifier: Apache-2.0
#include "plan/spread.hpp"

#include "plan/choice.hpp"

namespace heed::planning {
namespace {

const SpreadKernel& reference_of_spreads() {
  static const SpreadKernel only{
      "reference", Device::cpu, [] { return Reason(); },
      [](const Problem&) -> Reason { return [] { return std::string("it needs all keys at once"); }; },
      [](const Problem&, const Spread&) { return std::unique_ptr<SpreadDecode>(); }};
  return only;
}

const Kind<SpreadKernel>& spread_kind() {
  static const Kind<SpreadKernel> only{&Backend::spread_kernels, reference_of_spreads(),
                                       "is not a kernel for caches over ranks"};
  return only;
}

}  // namespace

std::unique_ptr<SpreadDecode> begin_spread(const Problem& problem, const Spread& spread) {
  return spread_kind().choose(problem, problem.options.kernel).begin(problem, spread);
}

}  // namespace heed::planning
