// SPDX-License-Identifier: Apache-2.0
// Compiled against 0.1, or with a standard library of another kind, this must not link: it would hand over
// structs that the library takes for others.
#ifdef FIXED
#include <heed/heed.hpp>
#else
#include "heed_0_1.hpp"
#endif

int main() {
  try {
    heed::attention({}, {}, {});
  } catch (const heed::Error&) {
    return 0;
  }
  return 1;
}
