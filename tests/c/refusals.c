// SPDX-License-Identifier: Apache-2.0
// What C adds to the refusals of C++: NULL, numbers that mean nothing, fields that contradict each other.
// Nothing is written, and the sentence names the argument as C calls it.
#include <string.h>

#include "claims.h"

static const float numbers[12];
static const bool bools[12];
static float out[4];

typedef struct call {
  heed_inputs inputs;
  heed_outputs outputs;
  heed_options options;
  heed_mask masks[2];
} call;

// Two queries over three keys.
static call good_call(void) {
  const call made = {
      .inputs = {.size = sizeof made.inputs,
                 .q = {.data = numbers, .shape = {1, 1, 2, 2}},
                 .k = {.data = numbers, .shape = {1, 1, 3, 2}},
                 .v = {.data = numbers, .shape = {1, 1, 3, 2}}},
      .outputs = {.size = sizeof made.outputs, .out = {.data = out, .shape = {1, 1, 2, 2}}},
      .options = {.size = sizeof made.options},
      .masks = {{.kind = HEED_MASK_CAUSAL, .align = HEED_ALIGN_ENDS},
                {.kind = HEED_MASK_KEEP, .where = {.data = bools, .shape = {1, 1, 1, 3}}}},
  };
  return made;
}

static heed_status run(call* c) {
  c->options.masks.data = c->masks;
  c->options.masks.count = 2;
  if (c->options.masks.size == 0) c->options.masks.size = sizeof(heed_mask);
  return heed_attention(&c->inputs, &c->outputs, &c->options);
}

#define EXPECT_CALL_REFUSED(change, status, sentence) \
  do {                                                \
    call c = good_call();                             \
    change;                                           \
    for (int i = 0; i < 4; ++i) out[i] = 7;           \
    EXPECT_REFUSED(run(&c), status, sentence);        \
    for (int i = 0; i < 4; ++i) EXPECT(out[i] == 7);  \
  } while (0)

static void the_call_that_is_spoiled_below_is_a_good_one(void) {
  call c = good_call();
  EXPECT_DONE(run(&c));
}

static void null_pointers_get_a_sentence(void) {
  const call c = good_call();
  heed_status status = heed_attention(NULL, &c.outputs, NULL);
  EXPECT_REFUSED(status, HEED_ERROR_VALUE, "inputs: NULL");
  status = heed_attention(&c.inputs, NULL, NULL);
  EXPECT_REFUSED(status, HEED_ERROR_VALUE, "outputs: NULL");
  EXPECT_REFUSED(heed_explain(&c.inputs, &c.outputs, NULL, NULL), HEED_ERROR_VALUE, "text: NULL");
  EXPECT_REFUSED(heed_merge(NULL, NULL), HEED_ERROR_VALUE, "into: NULL");
  EXPECT_REFUSED(heed_merge(&c.outputs, NULL), HEED_ERROR_VALUE, "other: NULL");
  EXPECT_REFUSED(heed_cache_create(NULL, NULL), HEED_ERROR_VALUE, "cache: NULL");
  EXPECT_REFUSED(heed_cache_add(NULL, NULL), HEED_ERROR_VALUE, "cache: NULL");
  EXPECT_REFUSED(heed_cache_load(NULL, NULL), HEED_ERROR_VALUE, "path: NULL");
  EXPECT_REFUSED(heed_layer_call(NULL, NULL, NULL, NULL), HEED_ERROR_VALUE, "layer: NULL");
  EXPECT_REFUSED(heed_rotate(NULL, NULL, NULL, NULL), HEED_ERROR_VALUE, "x: NULL");
}

static void views_that_are_not_given_are_named(void) {
  const heed_view none = {0};
  EXPECT_CALL_REFUSED(c.inputs.q = none, HEED_ERROR_VALUE, "q: not given; all of it is 0");
  EXPECT_CALL_REFUSED(c.inputs.v = none, HEED_ERROR_VALUE, "v: not given; all of it is 0");
  EXPECT_CALL_REFUSED(c.inputs.k.data = NULL, HEED_ERROR_VALUE,
                      "k.data: null, but the shape is (1, 1, 3, 2)");
  EXPECT_CALL_REFUSED(memset(&c.masks[1].where, 0, sizeof c.masks[1].where), HEED_ERROR_VALUE,
                      "options.masks[1].where: not given; all of it is 0");
}

