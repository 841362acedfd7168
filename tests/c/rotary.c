// SPDX-License-Identifier: Apache-2.0
// Rotary positions: a quarter turn by hand, and the scalings' fields.
#include <math.h>

#include "claims.h"

static int is_near(double found, double wanted) { return fabs(found - wanted) <= 1e-6; }

static void a_pair_turns_by_its_position(void) {
  float x[] = {1, 0, 1, 0};
  const int64_t positions[] = {0, 1};
  const heed_mutable_view view = {.data = x, .shape = {1, 1, 2, 2}};
  const heed_int64s places = {positions, 2};
  EXPECT_DONE(heed_rotate(&view, &places, NULL, NULL));  // the first pair turns by one radian a token
  EXPECT(x[0] == 1 && x[1] == 0 && is_near(x[2], cos(1)) && is_near(x[3], sin(1)));
}

static void a_linear_scaling_slows_the_turn(void) {
  float x[] = {1, 0};
  const int64_t position = 2;
  const heed_mutable_view view = {.data = x, .shape = {1, 1, 1, 2}};
  const heed_int64s places = {&position, 1};
  const heed_rotary rotary = {.size = sizeof rotary, .scaling = {.kind = HEED_SCALING_LINEAR, .factor = 4}};
  EXPECT_DONE(heed_rotate(&view, &places, &rotary, NULL));
  EXPECT(is_near(x[0], cos(0.5)) && is_near(x[1], sin(0.5)));
}

static void scalings_have_their_own_fields_and_no_others(void) {
  float x[] = {1, 0};
  const int64_t position = 2;
  const heed_mutable_view view = {.data = x, .shape = {1, 1, 1, 2}};
  const heed_int64s places = {&position, 1};
  heed_rotary rotary = {.size = sizeof rotary, .scaling = {.factor = 4}};
  EXPECT_REFUSED(heed_rotate(&view, &places, &rotary, NULL), HEED_ERROR_VALUE,
                 "rotary.scaling: a field that kind 0 does not have is not 0");
  rotary.scaling.kind = HEED_SCALING_LLAMA3;
  EXPECT_REFUSED(heed_rotate(&view, &places, &rotary, NULL), HEED_ERROR_VALUE,
                 "rotary.scaling.original_length: 0 is below 1");
  rotary.scaling.kind = 6;
  EXPECT_REFUSED(heed_rotate(&view, &places, &rotary, NULL), HEED_ERROR_VALUE,
                 "rotary.scaling.kind: 6 is none of HEED_SCALING_NONE, HEED_SCALING_LINEAR, "
                 "HEED_SCALING_DYNAMIC, HEED_SCALING_YARN, HEED_SCALING_LLAMA3, HEED_SCALING_LONGROPE");
  rotary.scaling.kind = HEED_SCALING_LINEAR;
  rotary.pairs = 2;
  EXPECT_REFUSED(heed_rotate(&view, &places, &rotary, NULL), HEED_ERROR_VALUE,
                 "rotary.pairs: 2 is none of HEED_ROTARY_PAIRS_HALVES, HEED_ROTARY_PAIRS_ADJACENT");
  EXPECT(x[0] == 1 && x[1] == 0);
}

const claim rotary_claims[] = {
    {"a_pair_turns_by_its_position", a_pair_turns_by_its_position},
    {"a_linear_scaling_slows_the_turn", a_linear_scaling_slows_the_turn},
    {"scalings_have_their_own_fields_and_no_others", scalings_have_their_own_fields_and_no_others},
    {0, 0},
};
