// SPDX-License-Identifier: Apache-2.0
// The layer: from weights in memory, from a file, and over a cache.
#include <stdio.h>
#include <string.h>

#include "claims.h"

// Queries of 0 make all scores equal; keys, values and outputs are x itself. So each token becomes the
// average of those it sees.
static const float nothing[4], same[] = {1, 0, 0, 1}, x[] = {10, 1, 20, 3, 30, 8};
static const float averages[] = {10, 1, 15, 2, 20, 4};
static const heed_layer_config config = {.size = sizeof config, .model_dim = 2, .heads = 1};

static heed_view matrix(const float* data) {
  const heed_view view = {.data = data, .shape = {1, 1, 2, 2}};
  return view;
}

static heed_layer_weights weights(void) {
  const heed_layer_weights made = {.size = sizeof made,
                                   .w_q = matrix(nothing),
                                   .w_k = matrix(same),
                                   .w_v = matrix(same),
                                   .w_o = matrix(same)};
  return made;
}

static heed_layer* new_layer(void) {
  const heed_layer_weights w = weights();
  heed_layer* layer = NULL;
  EXPECT_DONE(heed_layer_create(&config, &w, &layer));
  return layer;
}

static const heed_mask causal = {.kind = HEED_MASK_CAUSAL};
static const heed_options masked = {.size = sizeof masked, .masks = {&causal, 1, sizeof causal}};

static heed_status run(const heed_layer* layer, const float* first, int64_t tokens, heed_cache* cache,
                       float* y) {
  const heed_call call = {
      .size = sizeof call, .x = {.data = first, .shape = {1, 1, tokens, 2}}, .cache = cache};
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = y, .shape = {1, 1, tokens, 2}}};
  return heed_layer_call(layer, &call, &outputs, &masked);
}

static void a_layer_computes_what_its_weights_say(void) {
  heed_layer* layer = new_layer();
  float y[6];
  EXPECT_DONE(run(layer, x, 3, NULL, y));
  EXPECT(memcmp(y, averages, sizeof y) == 0);
  heed_layer_destroy(layer);
  heed_layer_destroy(NULL);
}

static void weights_are_copied_whatever_their_strides_and_biases_are_added(void) {
  float interleaved[] = {1, 9, 0, 9, 0, 9, 1, 9}, bias[] = {100, 200};
  heed_layer_weights w = weights();
  w.w_v = (heed_view){
      .data = interleaved, .shape = {1, 1, 2, 2}, .stride = {0, 0, 4, 2}, .layout = HEED_LAYOUT_STRIDED};
  w.b_o = (heed_view){.data = bias, .shape = {1, 1, 1, 2}};
  heed_layer* layer = NULL;
  EXPECT_DONE(heed_layer_create(&config, &w, &layer));
  memset(interleaved, 0, sizeof interleaved);
  memset(bias, 0, sizeof bias);
  float y[6];
  EXPECT_DONE(run(layer, x, 3, NULL, y));
  for (int i = 0; i < 6; ++i) EXPECT(y[i] == averages[i] + (i % 2 == 0 ? 100 : 200));
  heed_layer_destroy(layer);
}

static void tokens_through_a_cache_are_answered_alike(void) {
  heed_layer* layer = new_layer();
  const heed_cache_config cached = {.size = sizeof cached, .kv_heads = 1, .capacity = 16, .dim = 2};
  heed_cache* cache = NULL;
  EXPECT_DONE(heed_cache_create(&cached, &cache));
  float y[6];
  EXPECT_DONE(run(layer, x, 2, cache, y));
  EXPECT_DONE(run(layer, x + 4, 1, cache, y + 4));
  EXPECT(memcmp(y, averages, sizeof y) == 0);
  heed_cache_destroy(cache);
  heed_layer_destroy(layer);
}

