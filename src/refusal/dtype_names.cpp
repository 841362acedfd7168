// SPDX-License-Identifier: Apache-2.0
// The names of the element types, as sentences and files spell them.
#include "heed/dtype.hpp"

namespace heed::inline v0_2 {

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
  }
  return "unknown";
}

const char* name_of(CacheType type) {
  switch (type) {
    case CacheType::f32:
      return "f32";
    case CacheType::f16:
      return "f16";
    case CacheType::bf16:
      return "bf16";
    case CacheType::int8:
      return "int8";
  }
  return "unknown";
}

}  // namespace heed::inline v0_2
