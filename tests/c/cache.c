// SPDX-License-Identifier: Apache-2.0
// The life of a cache.
#include <stdio.h>
#include <string.h>

#include "claims.h"

// One head of one dimension, so that equal scores make averages of the values.
static const float zero[4], values[] = {10, 20, 30, 40};

static heed_cache* new_cache(int64_t batch, int64_t page_size) {
  const heed_cache_config config = {
      .size = sizeof config, .batch = batch, .kv_heads = 1, .capacity = 32, .dim = 1, .page_size = page_size};
  heed_cache* cache = NULL;
  EXPECT_DONE(heed_cache_create(&config, &cache));
  return cache;
}

static heed_status append_to(heed_cache* cache, int64_t sequence, const float* first, int64_t tokens) {
  const heed_view k = {.data = zero, .shape = {1, 1, tokens, 1}},
                  v = {.data = first, .shape = {1, 1, tokens, 1}};
  return heed_cache_append_to(cache, sequence, &k, &v);
}

// What one query sees of a sequence.
static float answer(const heed_cache* cache, int64_t sequence) {
  float out = -1;
  const heed_inputs inputs = {.size = sizeof inputs,
                              .q = {.data = zero, .shape = {1, 1, 1, 1}},
                              .cache = cache,
                              .sequences = {&sequence, 1}};
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = &out, .shape = {1, 1, 1, 1}}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  return out;
}

static int64_t length_of(const heed_cache* cache, int64_t sequence) {
  int64_t length = -1;
  EXPECT_DONE(heed_cache_length(cache, sequence, &length));
  return length;
}

static void sequences_grow_shrink_and_part(void) {
  heed_cache* cache = new_cache(0, 0);  // one sequence, one page
  EXPECT_DONE(append_to(cache, 0, values, 2));
  EXPECT(answer(cache, 0) == 15);
  EXPECT_DONE(append_to(cache, 0, values + 2, 1));
  EXPECT(answer(cache, 0) == 20);
  EXPECT_DONE(heed_cache_truncate(cache, 0, 1));
  EXPECT(answer(cache, 0) == 10 && length_of(cache, 0) == 1);
  heed_cache_destroy(cache);
  heed_cache_destroy(NULL);
}

static void forks_go_their_own_ways(void) {
  const heed_cache_config config = {.size = sizeof config,
                                    .batch = 1,
                                    .kv_heads = 1,
                                    .capacity = 32,
                                    .dim = 1,
                                    .page_size = 16,
                                    .pages = 8};
  heed_cache* cache = NULL;
  EXPECT_DONE(heed_cache_create(&config, &cache));
  EXPECT_DONE(append_to(cache, 0, values, 2));
  int64_t fork = -1, fresh = -1;
  EXPECT_DONE(heed_cache_fork(cache, 0, &fork));
  EXPECT_DONE(heed_cache_add(cache, &fresh));
  EXPECT(fork == 1 && fresh == 2);
  EXPECT_DONE(append_to(cache, fork, values + 2, 1));
  EXPECT(answer(cache, 0) == 15 && answer(cache, fork) == 20);
  EXPECT_DONE(heed_cache_release(cache, 0));

  int64_t lengths[3] = {9, 9, 9};
  size_t sequences = 0;
  EXPECT_DONE(heed_cache_lengths(cache, NULL, 0, &sequences));
  EXPECT(sequences == 3);
  EXPECT_DONE(heed_cache_lengths(cache, lengths, 3, &sequences));
  EXPECT(lengths[0] == -1 && lengths[1] == 3 && lengths[2] == 0);
  EXPECT_REFUSED(heed_cache_lengths(cache, lengths, 2, &sequences), HEED_ERROR_SHAPE,
                 "room: 2 lengths are fewer than the cache's sequences: 3");
  heed_cache_destroy(cache);
}

static void a_batch_appends_as_many_as_each_has(void) {
  heed_cache* cache = new_cache(2, 0);
  const heed_view k = {.data = zero, .shape = {2, 1, 2, 1}}, v = {.data = values, .shape = {2, 1, 2, 1}};
  const int64_t counts[] = {2, 1};
  const heed_int64s counted = {counts, 2};
  EXPECT_DONE(heed_cache_append(cache, &k, &v, &counted));
  EXPECT(answer(cache, 0) == 15 && answer(cache, 1) == 30);
  EXPECT_DONE(heed_cache_append(cache, &k, &v, NULL));
  EXPECT(length_of(cache, 0) == 4 && length_of(cache, 1) == 3);
  heed_cache_destroy(cache);
}

