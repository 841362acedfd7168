// SPDX-License-Identifier: Apache-2.0
// What every consumer project builds: one call that has to be linked, and a result that has to be right.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <heed/heed.hpp>

int main() {
  const float q[] = {0, 0}, k[] = {1, 2, 3, 4}, v[] = {10, 20};  // equal scores: the mean of the values
  float out = 0;
  heed::attention({.q = {q, {.dim = 2}}, .k = {k, {.length = 2, .dim = 2}}, .v = {v, {.length = 2}}},
                  {.out = {&out, {}}});
  std::printf("heed %s: %g\n", heed::version(), static_cast<double>(out));
  const bool right = std::fabs(out - 15) < 1e-5f && std::strcmp(heed::version(), EXPECTED_VERSION) == 0;
  return right ? 0 : 1;
}
