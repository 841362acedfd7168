// SPDX-License-Identifier: Apache-2.0
#include "c/views.hpp"

#include <cstddef>
#include <limits>

#include "c/choice.hpp"

namespace heed::c {
namespace {

constexpr std::array dtypes{
    Choice<DType>{HEED_DTYPE_F32, "HEED_DTYPE_F32", DType::f32},
    Choice<DType>{HEED_DTYPE_F16, "HEED_DTYPE_F16", DType::f16},
    Choice<DType>{HEED_DTYPE_BF16, "HEED_DTYPE_BF16", DType::bf16},
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

}  // namespace heed::c