// A safetensors file: the length of the header, the header, the numbers.
static void write_file(const char* path) {
  static const char header[] =
      "{\"a.W_q.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
      "\"a.W_k.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[16,32]},"
      "\"a.W_v.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[32,48]},"
      "\"a.W_o.weight\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[48,64]}}";
  unsigned char length[8] = {0};
  for (size_t i = 0; i < sizeof length; ++i) length[i] = (unsigned char)((uint64_t)strlen(header) >> (8 * i));
  FILE* file = fopen(path, "wb");
  EXPECT(file != NULL);
  if (!file) return;
  fwrite(length, 1, sizeof length, file);
  fwrite(header, 1, strlen(header), file);
  fwrite(nothing, 1, sizeof nothing, file);
  for (int i = 0; i < 3; ++i) fwrite(same, 1, sizeof same, file);
  EXPECT(fclose(file) == 0);
}

static void a_layer_comes_from_a_file(void) {
  const char* const path = "c-layer.safetensors";
  write_file(path);
  heed_layer* layer = NULL;
  EXPECT_DONE(heed_layer_load(path, "a.", &config, &layer));
  float y[6];
  EXPECT_DONE(run(layer, x, 3, NULL, y));
  EXPECT(memcmp(y, averages, sizeof y) == 0);
  heed_layer_destroy(layer);

  heed_layer* none = NULL;
  EXPECT(heed_layer_load(path, NULL, &config, &none) == HEED_ERROR_VALUE && none == NULL);
  EXPECT(strncmp(heed_last_error(), "c-layer.safetensors: arrays: no W_q.weight", 42) == 0);
  EXPECT(strstr(heed_last_error(), "\"a.\""));
  EXPECT(remove(path) == 0);
  EXPECT_REFUSED(heed_layer_load(path, "a.", &config, &none), HEED_ERROR_FILE,
                 "c-layer.safetensors: cannot be opened: No such file or directory");
}

static void a_layer_tells_its_configuration(void) {
  heed_layer* layer = new_layer();
  heed_layer_config told = {.size = sizeof told};
  EXPECT_DONE(heed_layer_get_config(layer, &told));
  EXPECT(told.size == sizeof told && told.model_dim == 2 && told.heads == 1 && told.kv_heads == 1);
  EXPECT(told.head_dim == 2 && told.value_head_dim == 2 && told.key_dim == 2 && told.value_dim == 2);
  EXPECT(told.rotary == NULL);
  int64_t keys = -1;
  EXPECT_DONE(heed_layer_sliding_window(layer, &keys));
  EXPECT(keys == 0);
  heed_layer_destroy(layer);
}

static void a_layer_tells_a_caller_only_what_that_knows(void) {
  struct {
    heed_layer_config known;
    int64_t later;
  } more = {.known = {.size = sizeof more}, .later = 7};
  heed_layer* layer = new_layer();
  EXPECT_DONE(heed_layer_get_config(layer, &more.known));
  EXPECT(more.known.size == sizeof more && more.known.head_dim == 2 && more.later == 0);
  more.known.size = offsetof(heed_layer_config, head_dim);
  more.known.head_dim = 77;
  EXPECT_DONE(heed_layer_get_config(layer, &more.known));
  EXPECT(more.known.kv_heads == 1 && more.known.head_dim == 77);
  heed_layer_destroy(layer);
}

static void dropout_is_for_training(void) {
  heed_layer_config dropping = config;
  dropping.drop_probability = 0.5f;
  const heed_layer_weights w = weights();
  heed_layer* layer = NULL;
  EXPECT_DONE(heed_layer_create(&dropping, &w, &layer));
  float y[6];
  EXPECT_DONE(run(layer, x, 3, NULL, y));
  EXPECT(memcmp(y, averages, sizeof y) == 0);
  EXPECT_DONE(heed_layer_set_mode(layer, HEED_MODE_TRAIN));
  EXPECT_DONE(run(layer, x, 3, NULL, y));
  EXPECT(memcmp(y, averages, sizeof y) != 0);
  EXPECT_REFUSED(heed_layer_set_mode(layer, 2), HEED_ERROR_VALUE,
                 "layer.mode: 2 is none of HEED_MODE_EVAL, HEED_MODE_TRAIN");
  heed_layer_destroy(layer);
}

