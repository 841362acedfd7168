// SPDX-License-Identifier: Apache-2.0
// Callers that know fewer fields than the library, and more. The layouts below are what programs were
// compiled with: they grow at the end, and nothing in them moves.
#include <stddef.h>
#include <string.h>

#include "claims.h"

static const float numbers[6] = {1, 2, 3, 4, 5, 6};
static float out[6];

// The first fields of heed_inputs, heed_outputs, heed_options and heed_mask, all that a small binding
// declares.
typedef struct few_inputs {
  size_t size;
  heed_view q, k, v;
} few_inputs;

typedef struct few_outputs {
  size_t size;
  heed_mutable_view out;
} few_outputs;

typedef struct few_options {
  size_t size;
  heed_masks masks;
} few_options;

typedef struct few_of_a_mask {
  heed_mask_kind kind;
  heed_align align;
} few_of_a_mask;

// And what a later version may append.
typedef struct more_options {
  heed_options known;
  int64_t later;
} more_options;

typedef struct more_of_a_mask {
  heed_mask known;
  int64_t later;
} more_of_a_mask;

static const heed_view rows = {.data = numbers, .shape = {1, 1, 3, 2}};
static const heed_inputs inputs = {.size = sizeof inputs,
                                   .q = {.data = numbers, .shape = {1, 1, 3, 2}},
                                   .k = {.data = numbers, .shape = {1, 1, 3, 2}},
                                   .v = {.data = numbers, .shape = {1, 1, 3, 2}}};
static const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = out, .shape = {1, 1, 3, 2}}};

static void fields_a_caller_does_not_know_are_zeros(void) {
  const heed_mask causal = {.kind = HEED_MASK_CAUSAL};
  const heed_options options = {.size = sizeof options, .masks = {&causal, 1, sizeof causal}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  float all[6];
  memcpy(all, out, sizeof all);

  // After the fields that are known lies something else.
  struct {
    few_inputs inputs;
    few_outputs outputs;
    few_options options;
    few_of_a_mask masks[2];
    unsigned char other[1024];
  } few = {.inputs = {sizeof few.inputs, rows, rows, rows},
           .outputs = {.size = sizeof few.outputs, .out = {.data = out, .shape = {1, 1, 3, 2}}},
           .masks = {{HEED_MASK_CAUSAL, 0}, {HEED_MASK_CAUSAL, HEED_ALIGN_ENDS}}};
  memset(few.other, 0xff, sizeof few.other);
  few.options.size = sizeof few.options;
  few.options.masks.data = (const heed_mask*)(const void*)few.masks;
  few.options.masks.count = 2;
  few.options.masks.size = sizeof *few.masks;
  memset(out, 0, sizeof out);
  EXPECT_DONE(heed_attention((const heed_inputs*)(const void*)&few.inputs,
                             (const heed_outputs*)(const void*)&few.outputs,
                             (const heed_options*)(const void*)&few.options));
  EXPECT(memcmp(all, out, sizeof all) == 0);
}

static void fields_the_library_does_not_know_must_be_zeros(void) {
  more_options options = {.known = {.size = sizeof options}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options.known));
  options.later = 1;
  EXPECT(heed_attention(&inputs, &outputs, &options.known) == HEED_ERROR_UNSUPPORTED);
  EXPECT(strncmp(heed_last_error(), "options: a field beyond the ", 28) == 0);
  EXPECT(strstr(heed_last_error(), heed_version()));

  more_of_a_mask masks[2] = {{.known = {.kind = HEED_MASK_CAUSAL}}, {.known = {.kind = HEED_MASK_CAUSAL}}};
  heed_options masked = {.size = sizeof masked, .masks = {&masks[0].known, 2, sizeof *masks}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &masked));
  masks[1].later = 1;
  EXPECT(heed_attention(&inputs, &outputs, &masked) == HEED_ERROR_UNSUPPORTED);
  EXPECT(strncmp(heed_last_error(), "options.masks: a field beyond the ", 34) == 0);
}

