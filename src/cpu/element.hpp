// SPDX-License-Identifier: Apache-2.0
// From a DType to its C++ type: calls `body` with a pointer of that type, so a loop is written once for all
// three.
#pragma once
#include "heed/half.hpp"
#include "heed/tensor.hpp"

namespace heed::cpu {

template <class Body>
void with_elements(const View& x, Body&& body) {
  switch (x.dtype) {
    case DType::f32:
      return body(static_cast<const float*>(x.data));
    case DType::f16:
      return body(static_cast<const f16*>(x.data));
    case DType::bf16:
      return body(static_cast<const bf16*>(x.data));
  }
}

template <class Body>
void with_elements(const MutableView& x, Body&& body) {
  with_elements(static_cast<View>(x), [&]<class T>(const T*) { body(static_cast<T*>(x.data)); });
}

constexpr std::int64_t offset(const Strides& stride, const Shape& at) {
  return at.batch * stride.batch + at.heads * stride.heads + at.length * stride.length + at.dim * stride.dim;
}

// Calls body(at) for every index, the last axis fastest.
template <class Body>
void for_each_index(const Shape& shape, Body&& body) {
  for (std::int64_t b = 0; b < shape.batch; ++b)
    for (std::int64_t h = 0; h < shape.heads; ++h)
      for (std::int64_t i = 0; i < shape.length; ++i)
        for (std::int64_t d = 0; d < shape.dim; ++d) body(Shape{b, h, i, d});
}

}  // namespace heed::cpu
