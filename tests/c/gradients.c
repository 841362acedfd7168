// SPDX-License-Identifier: Apache-2.0
// The gradients of attention, against numbers worked out by hand, and what C refuses of them.
#include <math.h>
#include <string.h>

#include "claims.h"

// One query over two keys. Both scores are 2, so either key has half of the weight, and out is 20. With a
// gradient of 1 by out, that by the scores is (10 - 20) / 2 = -5 and (30 - 20) / 2 = 5.
static const double q[] = {0, 1}, k[] = {1, 2, 3, 2}, v[] = {10, 30}, one = 1;
static const double by_q[] = {10, 0}, by_k[] = {0, -5, 0, 5}, by_v[] = {0.5, 0.5};

static const heed_dtype dtypes[] = {HEED_DTYPE_F32, HEED_DTYPE_F16, HEED_DTYPE_BF16, HEED_DTYPE_F64};

// Room for four elements of any type.
typedef union numbers {
  float f32[4];
  uint16_t bits[4];
  double f64[4];
} numbers;

// The bits of a float, of which bf16 has the upper half. No number here needs more.
static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static uint16_t to_f16(double number) {
  int exponent = 0;
  const double mantissa = frexp(fabs(number), &exponent);  // in [0.5, 1)
  const int sign = number < 0 ? 1 << 15 : 0;
  if (number == 0) return 0;
  return (uint16_t)(sign | (exponent + 14) << 10 | (int)((2 * mantissa - 1) * 1024));
}

static double from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

