// SPDX-License-Identifier: Apache-2.0
// ALiBi (S21): one finite slope per query head, and queries that stand somewhere among the keys.
#include <cmath>

#include "lowering/checks.hpp"
#include "refusal/refusal.hpp"

namespace heed::lowering {

void lower_alibi(Problem& p) {
  if (!p.options.alibi) return;
  const auto& [slopes, align] = *p.options.alibi;
  if (std::ssize(slopes) != p.heads)
    throw refusal(Error::shape, "options.alibi: ", std::ssize(slopes), " slopes for q.heads: ", p.heads);
  for (std::size_t h = 0; h < slopes.size(); ++h)
    if (!std::isfinite(slopes[h]))
      throw refusal(Error::value, "options.alibi.slopes[", static_cast<std::int64_t>(h), "]: ", slopes[h],
                    " is not a finite number");
  for (const Sequence& s : p.sequences) offset_of("options.alibi", align, p, s);
  p.alibi = {slopes.data(), align != Align::starts};
}

}  // namespace heed::lowering
