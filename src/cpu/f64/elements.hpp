// SPDX-License-Identifier: Apache-2.0
// Elements of any type as f64, for the drivers; kernels have their own (cpu/f64/attend.hpp). Writing rounds
// to f32 first, then to the type, as the reference does.
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "heed/half.hpp"

namespace heed::cpu {

inline double read_element(const Tensor& t, std::int64_t e) {
  switch (t.type) {
    case Type::f64:
      return static_cast<const double*>(t.data)[e];
    case Type::f16:
      return to_float(static_cast<const f16*>(t.data)[e]);
    case Type::bf16:
      return to_float(static_cast<const bf16*>(t.data)[e]);
    default:
      return static_cast<const float*>(t.data)[e];
  }
}

inline void write_element(const Tensor& t, std::int64_t e, double x) {
  void* const data = const_cast<void*>(t.data);
  switch (t.type) {
    case Type::f64:
      static_cast<double*>(data)[e] = x;
      return;
    case Type::f16:
      static_cast<f16*>(data)[e] = from_float<f16>(static_cast<float>(x));
      return;
    case Type::bf16:
      static_cast<bf16*>(data)[e] = from_float<bf16>(static_cast<float>(x));
      return;
    default:
      static_cast<float*>(data)[e] = static_cast<float>(x);
  }
}

}  // namespace heed::cpu