static void a_size_that_was_forgotten_is_missed(void) {
  heed_inputs unsized = inputs;
  unsized.size = 0;
  EXPECT(heed_attention(&unsized, &outputs, NULL) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "inputs.size: 0 is not the struct's sizeof: ", 43) == 0);
  const heed_mask causal = {.kind = HEED_MASK_CAUSAL};
  const heed_options options = {.size = sizeof options, .masks = {&causal, 1, 0}};
  EXPECT(heed_attention(&inputs, &outputs, &options) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "options.masks.size: 0 is not the struct's sizeof: ", 50) == 0);
  heed_cache* cache = NULL;
  const heed_cache_config config = {.kv_heads = 1, .capacity = 16, .dim = 2};
  EXPECT(heed_cache_create(&config, &cache) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "config.size: 0 ", 15) == 0);
  EXPECT(cache == NULL);
}

// Of a field that is half there nothing can be said: a binding that declares it too short must hear of it.
static void a_size_that_ends_inside_a_field_is_refused(void) {
  heed_inputs cut = inputs;
  for (size_t size = sizeof cut - 1; size > offsetof(heed_inputs, query_counts); --size) {
    cut.size = size;
    EXPECT(heed_attention(&cut, &outputs, NULL) == HEED_ERROR_VALUE);
  }
  cut.size = offsetof(heed_inputs, query_counts);
  EXPECT_DONE(heed_attention(&cut, &outputs, NULL));
  if (sizeof(void*) == 8) {
    cut.size = 100;
    EXPECT(heed_attention(&cut, &outputs, NULL) == HEED_ERROR_VALUE);
    EXPECT(strcmp(heed_last_error(),
                  "inputs.size: 100 ends inside the field of bytes 96 to 184; "
                  "the struct's sizeof is 344") == 0);
  }
  heed_options halved = {.size = offsetof(heed_options, scale) + 2};
  EXPECT(heed_attention(&inputs, &outputs, &halved) == HEED_ERROR_VALUE);
  halved.size = offsetof(heed_options, has_scale);
  EXPECT_DONE(heed_attention(&inputs, &outputs, &halved));
  const heed_mask causal = {.kind = HEED_MASK_CAUSAL};
  const heed_options options = {.size = sizeof options, .masks = {&causal, 1, offsetof(heed_mask, left) + 1}};
  EXPECT(heed_attention(&inputs, &outputs, &options) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "options.masks.size: 9 ends inside the field ", 44) == 0);
}

// As of a struct on the stack that nobody has set to zeros.
static void a_size_that_no_struct_has_is_refused(void) {
  heed_inputs endless = inputs;
  endless.size = SIZE_MAX;
  EXPECT(heed_attention(&endless, &outputs, NULL) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "inputs.size: 18446744073709551615 is not ", 41) == 0);

  const float same[] = {1, 0, 0, 1};
  const heed_view matrix = {.data = same, .shape = {1, 1, 2, 2}};
  const heed_layer_config config = {.size = sizeof config, .model_dim = 2, .heads = 1};
  const heed_layer_weights weights = {
      .size = sizeof weights, .w_q = matrix, .w_k = matrix, .w_v = matrix, .w_o = matrix};
  heed_layer* layer = NULL;
  EXPECT_DONE(heed_layer_create(&config, &weights, &layer));
  static struct {
    heed_layer_config config;
    unsigned char other[1 << 17];
  } told;
  memset(told.other, 7, sizeof told.other);
  told.config.size = (1 << 16) + 1;
  EXPECT(heed_layer_get_config(layer, &told.config) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "config.size: 65537 is not ", 26) == 0);
  EXPECT(told.config.heads == 0 && told.other[0] == 7);
  heed_layer_destroy(layer);
}

// Of 64-bit machines. A struct without a gap at its end can grow without a caller's garbage in the new field.
#define IS_AT(type, field, offset) EXPECT(sizeof(void*) != 8 || offsetof(type, field) == (offset))
#define HAS_SIZE(type, bytes) EXPECT(sizeof(void*) != 8 || sizeof(type) == (bytes))

