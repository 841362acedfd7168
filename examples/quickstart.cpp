// SPDX-License-Identifier: Apache-2.0
// The program on the README's first screen: three tokens, each attending to itself and those before it.
#include <cstdio>
#include <heed/heed.hpp>

int main() {
  const float q[] = {4, 0, 0, 4, 4, 4}, k[] = {1, 0, 0, 1, 1, 1}, v[] = {10, 20, 30};  // three tokens
  float out[3];
  heed::attention(
      {.q = {q, {.length = 3, .dim = 2}}, .k = {k, {.length = 3, .dim = 2}}, .v = {v, {.length = 3}}},
      {.out = {out, {.length = 3}}}, {.masks = {heed::Causal{}}});
  for (float y : out) std::printf("%.3f\n", y);
}
