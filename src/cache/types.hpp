// SPDX-License-Identifier: Apache-2.0
// Elements of tensors as a cache holds them, and the other way round.
#pragma once
#include "heed/dtype.hpp"

namespace heed::cache {

constexpr CacheType type_of(DType dtype) {
  return dtype == DType::f32 ? CacheType::f32 : dtype == DType::f16 ? CacheType::f16 : CacheType::bf16;
}

// Integers come out times their scales.
constexpr DType dtype_of(CacheType type) {
  return type == CacheType::f16 ? DType::f16 : type == CacheType::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace heed::cache