static void views_of_which_only_a_part_is_zero_are_given(void) {
  EXPECT_CALL_REFUSED(
      c.options.bias.dtype = 99, HEED_ERROR_VALUE,
      "options.bias.dtype: 99 is none of HEED_DTYPE_F32, HEED_DTYPE_F16, HEED_DTYPE_BF16, HEED_DTYPE_F64");
  EXPECT_CALL_REFUSED(c.options.sink.reserved = 1, HEED_ERROR_UNSUPPORTED,
                      "options.sink.reserved: 1 is not 0");
  EXPECT_CALL_REFUSED(c.outputs.weights.stride.dim = 1, HEED_ERROR_AMBIGUOUS,
                      "weights.stride: given, but layout is not HEED_LAYOUT_STRIDED");
  call c = good_call();
  c.options.bias.dtype = HEED_DTYPE_BF16;  // its data and shape were forgotten
  EXPECT(run(&c) != HEED_OK && strncmp(heed_last_error(), "options.bias", 12) == 0);
}

static void numbers_that_mean_nothing_are_refused(void) {
  EXPECT_CALL_REFUSED(
      c.inputs.q.dtype = 4, HEED_ERROR_VALUE,
      "q.dtype: 4 is none of HEED_DTYPE_F32, HEED_DTYPE_F16, HEED_DTYPE_BF16, HEED_DTYPE_F64");
  EXPECT_CALL_REFUSED(
      c.inputs.q.dtype = 256, HEED_ERROR_VALUE,
      "q.dtype: 256 is none of HEED_DTYPE_F32, HEED_DTYPE_F16, HEED_DTYPE_BF16, HEED_DTYPE_F64");
  EXPECT_CALL_REFUSED(c.outputs.out.device = -1, HEED_ERROR_VALUE,
                      "out.device: -1 is none of HEED_DEVICE_CPU, HEED_DEVICE_CUDA");
  EXPECT_CALL_REFUSED(c.inputs.v.layout = 9, HEED_ERROR_VALUE,
                      "v.layout: 9 is none of HEED_LAYOUT_BHSD, HEED_LAYOUT_BSHD, HEED_LAYOUT_STRIDED");
  EXPECT_CALL_REFUSED(c.options.head_map = 2, HEED_ERROR_VALUE,
                      "options.head_map: 2 is none of HEED_HEAD_MAP_INTERLEAVED, HEED_HEAD_MAP_TILED");
  EXPECT_CALL_REFUSED(c.outputs.scores.stage = 3, HEED_ERROR_VALUE,
                      "scores.stage: 3 is none of HEED_STAGE_RAW, HEED_STAGE_SOFTCAPPED, HEED_STAGE_BIASED");
  EXPECT_CALL_REFUSED(c.masks[0].align = 3, HEED_ERROR_VALUE,
                      "options.masks[0].align: 3 is none of 0, HEED_ALIGN_STARTS, HEED_ALIGN_ENDS");
  call c = good_call();
  c.masks[1].kind = 0;
  EXPECT(run(&c) == HEED_ERROR_VALUE);
  EXPECT(strncmp(heed_last_error(), "options.masks[1].kind: 0 is none of HEED_MASK_CAUSAL, ", 54) == 0);
}

