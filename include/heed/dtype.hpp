// SPDX-License-Identifier: Apache-2.0
// What the elements of tensors and caches are.
#pragma once
#include <cstddef>
#include <cstdint>

#include "heed/export.hpp"
#include "heed/version.hpp"

namespace HEED_NAMESPACE {

// f64 is taken by attention(), attention_backward(), merge() and check(), on the CPU and without a cache.
enum class DType : std::uint8_t { f32, f16, bf16, f64 };

constexpr std::size_t bytes_of(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }
HEED_API const char* name_of(DType);  // "f32", "f16", "bf16", "f64"

// int8: one f32 scale per token and head, for keys and for values, largest magnitude / 127. A stored element
// differs from the one given by at most half its scale, 2^-23 of the largest magnitude and 2^-143. NaN and
// infinities are refused.
enum class CacheType : std::uint8_t { f32, f16, bf16, int8 };

HEED_API const char* name_of(CacheType);  // "f32", "f16", "bf16", "int8"

}  // namespace HEED_NAMESPACE
