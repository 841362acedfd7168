// SPDX-License-Identifier: Apache-2.0
// Numbers outside their domain, and outputs that share memory.
#include "refusals/bad_call.hpp"

namespace heed {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float inf = std::numeric_limits<float>::infinity();

const BadCall bad_choices[] = {
    {"a_scale_that_is_not_a_number", Error::value, "options.scale: nan is not a finite number",
     [](Call& c) { c.options.scale = -nan; }},
    {"an_infinite_scale", Error::value, "options.scale: -inf is not a finite number",
     [](Call& c) { c.options.scale = -inf; }},
    {"a_softcap_of_zero", Error::value, "options.softcap: 0 is not a finite number above 0",
     [](Call& c) { c.options.softcap = 0.0f; }},
    {"a_negative_softcap", Error::value, "options.softcap: -30.5 is not a finite number above 0",
     [](Call& c) { c.options.softcap = -30.5f; }},
    {"an_infinite_softcap", Error::value, "options.softcap: inf is not a finite number above 0",
     [](Call& c) { c.options.softcap = inf; }},
    {"a_softcap_that_is_not_a_number", Error::value, "options.softcap: nan is not a finite number above 0",
     [](Call& c) { c.options.softcap = nan; }},
    {"dropping_everything", Error::value, "options.dropout.drop_probability: 1 is outside [0, 1)",
     [](Call& c) { c.options.dropout = Dropout{.drop_probability = 1}; }},
    {"a_negative_drop_probability", Error::value, "options.dropout.drop_probability: -0.1 is outside [0, 1)",
     [](Call& c) { c.options.dropout = Dropout{.drop_probability = -0.1}; }},
    {"a_drop_probability_that_is_1_in_f32", Error::value,
     "options.dropout.drop_probability: 0.99999999 is 1 in f32",
     [](Call& c) { c.options.dropout = Dropout{.drop_probability = 0.99999999}; }},
    {"a_drop_probability_that_is_not_a_number", Error::value,
     "options.dropout.drop_probability: nan is outside [0, 1)",
     [](Call& c) { c.options.dropout = Dropout{.drop_probability = nan}; }},
    {"slopes_for_other_heads", Error::shape,
     "options.alibi: 3 slopes are neither one per head: 8 nor one per batch entry and head: 16",
     [](Call& c) { c.options.alibi = Alibi{std::span(c.slopes).first(3), Align::ends}; }},
    {"a_slope_that_is_not_a_number", Error::value, "options.alibi.slopes[2]: nan is not a finite number",
     [](Call& c) {
       c.slopes[2] = nan;
       c.options.alibi = Alibi{c.slopes, Align::ends};
     }},
    {"an_infinite_slope", Error::value, "options.alibi.slopes[7]: inf is not a finite number",
     [](Call& c) {
       c.slopes[7] = inf;
       c.options.alibi = Alibi{c.slopes, Align::ends};
     }},
    {"slopes_whose_distances_could_begin_anywhere", Error::ambiguous,
     "options.alibi: 4 queries, 9 keys; say Align::ends (decode) or Align::starts",
     [](Call& c) { c.options.alibi = Alibi{c.slopes}; }},
    {"a_head_map_that_does_not_exist", Error::value, "options.head_map: 2 is none of interleaved, tiled",
     [](Call& c) { c.options.head_map = static_cast<HeadMap>(2); }},
    {"a_stage_that_does_not_exist", Error::value, "scores.stage: 3 is none of raw, softcapped, biased",
     [](Call& c) { c.outputs.scores = {c.place({2, 8, 4, 9}), static_cast<Stage>(3)}; }},
};

const BadCall bad_overlaps[] = {
    {"writing_over_the_queries", Error::overlap, "out: shares memory with q",
     [](Call& c) { c.outputs.out.data = const_cast<void*>(c.inputs.q.data); }},
    {"writing_over_the_last_value", Error::overlap, "out: shares memory with v",
     [](Call& c) {
       c.outputs.out.data = static_cast<float*>(const_cast<void*>(c.inputs.v.data)) + 2 * 2 * 9 * 8 - 1;
     }},
    {"writing_every_other_key", Error::overlap, "out: shares memory with k",
     [](Call& c) {
       c.outputs.out.data = static_cast<float*>(const_cast<void*>(c.inputs.k.data)) + 1;
       c.outputs.out.stride.dim = 2;
       c.outputs.out.stride.length = 16;
       c.outputs.out.stride.heads = 64;
       c.outputs.out.stride.batch = 512;
     }},
    {"weights_over_the_result", Error::overlap, "weights: shares memory with out",
     [](Call& c) {
       c.outputs.weights = c.place({2, 8, 4, 9});
       c.outputs.weights->data = c.outputs.out.data;
     }},
    {"a_log_sum_exp_over_the_weights", Error::overlap, "log_sum_exp: shares memory with weights",
     [](Call& c) {
       c.outputs.weights = c.outputs.log_sum_exp = c.place({2, 8, 4, 9});
       c.outputs.log_sum_exp->shape.dim = 1;
     }},
    {"scores_over_the_weights", Error::overlap, "scores.into: shares memory with weights",
     [](Call& c) {
       c.outputs.weights = c.place({2, 8, 4, 9});
       c.outputs.scores.into = c.outputs.weights;
     }},
    {"writing_over_the_bias", Error::overlap, "weights: shares memory with options.bias",
     [](Call& c) { c.options.bias = *(c.outputs.weights = c.place({2, 8, 4, 9})); }},
    {"writing_over_the_slopes", Error::overlap, "out: shares memory with options.alibi",
     [](Call& c) {
       c.options.alibi = Alibi{{static_cast<const float*>(c.outputs.out.data), 8}, Align::ends};
     }},
    {"writing_over_the_sink", Error::overlap, "out: shares memory with options.sink",
     [](Call& c) { c.options.sink = View{c.outputs.out.data, {1, 8, 1, 1}, {0, 4, 0, 0}, DType::f32}; }},
    {"writing_over_a_keep_mask", Error::overlap, "out: shares memory with the keep mask",
     [](Call& c) {
       const BoolView keep = c.place_bools({2, 8, 36, 9});
       c.outputs.out.data = const_cast<bool*>(keep.data);
       c.options.masks = {Keep{{keep.data + 4, {1, 1, 1, 9}, {0, 0, 0, 1}}}};
     }},
    {"writing_over_a_hide_mask", Error::overlap, "out: shares memory with the hide mask",
     [](Call& c) {
       const BoolView hide = c.place_bools({2, 8, 36, 9});
       c.outputs.out.data = const_cast<bool*>(hide.data);
       c.options.masks = {Causal{Align::ends}, Hide{{hide.data, {1, 1, 4, 1}, {0, 0, 1, 0}}}};
     }},
    {"writing_over_the_last_of_many_masks", Error::overlap, "out: shares memory with the hide mask",
     [](Call& c) {
       c.options.masks = std::vector<Mask>(40, Keep{c.place_bools({1, 1, 4, 9})});
       c.options.masks.push_back(Hide{{static_cast<const bool*>(c.outputs.out.data), {1, 1, 4, 1}}});
     }},
    {"writing_over_the_key_lengths", Error::overlap, "log_sum_exp: shares memory with the key lengths",
     [](Call& c) {
       c.outputs.log_sum_exp = c.place({2, 8, 4, 1});
       const auto counts = static_cast<std::int32_t*>(c.outputs.log_sum_exp->data);
       counts[0] = counts[1] = 5;
       c.options.masks = {KeyLengths{{counts, 2}}};
     }},
    {"writing_over_the_starts_of_the_queries", Error::overlap, "out: shares memory with query_starts",
     [](Call& c) {
       c.pack();
       c.inputs.query_starts = c.place_numbers(c.query_starts, c.outputs.out);
     }},
    {"writing_over_the_starts_of_the_keys", Error::overlap, "out: shares memory with key_starts",
     [](Call& c) {
       c.pack();
       c.inputs.key_starts = c.place_numbers(c.key_starts, c.outputs.out);
     }},
    {"writing_over_the_counts_of_the_queries", Error::overlap, "log_sum_exp: shares memory with query_counts",
     [](Call& c) {
       c.outputs.log_sum_exp = c.place({2, 8, 4, 1});
       c.inputs.query_counts = c.place_numbers(std::span(c.numbers).first(2), *c.outputs.log_sum_exp);
     }},
    {"writing_over_the_numbers_of_the_sequences", Error::overlap, "out: shares memory with inputs.sequences",
     [](Call& c) {
       c.keep();
       c.inputs.sequences = c.place_numbers(std::span(c.numbers).first(2), c.outputs.out);
     }},
    {"an_output_that_is_broadcast", Error::overlap, "out.stride.heads: 0 puts 8 results in one place",
     [](Call& c) { c.outputs.out.stride.heads = 0; }},
    {"rows_that_run_into_each_other", Error::overlap,
     "out.stride.length: 7 does not step over the 8 elements that the axes inside it span",
     [](Call& c) { c.outputs.out.stride.length = 7; }},
    {"batch_entries_that_run_into_each_other", Error::overlap,
     "weights.stride.batch: 287 does not step over the 288 elements that the axes inside it span",
     [](Call& c) {
       c.outputs.weights = c.place({2, 8, 4, 9});
       c.outputs.weights->stride.batch = 287;
     }},
};

INSTANTIATE_TEST_SUITE_P(Choices, BadCalls, testing::ValuesIn(bad_choices), claim_of);
INSTANTIATE_TEST_SUITE_P(Overlaps, BadCalls, testing::ValuesIn(bad_overlaps), claim_of);

}  // namespace
}  // namespace heed
