// SPDX-License-Identifier: Apache-2.0
// What attention answers, against numbers worked out by hand.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"

static const float q[] = {4, 0, 0, 4, 4, 4}, k[] = {1, 0, 0, 1, 1, 1}, v[] = {10, 20, 30};
static const float zeros[6];

static heed_inputs three_tokens(const float* queries) {
  const heed_inputs inputs = {.size = sizeof inputs,
                              .q = {.data = queries, .shape = {1, 1, 3, 2}},
                              .k = {.data = k, .shape = {1, 1, 3, 2}},
                              .v = {.data = v, .shape = {1, 1, 3, 1}}};
  return inputs;
}

static heed_outputs into(float* out) {
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = out, .shape = {1, 1, 3, 1}}};
  return outputs;
}

static int is_near(double found, double wanted) { return fabs(found - wanted) <= 1e-5 * fabs(wanted); }

static void no_options_mean_the_defaults(void) {
  const heed_inputs inputs = three_tokens(zeros);
  float out[3];
  const heed_outputs outputs = into(out);
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  for (int i = 0; i < 3; ++i) EXPECT(out[i] == 20);  // equal scores: the average of all values
}

static void zeros_mean_the_defaults(void) {
  const heed_inputs inputs = three_tokens(q);
  float out[3], again[3];
  const heed_outputs outputs = into(out), others = into(again);
  const heed_options options = {.size = sizeof options};
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  EXPECT_DONE(heed_attention(&inputs, &others, &options));
  EXPECT(memcmp(out, again, sizeof out) == 0);
}