static double number_at(const numbers* all, int i, heed_dtype dtype) {
  if (dtype == HEED_DTYPE_F64) return all->f64[i];
  if (dtype == HEED_DTYPE_F32) return all->f32[i];
  if (dtype == HEED_DTYPE_F16) return from_f16(all->bits[i]);
  const uint32_t bits = (uint32_t)all->bits[i] << 16;
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

static numbers of_type(const double* from, int count, heed_dtype dtype) {
  numbers made;
  memset(&made, 0xff, sizeof made);  // a NaN where nobody writes
  for (int i = 0; i < count; ++i)
    if (dtype == HEED_DTYPE_F64)
      made.f64[i] = from[i];
    else if (dtype == HEED_DTYPE_F32)
      made.f32[i] = (float)from[i];
    else
      made.bits[i] = dtype == HEED_DTYPE_F16 ? to_f16(from[i]) : (uint16_t)(bits_of((float)from[i]) >> 16);
  return made;
}

// A forward call and the backward call that follows it; `link` makes their views.
typedef struct call {
  heed_dtype dtype;
  numbers q, k, v, out, log_sum_exp, of_out, of_q, of_k, of_v;
  heed_inputs inputs;
  heed_outputs outputs;
  heed_saved saved;
  heed_gradients gradients;
  heed_options options;
} call;

static heed_view read_view(const numbers* from, heed_dtype dtype, int64_t length, int64_t dim) {
  const heed_view made = {.data = from, .shape = {1, 1, length, dim}, .dtype = dtype};
  return made;
}

static heed_mutable_view write_view(numbers* into, heed_dtype dtype, int64_t length, int64_t dim) {
  const heed_mutable_view made = {.data = into, .shape = {1, 1, length, dim}, .dtype = dtype};
  return made;
}

static void link(call* c) {
  const heed_dtype d = c->dtype, sum = d == HEED_DTYPE_F64 ? HEED_DTYPE_F64 : HEED_DTYPE_F32;
  const heed_inputs inputs = {.size = sizeof inputs,
                              .q = read_view(&c->q, d, 1, 2),
                              .k = read_view(&c->k, d, 2, 2),
                              .v = read_view(&c->v, d, 2, 1)};
  const heed_outputs outputs = {.size = sizeof outputs,
                                .out = write_view(&c->out, d, 1, 1),
                                .log_sum_exp = write_view(&c->log_sum_exp, sum, 1, 1)};
  const heed_saved saved = {.size = sizeof saved,
                            .out = read_view(&c->out, d, 1, 1),
                            .log_sum_exp = read_view(&c->log_sum_exp, sum, 1, 1)};
  const heed_gradients gradients = {.size = sizeof gradients,
                                    .out = read_view(&c->of_out, d, 1, 1),
                                    .q = write_view(&c->of_q, d, 1, 2),
                                    .k = write_view(&c->of_k, d, 2, 2),
                                    .v = write_view(&c->of_v, d, 2, 1)};
  const heed_options options = {.size = sizeof options, .scale = 1, .has_scale = 1};
  c->inputs = inputs, c->outputs = outputs, c->saved = saved, c->gradients = gradients, c->options = options;
}

// The forward call has been run.
static void prepare(call* c, heed_dtype dtype) {
  c->dtype = dtype;
  c->q = of_type(q, 2, dtype), c->k = of_type(k, 4, dtype), c->v = of_type(v, 2, dtype);
  c->of_out = of_type(&one, 1, dtype);
  c->out = c->log_sum_exp = c->of_q = c->of_k = c->of_v = of_type(q, 0, dtype);
  link(c);
  EXPECT_DONE(heed_attention(&c->inputs, &c->outputs, &c->options));
}

static heed_status differentiate(const call* c) {
  return heed_attention_backward(&c->inputs, &c->saved, &c->gradients, &c->options);
}

static int are(const numbers* found, const double* wanted, int count, const call* c) {
  for (int i = 0; i < count; ++i)
    if (!(fabs(number_at(found, i, c->dtype) - wanted[i]) <= 1e-4)) return 0;
  return 1;
}

static void those_of_every_type_are_written(void) {
  for (int i = 0; i < 4; ++i) {
    call c;
    prepare(&c, dtypes[i]);
    EXPECT_DONE(differentiate(&c));
    EXPECT(are(&c.of_q, by_q, 2, &c));
    EXPECT(are(&c.of_k, by_k, 4, &c));
    EXPECT(are(&c.of_v, by_v, 2, &c));
  }
}

static void those_of_16_bits_may_be_written_in_32(void) {
  call c;
  prepare(&c, HEED_DTYPE_BF16);
  c.gradients.k.dtype = HEED_DTYPE_F32;
  EXPECT_DONE(differentiate(&c));
  for (int i = 0; i < 4; ++i) EXPECT(fabs(c.of_k.f32[i] - by_k[i]) <= 1e-4);
}

static void only_those_asked_for_are_written(void) {
  call c;
  prepare(&c, HEED_DTYPE_F32);
  const heed_mutable_view none = {0};
  const numbers before = c.of_q;
  c.gradients.q = c.gradients.k = none;
  EXPECT_DONE(differentiate(&c));
  EXPECT(memcmp(&c.of_q, &before, sizeof before) == 0 && memcmp(&c.of_k, &before, sizeof before) == 0);
  EXPECT(are(&c.of_v, by_v, 2, &c));
}

static void accumulated_ones_are_added(void) {
  call c;
  prepare(&c, HEED_DTYPE_F32);
  const double before[] = {100, 200}, sums[] = {110, 200};
  c.of_q = of_type(before, 2, HEED_DTYPE_F32);
  const heed_mutable_view none = {0};
  c.gradients.k = c.gradients.v = none;
  c.gradients.accumulate = 1;
  EXPECT_DONE(differentiate(&c));
  EXPECT(are(&c.of_q, sums, 2, &c));
}

// By log_sum_exp 1 as well: its share of each key's score is the key's weight.
static void a_gradient_by_log_sum_exp_counts(void) {
  call c;
  prepare(&c, HEED_DTYPE_F32);
  c.gradients.log_sum_exp = c.gradients.out;
  EXPECT_DONE(differentiate(&c));
  const double wanted[] = {-4.5 * 1 + 5.5 * 3, -4.5 * 2 + 5.5 * 2};
  EXPECT(are(&c.of_q, wanted, 2, &c));
}

static void a_bias_and_a_sink_have_gradients(void) {
  call c;
  prepare(&c, HEED_DTYPE_F32);
  const float bias[] = {-2, -2}, sink = 0;  // with the scores of 2: three times 0, a third of the weight each
  float of_bias[2], of_sink;
  c.options.bias = (heed_view){.data = bias, .shape = {1, 1, 1, 2}};
  c.options.sink = (heed_view){.data = &sink, .shape = {1, 1, 1, 1}};
  c.gradients.bias = (heed_mutable_view){.data = of_bias, .shape = {1, 1, 1, 2}};
  c.gradients.sink = (heed_mutable_view){.data = &of_sink, .shape = {1, 1, 1, 1}};
  EXPECT_DONE(heed_attention(&c.inputs, &c.outputs, &c.options));
  EXPECT_DONE(differentiate(&c));
  const double out = 40.0 / 3;
  EXPECT(fabs(of_bias[0] - (10 - out) / 3) <= 1e-4 && fabs(of_bias[1] - (30 - out) / 3) <= 1e-4);
  EXPECT(fabs(of_sink + out / 3) <= 1e-4);
}

static void masks_hide_keys_from_them(void) {
  call c;
  prepare(&c, HEED_DTYPE_F32);
  const int32_t one_key = 1;
  const heed_mask first = {.kind = HEED_MASK_KEY_LENGTHS, .valid = {&one_key, 1}};
  c.options.masks = (heed_masks){&first, 1, sizeof first};
  EXPECT_DONE(heed_attention(&c.inputs, &c.outputs, &c.options));
  EXPECT_DONE(differentiate(&c));
  const double zeros[4] = {0}, of_values[] = {1, 0};
  EXPECT(are(&c.of_q, zeros, 2, &c) && are(&c.of_k, zeros, 4, &c) && are(&c.of_v, of_values, 2, &c));
}

static void their_plan_is_explained(void) {
  call c;
  prepare(&c, HEED_DTYPE_F32);
  char* text = NULL;
  EXPECT_DONE(heed_explain_backward(&c.inputs, &c.saved, &c.gradients, &c.options, &text));
  EXPECT(text && strstr(text, "taken") && strstr(text, "reference"));
  heed_free(text);
}

#define EXPECT_CALL_REFUSED(change, status, sentence)                \
  do {                                                               \
    call c;                                                          \
    prepare(&c, HEED_DTYPE_F32);                                     \
    change;                                                          \
    EXPECT_REFUSED(differentiate(&c), status, sentence);             \
    EXPECT(memcmp(&c.of_q, &c.of_k, sizeof c.of_q) == 0); /* NaNs */ \
  } while (0)

static void null_gets_a_sentence(void) {
  call c;
  prepare(&c, HEED_DTYPE_F32);
  heed_status status = heed_attention_backward(NULL, &c.saved, &c.gradients, NULL);
  EXPECT_REFUSED(status, HEED_ERROR_VALUE, "inputs: NULL");
  status = heed_attention_backward(&c.inputs, NULL, &c.gradients, NULL);
  EXPECT_REFUSED(status, HEED_ERROR_VALUE, "saved: NULL");
  status = heed_attention_backward(&c.inputs, &c.saved, NULL, NULL);
  EXPECT_REFUSED(status, HEED_ERROR_VALUE, "gradients: NULL");
  status = heed_explain_backward(&c.inputs, &c.saved, &c.gradients, NULL, NULL);
  EXPECT_REFUSED(status, HEED_ERROR_VALUE, "text: NULL");
}

static void what_is_missing_or_means_nothing_is_named(void) {
  const heed_view none = {0};
  EXPECT_CALL_REFUSED(c.saved.out = none, HEED_ERROR_VALUE, "saved.out: not given; all of it is 0");
  EXPECT_CALL_REFUSED(c.saved.log_sum_exp = none, HEED_ERROR_VALUE,
                      "saved.log_sum_exp: not given; all of it is 0");
  EXPECT_CALL_REFUSED(c.gradients.out = none, HEED_ERROR_VALUE, "gradients.out: not given; all of it is 0");
  EXPECT_CALL_REFUSED(
      c.gradients.v.dtype = 9, HEED_ERROR_VALUE,
      "gradients.v.dtype: 9 is none of HEED_DTYPE_F32, HEED_DTYPE_F16, HEED_DTYPE_BF16, HEED_DTYPE_F64");
  EXPECT_CALL_REFUSED(c.gradients.accumulate = 2, HEED_ERROR_VALUE,
                      "gradients.accumulate: 2 is neither 0 nor 1");
  EXPECT_CALL_REFUSED(c.gradients.reserved = 1, HEED_ERROR_UNSUPPORTED, "gradients.reserved: 1 is not 0");
  static float elsewhere;
  const heed_mutable_view sink = {.data = &elsewhere, .shape = {1, 1, 1, 1}};
  EXPECT_CALL_REFUSED(c.gradients.sink = sink, HEED_ERROR_VALUE,
                      "gradients.sink: given, but options.sink is not");
  EXPECT_CALL_REFUSED(c.gradients.q.dtype = HEED_DTYPE_F64, HEED_ERROR_DTYPE,
                      "gradients.q.dtype: f64 is neither q.dtype: f32 nor f32");
}

static void a_cache_has_none(void) {
  const heed_cache_config config = {
      .size = sizeof config, .kv_heads = 1, .capacity = 8, .dim = 2, .value_dim = 1};
  heed_cache* cache = NULL;
  EXPECT_DONE(heed_cache_create(&config, &cache));
  const heed_view none = {0};
  EXPECT_CALL_REFUSED((c.inputs.k = c.inputs.v = none, c.inputs.cache = cache), HEED_ERROR_UNSUPPORTED,
                      "inputs.cache: given, but there is no gradient by what a cache holds");
  heed_cache_destroy(cache);
}

const claim gradient_claims[] = {
    {"those_of_every_type_are_written", those_of_every_type_are_written},
    {"those_of_16_bits_may_be_written_in_32", those_of_16_bits_may_be_written_in_32},
    {"only_those_asked_for_are_written", only_those_asked_for_are_written},
    {"accumulated_ones_are_added", accumulated_ones_are_added},
    {"a_gradient_by_log_sum_exp_counts", a_gradient_by_log_sum_exp_counts},
    {"a_bias_and_a_sink_have_gradients", a_bias_and_a_sink_have_gradients},
    {"masks_hide_keys_from_them", masks_hide_keys_from_them},
    {"their_plan_is_explained", their_plan_is_explained},
    {"null_gets_a_sentence", null_gets_a_sentence},
    {"what_is_missing_or_means_nothing_is_named", what_is_missing_or_means_nothing_is_named},
    {"a_cache_has_none", a_cache_has_none},
    {0, 0},
};