static void fields_that_contradict_each_other_are_refused(void) {
  EXPECT_CALL_REFUSED(c.inputs.k.stride.dim = 1, HEED_ERROR_AMBIGUOUS,
                      "k.stride: given, but layout is not HEED_LAYOUT_STRIDED");
  EXPECT_CALL_REFUSED(c.options.scale = 0.5f, HEED_ERROR_AMBIGUOUS,
                      "options.scale: 0.5 is given, but has_scale is 0");
  EXPECT_CALL_REFUSED(c.options.scale_f64 = 0.5, HEED_ERROR_AMBIGUOUS,
                      "options.scale: 0.5 is given, but has_scale is 0");
  EXPECT_CALL_REFUSED(c.options.softcap_f64 = c.options.softcap = 2, HEED_ERROR_AMBIGUOUS,
                      "options.softcap: 2 is given, and so is softcap_f64: 2; one of them must be 0");
  EXPECT_CALL_REFUSED(
      c.options.drop_probability_f64 = c.options.dropout.drop_probability = 0.5f, HEED_ERROR_AMBIGUOUS,
      "options.dropout.drop_probability: 0.5 is given, and so is drop_probability_f64: 0.5; one "
      "of them must be 0");
  EXPECT_CALL_REFUSED(c.masks[0].left = 1, HEED_ERROR_VALUE,
                      "options.masks[0]: a field that kind 1 does not have is not 0");
  EXPECT_CALL_REFUSED(c.masks[1].valid.count = 1, HEED_ERROR_VALUE,
                      "options.masks[1]: a field that kind 4 does not have is not 0");
}

static void what_must_be_zero_is_looked_at(void) {
  EXPECT_CALL_REFUSED(c.inputs.q.reserved = 1, HEED_ERROR_UNSUPPORTED, "q.reserved: 1 is not 0");
  EXPECT_CALL_REFUSED(c.outputs.scores.reserved = 1, HEED_ERROR_UNSUPPORTED, "scores.reserved: 1 is not 0");
  EXPECT_CALL_REFUSED(c.options.threads = -1, HEED_ERROR_VALUE, "options.threads: -1 is outside [0, 4096]");
  EXPECT_CALL_REFUSED(c.options.threads = 4097, HEED_ERROR_VALUE,
                      "options.threads: 4097 is outside [0, 4096]");
  EXPECT_CALL_REFUSED(c.options.alibi_align = HEED_ALIGN_ENDS, HEED_ERROR_VALUE,
                      "options.alibi_align: given, but alibi_slopes are not");
  EXPECT_CALL_REFUSED(c.options.dropout.reserved = 1, HEED_ERROR_UNSUPPORTED,
                      "options.dropout.reserved: 1 is not 0");
}

static void lists_without_data_are_refused(void) {
  EXPECT_CALL_REFUSED(c.inputs.sequences.count = 2, HEED_ERROR_VALUE,
                      "inputs.sequences.data: NULL, but the count is 2");
  call c = good_call();
  c.options.masks.count = 1;
  EXPECT_REFUSED(heed_attention(&c.inputs, &c.outputs, &c.options), HEED_ERROR_VALUE,
                 "options.masks.data: NULL");
}

static void lists_at_addresses_between_numbers_are_refused(void) {
  static const int64_t tokens[3];
  const heed_int64s odd = {(const int64_t*)(const void*)((const char*)tokens + 4), 2};
  EXPECT_CALL_REFUSED(c.inputs.query_counts = odd, HEED_ERROR_VALUE,
                      "query_counts.data: the address is not a multiple of the element's 8 bytes");
  const heed_floats factors = {(const float*)(const void*)((const char*)tokens + 1), 1};
  const heed_rotary rotary = {.size = sizeof rotary,
                              .scaling = {.kind = HEED_SCALING_LONGROPE,
                                          .factor = 2,
                                          .original_length = 9,
                                          .short_factors = factors,
                                          .long_factors = factors}};
  float turned[4] = {0};
  const heed_mutable_view x = {.data = turned, .shape = {1, 1, 2, 2}};
  const heed_int64s positions = {tokens, 2};
  EXPECT_REFUSED(heed_rotate(&x, &positions, &rotary, NULL), HEED_ERROR_VALUE,
                 "rotary.scaling.short_factors.data: the address is not a multiple of the element's 4 bytes");
}

