// SPDX-License-Identifier: Apache-2.0
// The program on the README's first screen: three tokens, each attending to itself and those before it.
#include <cstdio>
#include <heed/heed.hpp>

int main() {
  const float q[] = {4, 0, 0, 4, 4, 4}, k[] = {1, 0, 0, 1, 1, 1}, v[] = {10, 20, 30};  // three tokens
  const heed::Shape wide{.length = 3, .dim = 2}, narrow{.length = 3, .dim = 1};
  float out[3];
  heed::attention({.q = {q, wide, bhsd(wide)}, .k = {k, wide, bhsd(wide)}, .v = {v, narrow, bhsd(narrow)}},
                  {.out = {out, narrow, bhsd(narrow)}}, {.masks = {heed::Causal{}}});
  for (float y : out) std::printf("%.3f\n", y);
}
