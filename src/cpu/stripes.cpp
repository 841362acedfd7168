// SPDX-License-Identifier: Apache-2.0
#include "cpu/stripes.hpp"

#include <memory>

namespace heed::cpu {

Stripes::Stripes(std::span<const QueryTask> tasks, const SharedMask& mask, void* memory) {
  auto* const first = static_cast<Stripe*>(memory);
  Stripe* end = first;
  for (std::size_t n = 0; n < tasks.size(); ++n) {
    const auto is_of_last = [&](const Rows& rows, const Rows& last) {
      return mask.owner(rows.batch_entry) == mask.owner(last.batch_entry) &&
             rows.first_query == last.first_query;
    };
    const bool goes_on = n > 0 && is_of_last(tasks[n].rows, tasks[n - 1].rows);
    if (goes_on)
      ++end[-1].end;
    else
      std::construct_at(end++, static_cast<std::int64_t>(n), tasks[n]);
  }
  stripes_ = {first, end};
}

// Where most is left to do, but short tasks last, so that threads end together.
std::int64_t Stripes::fullest() const {
  std::size_t best = 0;
  const auto is_behind = [&](const Stripe& a, const Stripe& z) {  // whether a thread had better take one of z
    if (a.left() <= 0 || z.left() <= 0) return a.left() <= 0;
    return a.queries != z.queries ? a.queries < z.queries : a.left() * a.cost < z.left() * z.cost;
  };
  for (std::size_t n = 1; n < stripes_.size(); ++n)
    if (is_behind(stripes_[best], stripes_[n])) best = n;
  return static_cast<std::int64_t>(best);
}

// Threads on different stripes begin with different KV heads: they would wait for the same keys.
std::int64_t Stripes::take(std::int64_t& mine) const {
  for (;; mine = fullest()) {
    if (mine == none) continue;
    Stripe& stripe = stripes_[static_cast<std::size_t>(mine)];
    const std::int64_t n = stripe.taken.fetch_add(1, std::memory_order_relaxed),
                       length = stripe.end - stripe.begin;
    const std::int64_t first = mine * length / static_cast<std::int64_t>(stripes_.size());
    if (n < length) return stripe.begin + (n + first) % length;  // fault: task-taken-twice
  }
}

}  // namespace heed::cpu
