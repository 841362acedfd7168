// SPDX-License-Identifier: Apache-2.0
// Runs every claim, or those whose names hold the argument.
#include "claims.h"

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void fail(const char* file, int line, const char* text) {
  ++failures;
  printf("%s:%d: %s\n", file, line, text);
}

void expect(int holds, const char* text, const char* file, int line) {
  if (!holds) fail(file, line, text);
}

void expect_done(heed_status status, const char* text, const char* file, int line) {
  if (status == HEED_OK && *heed_last_error() == '\0') return;
  fail(file, line, text);
  printf("  status %d: %s\n", (int)status, heed_last_error());
}

void expect_refused(heed_status status, heed_status wanted, const char* sentence, const char* file,
                    int line) {
  if (status == wanted && strcmp(heed_last_error(), sentence) == 0) return;
  fail(file, line, sentence);
  printf("  status %d: %s\n", (int)status, heed_last_error());
}

int main(int argc, char** argv) {
  const claim* const tables[] = {attention_claims, gradient_claims, refusal_claims, size_claims,
                                 thread_claims,    cache_claims,    layer_claims,   rotary_claims};
  int run = 0, failed = 0;
  for (size_t t = 0; t < sizeof tables / sizeof *tables; ++t)
    for (const claim* c = tables[t]; c->name; ++c) {
      if (argc > 1 && !strstr(c->name, argv[1])) continue;
      const int before = failures;
      c->check();
      ++run;
      if (failures > before) {
        ++failed;
        printf("FAILED: %s\n", c->name);
      }
    }
  printf("%d claims, %d failed\n", run, failed);
  return failed > 0 || run == 0;
}