static void lists_longer_than_any_memory_are_refused(void) {
  call many = good_call();
  many.options.masks = (heed_masks){many.masks, SIZE_MAX, sizeof(heed_mask)};
  EXPECT_REFUSED(heed_attention(&many.inputs, &many.outputs, &many.options), HEED_ERROR_VALUE,
                 "options.masks.count: 18446744073709551615 masks are more than any memory holds");
  static const int64_t tokens[2] = {0, 1};
  const heed_int64s two = {tokens, 2}, endless = {tokens, SIZE_MAX};
  EXPECT_CALL_REFUSED(c.inputs.query_counts = endless, HEED_ERROR_VALUE,
                      "query_counts.count: 18446744073709551615 numbers are more than any memory holds");
  float turned[4] = {1, 2, 3, 4};
  const heed_mutable_view x = {.data = turned, .shape = {1, 1, 2, 2}};
  EXPECT_REFUSED(heed_rotate(&x, &endless, NULL, NULL), HEED_ERROR_VALUE,
                 "positions.count: 18446744073709551615 numbers are more than any memory holds");
  EXPECT_REFUSED(heed_rotate(&x, &two, NULL, &endless), HEED_ERROR_VALUE,
                 "lengths.count: 18446744073709551615 numbers are more than any memory holds");
  for (int i = 0; i < 4; ++i) EXPECT(turned[i] == (float)(i + 1));
}

static void a_kernel_without_a_name_is_none(void) {
  EXPECT_CALL_REFUSED(c.options.kernel = "", HEED_ERROR_UNSUPPORTED,
                      "options.kernel: \"\" is not a kernel of this build");
}

static void what_is_0_or_1_is_nothing_else(void) {
  EXPECT_CALL_REFUSED(c.options.has_scale = 2, HEED_ERROR_VALUE, "options.has_scale: 2 is neither 0 nor 1");
  EXPECT_CALL_REFUSED(c.options.has_scale = -1, HEED_ERROR_VALUE, "options.has_scale: -1 is neither 0 nor 1");
  static const int64_t tokens[2] = {0, 1};
  const heed_int64s positions = {tokens, 2};
  float turned[4] = {0};
  const heed_mutable_view x = {.data = turned, .shape = {1, 1, 2, 2}};
  const heed_rotary rotary = {
      .size = sizeof rotary,
      .scaling = {.kind = HEED_SCALING_YARN, .factor = 2, .original_length = 9, .untruncated = 2}};
  EXPECT_REFUSED(heed_rotate(&x, &positions, &rotary, NULL), HEED_ERROR_VALUE,
                 "rotary.scaling.untruncated: 2 is neither 0 nor 1");
}

static void fields_of_no_kind_are_refused(void) {
  static const int64_t tokens[2] = {0, 1};
  const heed_int64s positions = {tokens, 2};
  float turned[4] = {0};
  const heed_mutable_view x = {.data = turned, .shape = {1, 1, 2, 2}};
  const heed_rotary rotary = {.size = sizeof rotary, .scaling = {.short_factors = {turned, 0}}};
  EXPECT_REFUSED(heed_rotate(&x, &positions, &rotary, NULL), HEED_ERROR_VALUE,
                 "rotary.scaling: a field that kind 0 does not have is not 0");
}

static void sentences_say_what_to_write_in_c(void) {
  EXPECT_CALL_REFUSED(c.masks[0].align = 0, HEED_ERROR_AMBIGUOUS,
                      "causal mask: 2 queries, 3 keys; say HEED_ALIGN_ENDS (decode) or HEED_ALIGN_STARTS");
  EXPECT_CALL_REFUSED(c.inputs.k.shape.dim = 1, HEED_ERROR_SHAPE, "k.dim: 1 is not q.dim: 2");
  EXPECT_CALL_REFUSED(c.options.softcap = -1, HEED_ERROR_VALUE,
                      "options.softcap: -1 is not a finite number above 0");
  EXPECT_CALL_REFUSED(c.options.dropout.drop_probability = 1, HEED_ERROR_VALUE,
                      "options.dropout.drop_probability: 1 is outside [0, 1)");
  call unknown = good_call();
  unknown.options.kernel = "abacus";
  EXPECT(run(&unknown) == HEED_ERROR_UNSUPPORTED);
  EXPECT(strstr(heed_last_error(), "options.kernel: \"abacus\" is not a kernel of this build; there are "));
  EXPECT(strstr(heed_last_error(), "reference"));
  EXPECT_CALL_REFUSED(c.inputs.q.data = out, HEED_ERROR_OVERLAP, "out: shares memory with q");
  EXPECT_CALL_REFUSED(c.inputs.q.dtype = HEED_DTYPE_F16, HEED_ERROR_DTYPE,
                      "k.dtype: f32 is not q.dtype: f16");
}

