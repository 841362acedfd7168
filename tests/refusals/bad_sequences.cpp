// SPDX-License-Identifier: Apache-2.0
// Packed sequences whose starts do not fit, caches that do not, and masks over either.
#include "refusals/bad_call.hpp"

namespace heed {
namespace {

const BadCall bad_packs[] = {
    {"queries_that_do_not_start_at_0", Error::value, "query_starts[0]: 1 is not 0",
     [](Call& c) {
       c.query_starts[0] = 1;
       c.pack();
     }},
    {"keys_whose_starts_fall", Error::value, "key_starts[2]: 4 is less than the entry before it: 5",
     [](Call& c) {
       c.key_starts[2] = 4;
       c.pack();
     }},
    {"queries_left_over", Error::value, "query_starts: its last entry 5 is not q.length: 6",
     [](Call& c) {
       c.query_starts[2] = 5;
       c.pack();
     }},
    {"keys_that_are_not_there", Error::value, "key_starts: its last entry 10 is not k.length: 9",
     [](Call& c) {
       c.key_starts[2] = 10;
       c.pack();
     }},
    {"packed_queries_in_a_batch", Error::shape, "q.batch: 2 is not 1, which packed sequences need",
     [](Call& c) {
       c.pack();
       c.inputs.q.shape.batch = 2;
     }},
    {"packed_keys_in_a_batch", Error::shape, "k.batch: 2 is not 1, which packed sequences need",
     [](Call& c) {
       c.pack();
       c.inputs.k.shape.batch = 2;
     }},
    {"packed_values_in_a_batch", Error::shape, "v.batch: 2 is not 1, which packed sequences need",
     [](Call& c) {
       c.pack();
       c.inputs.v.shape.batch = 2;
     }},
    {"packed_queries_over_plain_keys", Error::shape,
     "key_starts: not given, but the other is; queries and keys are packed together",
     [](Call& c) {
       c.pack();
       c.inputs.key_starts = {};
     }},
    {"plain_queries_over_packed_keys", Error::shape,
     "query_starts: not given, but the other is; queries and keys are packed together",
     [](Call& c) {
       c.pack();
       c.inputs.query_starts = {};
     }},
    {"fewer_sequences_of_keys", Error::shape, "key_starts: 2 entries are not as many as query_starts: 3",
     [](Call& c) {
       c.key_starts = {0, 9, 9};
       c.pack();
       c.inputs.key_starts = c.inputs.key_starts.first(2);
     }},
    {"a_causal_mask_that_could_mean_two_things", Error::ambiguous,
     "causal mask: 4 queries, 5 keys; say Align::ends (decode) or Align::starts",
     [](Call& c) {
       c.pack();
       c.options.masks = {Causal{}};
     }},
    {"key_lengths_for_more_sequences", Error::shape, "key lengths: 3 counts for q.batch: 2",
     [](Call& c) {
       c.pack();
       c.options.masks = {KeyLengths{c.counts}};
     }},
    {"key_lengths_beyond_a_sequence", Error::value,
     "key lengths: 9 for batch entry 1 is outside [0, 4], the keys there are",
     [](Call& c) {
       c.pack();
       c.options.masks = {KeyLengths{std::span(c.counts).first(2)}};
     }},
};

const BadCall bad_counts[] = {
    {"counts_for_more_entries", Error::shape, "query_counts: 3 entries for q.batch: 2",
     [](Call& c) { c.inputs.query_counts = c.numbers; }},
    {"a_count_beyond_the_queries", Error::value, "query_counts[1]: 9 is not in [0, 4], the queries of q",
     [](Call& c) {
       c.numbers = {4, 9, 0};
       c.inputs.query_counts = std::span(c.numbers).first(2);
     }},
    {"a_count_of_less_than_nothing", Error::value, "query_counts[0]: -1 is not in [0, 4], the queries of q",
     [](Call& c) {
       c.numbers = {-1, 4, 0};
       c.inputs.query_counts = std::span(c.numbers).first(2);
     }},
    {"counts_of_packed_queries", Error::value,
     "query_counts: given, but so are query_starts; packed queries have no padding",
     [](Call& c) {
       c.pack();
       c.inputs.query_counts = std::span(c.numbers).first(2);
     }},
    {"counts_that_make_a_causal_mask_ambiguous", Error::ambiguous,
     "causal mask: 0 queries, 4 keys; say Align::ends (decode) or Align::starts",
     [](Call& c) {
       c.inputs.k.shape.length = c.inputs.v.shape.length = 4;
       c.options.masks = {Causal{}};
       c.inputs.query_counts = std::span(c.numbers).first(2);
     }},
};

const BadCall bad_caches[] = {
    {"keys_beside_a_cache", Error::value, "k: given, but so is the cache, which stands for it",
     [](Call& c) {
       const View k = c.inputs.k;
       c.keep();
       c.inputs.k = k;
     }},
    {"values_beside_a_cache", Error::value, "v: given, but so is the cache, which stands for it",
     [](Call& c) {
       const View v = c.inputs.v;
       c.keep();
       c.inputs.v = v;
     }},
    {"starts_of_keys_beside_a_cache", Error::value, "key_starts: given, but the cache knows its lengths",
     [](Call& c) {
       c.keep();
       c.inputs.key_starts = c.key_starts;
     }},
    {"another_batch_than_the_caches", Error::shape,
     "cache.sequences: 2 are not the batch: 1; say which by inputs.sequences",
     [](Call& c) {
       c.keep();
       c.inputs.q.shape.batch = c.outputs.out.shape.batch = 1;
     }},
    {"numbers_of_sequences_without_a_cache", Error::value,
     "inputs.sequences: given, but no cache whose sequences they are",
     [](Call& c) { c.inputs.sequences = c.numbers; }},
    {"more_numbers_than_the_batch", Error::shape, "inputs.sequences: 3 numbers for a batch of 2",
     [](Call& c) {
       c.keep();
       c.inputs.sequences = c.numbers;
     }},
    {"a_number_beyond_the_cache", Error::value, "sequence: 2 is not in [0, 2)",
     [](Call& c) {
       c.keep();
       c.inputs.sequences = std::span(c.numbers).last(2);
     }},
    {"a_released_sequence", Error::value, "sequence: 1 is released",
     [](Call& c) {
       c.keep();
       c.cache->release(1);
     }},
    {"queries_whose_keys_are_not_appended", Error::shape,
     "q.length: 4 queries for batch entry 1 are more than the 3 tokens of its sequence; append their keys "
     "and "
     "values first",
     [](Call& c) {
       c.keep();
       c.cache->truncate(1, 3);
     }},
    {"queries_of_another_dimension_than_the_cache", Error::shape, "cache.dim: 16 is not q.dim: 8",
     [](Call& c) {
       c.keep();
       c.inputs.q.shape.dim = 8;
     }},
    {"cached_heads_that_do_not_divide", Error::shape, "cache.kv_heads: 2 does not divide q.heads: 7",
     [](Call& c) {
       c.keep();
       c.inputs.q.shape.heads = c.outputs.out.shape.heads = 7;
     }},
    {"a_result_of_another_dimension_than_the_cache", Error::shape,
     "out.shape: (2, 8, 4, 7) is not (batch, heads, queries, value_dim): (2, 8, 4, 8)",
     [](Call& c) {
       c.keep();
       c.outputs.out.shape.dim = 7;
     }},
    {"weights_of_a_cache_without_a_column_per_token", Error::shape,
     "weights.shape: (2, 8, 4, 4) is not (batch, heads, queries, keys): (2, 8, 4, 9)",
     [](Call& c) {
       c.keep();
       c.outputs.weights = c.place({2, 8, 4, 4});
     }},
    {"key_lengths_beyond_a_cached_sequence", Error::value,
     "key lengths: 9 for batch entry 1 is outside [0, 8], the keys there are",
     [](Call& c) {
       c.keep();
       c.cache->truncate(1, 8);
       c.options.masks = {KeyLengths{std::span(c.counts).first(2)}};
     }},
    {"a_front_of_less_than_nothing", Error::value, "window mask: front -1 is negative",
     [](Call& c) { c.options.masks = {Window{.left = 1, .align = Align::ends, .front = -1}}; }},
    {"a_tree_with_a_column_per_key", Error::shape,
     "tree mask.shape: (2, 8, 4, 9) does not broadcast to (batch, heads, queries, queries): (2, 8, 4, 4)",
     [](Call& c) { c.options.masks = {Tree{c.place_bools({2, 8, 4, 9})}}; }},
    {"a_tree_of_more_queries_than_keys", Error::shape,
     "tree mask: 4 queries, 3 keys; every query is one of the last keys",
     [](Call& c) {
       c.inputs.k.shape.length = c.inputs.v.shape.length = 3;
       c.options.masks = {Tree{c.place_bools({1, 1, 4, 4})}};
     }},
    {"a_tree_where_the_result_goes", Error::overlap, "out: shares memory with the tree mask",
     [](Call& c) {
       const BoolView where = c.place_bools({1, 1, 4, 4});
       c.options.masks = {Tree{{static_cast<const bool*>(c.outputs.out.data), where.shape, where.stride}}};
     }},
};

INSTANTIATE_TEST_SUITE_P(Packs, BadCalls, testing::ValuesIn(bad_packs), claim_of);
INSTANTIATE_TEST_SUITE_P(Counts, BadCalls, testing::ValuesIn(bad_counts), claim_of);
INSTANTIATE_TEST_SUITE_P(Caches, BadCalls, testing::ValuesIn(bad_caches), claim_of);

TEST(Calls, the_packed_and_the_cached_call_that_the_tables_spoil_are_good_ones) {
  Call packed, cached;
  packed.pack();
  cached.keep();
  EXPECT_NO_THROW(attention(packed.inputs, packed.outputs, packed.options));
  EXPECT_NO_THROW(attention(cached.inputs, cached.outputs, cached.options));
}

}  // namespace
}  // namespace heed
