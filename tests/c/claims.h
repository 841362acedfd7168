// SPDX-License-Identifier: Apache-2.0
// Claims in C: functions in tables, each counting what does not hold and saying where.
#ifndef HEED_TESTS_CLAIMS_H
#define HEED_TESTS_CLAIMS_H

#include <heed/c.h>

typedef struct claim {
  const char* name;
  void (*check)(void);
} claim;

// One table per file, ended by {0, 0}.
extern const claim attention_claims[], gradient_claims[], refusal_claims[], size_claims[], thread_claims[],
    cache_claims[], layer_claims[], rotary_claims[];

void expect(int holds, const char* text, const char* file, int line);
void expect_done(heed_status status, const char* text, const char* file, int line);
void expect_refused(heed_status status, heed_status wanted, const char* sentence, const char* file, int line);

#define EXPECT(condition) expect((condition) ? 1 : 0, #condition, __FILE__, __LINE__)
#define EXPECT_DONE(call) expect_done((call), #call, __FILE__, __LINE__)
#define EXPECT_REFUSED(call, status, sentence) \
  expect_refused((call), (status), (sentence), __FILE__, __LINE__)

#endif