// The loss is the sum of all results, so that its gradients by them are ones.
static const heed_layer_gradients by_results = {
    .size = sizeof by_results, .out = {.data = (const float[]){1, 1, 1, 1}, .shape = {1, 1, 2, 2}}};

static void a_layer_has_the_gradients_that_its_weights_say(void) {
  heed_layer* layer = new_layer();
  heed_activations* activations = NULL;
  EXPECT_DONE(heed_activations_create(&activations));
  for (int kept = 0; kept < 2; ++kept) {
    const heed_call call = {.size = sizeof call,
                            .x = {.data = x, .shape = {1, 1, 2, 2}},
                            .activations = kept ? activations : NULL};
    float y[4], by_x[4];
    const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = y, .shape = {1, 1, 2, 2}}};
    EXPECT_DONE(heed_layer_call(layer, &call, &outputs, &masked));
    heed_layer_gradients gradients = by_results;
    gradients.x = (heed_mutable_view){.data = by_x, .shape = {1, 1, 2, 2}};
    EXPECT_DONE(heed_layer_zero_gradients(layer));
    EXPECT_DONE(heed_layer_backward(layer, &call, &gradients, &masked));
    // Token 0 is all of result 0 and half of result 1, token 1 the other half.
    EXPECT(by_x[0] == 1.5f && by_x[1] == 1.5f && by_x[2] == 0.5f && by_x[3] == 0.5f);
    heed_parameters sums = {.size = sizeof sums};
    EXPECT_DONE(heed_layer_get_gradients(layer, &sums));
    const float* const by_w_o = sums.w_o.data;
    EXPECT(sums.w_o.shape.length == 2 && sums.w_o.shape.dim == 2 && sums.b_o.data == NULL);
    for (int row = 0; row < 2; ++row) EXPECT(by_w_o[2 * row] == 25 && by_w_o[2 * row + 1] == 3);
    gradients.accumulate = gradients.skip_parameters = 1;
    EXPECT_DONE(heed_layer_backward(layer, &call, &gradients, &masked));
    EXPECT(by_x[0] == 3 && by_x[3] == 1 && by_w_o[0] == 25);
    gradients.accumulate = 2;
    EXPECT_REFUSED(heed_layer_backward(layer, &call, &gradients, &masked), HEED_ERROR_VALUE,
                   "gradients.accumulate: 2 is neither 0 nor 1");
    EXPECT(by_x[0] == 3);
  }
  heed_activations_destroy(activations);
  heed_activations_destroy(NULL);
  heed_layer_destroy(layer);
}

static void an_optimiser_changes_the_weights_where_they_lie(void) {
  heed_layer* layer = new_layer();
  heed_activations* activations = NULL;
  EXPECT_DONE(heed_activations_create(&activations));
  float y[4];
  const heed_call call = {
      .size = sizeof call, .x = {.data = x, .shape = {1, 1, 2, 2}}, .activations = activations};
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = y, .shape = {1, 1, 2, 2}}};
  EXPECT_DONE(heed_layer_call(layer, &call, &outputs, &masked));
  heed_parameters weights_of = {.size = sizeof weights_of};
  EXPECT_DONE(heed_layer_get_parameters(layer, &weights_of));
  float* const w_o = weights_of.w_o.data;
  for (int i = 0; i < 4; ++i) w_o[i] *= 2;
  EXPECT_DONE(heed_layer_update(layer));
  EXPECT_REFUSED(heed_layer_backward(layer, &call, &by_results, &masked), HEED_ERROR_VALUE,
                 "activations: made by another layer, or before heed_layer_update() changed the weights");
  EXPECT_DONE(heed_layer_call(layer, &call, &outputs, &masked));
  for (int i = 0; i < 4; ++i) EXPECT(y[i] == 2 * averages[i]);
  EXPECT_DONE(heed_layer_backward(layer, &call, &by_results, &masked));
  heed_activations_destroy(activations);
  heed_layer_destroy(layer);
}

