// SPDX-License-Identifier: Apache-2.0
// ALiBi (S21): one finite slope per query head, or per batch entry and head, and queries that stand somewhere
// among the keys.
#include <cmath>

#include "lowering/checks.hpp"
#include "refusal/refusal.hpp"

namespace heed::lowering {

void check_slopes(std::span<const float> slopes, std::int64_t batch, std::int64_t heads) {
  const std::int64_t found = std::ssize(slopes), all = elements::product(batch, heads);
  if (found != heads && found != all)
    throw refusal(Error::shape, "options.alibi: ", found, " slopes are neither one per head: ", heads,
                  " nor one per batch entry and head: ", all);
  for (std::size_t h = 0; h < slopes.size(); ++h)
    if (!std::isfinite(slopes[h]))
      throw refusal(Error::value, "options.alibi.slopes[", static_cast<std::int64_t>(h), "]: ", slopes[h],
                    " is not a finite number");
}

void lower_alibi(Problem& p) {
  if (!p.options.alibi) return;
  const auto& [slopes, align] = *p.options.alibi;
  check_slopes(slopes, p.batch, p.heads);
  for (const Sequence& s : p.sequences) offset_of("options.alibi", align, p, s);
  p.alibi = {slopes.data(), std::ssize(slopes) == p.heads ? 0 : p.heads, align != Align::starts};
}

}  // namespace heed::lowering
