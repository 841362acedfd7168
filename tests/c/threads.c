// SPDX-License-Identifier: Apache-2.0
// Each thread has its own last error.
#include <pthread.h>
#include <string.h>

#include "claims.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int arrived = 0;

// Nobody goes on before all four threads have failed.
static void wait_for_all(void) {
  pthread_mutex_lock(&mutex);
  ++arrived;
  pthread_cond_broadcast(&moved);
  while (arrived < 4) pthread_cond_wait(&moved, &mutex);
  pthread_mutex_unlock(&mutex);
}

static void* fail_in_an_own_way(void* number) {
  static const char* const sentences[] = {
      "threads: -1 is outside [1, 4096]", "threads: -2 is outside [1, 4096]",
      "threads: -3 is outside [1, 4096]", "threads: -4 is outside [1, 4096]"};
  const int own = *(const int*)number;
  const heed_status status = heed_set_num_threads(-1 - own);
  wait_for_all();
  return status == HEED_ERROR_VALUE && strcmp(heed_last_error(), sentences[own]) == 0 ? number : NULL;
}

static void each_thread_has_its_own_last_error(void) {
  EXPECT(heed_set_num_threads(0) == HEED_ERROR_VALUE);
  pthread_t threads[4];
  int numbers[] = {0, 1, 2, 3};
  for (int i = 0; i < 4; ++i) EXPECT(pthread_create(&threads[i], NULL, fail_in_an_own_way, &numbers[i]) == 0);
  for (int i = 0; i < 4; ++i) {
    void* held = NULL;
    pthread_join(threads[i], &held);
    EXPECT(held == &numbers[i]);
  }
  EXPECT(strcmp(heed_last_error(), "threads: 0 is outside [1, 4096]") == 0);
}

const claim thread_claims[] = {
    {"each_thread_has_its_own_last_error", each_thread_has_its_own_last_error},
    {0, 0},
};