static void bad_layers_and_calls_are_refused(void) {
  heed_layer_weights w = weights();
  heed_layer* layer = NULL;
  w.w_k = (heed_view){0};
  EXPECT_REFUSED(heed_layer_create(&config, &w, &layer), HEED_ERROR_VALUE, "w_k: not given; all of it is 0");
  w.w_k = matrix(same);
  w.w_q.device = HEED_DEVICE_CUDA;
  EXPECT_REFUSED(heed_layer_create(&config, &w, &layer), HEED_ERROR_DEVICE,
                 "w_q.device: cuda, but weights are copied from the CPU's memory");
  w.w_q = matrix(nothing);
  w.w_k = (heed_view){.data = same, .shape = {2, 1, 1, 2}};
  EXPECT_REFUSED(heed_layer_create(&config, &w, &layer), HEED_ERROR_SHAPE,
                 "w_k.shape: (2, 1, 1, 2) is not (1, 1, rows, columns)");
  w.w_k = (heed_view){.data = same, .shape = {1, 1, 1, 2}};
  EXPECT_REFUSED(heed_layer_create(&config, &w, &layer), HEED_ERROR_SHAPE,
                 "w_k.shape: (1, 2) is not (kv_heads * head_dim, key_dim): (2, 2)");
  w = weights();
  w.b_q = matrix(same);
  EXPECT_REFUSED(heed_layer_create(&config, &w, &layer), HEED_ERROR_SHAPE,
                 "b_q.length: 2 is not 1; a bias is (1, 1, 1, entries)");
  EXPECT(layer == NULL);

  layer = new_layer();
  float y[6] = {7, 7, 7, 7, 7, 7};
  const heed_call call = {.size = sizeof call, .x = {.data = x, .shape = {1, 1, 2, 3}}};
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = y, .shape = {1, 1, 3, 2}}};
  EXPECT_REFUSED(heed_layer_call(layer, &call, &outputs, NULL), HEED_ERROR_SHAPE,
                 "x.dim: 3 is not model_dim: 2");
  const heed_call good = {.size = sizeof good, .x = {.data = x, .shape = {1, 1, 3, 2}}};
  const heed_options dropout = {.size = sizeof dropout, .dropout = {.drop_probability = 0.5f}};
  EXPECT_REFUSED(heed_layer_call(layer, &good, &outputs, &dropout), HEED_ERROR_VALUE,
                 "options.dropout: the layer owns it; set config.drop_probability and HEED_MODE_TRAIN");
  for (int i = 0; i < 6; ++i) EXPECT(y[i] == 7);
  heed_layer_destroy(layer);
}

const claim layer_claims[] = {
    {"a_layer_computes_what_its_weights_say", a_layer_computes_what_its_weights_say},
    {"weights_are_copied_whatever_their_strides_and_biases_are_added",
     weights_are_copied_whatever_their_strides_and_biases_are_added},
    {"tokens_through_a_cache_are_answered_alike", tokens_through_a_cache_are_answered_alike},
    {"a_layer_comes_from_a_file", a_layer_comes_from_a_file},
    {"a_layer_tells_its_configuration", a_layer_tells_its_configuration},
    {"a_layer_tells_a_caller_only_what_that_knows", a_layer_tells_a_caller_only_what_that_knows},
    {"dropout_is_for_training", dropout_is_for_training},
    {"a_layer_has_the_gradients_that_its_weights_say", a_layer_has_the_gradients_that_its_weights_say},
    {"an_optimiser_changes_the_weights_where_they_lie", an_optimiser_changes_the_weights_where_they_lie},
    {"bad_layers_and_calls_are_refused", bad_layers_and_calls_are_refused},
    {0, 0},
};
