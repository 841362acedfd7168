// SPDX-License-Identifier: Apache-2.0
// Arrays that are wrong by themselves.
#include "refusals/bad_call.hpp"

namespace heed {
namespace {

constexpr std::int64_t huge = std::int64_t{1} << 62;

const BadCall bad_extents_and_strides[] = {
    {"a_negative_length", Error::shape, "q.length: -4 is negative",
     [](Call& c) { c.inputs.q.shape.length = -4; }},
    {"a_negative_extent_that_makes_strides_negative", Error::shape, "q.dim: -16 is negative",
     [](Call& c) { c.inputs.q = {c.inputs.q.data, {2, 8, 4, -16}, DType::f32}; }},
    {"a_negative_batch", Error::shape, "out.batch: -2 is negative",
     [](Call& c) { c.outputs.out.shape.batch = -2; }},
    {"a_negative_extent_of_a_mask", Error::shape, "hide mask.dim: -9 is negative",
     [](Call& c) {
       c.options.masks = {Hide{c.place_bools({1, 1, 4, 9})}};
       std::get<Hide>(c.options.masks[0]).where.shape.dim = -9;
     }},
    {"a_negative_stride_of_q", Error::shape, "q.stride.length: -64 is negative",
     [](Call& c) { c.inputs.q.stride.length = -64; }},
    {"a_negative_stride_of_the_weights", Error::shape, "weights.stride.heads: -2 is negative",
     [](Call& c) {
       c.outputs.weights = c.place({2, 8, 4, 9});
       c.outputs.weights->stride.heads = -2;
     }},
    {"a_negative_stride_of_the_bias", Error::shape, "options.bias.stride.dim: -9 is negative",
     [](Call& c) {
       c.options.bias = c.place({1, 8, 4, 9});
       c.options.bias->stride.dim = -9;
     }},
    {"a_negative_stride_of_a_mask", Error::shape, "keep mask.stride.batch: -36 is negative",
     [](Call& c) {
       c.options.masks = {Keep{c.place_bools({2, 1, 4, 9})}};
       std::get<Keep>(c.options.masks[0]).where.stride.batch = -36;
     }},
    {"strides_without_that_of_the_heads", Error::shape, "q.stride.heads: -1 is negative, or was not given",
     [](Call& c) { c.inputs.q.stride = {.batch = 512, .length = 16, .dim = 1}; }},
    {"extents_changed_on_a_view_of_nothing", Error::shape, "k.stride.batch: -1 is negative, or was not given",
     [](Call& c) {
       View k;
       k.data = c.inputs.k.data;
       k.shape = c.inputs.k.shape;
       c.inputs.k = k;
     }},
    {"extents_whose_packed_strides_overflow", Error::shape,
     "k: shape (2, 2, 4611686018427387904, 16) with strides (9223372036854775807, 9223372036854775807, 16, "
     "1) reaches beyond any memory",
     [](Call& c) { c.inputs.k = {c.inputs.k.data, {2, 2, huge, 16}, DType::f32}; }},
    {"more_elements_than_can_be_counted", Error::shape,
     "k: shape (2, 2, 4611686018427387904, 16) with strides (288, 144, 0, 1) reaches beyond any memory",
     [](Call& c) {
       c.inputs.k.shape.length = huge;
       c.inputs.k.stride.length = 0;
     }},
    {"more_elements_than_memory_holds", Error::shape,
     "k: shape (2, 2, 18014398509481984, 16) with strides (288, 144, 0, 1) reaches beyond any memory",
     [](Call& c) {
       c.inputs.k.shape.length = huge >> 8;
       c.inputs.k.stride.length = 0;
     }},
    {"a_stride_longer_than_memory", Error::shape,
     "v: shape (2, 2, 9, 8) with strides (288230376151711744, 72, 8, 1) reaches beyond any memory",
     [](Call& c) { c.inputs.v.stride.batch = huge >> 4; }},
    {"a_stride_that_overflows", Error::shape,
     "v: shape (2, 2, 9, 8) with strides (9223372036854775807, 72, 8, 1) reaches beyond any memory",
     [](Call& c) { c.inputs.v.stride.batch = most; }},
    {"strides_that_overflow_together", Error::shape,
     "q: shape (2, 8, 4, 16) with strides (1152921504606846976, 64, 1152921504606846976, 1) reaches beyond "
     "any memory",
     [](Call& c) { c.inputs.q.stride.batch = c.inputs.q.stride.length = huge / 4; }},
    {"an_array_past_the_last_address", Error::shape,
     "q: shape (2, 8, 4, 16) with strides (512, 64, 16, 1) reaches beyond any memory",
     [](Call& c) { c.inputs.q.data = reinterpret_cast<const void*>(UINTPTR_MAX - 63); }},
    {"more_scores_than_can_be_counted", Error::shape,
     "k.length: 1099511627776 keys for q.shape: (2, 8, 1099511627776, 16) are more scores than can be "
     "counted",
     [](Call& c) {
       for (View* view : {&c.inputs.q, &c.inputs.k, &c.inputs.v}) {
         view->shape.length = huge >> 22;
         view->stride.length = 0;
       }
     }},
};

const BadCall bad_data[] = {
    {"q_without_data", Error::value, "q.data: null, but the shape is (2, 8, 4, 16)",
     [](Call& c) { c.inputs.q.data = nullptr; }},
    {"k_without_data", Error::value, "k.data: null, but the shape is (2, 2, 9, 16)",
     [](Call& c) { c.inputs.k.data = nullptr; }},
    {"v_without_data", Error::value, "v.data: null, but the shape is (2, 2, 9, 8)",
     [](Call& c) { c.inputs.v.data = nullptr; }},
    {"out_without_data", Error::value, "out.data: null, but the shape is (2, 8, 4, 8)",
     [](Call& c) { c.outputs.out.data = nullptr; }},
    {"weights_without_data", Error::value, "weights: not given",
     [](Call& c) { c.outputs.weights = MutableView{}; }},
    {"a_log_sum_exp_without_data", Error::value, "log_sum_exp: not given",
     [](Call& c) { c.outputs.log_sum_exp = MutableView{}; }},
    {"scores_without_data", Error::value, "scores.into: not given",
     [](Call& c) { c.outputs.scores.into = MutableView{}; }},
    {"a_bias_without_data", Error::value, "options.bias: not given",
     [](Call& c) { c.options.bias = View{}; }},
    {"a_sink_without_data", Error::value, "options.sink: not given",
     [](Call& c) { c.options.sink = View{}; }},
    {"a_keep_mask_without_data", Error::value, "keep mask: not given",
     [](Call& c) { c.options.masks = {Keep{}}; }},
    {"a_hide_mask_without_data", Error::value, "hide mask.data: null, but the shape is (1, 1, 4, 9)",
     [](Call& c) { c.options.masks = {Hide{{static_cast<bool*>(nullptr), {1, 1, 4, 9}}}}; }},
    {"key_lengths_without_data", Error::value, "key lengths.data: null, but the shape is (1, 1, 1, 2)",
     [](Call& c) { c.options.masks = {KeyLengths{{static_cast<const std::int32_t*>(nullptr), 2}}}; }},
    {"starts_without_data", Error::value, "query_starts.data: null, but the shape is (1, 1, 1, 3)",
     [](Call& c) {
       c.pack();
       c.inputs.query_starts = {static_cast<const std::int64_t*>(nullptr), 3};
     }},
    {"data_between_two_elements", Error::value,
     "k.data: the address is not a multiple of the element's 4 bytes",
     [](Call& c) { c.inputs.k.data = static_cast<const std::byte*>(c.inputs.k.data) + 2; }},
    {"halves_between_two_elements", Error::value,
     "out.data: the address is not a multiple of the element's 2 bytes",
     [](Call& c) {
       c.use_dtype(DType::f16);
       c.outputs.out.data = static_cast<std::byte*>(c.outputs.out.data) + 1;
     }},
};

const BadCall bad_devices_and_dtypes[] = {
    {"memory_of_a_device_that_is_not_built", Error::device,
     "q.device: cuda, but this build has no CUDA backend", [](Call& c) { c.inputs.q.device = Device::cuda; }},
    {"an_output_on_another_device", Error::device, "out.device: cuda is not q.device: cpu",
     [](Call& c) { c.outputs.out.device = Device::cuda; }},
    {"a_mask_on_another_device", Error::device, "keep mask.device: cuda is not q.device: cpu",
     [](Call& c) {
       BoolView keep = c.place_bools({1, 1, 4, 9});
       keep.device = Device::cuda;
       c.options.masks = {Keep{keep}};
     }},
    {"a_stream_for_the_cpu", Error::device, "options.stream: given, but q.device is cpu",
     [](Call& c) { c.options.stream = &c; }},
    {"a_device_that_does_not_exist", Error::device, "v.device: 9 is none of cpu, cuda",
     [](Call& c) { c.inputs.v.device = static_cast<Device>(9); }},
    {"a_dtype_that_does_not_exist", Error::dtype, "q.dtype: 7 is none of f32, f16, bf16, f64",
     [](Call& c) { c.inputs.q.dtype = static_cast<DType>(7); }},
    {"keys_of_another_dtype", Error::dtype, "k.dtype: f16 is not q.dtype: f32",
     [](Call& c) { c.inputs.k.dtype = DType::f16; }},
    {"values_of_another_dtype", Error::dtype, "v.dtype: bf16 is not q.dtype: f32",
     [](Call& c) { c.inputs.v.dtype = DType::bf16; }},
    {"a_result_narrower_than_the_queries", Error::dtype, "out.dtype: bf16 is neither q.dtype: f32 nor f32",
     [](Call& c) { c.outputs.out.dtype = DType::bf16; }},
    {"a_result_of_the_other_half_format", Error::dtype, "out.dtype: f16 is neither q.dtype: bf16 nor f32",
     [](Call& c) {
       c.use_dtype(DType::bf16);
       c.outputs.out.dtype = DType::f16;
     }},
    {"weights_of_another_dtype", Error::dtype, "weights.dtype: f16 is neither q.dtype: f32 nor f32",
     [](Call& c) { c.outputs.weights = c.place({2, 8, 4, 9}, DType::f16); }},
    {"scores_of_another_dtype", Error::dtype, "scores.into.dtype: f16 is neither q.dtype: f32 nor f32",
     [](Call& c) { c.outputs.scores.into = c.place({2, 8, 4, 9}, DType::f16); }},
    {"a_log_sum_exp_that_is_not_f32", Error::dtype, "log_sum_exp.dtype: bf16 is not f32",
     [](Call& c) {
       c.use_dtype(DType::bf16);
       c.outputs.log_sum_exp = c.place({2, 8, 4, 1}, DType::bf16);
     }},
    {"a_bias_of_another_dtype", Error::dtype, "options.bias.dtype: f16 is neither q.dtype: bf16 nor f32",
     [](Call& c) {
       c.use_dtype(DType::bf16);
       c.options.bias = c.place({1, 1, 4, 9}, DType::f16);
     }},
    {"a_sink_of_another_dtype", Error::dtype, "options.sink.dtype: bf16 is neither q.dtype: f32 nor f32",
     [](Call& c) { c.options.sink = c.place({1, 8, 1, 1}, DType::bf16); }},
};

INSTANTIATE_TEST_SUITE_P(ExtentsAndStrides, BadCalls, testing::ValuesIn(bad_extents_and_strides), claim_of);
INSTANTIATE_TEST_SUITE_P(Data, BadCalls, testing::ValuesIn(bad_data), claim_of);
INSTANTIATE_TEST_SUITE_P(DevicesAndDtypes, BadCalls, testing::ValuesIn(bad_devices_and_dtypes), claim_of);

}  // namespace
}  // namespace heed
