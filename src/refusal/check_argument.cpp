// SPDX-License-Identifier: Apache-2.0
// What must hold of every array by itself, before anything is computed from its extents.
#include <algorithm>
#include <cstdint>

#include "refusal/argument.hpp"
#include "refusal/refusal.hpp"

namespace heed::refusing {
namespace {

// elements * bytes and the reach of the strides, each at most longest_reach. Empty axes count as one entry,
// so that sums and products of extents are safe everywhere, in an empty array as well.
bool is_too_long(const Argument& a) {
  const Axes extent = axes(a.shape), stride = axes(a.stride);
  std::int64_t bytes = a.element_bytes, reach = a.element_bytes;
  for (std::size_t i = 0; i < extent.size(); ++i) {
    const std::int64_t entries = std::max<std::int64_t>(extent[i], 1);
    std::int64_t step = 0;
    if (__builtin_mul_overflow(bytes, entries, &bytes)) return true;
    if (entries > 1 &&
        (__builtin_mul_overflow(entries - 1, stride[i], &step) ||
         __builtin_mul_overflow(step, a.element_bytes, &step) || __builtin_add_overflow(reach, step, &reach)))
      return true;
  }
  std::uintptr_t end = 0;
  return bytes > longest_reach || reach > longest_reach ||
         __builtin_add_overflow(reinterpret_cast<std::uintptr_t>(a.data), static_cast<std::uintptr_t>(reach),
                                &end);
}

Error too_long(const Argument& a) {
  return refusal(Error::shape, a.name, ": shape ", a.shape, " with strides ", a.stride,
                 " reaches beyond any memory");
}

bool has_negative(const Argument& a) {
  const Axes extent = axes(a.shape), stride = axes(a.stride);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] < 0 || (extent[i] > 1 && stride[i] < 0)) return true;
  return false;
}

}  // namespace

void check_argument(const Argument& a) {
  const Axes extent = axes(a.shape), stride = axes(a.stride);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] < 0)
      throw refusal(Error::shape, a.name, ".", axis_names[i], ": ", extent[i], " is negative");
  for (std::size_t i = 0; i < extent.size(); ++i) {
    const bool has_neighbours = extent[i] > 1;
    if (has_neighbours && stride[i] < 0)
      throw refusal(Error::shape, a.name, ".stride.", axis_names[i], ": ", stride[i], " is negative",
                    stride[i] == Strides::not_given ? ", or was not given" : "");
  }
  if (is_too_long(a)) throw too_long(a);
  if (a.empty()) return;
  if (a.data == nullptr) throw refusal(Error::value, a.name, ".data: null, but the shape is ", a.shape);
  // Kernels read through pointers to the element type, which an odd address would make undefined.
  if (reinterpret_cast<std::uintptr_t>(a.data) % static_cast<std::uintptr_t>(a.element_bytes) != 0)
    throw refusal(Error::value, a.name, ".data: the address is not a multiple of the element's ",
                  a.element_bytes, " bytes");
}

void check_view(const char* name, const View& view) {
  if (view.dtype > DType::bf16)
    throw refusal(Error::dtype, name, ".dtype: ", static_cast<std::int64_t>(view.dtype),
                  " is none of f32, f16, bf16");
  if (view.device == Device::cuda)
    throw refusal(Error::device, name, ".device: cuda, but this build has no CUDA backend");
  if (view.device != Device::cpu)
    throw refusal(Error::device, name, ".device: ", static_cast<std::int64_t>(view.device),
                  " is none of cpu, cuda");
  check_argument({name, view});
}

}  // namespace heed::refusing

namespace heed::inline v0_2 {

void check_holds(std::size_t held, const Shape& shape, const Strides& stride) {
  const float* nowhere = nullptr;
  const Argument a("view", View(nowhere, shape, stride));
  if (a.empty() || has_negative(a)) return;  // the call that is given the view names it
  if (is_too_long(a)) throw too_long(a);
  const std::int64_t reached = reach_bytes(a) / a.element_bytes;
  if (static_cast<std::uint64_t>(reached) > held)
    throw refusal(Error::shape, "view: shape ", shape, " with strides ", stride, " reaches over ", reached,
                  " elements, but there are ", static_cast<std::int64_t>(held));
}

}  // namespace heed::inline v0_2
