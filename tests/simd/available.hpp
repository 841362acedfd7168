// SPDX-License-Identifier: Apache-2.0
// The vector types that are compiled in, and those among them that this machine can run.
#pragma once
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cpu/isa/target.hpp"
#include "simd/operations.hpp"

namespace heed::simd {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

extern const Operations scalar_operations;
#if defined(HEED_EMULATES_X86)  // tests/emulated
extern const Operations avx512_operations;
#elif defined(__aarch64__)
extern const Operations neon_operations;
#elif defined(__x86_64__)
extern const Operations avx2_operations, avx512_operations;
#elif defined(__wasm__)
extern const Operations wasm_operations;
#endif

inline std::vector<const Operations*> compiled() {
  return {
#if defined(HEED_EMULATES_X86)
      &avx512_operations,
#elif defined(__aarch64__)
      &neon_operations,
#elif defined(__x86_64__)
      &avx512_operations,
      &avx2_operations,
#elif defined(__wasm__)
      &wasm_operations,
#endif
      &scalar_operations,
  };
}

// The library's own target of that name; null if the tests know a vector type that the library does not.
inline const cpu::Target* target_of(const Operations& operations) {
  for (const cpu::Target* target : cpu::targets())
    if (std::string(target->name) == operations.target) return target;
  return nullptr;
}

inline std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }
inline float from_bits(std::uint32_t x) { return std::bit_cast<float>(x); }
inline bool is_nan(float x) { return (bits(x) & 0x7fffffffu) > 0x7f800000u; }
inline bool same(float a, float b) { return bits(a) == bits(b) || (is_nan(a) && is_nan(b)); }

// A claim about one vector type, skipped where the machine lacks its instructions.
class Simd : public testing::TestWithParam<const Operations*> {
 protected:
  void SetUp() override {
    const cpu::Target* target = target_of(vector());
    ASSERT_NE(target, nullptr) << vector().target << " is no target of the library";
    if (!target->available()) GTEST_SKIP() << "this machine lacks " << target->requires_;
  }
  static const Operations& vector() { return *GetParam(); }
};

inline std::string target_name(const testing::TestParamInfo<const Operations*>& info) {
  return info.param->target;
}

}  // namespace heed::simd
