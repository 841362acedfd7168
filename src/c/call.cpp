// SPDX-License-Identifier: Apache-2.0
// Views, masks and calls of c.h as those of C++.
#include "c/call.hpp"

#include <cstddef>
#include <limits>

#include "c/status.hpp"
#include "c/structs.hpp"

namespace heed::c {
namespace {

constexpr std::array dtypes{
    Choice<DType>{HEED_DTYPE_F32, "HEED_DTYPE_F32", DType::f32},
    Choice<DType>{HEED_DTYPE_F16, "HEED_DTYPE_F16", DType::f16},
    Choice<DType>{HEED_DTYPE_BF16, "HEED_DTYPE_BF16", DType::bf16},
    Choice<DType>{HEED_DTYPE_F64, "HEED_DTYPE_F64", DType::f64},
};
constexpr std::array devices{
    Choice<Device>{HEED_DEVICE_CPU, "HEED_DEVICE_CPU", Device::cpu},
    Choice<Device>{HEED_DEVICE_CUDA, "HEED_DEVICE_CUDA", Device::cuda},
};

using StridesOf = Strides (*)(const heed_shape&, const heed_strides&);
constexpr Shape to_shape(const heed_shape& s) { return {s.batch, s.heads, s.length, s.dim}; }
constexpr std::array layouts{
    Choice<StridesOf>{HEED_LAYOUT_BHSD, "HEED_LAYOUT_BHSD",
                      [](const heed_shape& s, const heed_strides&) { return bhsd(to_shape(s)); }},
    Choice<StridesOf>{HEED_LAYOUT_BSHD, "HEED_LAYOUT_BSHD",
                      [](const heed_shape& s, const heed_strides&) { return bshd(to_shape(s)); }},
    Choice<StridesOf>{
        HEED_LAYOUT_STRIDED, "HEED_LAYOUT_STRIDED",
        [](const heed_shape&, const heed_strides& s) { return Strides{s.batch, s.heads, s.length, s.dim}; }},
};

template <class Axes>
bool has_any(const Axes& a) {
  return a.batch || a.heads || a.length || a.dim;
}

template <class CView>
bool says_anything(const CView& view) {
  return view.data || has_any(view.shape) || has_any(view.stride) || view.layout || view.device;
}

template <class CView>
Strides to_strides(const char* name, const CView& view) {
  const heed_strides& s = view.stride;
  if (view.layout != HEED_LAYOUT_STRIDED && has_any(s))
    throw refusal(Error::ambiguous, name, ".stride: given, but layout is not HEED_LAYOUT_STRIDED");
  return choose(name, "layout", view.layout, layouts)(view.shape, s);
}

template <class CppView, class CView>
CppView number_view(const char* name, const CView& view) {
  if (!is_given(view)) throw refusal(Error::value, name, ": not given; all of it is 0");
  const Strides stride = to_strides(name, view);
  check_reserved(name, view.reserved);
  const DType dtype = choose(name, "dtype", view.dtype, dtypes);
  const Device device = choose(name, "device", view.device, devices);
  return {view.data, to_shape(view.shape), stride, dtype, device};
}

template <class Numbers>
auto span_of(const char* name, const Numbers& numbers) {
  constexpr std::size_t most = std::numeric_limits<std::ptrdiff_t>::max() / sizeof *numbers.data;
  if (numbers.count != 0 && !numbers.data)
    throw refusal(Error::value, name, ".data: NULL, but the count is ", numbers.count);
  if (numbers.count > most)
    throw refusal(Error::value, name, ".count: ", numbers.count, " numbers are more than any memory holds");
  if (reinterpret_cast<std::uintptr_t>(numbers.data) % sizeof *numbers.data != 0)
    throw refusal(Error::value, name, ".data: the address is not a multiple of the element's ",
                  std::int64_t{sizeof *numbers.data}, " bytes");
  return std::span(numbers.data, numbers.count);
}

}  // namespace

bool is_given(const heed_view& view) { return says_anything(view) || view.dtype || view.reserved; }
bool is_given(const heed_mutable_view& view) { return says_anything(view) || view.dtype || view.reserved; }
bool is_given(const heed_bool_view& view) { return says_anything(view); }

void check_reserved(const char* name, std::int32_t reserved) {
  if (reserved != 0)
    throw refusal(Error::unsupported, name, ".reserved: ", std::int64_t{reserved}, " is not 0");
}

heed_dtype from_dtype(DType dtype) { return number_of(dtype, dtypes); }

View to_view(const char* name, const heed_view& view) { return number_view<View>(name, view); }

MutableView to_view(const char* name, const heed_mutable_view& view) {
  return number_view<MutableView>(name, view);
}

BoolView to_view(const char* name, const heed_bool_view& view) {
  if (!is_given(view)) throw refusal(Error::value, name, ": not given; all of it is 0");
  const Strides stride = to_strides(name, view);
  return {view.data, to_shape(view.shape), stride, choose(name, "device", view.device, devices)};
}

Optional<View> to_optional(const char* name, const heed_view& view) {
  return is_given(view) ? Optional<View>(to_view(name, view)) : Optional<View>();
}

Optional<MutableView> to_optional(const char* name, const heed_mutable_view& view) {
  return is_given(view) ? Optional<MutableView>(to_view(name, view)) : Optional<MutableView>();
}

std::span<const std::int64_t> to_span(const char* name, const heed_int64s& numbers) {
  return span_of(name, numbers);
}
std::span<const std::int32_t> to_span(const char* name, const heed_int32s& numbers) {
  return span_of(name, numbers);
}
std::span<const float> to_span(const char* name, const heed_floats& numbers) {
  return span_of(name, numbers);
}

namespace {

std::optional<Align> take_align(heed_mask& mask) { return to_align("", "align", take(mask.align)); }

BoolView take_where(heed_mask& mask) { return to_view(".where", take(mask.where)); }

using MakeMask = Mask (*)(heed_mask&);
constexpr std::array kinds{
    Choice<MakeMask>{HEED_MASK_CAUSAL, "HEED_MASK_CAUSAL",
                     [](heed_mask& m) -> Mask { return Causal{take_align(m)}; }},
    Choice<MakeMask>{HEED_MASK_WINDOW, "HEED_MASK_WINDOW",
                     [](heed_mask& m) -> Mask {
                       return Window{take(m.left), take(m.right), take_align(m), take(m.front)};
                     }},
    Choice<MakeMask>{HEED_MASK_KEY_LENGTHS, "HEED_MASK_KEY_LENGTHS",
                     [](heed_mask& m) -> Mask { return KeyLengths{to_span(".valid", take(m.valid))}; }},
    Choice<MakeMask>{HEED_MASK_KEEP, "HEED_MASK_KEEP",
                     [](heed_mask& m) -> Mask { return Keep{take_where(m)}; }},
    Choice<MakeMask>{HEED_MASK_HIDE, "HEED_MASK_HIDE",
                     [](heed_mask& m) -> Mask { return Hide{take_where(m)}; }},
    Choice<MakeMask>{HEED_MASK_TREE, "HEED_MASK_TREE",
                     [](heed_mask& m) -> Mask { return Tree{take_where(m)}; }},
    Choice<MakeMask>{HEED_MASK_DOCUMENT, "HEED_MASK_DOCUMENT",
                     [](heed_mask& m) -> Mask {
                       return Document{.ids = to_span(".ids", take(m.ids)),
                                       .align = take_align(m),
                                       .query_ids = to_span(".query_ids", take(m.query_ids))};
                     }},
};

void check_nothing_left(const heed_mask& mask) {
  const auto& [kind, align, left, right, front, valid, where, ids, query_ids] = mask;
  if (align || left || right || front || are_given(valid) || is_given(where) || are_given(ids) ||
      are_given(query_ids))
    throw something_left(kind);
}

Mask to_mask(heed_mask mask) {
  const Mask made = choose("", "kind", mask.kind, kinds)(mask);
  check_nothing_left(mask);
  return made;
}

}  // namespace

std::optional<Align> to_align(const char* name, const char* field, heed_align number) {
  constexpr std::array aligns{
      Choice<std::optional<Align>>{0, "0", std::nullopt},
      Choice<std::optional<Align>>{HEED_ALIGN_STARTS, "HEED_ALIGN_STARTS", Align::starts},
      Choice<std::optional<Align>>{HEED_ALIGN_ENDS, "HEED_ALIGN_ENDS", Align::ends},
  };
  return choose(name, field, number, aligns);
}

void add_masks(const heed_masks& masks, Options& options) {
  if (masks.count == 0) return;
  check_pointer("options.masks.data", masks.data);
  constexpr std::size_t max_bytes = std::numeric_limits<std::ptrdiff_t>::max();
  if (masks.size > 0 && masks.count > max_bytes / masks.size)
    throw refusal(Error::value, "options.masks.count: ", masks.count,
                  " masks are more than any memory holds");
  const auto* bytes = reinterpret_cast<const std::byte*>(masks.data);
  for (std::size_t i = 0; i < masks.count; ++i) {
    const heed_mask mask = read_known<heed_mask>("options.masks", bytes + i * masks.size, masks.size);
    const auto made = [&] { return to_mask(mask); };
    options.masks.push_back(qualified(made, "options.masks[", static_cast<std::int64_t>(i), "]"));
  }
}

namespace {

constexpr std::array head_maps{
    Choice<HeadMap>{HEED_HEAD_MAP_INTERLEAVED, "HEED_HEAD_MAP_INTERLEAVED", HeadMap::interleaved},
    Choice<HeadMap>{HEED_HEAD_MAP_TILED, "HEED_HEAD_MAP_TILED", HeadMap::tiled},
};
constexpr std::array stages{
    Choice<Stage>{HEED_STAGE_RAW, "HEED_STAGE_RAW", Stage::raw},
    Choice<Stage>{HEED_STAGE_SOFTCAPPED, "HEED_STAGE_SOFTCAPPED", Stage::softcapped},
    Choice<Stage>{HEED_STAGE_BIASED, "HEED_STAGE_BIASED", Stage::biased},
};

// A cache stands for k and v; who gives them all the same is told so by attention().
View keys_or_values(const char* name, const heed_view& view, const heed_cache* cache) {
  return cache && !is_given(view) ? View() : to_view(name, view);
}

// A number that is a field of floats and one of doubles, `name`_f64: the one of them that is not 0.
double one_of(const char* name, float f32, double f64, const char* of = "") {
  if (f32 != 0 && f64 != 0)
    throw refusal(Error::ambiguous, "options.", of, name, ": ", f32, " is given, and so is ", name,
                  "_f64: ", f64, "; one of them must be 0");
  return f64 != 0 ? f64 : f32;
}

std::optional<double> to_scale(const heed_options& options) {
  const double scale = one_of("scale", options.scale, options.scale_f64);
  if (to_flag("options.has_scale", options.has_scale)) return scale;
  if (scale != 0) throw refusal(Error::ambiguous, "options.scale: ", scale, " is given, but has_scale is 0");
  return std::nullopt;
}

// To C++ no name is no wish.
const char* to_kernel(const char* name) {
  if (*name == '\0') throw refusal(Error::unsupported, "options.kernel: \"\" is not a kernel of this build");
  return name;
}

}  // namespace

Inputs to_inputs(const heed_inputs* given) {
  const heed_inputs in = read_known("inputs", given);
  Inputs inputs;
  inputs.q = to_view("q", in.q);
  inputs.k = keys_or_values("k", in.k, in.cache);
  inputs.v = keys_or_values("v", in.v, in.cache);
  if (in.cache) inputs.cache = &in.cache->cache;
  inputs.sequences = to_span("inputs.sequences", in.sequences);
  inputs.query_starts = to_span("query_starts", in.query_starts);
  inputs.key_starts = to_span("key_starts", in.key_starts);
  inputs.query_counts = to_span("query_counts", in.query_counts);
  return inputs;
}

Outputs to_outputs(const heed_outputs& o) {
  Outputs outputs{.out = to_view("out", o.out)};
  outputs.weights = to_optional("weights", o.weights);
  outputs.log_sum_exp = to_optional("log_sum_exp", o.log_sum_exp);
  outputs.scores.into = to_optional("scores.into", o.scores.into);
  outputs.scores.stage = choose("scores", "stage", o.scores.stage, stages);
  check_reserved("scores", o.scores.reserved);
  return outputs;
}

Options to_options(const heed_options* given) {
  const heed_options o = read_known_or_defaults("options", given);
  Options options;
  add_masks(o.masks, options);
  options.bias = to_optional("options.bias", o.bias);
  const std::optional<Align> align = to_align("options", "alibi_align", o.alibi_align);
  if (o.alibi_slopes.count > 0)
    options.alibi = Alibi{to_span("options.alibi_slopes", o.alibi_slopes), align};
  else if (align)
    throw refusal(Error::value, "options.alibi_align: given, but alibi_slopes are not");
  options.scale = to_scale(o);
  if (const double softcap = one_of("softcap", o.softcap, o.softcap_f64); softcap != 0)
    options.softcap = softcap;
  options.sink = to_optional("options.sink", o.sink);
  check_reserved("options.dropout", o.dropout.reserved);
  if (const double p =
          one_of("drop_probability", o.dropout.drop_probability, o.drop_probability_f64, "dropout.");
      p != 0)
    options.dropout = Dropout{.drop_probability = p, .seed = o.dropout.seed};
  options.head_map = to_head_map("options", o.head_map);
  if (o.kernel) options.kernel = to_kernel(o.kernel);
  options.threads = o.threads;
  options.stream = o.stream;
  options.executor = o.executor;
  return options;
}

HeadMap to_head_map(const char* name, heed_head_map number) {
  return choose(name, "head_map", number, head_maps);
}

heed_head_map from_head_map(HeadMap map) { return number_of(map, head_maps); }

}  // namespace heed::c
