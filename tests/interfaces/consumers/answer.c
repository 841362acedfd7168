// SPDX-License-Identifier: Apache-2.0
// The same as answer.cpp in a program that knows no C++.
#include <heed/c.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const float q[] = {0, 0}, k[] = {1, 2, 3, 4}, v[] = {10, 20};
  float out = 0;
  const heed_inputs inputs = {.size = sizeof inputs,
                              .q = {.data = q, .shape = {1, 1, 1, 2}},
                              .k = {.data = k, .shape = {1, 1, 2, 2}},
                              .v = {.data = v, .shape = {1, 1, 2, 1}}};
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = &out, .shape = {1, 1, 1, 1}}};
  const heed_status status = heed_attention(&inputs, &outputs, NULL);
  printf("heed %s: %g %s\n", heed_version(), (double)out, heed_last_error());
  return status == HEED_OK && out == 15 && strcmp(heed_version(), EXPECTED_VERSION) == 0 ? 0 : 1;
}