static void a_causal_mask_hides_what_comes_later(void) {
  const heed_inputs inputs = three_tokens(q);
  float out[3];
  const heed_outputs outputs = into(out);
  const heed_mask causal = {.kind = HEED_MASK_CAUSAL};
  const heed_options options = {.size = sizeof options, .masks = {&causal, 1, sizeof causal}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  // The scores are q . k / sqrt(2): of the second query 0 and 4, of the third 4, 4 and 8, over sqrt(2).
  const double four = exp(4 / sqrt(2)), eight = exp(8 / sqrt(2));
  EXPECT(out[0] == 10);
  EXPECT(is_near(out[1], (10 + 20 * four) / (1 + four)));
  EXPECT(is_near(out[2], (10 * four + 20 * four + 30 * eight) / (2 * four + eight)));
}

static void masks_intersect(void) {
  const heed_inputs inputs = three_tokens(zeros);
  float out[3];
  const heed_outputs outputs = into(out);
  const bool keep[] = {true, true, false, true, true, true, false, true, true}, hide[] = {true, false, false};
  const int32_t lengths[] = {3};
  const heed_mask masks[] = {
      {.kind = HEED_MASK_WINDOW, .left = 1, .right = 2},
      {.kind = HEED_MASK_KEY_LENGTHS, .valid = {lengths, 1}},
      {.kind = HEED_MASK_KEEP, .where = {.data = keep, .shape = {1, 1, 3, 3}}},
      {.kind = HEED_MASK_HIDE, .where = {.data = hide, .shape = {1, 1, 1, 3}}},
  };
  const heed_options options = {.size = sizeof options, .masks = {masks, 4, sizeof *masks}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  EXPECT(out[0] == 20);  // the window shows all three, keep the first two, hide not the first
  EXPECT(out[1] == 25);
  EXPECT(out[2] == 25);
}

static void a_query_sees_its_own_document(void) {
  const heed_inputs inputs = three_tokens(zeros);
  float out[3];
  const heed_outputs outputs = into(out);
  const int32_t ids[] = {7, 4, 4}, query_ids[] = {4, 7, 9};
  heed_mask document = {.kind = HEED_MASK_DOCUMENT, .ids = {ids, 3}};
  const heed_options options = {.size = sizeof options, .masks = {&document, 1, sizeof document}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  EXPECT(out[0] == 10);
  EXPECT(out[1] == 25);
  EXPECT(out[2] == 25);
  document.query_ids = (heed_int32s){query_ids, 3};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  EXPECT(out[0] == 25);
  EXPECT(out[1] == 10);
  EXPECT(out[2] == 0);
}

static void alibi_weighs_keys_by_their_distance(void) {
  const heed_inputs inputs = three_tokens(zeros);
  float out[3];
  const heed_outputs outputs = into(out);
  const float slopes[] = {100};
  const heed_options options = {.size = sizeof options, .alibi_slopes = {slopes, 1}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  EXPECT(out[0] == 10);
  EXPECT(out[1] == 20);
  EXPECT(out[2] == 30);
}

static void a_tree_shows_drafts_their_ancestors(void) {
  const heed_inputs inputs = {.size = sizeof inputs,
                              .q = {.data = zeros, .shape = {1, 1, 2, 2}},
                              .k = {.data = k, .shape = {1, 1, 3, 2}},
                              .v = {.data = v, .shape = {1, 1, 3, 1}}};
  float out[2];
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = out, .shape = {1, 1, 2, 1}}};
  const bool siblings[] = {true, false, false, true};
  const heed_mask tree = {.kind = HEED_MASK_TREE, .where = {.data = siblings, .shape = {1, 1, 2, 2}}};
  const heed_options options = {.size = sizeof options, .masks = {&tree, 1, sizeof tree}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  EXPECT(out[0] == 15);
  EXPECT(out[1] == 20);
}

static void weights_scores_and_their_sum_come_out(void) {
  const heed_inputs inputs = three_tokens(zeros);
  float out[3], weights[9], log_sum_exp[3], scores[9];
  heed_outputs outputs = into(out);
  outputs.weights = (heed_mutable_view){.data = weights, .shape = {1, 1, 3, 3}};
  outputs.log_sum_exp = (heed_mutable_view){.data = log_sum_exp, .shape = {1, 1, 3, 1}};
  outputs.scores.into = (heed_mutable_view){.data = scores, .shape = {1, 1, 3, 3}};
  outputs.scores.stage = HEED_STAGE_BIASED;
  const float bias[] = {0, 0, -INFINITY};
  const heed_options options = {.size = sizeof options, .bias = {.data = bias, .shape = {1, 1, 1, 3}}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  for (int i = 0; i < 3; ++i) {
    EXPECT(out[i] == 15);
    EXPECT(weights[3 * i] == 0.5f && weights[3 * i + 1] == 0.5f && weights[3 * i + 2] == 0);
    EXPECT(scores[3 * i] == 0 && scores[3 * i + 2] == -INFINITY);
    EXPECT(is_near(log_sum_exp[i], log(2)));
  }
}

static void a_scale_of_0_is_a_scale(void) {
  const heed_inputs inputs = three_tokens(q);
  float out[3];
  const heed_outputs outputs = into(out);
  const heed_options options = {.size = sizeof options, .has_scale = 1};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  for (int i = 0; i < 3; ++i) EXPECT(out[i] == 20);
}

static void a_sink_takes_its_share(void) {
  const heed_inputs inputs = three_tokens(zeros);
  float out[3];
  const heed_outputs outputs = into(out);
  const float sink = 0;
  const heed_options options = {.size = sizeof options, .sink = {.data = &sink, .shape = {1, 1, 1, 1}}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  for (int i = 0; i < 3; ++i) EXPECT(out[i] == 15);  // a quarter each of 10, 20, 30 and nothing
}

static void halves_are_read_and_written(void) {
  const uint16_t one[] = {0x3c00, 0x3c00}, two[] = {0x4000, 0x4000};  // f16
  uint16_t out[2] = {0, 0};
  const heed_inputs inputs = {.size = sizeof inputs,
                              .q = {.data = one, .shape = {1, 1, 1, 2}, .dtype = HEED_DTYPE_F16},
                              .k = {.data = one, .shape = {1, 1, 1, 2}, .dtype = HEED_DTYPE_F16},
                              .v = {.data = two, .shape = {1, 1, 1, 2}, .dtype = HEED_DTYPE_F16}};
  const heed_outputs outputs = {.size = sizeof outputs,
                                .out = {.data = out, .shape = {1, 1, 1, 2}, .dtype = HEED_DTYPE_F16}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  EXPECT(memcmp(out, two, sizeof out) == 0);
}

// Two heads of two tokens, one dimension: as (heads, length) and as (length, heads).
static void layouts_are_only_an_order(void) {
  const float by_head[] = {1, 2, 3, 4}, by_token[] = {1, 3, 2, 4};
  const heed_shape shape = {1, 2, 2, 1};
  const heed_strides stride = {4, 1, 2, 1};
  const heed_view views[] = {
      {.data = by_head, .shape = shape},
      {.data = by_token, .shape = shape, .layout = HEED_LAYOUT_BSHD},
      {.data = by_token, .shape = shape, .stride = stride, .layout = HEED_LAYOUT_STRIDED}};
  for (int i = 0; i < 3; ++i) {
    float out[4];
    const heed_inputs inputs = {.size = sizeof inputs, .q = views[i], .k = views[i], .v = views[i]};
    const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = out, .shape = shape}};
    const heed_options options = {.size = sizeof options, .has_scale = 1};
    EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
    EXPECT(out[0] == 1.5f && out[1] == 1.5f && out[2] == 3.5f && out[3] == 3.5f);
  }
}

static void strides_of_0_repeat_what_is_there(void) {
  const float one = 7;
  const heed_view constant = {.data = &one, .shape = {1, 1, 3, 2}, .layout = HEED_LAYOUT_STRIDED};
  float out[6];
  const heed_inputs inputs = {.size = sizeof inputs, .q = constant, .k = constant, .v = constant};
  const heed_outputs outputs = {.size = sizeof outputs, .out = {.data = out, .shape = {1, 1, 3, 2}}};
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  for (int i = 0; i < 6; ++i) EXPECT(is_near(out[i], 7));
}

static void packed_sequences_see_only_themselves(void) {
  heed_inputs inputs = three_tokens(zeros);
  const int64_t starts[] = {0, 1, 3};
  inputs.query_starts = inputs.key_starts = (heed_int64s){starts, 3};
  float out[3];
  const heed_outputs outputs = into(out);
  EXPECT_DONE(heed_attention(&inputs, &outputs, NULL));
  EXPECT(out[0] == 10 && out[1] == 25 && out[2] == 25);
}

static void split_keys_merge_into_the_whole(void) {
  float out[3], lse[3], rest[3], rest_lse[3];
  heed_inputs first = three_tokens(zeros), second = first;
  first.k.shape.length = first.v.shape.length = 1;
  second.k = (heed_view){.data = k + 2, .shape = {1, 1, 2, 2}};
  second.v = (heed_view){.data = v + 1, .shape = {1, 1, 2, 1}};
  heed_outputs joined = into(out), other = into(rest);
  joined.log_sum_exp = (heed_mutable_view){.data = lse, .shape = {1, 1, 3, 1}};
  other.log_sum_exp = (heed_mutable_view){.data = rest_lse, .shape = {1, 1, 3, 1}};
  EXPECT_DONE(heed_attention(&first, &joined, NULL));
  EXPECT_DONE(heed_attention(&second, &other, NULL));
  const heed_results results = {.size = sizeof results,
                                .out = {.data = rest, .shape = {1, 1, 3, 1}},
                                .log_sum_exp = {.data = rest_lse, .shape = {1, 1, 3, 1}}};
  EXPECT_DONE(heed_merge(&joined, &results));
  for (int i = 0; i < 3; ++i) EXPECT(is_near(out[i], 20) && is_near(lse[i], log(3)));
}

static void the_plan_is_explained_in_a_text_that_the_caller_frees(void) {
  const heed_inputs inputs = three_tokens(q);
  float out[3];
  const heed_outputs outputs = into(out);
  char* text = NULL;
  EXPECT_DONE(heed_explain(&inputs, &outputs, NULL, &text));
  EXPECT(text && strstr(text, "taken") && strstr(text, "reference"));
  heed_free(text);
  heed_free(NULL);
}

static void a_kernel_can_be_asked_for(void) {
  const heed_inputs inputs = three_tokens(zeros);
  float out[3];
  const heed_outputs outputs = into(out);
  heed_options options = {.size = sizeof options, .kernel = "reference"};
  EXPECT_DONE(heed_attention(&inputs, &outputs, &options));
  EXPECT(out[0] == 20);
}

const claim attention_claims[] = {
    {"no_options_mean_the_defaults", no_options_mean_the_defaults},
    {"zeros_mean_the_defaults", zeros_mean_the_defaults},
    {"a_causal_mask_hides_what_comes_later", a_causal_mask_hides_what_comes_later},
    {"masks_intersect", masks_intersect},
    {"a_tree_shows_drafts_their_ancestors", a_tree_shows_drafts_their_ancestors},
    {"a_query_sees_its_own_document", a_query_sees_its_own_document},
    {"alibi_weighs_keys_by_their_distance", alibi_weighs_keys_by_their_distance},
    {"weights_scores_and_their_sum_come_out", weights_scores_and_their_sum_come_out},
    {"a_scale_of_0_is_a_scale", a_scale_of_0_is_a_scale},
    {"a_sink_takes_its_share", a_sink_takes_its_share},
    {"halves_are_read_and_written", halves_are_read_and_written},
    {"layouts_are_only_an_order", layouts_are_only_an_order},
    {"strides_of_0_repeat_what_is_there", strides_of_0_repeat_what_is_there},
    {"packed_sequences_see_only_themselves", packed_sequences_see_only_themselves},
    {"split_keys_merge_into_the_whole", split_keys_merge_into_the_whole},
    {"the_plan_is_explained_in_a_text_that_the_caller_frees",
     the_plan_is_explained_in_a_text_that_the_caller_frees},
    {"a_kernel_can_be_asked_for", a_kernel_can_be_asked_for},
    {0, 0},
};
