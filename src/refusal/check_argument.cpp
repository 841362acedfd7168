// SPDX-License-Identifier: Apache-2.0
// What must hold of every array by itself, before anything is computed from its extents.
#include <algorithm>
#include <cstdint>

#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"

namespace heed::refusing {
namespace {

// Every call measures every array, so one pass finds all that can be wrong with extents and strides.
struct Measured {
  bool has_negative, is_too_long;
};

// Too long: elements * bytes, or the reach of the strides, beyond longest_reach. Empty axes count as one
// entry, so that sums and products of extents are safe everywhere, in an empty array as well.
Measured measure(const Argument& a) {
  bool is_negative = false, overflows = false;
  std::int64_t bytes = a.element_bytes, reach = a.element_bytes;
  const auto add_axis = [&](std::int64_t extent, std::int64_t stride) {
    if (extent == 1) return;
    is_negative |= extent < 0 || (extent > 1 && stride < 0);
    if (extent < 1) return;
    std::int64_t step = 0;
    overflows |=
        __builtin_mul_overflow(bytes, extent, &bytes) || __builtin_mul_overflow(extent - 1, stride, &step) ||
        __builtin_mul_overflow(step, a.element_bytes, &step) || __builtin_add_overflow(reach, step, &reach);
  };
  add_axis(a.shape.batch, a.stride.batch);
  add_axis(a.shape.heads, a.stride.heads);
  add_axis(a.shape.length, a.stride.length);
  add_axis(a.shape.dim, a.stride.dim);
  std::uintptr_t end = 0;
  overflows |= __builtin_add_overflow(reinterpret_cast<std::uintptr_t>(a.data),
                                      static_cast<std::uintptr_t>(reach), &end);
  return {is_negative, overflows || bytes > longest_reach || reach > longest_reach};
}

Error too_long(const Argument& a) {
  return refusal(Error::shape, a.name, ": shape ", a.shape, " with strides ", a.stride,
                 " reaches beyond any memory");
}

[[gnu::cold]] Error negative(const Argument& a) {
  const Axes extent = axes(a.shape), stride = axes(a.stride);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] < 0)
      return refusal(Error::shape, a.name, ".", axis_names[i], ": ", extent[i], " is negative");
  std::size_t i = 0;
  while (extent[i] <= 1 || stride[i] >= 0) ++i;
  return refusal(Error::shape, a.name, ".stride.", axis_names[i], ": ", stride[i], " is negative",
                 stride[i] == Strides::not_given ? ", or was not given" : "");
}

void check_kind(const Argument& a) {
  if (*a.dtype > DType::bf16)
    throw refusal(Error::dtype, a.name, ".dtype: ", static_cast<std::int64_t>(*a.dtype),
                  " is none of f32, f16, bf16");
}

void check_held(const Argument& a) {
  if (a.held == elements::Held::unknown) return;
  const std::int64_t reached = reach_bytes(a) / a.element_bytes;
  if (reached > a.held)
    throw refusal(Error::shape, a.name, ": shape ", a.shape, " with strides ", a.stride, " reaches over ",
                  reached, " elements, but there are ", a.held);
}

}  // namespace

void check_argument(const Argument& a) {
  if (a.dtype) check_kind(a);
  if (a.device > Device::cuda) throw unknown_device(a.name, a.device);
  const auto [has_negative, is_too_long] = measure(a);
  if (has_negative) throw negative(a);
  if (is_too_long) throw too_long(a);
  if (a.empty()) return;
  if (!a.is_given()) throw refusal(Error::value, a.name, ": not given");
  check_held(a);
  if (a.data == nullptr) throw refusal(Error::value, a.name, ".data: null, but the shape is ", a.shape);
  // Kernels read through pointers to the element type, which an odd address would make undefined.
  if (reinterpret_cast<std::uintptr_t>(a.data) % static_cast<std::uintptr_t>(a.element_bytes) != 0)
    throw refusal(Error::value, a.name, ".data: the address is not a multiple of the element's ",
                  a.element_bytes, " bytes");
}

void check_device(const Argument& a, const char* name, Device wanted) {
  if (a.device != wanted)
    throw refusal(Error::device, a.name, ".device: ", a.device, " is not ", name, ": ", wanted);
}

}  // namespace heed::refusing

namespace heed::inline v0_2 {

void check_view(const char* name, const View& x) { check_argument({name, x}); }
void check_view(const char* name, const BoolView& x) { check_argument({name, x}); }

}  // namespace heed::inline v0_2