static void nothing_moves(void) {
  HAS_SIZE(heed_view, 88);
  HAS_SIZE(heed_mutable_view, 88);
  HAS_SIZE(heed_bool_view, 80);
  HAS_SIZE(heed_int64s, 16);
  IS_AT(heed_view, shape, 8);
  IS_AT(heed_view, stride, 40);
  IS_AT(heed_view, dtype, 72);
  IS_AT(heed_view, device, 76);
  IS_AT(heed_view, layout, 80);
  IS_AT(heed_bool_view, layout, 72);

  IS_AT(heed_mask, align, 4);
  IS_AT(heed_mask, left, 8);
  IS_AT(heed_mask, valid, 32);
  IS_AT(heed_mask, where, 48);
  IS_AT(heed_mask, ids, 128);
  HAS_SIZE(heed_masks, 24);

  IS_AT(heed_inputs, q, 8);
  IS_AT(heed_inputs, cache, 272);
  IS_AT(heed_inputs, query_counts, 328);
  IS_AT(heed_outputs, out, 8);
  IS_AT(heed_outputs, scores, 272);
  HAS_SIZE(heed_scores, 96);
  IS_AT(heed_results, log_sum_exp, 184);
  HAS_SIZE(heed_saved, 184);
  IS_AT(heed_gradients, log_sum_exp, 96);
  IS_AT(heed_gradients, q, 184);
  IS_AT(heed_gradients, sink, 536);
  IS_AT(heed_gradients, accumulate, 624);
  IS_AT(heed_options, masks, 8);
  IS_AT(heed_options, bias, 32);
  IS_AT(heed_options, scale, 208);
  IS_AT(heed_options, softcap, 216);
  IS_AT(heed_options, dropout, 224);
  IS_AT(heed_options, kernel, 240);
  IS_AT(heed_options, alibi_slopes, 248);
  IS_AT(heed_options, alibi_align, 264);
  IS_AT(heed_options, stream, 272);
  IS_AT(heed_options, scale_f64, 280);  // where the struct of 0.2 ends
  IS_AT(heed_options, softcap_f64, 288);
  IS_AT(heed_options, drop_probability_f64, 296);  // where the struct of 0.3 ends
  IS_AT(heed_options, executor, 304);
  IS_AT(heed_executor_config, run, 16);
  IS_AT(heed_executor_config, concurrency, 24);
  HAS_SIZE(heed_executor_config, 32);

  HAS_SIZE(heed_scaling, 72);
  IS_AT(heed_rotary, dims, 16);
  IS_AT(heed_rotary, scaling, 24);
  IS_AT(heed_cache_config, window, 64);
  IS_AT(heed_cache_config, type, 80);
  IS_AT(heed_cache_config, rotary, 88);
  IS_AT(heed_layer_config, drop_probability, 64);
  IS_AT(heed_layer_config, rotary, 72);
  IS_AT(heed_layer_weights, b_o, 624);
  IS_AT(heed_call, cache, 272);
  IS_AT(heed_call, dropout_seed, 344);
  IS_AT(heed_call, activations, 352);  // where the struct of 0.3 ends
  IS_AT(heed_layer_gradients, x, 184);
  IS_AT(heed_layer_gradients, sink, 536);
  IS_AT(heed_layer_gradients, accumulate, 624);
  HAS_SIZE(heed_layer_gradients, 632);
  IS_AT(heed_parameters, b_o, 624);
  HAS_SIZE(heed_parameters, 712);
}

const claim size_claims[] = {
    {"fields_a_caller_does_not_know_are_zeros", fields_a_caller_does_not_know_are_zeros},
    {"fields_the_library_does_not_know_must_be_zeros", fields_the_library_does_not_know_must_be_zeros},
    {"a_size_that_was_forgotten_is_missed", a_size_that_was_forgotten_is_missed},
    {"a_size_that_ends_inside_a_field_is_refused", a_size_that_ends_inside_a_field_is_refused},
    {"a_size_that_no_struct_has_is_refused", a_size_that_no_struct_has_is_refused},
    {"nothing_moves", nothing_moves},
    {0, 0},
};
