// SPDX-License-Identifier: Apache-2.0
// Three bare views do not say which is written.
#include "heed/attention.hpp"

void call(const heed::View& q, const heed::View& k, const heed::View& v,
          [[maybe_unused]] const heed::MutableView& out) {
#ifdef FIXED
  heed::attention({.q = q, .k = k, .v = v}, {.out = out});
#else
  heed::attention(q, k, v);
#endif
}