static void what_a_cache_holds_can_be_read(void) {
  heed_cache* cache = new_cache(0, 0);
  EXPECT_DONE(append_to(cache, 0, values, 4));
  float keys[4] = {1, 1, 1, 1}, read[4] = {0};
  const heed_mutable_view k = {.data = keys, .shape = {1, 1, 4, 1}},
                          v = {.data = read, .shape = {1, 1, 4, 1}};
  EXPECT_DONE(heed_cache_read(cache, 0, &k, &v));
  EXPECT(memcmp(keys, zero, sizeof keys) == 0 && memcmp(read, values, sizeof read) == 0);
  heed_cache_destroy(cache);
}

static void a_saved_cache_comes_back(void) {
  const char* const path = "c-cache.heed";
  heed_cache *cache = new_cache(0, 0), *loaded = NULL;
  EXPECT_DONE(append_to(cache, 0, values, 3));
  EXPECT_DONE(heed_cache_save(cache, path));
  heed_cache_destroy(cache);
  EXPECT_DONE(heed_cache_load(path, &loaded));
  EXPECT(answer(loaded, 0) == 20);
  heed_cache_destroy(loaded);
  EXPECT(remove(path) == 0);

  heed_cache* none = NULL;
  EXPECT(heed_cache_load(path, &none) == HEED_ERROR_FILE && none == NULL);
  EXPECT(strncmp(heed_last_error(), path, strlen(path)) == 0);
}

static void a_refused_append_changes_nothing(void) {
  heed_cache* cache = new_cache(0, 0);
  EXPECT_DONE(append_to(cache, 0, values, 1));
  float many[32] = {0};
  const heed_view tokens = {.data = many, .shape = {1, 1, 32, 1}};
  EXPECT_REFUSED(heed_cache_append_to(cache, 0, &tokens, &tokens), HEED_ERROR_CAPACITY,
                 "sequence 0 holds 1 of 32 tokens; 32 more do not fit");
  EXPECT_REFUSED(heed_cache_append_to(cache, 7, &tokens, &tokens), HEED_ERROR_VALUE,
                 "sequence: 7 is not in [0, 1)");
  EXPECT_REFUSED(heed_cache_append(cache, NULL, &tokens, NULL), HEED_ERROR_VALUE, "k: NULL");
  EXPECT(length_of(cache, 0) == 1 && answer(cache, 0) == 10);
  heed_cache_destroy(cache);
}

static void configurations_are_refused_in_their_own_words(void) {
  heed_cache* cache = NULL;
  heed_cache_config config = {.size = sizeof config, .kv_heads = 1, .capacity = 16, .dim = 2, .type = 4};
  EXPECT_REFUSED(heed_cache_create(&config, &cache), HEED_ERROR_VALUE,
                 "config.type: 4 is none of HEED_CACHE_TYPE_F32, HEED_CACHE_TYPE_F16, HEED_CACHE_TYPE_BF16, "
                 "HEED_CACHE_TYPE_INT8");
  config.type = HEED_CACHE_TYPE_INT8;
  config.window.front = 4;
  EXPECT(heed_cache_create(&config, &cache) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "config.window.length: 0 is not in [1, ", 38) == 0);
  config.window.front = 0;
  const heed_rotary rotary = {.size = sizeof rotary, .dims = 3};
  config.rotary = &rotary;
  EXPECT_REFUSED(heed_cache_create(&config, &cache), HEED_ERROR_VALUE,
                 "config.rotary.dims: 3 is not a positive even number");
  config.rotary = NULL;
  config.rotary_when = HEED_ROTARY_WHEN_READ;
  EXPECT_REFUSED(heed_cache_create(&config, &cache), HEED_ERROR_VALUE,
                 "config.rotary_when: given, but rotary is not");
  EXPECT(cache == NULL);
}

const claim cache_claims[] = {
    {"sequences_grow_shrink_and_part", sequences_grow_shrink_and_part},
    {"forks_go_their_own_ways", forks_go_their_own_ways},
    {"a_batch_appends_as_many_as_each_has", a_batch_appends_as_many_as_each_has},
    {"what_a_cache_holds_can_be_read", what_a_cache_holds_can_be_read},
    {"a_saved_cache_comes_back", a_saved_cache_comes_back},
    {"a_refused_append_changes_nothing", a_refused_append_changes_nothing},
    {"configurations_are_refused_in_their_own_words", configurations_are_refused_in_their_own_words},
    {0, 0},
};
