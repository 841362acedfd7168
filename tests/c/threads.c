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

static pthread_key_t key;
static char last_words[3][300];

static void copy_last_error(char* into) { strncpy(into, heed_last_error(), sizeof *last_words - 1); }

// Runs when the thread's C++ objects are gone; on Windows, before.
static void fail_at_the_end(void* thread) {
  (void)thread;
  const char* const kernel =
      "a name that is far too long for the room that is left to a thread which has given back its memory, as "
      "those of kernels are not: they say what they are for and which instructions they are made of, and "
      "that "
      "in three words, so that this one cannot be theirs";
  copy_last_error(last_words[0]);
  if (heed_set_num_threads(-9) == HEED_ERROR_VALUE) copy_last_error(last_words[1]);
  const float number = 1;
  float out = 0;
  const heed_view one = {.data = &number, .shape = {1, 1, 1, 1}};
  const heed_inputs inputs = {.size = sizeof inputs, .q = one, .k = one, .v = one};
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = &out, .shape = {1, 1, 1, 1}}};
  const heed_options options = {.size = sizeof options, .kernel = kernel};
  if (heed_attention(&inputs, &outputs, &options) == HEED_ERROR_UNSUPPORTED) copy_last_error(last_words[2]);
}

static void* fail_and_end(void* number) {
  pthread_setspecific(key, number);
  return heed_set_num_threads(-1) == HEED_ERROR_VALUE ? number : NULL;
}

static void a_thread_that_ends_is_told_why_its_calls_failed(void) {
  int number = 0;
  void* held = NULL;
  pthread_t thread;
  EXPECT(pthread_key_create(&key, fail_at_the_end) == 0);
  EXPECT(pthread_create(&thread, NULL, fail_and_end, &number) == 0);
  pthread_join(thread, &held);
  pthread_key_delete(key);
  EXPECT(held == &number);
#ifdef _WIN32
  const char* const before = "threads: -1 is outside [1, 4096]";
  const size_t room = sizeof *last_words - 1;
#else
  const char* const before = "";
  const size_t room = 255;
#endif
  EXPECT(strcmp(last_words[0], before) == 0);
  EXPECT(strcmp(last_words[1], "threads: -9 is outside [1, 4096]") == 0);
  EXPECT(strlen(last_words[2]) == room && strncmp(last_words[2], "options.kernel: \"a name ", 24) == 0);
}

typedef struct runs {
  int runs;
  size_t tasks;
} runs;

static void run_backwards(void* context, size_t tasks, void (*task)(void* state, size_t i), void* state) {
  runs* const counted = context;
  ++counted->runs;
  counted->tasks += tasks;
  for (size_t i = tasks; i-- > 0;) task(state, i);
}

static void threads_of_the_callers_run_what_heed_computes(void) {
  enum { tokens = 600 };
  static float numbers[tokens * 16], own[tokens * 16], found[tokens * 16];
  for (int i = 0; i < tokens * 16; ++i) numbers[i] = (float)(i * 37 % 64) / 32 - 1;
  const heed_view rows = {.data = numbers, .shape = {1, 2, tokens, 8}};
  const heed_inputs inputs = {.size = sizeof inputs, .q = rows, .k = rows, .v = rows};
  heed_outputs outputs = {.size = sizeof outputs, .out = {.data = own, .shape = rows.shape}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));

  runs counted = {0, 0};
  const heed_executor_config config = {
      .size = sizeof config, .context = &counted, .run = run_backwards, .concurrency = 3};
  heed_executor* executor = NULL;
  EXPECT_DONE(heed_executor_create(&config, &executor));
  const heed_options of_one_call = {.size = sizeof of_one_call, .executor = executor};
  outputs.out.data = found;
  EXPECT_DONE(heed_attention(&inputs, &outputs, &of_one_call));
  EXPECT(counted.runs > 0 && counted.tasks > 1 && memcmp(own, found, sizeof own) == 0);
  counted.runs = 0;
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  EXPECT(counted.runs == 0);
  EXPECT_DONE(heed_set_executor(executor));
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  EXPECT(counted.runs > 0);
  EXPECT_DONE(heed_set_executor(NULL));
  heed_executor_destroy(executor);
  heed_executor_destroy(NULL);

  heed_executor* none = NULL;
  const heed_executor_config idle = {.size = sizeof idle};
  EXPECT_REFUSED(heed_executor_create(&idle, &none), HEED_ERROR_VALUE, "config.run: NULL");
  heed_executor_config negative = config;
  negative.concurrency = -1;
  EXPECT_REFUSED(heed_executor_create(&negative, &none), HEED_ERROR_VALUE,
                 "config.concurrency: -1 is negative");
  EXPECT(none == NULL);
}

const claim thread_claims[] = {
    {"each_thread_has_its_own_last_error", each_thread_has_its_own_last_error},
    {"a_thread_that_ends_is_told_why_its_calls_failed", a_thread_that_ends_is_told_why_its_calls_failed},
    {"threads_of_the_callers_run_what_heed_computes", threads_of_the_callers_run_what_heed_computes},
    {0, 0},
};
