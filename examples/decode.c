// SPDX-License-Identifier: Apache-2.0
// In C: a sequence that grows token by token in a cache, and two continuations of it that share its memory.
#include <heed/c.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 4, KV_HEADS = 2, DIM = 16, PROMPT = 12 };

// Every call answers with a status; the sentence says what was wrong.
static void check(heed_status status) {
  if (status == HEED_OK) return;
  fprintf(stderr, "heed: %s\n", heed_last_error());
  exit(1);
}

// Stands in for a model's projections.
static void fill(float* numbers, int count, int seed) {
  for (int i = 0; i < count; ++i) numbers[i] = sinf((float)(i + 1) * (float)(seed + 1));
}

// Appends the keys and values of some tokens to a sequence, and lets their queries look at all of it.
static void attend(heed_cache* cache, int64_t sequence, int tokens, int seed, float* out) {
  static float q[HEADS * PROMPT * DIM], k[KV_HEADS * PROMPT * DIM], v[KV_HEADS * PROMPT * DIM];
  fill(q, HEADS * tokens * DIM, seed);
  fill(k, KV_HEADS * tokens * DIM, seed + 100);
  fill(v, KV_HEADS * tokens * DIM, seed + 200);
  const heed_view keys = {.data = k, .shape = {1, KV_HEADS, tokens, DIM}};
  const heed_view values = {.data = v, .shape = {1, KV_HEADS, tokens, DIM}};
  check(heed_cache_append_to(cache, sequence, &keys, &values));

  const heed_inputs inputs = {.size = sizeof inputs,
                              .q = {.data = q, .shape = {1, HEADS, tokens, DIM}},
                              .cache = cache,
                              .sequences = {&sequence, 1}};
  const heed_outputs outputs = {.size = sizeof outputs,
                                .out = {.data = out, .shape = {1, HEADS, tokens, DIM}}};
  const heed_mask causal = {.kind = HEED_MASK_CAUSAL};
  const heed_options options = {.size = sizeof options, .masks = {&causal, 1, sizeof causal}};
  check(heed_attention(&inputs, &outputs, &options));
}

int main(void) {
  const heed_cache_config config = {
      .size = sizeof config, .kv_heads = KV_HEADS, .capacity = 256, .dim = DIM, .page_size = 16, .pages = 32};
  heed_cache* cache = NULL;
  check(heed_cache_create(&config, &cache));

  float out[HEADS * PROMPT * DIM];
  attend(cache, 0, PROMPT, 1, out);
  printf("prompt: %d tokens, first answer %9.6f\n", PROMPT, out[0]);

  int64_t other = 0;
  check(heed_cache_fork(cache, 0, &other));
  for (int step = 0; step < 3; ++step) {
    attend(cache, 0, 1, 10 + step, out);
    const float here = out[0];
    attend(cache, other, 1, 20 + step, out);
    printf("token %d: %9.6f in one continuation, %9.6f in the other\n", PROMPT + step, here, out[0]);
  }

  check(heed_cache_truncate(cache, other, PROMPT));  // the second one is thought over
  int64_t lengths[2];
  size_t sequences = 0;
  check(heed_cache_lengths(cache, lengths, 2, &sequences));
  printf("lengths: %lld and %lld\n", (long long)lengths[0], (long long)lengths[1]);
  heed_cache_destroy(cache);
}
