// SPDX-License-Identifier: Apache-2.0
// The domains of the numbers and enumerations a caller chooses.
#include <cmath>

#include "lowering/checks.hpp"
#include "refusal/refusal.hpp"
#include "threads/allowed.hpp"

namespace heed::lowering {

void check_choices(const Outputs& outputs, const Options& options) {
  if (options.scale && !std::isfinite(*options.scale))
    throw refusal(Error::value, "options.scale: ", *options.scale, " is not a finite number");
  if (options.softcap && !(std::isfinite(*options.softcap) && *options.softcap > 0))
    throw refusal(Error::value, "options.softcap: ", *options.softcap, " is not a finite number above 0");
  if (options.dropout) {
    const float p = options.dropout->drop_probability;
    if (!(p >= 0 && p < 1))
      throw refusal(Error::value, "options.dropout.drop_probability: ", p, " is outside [0, 1)");
  }
  if (options.threads < 0 || options.threads > threads::max_threads)
    throw refusal(Error::value, "options.threads: ", std::int64_t{options.threads}, " is outside [0, ",
                  std::int64_t{threads::max_threads}, "]");
  if (options.head_map > HeadMap::tiled)
    throw refusal(Error::value, "options.head_map: ", static_cast<std::int64_t>(options.head_map),
                  " is none of interleaved, tiled");
  if (outputs.scores.stage > Stage::biased)
    throw refusal(Error::value, "scores.stage: ", static_cast<std::int64_t>(outputs.scores.stage),
                  " is none of raw, softcapped, biased");
}

}  // namespace heed::lowering
