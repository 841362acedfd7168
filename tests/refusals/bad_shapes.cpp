// SPDX-License-Identifier: Apache-2.0
// Arrays that do not fit together.
#include "refusals/bad_call.hpp"

namespace heed {
namespace {

const BadCall bad_shapes[] = {
    {"kv_heads_that_do_not_divide", Error::shape, "k.heads: 3 does not divide q.heads: 8",
     [](Call& c) {
       c.inputs.k = c.place({2, 3, 9, 16});
       c.inputs.v = c.place({2, 3, 9, 8});
     }},
    {"more_kv_heads_than_heads", Error::shape, "k.heads: 16 does not divide q.heads: 8",
     [](Call& c) {
       c.inputs.k = c.place({2, 16, 9, 16});
       c.inputs.v = c.place({2, 16, 9, 8});
     }},
    {"heads_without_kv_heads", Error::shape, "k.heads: 0 does not divide q.heads: 8",
     [](Call& c) { c.inputs.k.shape.heads = c.inputs.v.shape.heads = 0; }},
    {"keys_of_another_dimension", Error::shape, "k.dim: 8 is not q.dim: 16",
     [](Call& c) { c.inputs.k.shape.dim = 8; }},
    {"keys_without_a_dimension", Error::shape, "k.dim: 0 is not q.dim: 16",
     [](Call& c) { c.inputs.k.shape.dim = 0; }},
    {"keys_for_another_batch", Error::shape, "k.batch: 1 is not q.batch: 2",
     [](Call& c) { c.inputs.k.shape.batch = 1; }},
    {"values_for_another_batch", Error::shape, "v.batch: 1 is not q.batch: 2",
     [](Call& c) { c.inputs.v.shape.batch = 1; }},
    {"fewer_value_heads_than_key_heads", Error::shape, "v.heads: 1 is not k.heads: 2",
     [](Call& c) { c.inputs.v.shape.heads = 1; }},
    {"fewer_values_than_keys", Error::shape, "v.length: 8 is not k.length: 9",
     [](Call& c) { c.inputs.v.shape.length = 8; }},
    {"a_result_with_the_dimension_of_the_keys", Error::shape,
     "out.shape: (2, 8, 4, 16) is not (batch, heads, queries, value_dim): (2, 8, 4, 8)",
     [](Call& c) { c.outputs.out = c.place({2, 8, 4, 16}); }},
    {"a_result_with_the_heads_of_the_keys", Error::shape,
     "out.shape: (2, 2, 4, 8) is not (batch, heads, queries, value_dim): (2, 8, 4, 8)",
     [](Call& c) { c.outputs.out.shape.heads = 2; }},
    {"a_result_with_length_and_heads_swapped", Error::shape,
     "out.shape: (2, 4, 8, 8) is not (batch, heads, queries, value_dim): (2, 8, 4, 8)",
     [](Call& c) { c.outputs.out = c.place({2, 4, 8, 8}); }},
    {"weights_without_a_column_per_key", Error::shape,
     "weights.shape: (2, 8, 4, 4) is not (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) { c.outputs.weights = c.place({2, 8, 4, 4}); }},
    {"weights_averaged_over_heads", Error::shape,
     "weights.shape: (2, 1, 4, 9) is not (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) { c.outputs.weights = c.place({2, 1, 4, 9}); }},
    {"scores_of_another_shape", Error::shape,
     "scores.into.shape: (1, 8, 4, 9) is not (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) { c.outputs.scores.into = c.place({1, 8, 4, 9}); }},
    {"a_log_sum_exp_with_the_queries_last", Error::shape,
     "log_sum_exp.shape: (1, 2, 8, 4) is not (batch, heads, queries, 1): (2, 8, 4, 1)",
     [](Call& c) { c.outputs.log_sum_exp = c.place({1, 2, 8, 4}); }},
    {"a_bias_that_does_not_broadcast", Error::shape,
     "options.bias.shape: (1, 2, 4, 9) does not broadcast to (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) { c.options.bias = c.place({1, 2, 4, 9}); }},
    {"an_empty_bias", Error::shape,
     "options.bias.shape: (1, 8, 4, 0) does not broadcast to (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) { c.options.bias = View{static_cast<float*>(nullptr), {1, 8, 4, 0}}; }},
    {"a_sink_for_every_key", Error::shape,
     "options.sink.shape: (1, 8, 1, 9) does not broadcast to (batch, heads, 1, 1): (2, 8, 1, 1)",
     [](Call& c) { c.options.sink = c.place({1, 8, 1, 9}); }},
    {"a_sink_with_the_heads_last", Error::shape,
     "options.sink.shape: (1, 1, 1, 8) does not broadcast to (batch, heads, 1, 1): (2, 8, 1, 1)",
     [](Call& c) { c.options.sink = c.place({1, 1, 1, 8}); }},
};

const BadCall bad_masks[] = {
    {"a_causal_mask_with_two_readings", Error::ambiguous,
     "causal mask: 4 queries, 9 keys; say Align::ends (decode) or Align::starts",
     [](Call& c) { c.options.masks = {Causal{}}; }},
    {"a_causal_mask_with_two_readings_behind_another", Error::ambiguous,
     "causal mask: 4 queries, 9 keys; say Align::ends (decode) or Align::starts",
     [](Call& c) { c.options.masks = {Causal{Align::ends}, Causal{}}; }},
    {"a_window_with_two_readings", Error::ambiguous,
     "window mask: 4 queries, 9 keys; say Align::ends (decode) or Align::starts",
     [](Call& c) { c.options.masks = {Window{.left = 2}}; }},
    {"an_alignment_that_does_not_exist", Error::value, "causal mask: align 5 is none of starts, ends",
     [](Call& c) { c.options.masks = {Causal{static_cast<Align>(5)}}; }},
    {"a_window_with_a_negative_left", Error::value, "window mask: left -1 is negative",
     [](Call& c) { c.options.masks = {Window::from_total(0)}; }},
    {"a_window_with_a_negative_right", Error::value, "window mask: right -2 is negative",
     [](Call& c) { c.options.masks = {Window{.left = 3, .right = -2, .align = Align::starts}}; }},
    {"key_lengths_for_another_batch", Error::shape, "key lengths: 3 counts for q.batch: 2",
     [](Call& c) { c.options.masks = {KeyLengths{c.counts}}; }},
    {"no_key_lengths_at_all", Error::shape, "key lengths: 0 counts for q.batch: 2",
     [](Call& c) { c.options.masks = {KeyLengths{}}; }},
    {"a_key_length_beyond_the_keys", Error::value,
     "key lengths: 10 for batch entry 1 is outside [0, 9], the keys there are",
     [](Call& c) {
       c.counts[1] = 10;
       c.options.masks = {KeyLengths{std::span(c.counts).first(2)}};
     }},
    {"a_negative_key_length", Error::value,
     "key lengths: -1 for batch entry 0 is outside [0, 9], the keys there are",
     [](Call& c) {
       c.counts[0] = -1;
       c.options.masks = {KeyLengths{std::span(c.counts).first(2)}};
     }},
    {"a_keep_mask_of_another_shape", Error::shape,
     "keep mask.shape: (1, 1, 9, 9) does not broadcast to (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) { c.options.masks = {Keep{c.place_bools({1, 1, 9, 9})}}; }},
    {"a_hide_mask_for_the_kv_heads", Error::shape,
     "hide mask.shape: (2, 2, 4, 9) does not broadcast to (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) { c.options.masks = {Hide{c.place_bools({2, 2, 4, 9})}}; }},
};

const BadCall bad_documents[] = {
    {"numbers_for_some_of_the_keys", Error::shape,
     "document mask: 3 ids are neither one per key: 9 nor one per batch entry and key: 18",
     [](Call& c) { c.options.masks = {Document{c.counts, Align::ends}}; }},
    {"numbers_for_some_of_the_queries", Error::shape,
     "document mask: 3 query_ids are neither one per query: 4 nor one per batch entry and query: 8",
     [](Call& c) { c.options.masks = {Document{.ids = c.ids, .query_ids = c.counts}}; }},
    {"documents_whose_queries_could_stand_anywhere", Error::ambiguous,
     "document mask: 4 queries, 9 keys; say Align::ends (decode) or Align::starts",
     [](Call& c) { c.options.masks = {Document{c.ids}}; }},
    {"documents_aligned_as_nothing_is", Error::value, "document mask: align 2 is none of starts, ends",
     [](Call& c) { c.options.masks = {Document{c.ids, static_cast<Align>(2)}}; }},
    {"numbers_without_data", Error::value, "document mask.data: null, but the shape is (1, 1, 1, 9)",
     [](Call& c) {
       c.options.masks = {Document{{static_cast<const std::int32_t*>(nullptr), 9}, Align::ends}};
     }},
    {"writing_over_the_numbers_of_the_keys", Error::overlap, "out: shares memory with the document mask",
     [](Call& c) {
       c.options.masks = {Document{{static_cast<const std::int32_t*>(c.outputs.out.data), 9}, Align::ends}};
     }},
    {"writing_over_the_numbers_of_the_queries", Error::overlap,
     "out: shares memory with the document mask's query_ids",
     [](Call& c) {
       c.options.masks = {
           Document{.ids = c.ids, .query_ids = {static_cast<const std::int32_t*>(c.outputs.out.data), 4}}};
     }},
};

INSTANTIATE_TEST_SUITE_P(Documents, BadCalls, testing::ValuesIn(bad_documents), claim_of);
INSTANTIATE_TEST_SUITE_P(Shapes, BadCalls, testing::ValuesIn(bad_shapes), claim_of);
INSTANTIATE_TEST_SUITE_P(Masks, BadCalls, testing::ValuesIn(bad_masks), claim_of);

}  // namespace
}  // namespace heed