static void merging_names_its_sides(void) {
  const heed_outputs into = {.size = sizeof into, .out = {.data = out, .shape = {1, 1, 2, 2}}};
  heed_results other = {.size = sizeof other, .out = {.data = numbers, .shape = {1, 1, 2, 2}, .dtype = 9}};
  EXPECT_REFUSED(
      heed_merge(&into, &other), HEED_ERROR_VALUE,
      "other.out.dtype: 9 is none of HEED_DTYPE_F32, HEED_DTYPE_F16, HEED_DTYPE_BF16, HEED_DTYPE_F64");
  other.out.dtype = HEED_DTYPE_F32;
  EXPECT_REFUSED(heed_merge(&into, &other), HEED_ERROR_SHAPE,
                 "into.log_sum_exp: not given; merge needs it to weigh the two results");
}

static void threads_are_few(void) {
  const int before = heed_num_threads();
  EXPECT_REFUSED(heed_set_num_threads(0), HEED_ERROR_VALUE, "threads: 0 is outside [1, 4096]");
  EXPECT_REFUSED(heed_set_num_threads(4097), HEED_ERROR_VALUE, "threads: 4097 is outside [1, 4096]");
  EXPECT_DONE(heed_set_num_threads(2));
  EXPECT(heed_num_threads() == 2);
  EXPECT_DONE(heed_set_num_threads(before));
}

static void what_succeeds_forgets_the_error_before_it(void) {
  EXPECT(heed_set_num_threads(0) != HEED_OK && *heed_last_error() != '\0');
  call c = good_call();
  EXPECT_DONE(run(&c));
  EXPECT(*heed_last_error() == '\0');
}

const claim refusal_claims[] = {
    {"the_call_that_is_spoiled_below_is_a_good_one", the_call_that_is_spoiled_below_is_a_good_one},
    {"null_pointers_get_a_sentence", null_pointers_get_a_sentence},
    {"views_that_are_not_given_are_named", views_that_are_not_given_are_named},
    {"views_of_which_only_a_part_is_zero_are_given", views_of_which_only_a_part_is_zero_are_given},
    {"numbers_that_mean_nothing_are_refused", numbers_that_mean_nothing_are_refused},
    {"fields_that_contradict_each_other_are_refused", fields_that_contradict_each_other_are_refused},
    {"what_must_be_zero_is_looked_at", what_must_be_zero_is_looked_at},
    {"lists_without_data_are_refused", lists_without_data_are_refused},
    {"lists_at_addresses_between_numbers_are_refused", lists_at_addresses_between_numbers_are_refused},
    {"lists_longer_than_any_memory_are_refused", lists_longer_than_any_memory_are_refused},
    {"a_kernel_without_a_name_is_none", a_kernel_without_a_name_is_none},
    {"what_is_0_or_1_is_nothing_else", what_is_0_or_1_is_nothing_else},
    {"fields_of_no_kind_are_refused", fields_of_no_kind_are_refused},
    {"sentences_say_what_to_write_in_c", sentences_say_what_to_write_in_c},
    {"merging_names_its_sides", merging_names_its_sides},
    {"threads_are_few", threads_are_few},
    {"what_succeeds_forgets_the_error_before_it", what_succeeds_forgets_the_error_before_it},
    {0, 0},
};
